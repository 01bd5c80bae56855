//! See [`omniverb_fuzz::transport_connection`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::transport_connection(bytes));
