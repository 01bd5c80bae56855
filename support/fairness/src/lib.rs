//! Shares what all tenants use: the largest holder makes room, and every holder is served in turn.
//!
//! * [`Holders`] counts holdings along the path of their [`Holder`] and finds the one that yields.
//! * [`FairTable`] is a table whose rows are counted so.
//! * [`FairQueue`] serves what waits, one entry of each branch after the other.
#![forbid(unsafe_code)]

mod fair_queue;
mod fair_table;
mod largest_holder;

pub use fair_queue::FairQueue;
pub use fair_table::FairTable;
pub use largest_holder::{Holder, Holders};
