//! Who may do how much, and when: limits, turns, windows. Time is an argument.

pub(crate) mod agenda;
pub(crate) mod bucket;
pub(crate) mod flow;
pub(crate) mod shares;
pub(crate) mod throttle;
