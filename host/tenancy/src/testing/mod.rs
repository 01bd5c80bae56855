//! A daemon that is played, what the others in it believe, and arbitrary bytes to drive it with:
//! for the tests here and for fuzzing. No product uses it.

mod connecting;
pub mod counting;
pub mod exercise;
pub mod mirror;
pub mod packed;
mod tickets;
