//! What all tenants share, and who yields: the largest holder makes way (`holders.rs`, and for the
//! rows of a table `shared.rs`), everybody has a turn (`turns.rs`).

pub(crate) mod holders;
pub(crate) mod shared;
pub(crate) mod turns;
