//! Calls the daemon by its operators' socket ([`Connection`]), and reads what its rows say of
//! counters ([`counter_rows`]).
//!
//! The command line, the agent and the daemon's own metrics are operators. Which daemon one trusts
//! each of them decides by [`Connection::owner`].
#![forbid(unsafe_code)]

mod connection;
pub mod counter_rows;

pub use connection::{CallError, Connection, each_row};
