//! Queue pairs: what one is (`queue_pair.rs`), all of them (`table.rs`), how one is made and goes
//! (`making.rs`), and how those come back that outlived a daemon (`resume.rs`). Of the table's:
//! numbers (`numbers.rs`), what proves that one was given (`tickets.rs`), who wishes for whom
//! (`wishers.rs`).

mod making;
pub(crate) mod numbers;
pub(crate) mod queue_pair;
mod resume;
pub(crate) mod table;
pub(crate) mod tickets;
mod wishers;
