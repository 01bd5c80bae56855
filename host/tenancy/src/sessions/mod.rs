//! Keeps processes and the vNICs that they are in.
//!
//! Of both: identity (`vnic_identity.rs`), rows of the tables (`session.rs`, `vnic_members.rs`),
//! the beginning of a session (`hello.rs`), how fast it gets unasked events
//! (`event_backpressure.rs`). Of a session: its regions (`memory_region.rs`, `regions.rs`),
//! questions for pages that it has not answered (`unanswered_page_questions.rs`), extents that it
//! was told to take back (`revocations_caused_by_peers.rs`).

mod event_backpressure;
mod hello;
pub(crate) mod memory_region;
pub(crate) mod regions;
pub(crate) mod revocations_caused_by_peers;
pub(crate) mod session;
pub(crate) mod unanswered_page_questions;
pub(crate) mod vnic_identity;
pub(crate) mod vnic_members;
