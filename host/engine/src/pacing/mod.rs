//! Limits and schedules work: rates, turns, windows.
//!
//! Time is an argument.

pub(crate) mod fair_schedule;
pub(crate) mod multicast_copy_budget;
pub(crate) mod per_sender_budget;
