//! Queue pairs: what one is (`queue_pair.rs`), all of them (`table.rs`), and what they wish for
//! (`wishes.rs`). Of the table's: numbers (`numbers.rs`), what proves that one was given
//! (`tickets.rs`), which queue pairs wish for another (`wishers.rs`).

pub(crate) mod numbers;
pub(crate) mod queue_pair;
pub(crate) mod table;
pub(crate) mod tickets;
mod wishers;
mod wishes;
