//! Scaffolding: what tests and fuzzers call. Not in products.

pub mod fuzz_entry_points;
