//! See [`omniverb_fuzz::session_decode`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::session_decode(bytes));
