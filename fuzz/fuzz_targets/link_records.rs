//! See [`omniverb_fuzz::link_records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::link_records(bytes));
