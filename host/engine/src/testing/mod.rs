//! Drives the engine in tests and fuzzers; no product uses it.

pub mod fuzz;
#[cfg(test)]
mod two_queue_pairs;
