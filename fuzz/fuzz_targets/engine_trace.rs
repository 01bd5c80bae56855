//! See [`omniverb_fuzz::engine_trace`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::engine_trace(bytes));
