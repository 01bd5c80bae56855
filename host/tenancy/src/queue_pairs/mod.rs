//! Keeps queue pairs (`queue_pair.rs`, `queue_pair_table.rs`) and their wishes (`peer_wishes.rs`).
//!
//! The table has numbers (`qp_numbers.rs`), proofs that one was given (`tickets.rs`), and the queue
//! pairs that wish for another (`wishes_by_peer.rs`).

mod peer_wishes;
pub(crate) mod qp_numbers;
pub(crate) mod queue_pair;
pub(crate) mod queue_pair_table;
pub(crate) mod tickets;
mod wishes_by_peer;
