//! Scaffolding: what tests and fuzzers drive the engine with. Not in products.

pub mod fuzz;
#[cfg(test)]
mod two_queue_pairs;
