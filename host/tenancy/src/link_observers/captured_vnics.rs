//! Keeps which vNICs are captured, and which sessions have memory to write traces into.

use crate::row_keys::SessionId;
use omniverb_terms::VnicId;
use std::collections::BTreeSet;

/// The captured vNICs, and the sessions that write traces for that.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    vnics: BTreeSet<VnicId>,
    /// Sessions with memory to write traces into: told once when this begins, and once when it
    /// ends.
    tracing: BTreeSet<SessionId>,
}

impl Captures {
    /// Packets of this vNIC are captured from now on.
    pub(crate) fn add(&mut self, vnic: VnicId) {
        self.vnics.insert(vnic);
    }

    /// Packets of a vNIC are not captured any more.
    pub(crate) fn remove(&mut self, vnic: VnicId) {
        self.vnics.remove(&vnic);
    }

    /// Nothing is captured.
    pub(crate) fn is_off(&self) -> bool {
        self.vnics.is_empty()
    }

    /// Whether a link of these vNICs is traced.
    pub(crate) fn cover(&self, vnics: [VnicId; 2]) -> bool {
        vnics.iter().any(|vnic| self.vnics.contains(vnic))
    }

    /// Whether a session has memory to write traces into.
    pub(crate) fn is_tracing(&self, session: SessionId) -> bool {
        self.tracing.contains(&session)
    }

    /// A session gets memory to trace into.
    pub(crate) fn begin(&mut self, session: SessionId) {
        self.tracing.insert(session);
    }

    /// It has nothing to write any more.
    pub(crate) fn end(&mut self, session: SessionId) {
        self.tracing.remove(&session);
    }

    /// Those with such memory that are not among these.
    pub(crate) fn idle(&self, busy: &BTreeSet<SessionId>) -> Vec<SessionId> {
        self.tracing.difference(busy).copied().collect()
    }

    /// No session has memory to write traces into.
    pub(crate) fn is_idle(&self) -> bool {
        self.tracing.is_empty()
    }
}
