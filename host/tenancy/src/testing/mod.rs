//! Simulates a daemon and its peers, and drives the tables with arbitrary bytes: for the tests here
//! and for fuzzing. No product uses it.

mod cm_calls_from_bytes;
pub mod counting_entropy;
mod earlier_daemon_tickets;
pub mod packed_extent_layout;
pub mod peer_model;
pub mod random_driver;
