//! Simulates a daemon and its peers, and drives the tables with arbitrary bytes: for the tests here
//! and for fuzzing. No product uses it.

mod cm_calls;
pub mod counting_entropy;
pub mod packed_layout;
pub mod peer_model;
pub mod random_driver;
mod tickets;
