//! Describes a link that this process carries, and what becomes of it.

use omniverb_link::{Doorbell, Endpoint, EndpointParts};
use omniverb_ring::{DoorbellPage, Window};
use omniverb_terms::Qpn;
use std::net::IpAddr;
use std::sync::Arc;

/// What wakes the engine for a link, and the link's bit in its page.
pub(crate) type EngineBell = (Arc<dyn Doorbell>, u32);

/// A link to carry.
pub(crate) struct CarriedLink {
    pub(crate) parts: HostingEnd,
    pub(crate) qpn: Qpn,
    pub(crate) peer_qpn: Qpn,
    /// Our address and the peer's.
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) engine: EngineBell,
}

/// The end of a link that an engine would have.
pub(crate) struct HostingEnd {
    pub(crate) memory: Window,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    /// The queue pairs' page of the doorbell, and the bit of this one.
    pub(crate) page: DoorbellPage<Window>,
    pub(crate) slot: u32,
}

impl HostingEnd {
    pub(super) fn endpoint(self, doorbell: Arc<dyn Doorbell>) -> Option<Endpoint> {
        Endpoint::new(EndpointParts {
            memory: self.memory,
            side: 1,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            doorbell,
            peer_slot: self.slot,
        })
    }
}

/// What became of a link, which is carried no longer.
pub(crate) enum Outcome {
    /// The engine is to serve it from this state of its connection on; empty: a fresh one.
    Given { qpn: Qpn, peer_qpn: Qpn, state: Vec<u8>, engine: EngineBell },
    /// It did not come to rest in time.
    Failed { qpn: Qpn },
}

impl Outcome {
    /// The queue pair.
    pub(super) fn qpn(&self) -> Qpn {
        match self {
            Outcome::Given { qpn, .. } | Outcome::Failed { qpn } => *qpn,
        }
    }
}
