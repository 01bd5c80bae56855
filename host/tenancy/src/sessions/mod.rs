//! Processes and the vNICs that they are in: who they are (`identity.rs`), the rows of the tables
//! (`session.rs`, `vnic.rs`), how a session begins (`hello.rs`), how fast it may be told what it
//! did not ask for (`pace.rs`).

mod hello;
pub(crate) mod identity;
mod pace;
pub(crate) mod session;
pub(crate) mod vnic;
