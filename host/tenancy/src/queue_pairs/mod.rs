//! Keeps queue pairs (`queue_pair.rs`, `queue_pair_table.rs`) and their wishes
//! (`desired_peers.rs`).
//!
//! The table has numbers (`qp_numbers.rs`), proofs that one was given
//! (`earlier_daemon_tickets.rs`), and the queue pairs that wish for another
//! (`queue_pairs_by_desired_peer.rs`).

mod desired_peers;
pub(crate) mod qp_number_tickets;
pub(crate) mod qp_numbers;
pub(crate) mod queue_pair;
pub(crate) mod queue_pair_table;
mod queue_pairs_by_desired_peer;
