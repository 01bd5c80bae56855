//! Exposes functions for tests and fuzzers; no product uses it.

pub mod fuzz_entry_points;
