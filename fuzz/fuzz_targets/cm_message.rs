//! See [`omniverb_fuzz::cm_message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::cm_message(bytes));
