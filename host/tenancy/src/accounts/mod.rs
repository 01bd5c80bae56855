//! Charges quotas by receipts, which return the charge when they are dropped.
//!
//! Every row of the tables that a client causes has a [`Receipt`]: the row is stored with it, and
//! removing the row, in any way, drops it and so returns the charge. So no code counts down, and
//! the tables are empty of clients if no receipt is out ([`Account::receipts`] of the host's).
//!
//! Accounts lie below each other: a process's below its vNIC's, that below the host's. A charge to
//! one counts in all above it, all or nothing.

mod account;
mod quotas;

pub(crate) use account::{Account, Paid, Receipt};
pub(crate) use quotas::{Kind, Quotas};
