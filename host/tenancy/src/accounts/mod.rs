//! Charges quotas, and returns what was charged.
//!
//! Every row of the tables that somebody causes has a [`Receipt`]: the row is put into the tables
//! with what was charged for it, and whoever takes it out, on whatever way, returns that by
//! dropping it. So there is no place that counts down, and that nothing is left of anybody is one
//! question: no receipt is out ([`Account::receipts`] of the host's).
//!
//! Accounts lie below each other: a process's below its vNIC's, that below the host's. What is
//! charged to one is counted in all above it, all or nothing.

mod account;
mod quotas;

pub(crate) use account::{Account, Paid, Receipt};
pub(crate) use quotas::{Kind, Quotas};
