//! See [`omniverb_fuzz::wire_packet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::wire_packet(bytes));
