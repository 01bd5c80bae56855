//! Queue pairs: what one is (`queue_pair.rs`) and all of them (`table.rs`). Of the table's: numbers
//! (`numbers.rs`), what proves that one was given (`tickets.rs`), who wishes for whom
//! (`wishers.rs`).

pub(crate) mod numbers;
pub(crate) mod queue_pair;
pub(crate) mod table;
pub(crate) mod tickets;
mod wishers;
