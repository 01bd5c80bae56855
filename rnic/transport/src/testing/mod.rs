//! Scaffolding: what tests and fuzzers drive a connection with. Not in products.

pub mod fuzz_entry_points;
