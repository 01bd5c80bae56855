//! Processes and the vNICs that they are in: who they are (`identity.rs`), the rows of the tables
//! (`session.rs`, `vnic.rs`), how a session begins (`hello.rs`), how fast it may be told what it
//! did not ask for (`pace.rs`). Of a session: its regions (`mr.rs`, `regions.rs`), questions for
//! pages that it has not answered (`pending_questions.rs`), what it was told to take back
//! (`taken_back.rs`).

mod hello;
pub(crate) mod identity;
pub(crate) mod mr;
mod pace;
pub(crate) mod pending_questions;
pub(crate) mod regions;
pub(crate) mod session;
pub(crate) mod taken_back;
pub(crate) mod vnic;
