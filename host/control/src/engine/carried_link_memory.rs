//! Keeps the memory of links that their processes carry, so that the engine can serve them later.
//!
//! All links of a process to the engine share one doorbell. Its memory is kept as well, since the
//! engine keeps none that has no link of its own.

use crate::link_memory::{Memory, Shared};
use omniverb_tenancy::{EngineEnd, SessionId};
use omniverb_terms::{Operations, Qpn};
use std::collections::BTreeMap;

/// A link to serve, its memory, and that of its doorbell if that is known.
type GivenLink = (EngineEnd, Memory, Option<Memory>);

/// The memory of all carried links, by their queue pairs. The tables bound how many there are.
#[derive(Debug, Default)]
pub(super) struct CarriedLinkMemory {
    links: BTreeMap<(Qpn, Qpn), (EngineEnd, Memory)>,
    /// The doorbells of processes, with their numbers.
    doorbells: BTreeMap<SessionId, (u64, Memory)>,
}

impl CarriedLinkMemory {
    /// Keeps that of a link.
    pub(super) fn keep(&mut self, end: &EngineEnd, shared: &Shared) {
        let link = (end.ready.qpn, end.ready.peer_qpn);
        self.links.insert(link, (end.clone(), shared.link.clone()));
    }

    /// Keeps that of a process's doorbell, if it is new.
    pub(super) fn keep_doorbell(&mut self, session: SessionId, number: u64, shared: &Shared) {
        if let Some(memory) = &shared.bell {
            self.doorbells.insert(session, (number, memory.clone()));
        }
    }

    /// A process is gone.
    pub(super) fn forget_doorbell(&mut self, session: SessionId) {
        self.doorbells.remove(&session);
    }

    /// The process of a link may not request these of its peer.
    pub(super) fn refuse(&mut self, link: (Qpn, Qpn), refused: Operations) {
        if let Some((end, _)) = self.links.get_mut(&link) {
            end.refused = refused;
        }
    }

    /// A link is no more.
    pub(super) fn forget(&mut self, link: (Qpn, Qpn)) {
        self.links.remove(&link);
    }

    /// Takes a link that the engine is to serve.
    pub(super) fn take(&mut self, link: (Qpn, Qpn)) -> Option<GivenLink> {
        let (end, memory) = self.links.remove(&link)?;
        let doorbell = self.doorbell(&end);
        Some((end, memory, doorbell))
    }

    /// That of the doorbell of a link, if it is known.
    pub(super) fn doorbell(&self, end: &EngineEnd) -> Option<Memory> {
        let (number, memory) = self.doorbells.get(&end.session)?;
        (*number == end.ready.bell).then(|| memory.clone())
    }
}
