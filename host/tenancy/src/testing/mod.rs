//! A daemon that is played, what the others in it believe, and arbitrary bytes to drive it with:
//! for the tests here and for fuzzing. No product uses it.

mod cm_calls;
pub mod counting_entropy;
pub mod packed_layout;
pub mod peer_model;
pub mod random_driver;
mod tickets;
