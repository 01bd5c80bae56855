//! Queue pairs: what one is (`queue_pair.rs`), all of them (`queue_pair_table.rs`), and what they
//! wish for (`peer_wishes.rs`). Of the table's: numbers (`qp_numbers.rs`), what proves that one was
//! given (`tickets.rs`), which queue pairs wish for another (`wishes_by_peer.rs`).

mod peer_wishes;
pub(crate) mod qp_numbers;
pub(crate) mod queue_pair;
pub(crate) mod queue_pair_table;
pub(crate) mod tickets;
mod wishes_by_peer;
