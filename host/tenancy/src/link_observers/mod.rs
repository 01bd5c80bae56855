//! Keeps what watches links: the audit, and captures of vNICs (`captured_vnics.rs`).

mod captured_vnics;

pub(crate) use captured_vnics::Captures;

/// Watches links as they are made and end, and the traffic on them.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    pub(crate) captures: Captures,
    /// The audit gets every link that is made and that ends.
    audited: bool,
}

impl Observers {
    /// The audit gets links from now on.
    pub(crate) fn begin_audit(&mut self) {
        self.audited = true;
    }

    /// Whether the audit gets links.
    pub(crate) fn has_audit(&self) -> bool {
        self.audited
    }

    /// No session has memory to write traces into.
    pub(crate) fn is_idle(&self) -> bool {
        self.captures.is_idle()
    }
}
