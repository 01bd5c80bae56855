//! See [`omniverb_fuzz::broker`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::broker(bytes));
