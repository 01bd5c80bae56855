//! Drives the engine in tests and fuzzers; no product uses it.

pub mod fuzz_entry_points;
#[cfg(test)]
mod two_queue_pairs;
