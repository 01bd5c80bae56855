//! See [`omniverb_fuzz::ring_consumer`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| omniverb_fuzz::ring_consumer(bytes));
