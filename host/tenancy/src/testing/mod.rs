//! A daemon that is played, what the others in it believe, and arbitrary bytes to drive it with:
//! for the tests here and for fuzzing. No product uses it.

pub mod exercise;
pub mod mirror;
