//! Keeps the windows that virtual machines share with neighbours (`window_table.rs`).
//!
//! `window_assignment.rs` gives links places in them.

pub(crate) mod window_assignment;
pub(crate) mod window_table;
