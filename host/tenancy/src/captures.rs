//! Which vNICs are captured, and which sessions have memory to tell through what is captured.

use crate::ids::{SessionId, VnicId};
use std::collections::BTreeSet;

/// All captures.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    vnics: BTreeSet<VnicId>,
    /// A session is told once when this begins, and once when it ends.
    tracing: BTreeSet<SessionId>,
}

impl Captures {
    /// Packets of this vNIC are captured from now on, or no longer.
    pub(crate) fn set(&mut self, vnic: VnicId, on: bool) {
        if on {
            self.vnics.insert(vnic);
        } else {
            self.vnics.remove(&vnic);
        }
    }

    /// Nothing is captured.
    pub(crate) fn is_off(&self) -> bool {
        self.vnics.is_empty()
    }

    /// Whether a link of these vNICs is traced.
    pub(crate) fn cover(&self, vnics: [VnicId; 2]) -> bool {
        vnics.iter().any(|vnic| self.vnics.contains(vnic))
    }

    /// A session has something to tell. True: it has no memory for that yet.
    pub(crate) fn begin(&mut self, session: SessionId) -> bool {
        self.tracing.insert(session)
    }

    /// It has nothing to tell any more. True: it had memory for that.
    pub(crate) fn end(&mut self, session: SessionId) -> bool {
        self.tracing.remove(&session)
    }

    /// Those with memory that are not among these.
    pub(crate) fn idle(&self, busy: &BTreeSet<SessionId>) -> Vec<SessionId> {
        self.tracing.difference(busy).copied().collect()
    }

    /// Nobody has memory to tell through.
    pub(crate) fn is_idle(&self) -> bool {
        self.tracing.is_empty()
    }
}
