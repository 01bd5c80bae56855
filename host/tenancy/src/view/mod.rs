//! What others see of the tables: rows of `omniverb status` (`status.rs`), gone through from any
//! place on (`walk.rs`); lines of the audit (`audit.rs`); which links' packets are captured
//! (`captures.rs`, `capture.rs`).

mod audit;
mod capture;
mod captures;
pub(crate) mod status;
mod walk;

use captures::Captures;

/// Who looks at links as they come and go, and at what travels on them.
#[derive(Debug, Default)]
pub(crate) struct View {
    captures: Captures,
    /// The audit is told of every link that is made and that ends.
    audited: bool,
}

impl View {
    /// Nobody has memory to write traces into.
    pub(crate) fn is_idle(&self) -> bool {
        self.captures.is_idle()
    }
}
