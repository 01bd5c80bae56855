//! Keeps where the packets of a carried link go, and how far its way there has been tried.

use super::carried_link::EngineBell;
use omniverb_datapath::way_trial::WayTrial;
use omniverb_terms::Qpn;
use std::net::{IpAddr, SocketAddr};

/// The way of one link.
pub(super) struct WayToPeer {
    pub(super) peer_qpn: Qpn,
    /// Of our socket.
    pub(super) local: SocketAddr,
    /// Port 0: not told yet.
    pub(super) peer: SocketAddr,
    pub(super) stage: Stage,
    /// What wakes the engine, once that serves the link.
    pub(super) engine: EngineBell,
}

/// How far it is.
pub(super) enum Stage {
    /// The peer's port is not known: requests wait, until then at the latest, in nanoseconds.
    Untold { until: u64 },
    /// The way is being tried: requests wait.
    Tried(WayTrial),
    /// The way is passable, and requests leave.
    Open,
    /// The link comes to rest, to be served by the engine; if the daemon asked for it, by then at
    /// the latest, in nanoseconds.
    Resting { until: Option<u64> },
}

impl WayToPeer {
    /// `until`: how long requests wait for the peer's port, in nanoseconds.
    pub(super) fn new(
        peer_qpn: Qpn,
        local: SocketAddr,
        peer: IpAddr,
        engine: EngineBell,
        until: u64,
    ) -> WayToPeer {
        let peer = SocketAddr::new(peer, 0);
        WayToPeer { peer_qpn, local, peer, stage: Stage::Untold { until }, engine }
    }

    /// Whether the peer's packets come from there.
    pub(super) fn leads_to(&self, from: SocketAddr) -> bool {
        (from.ip(), from.port()) == (self.peer.ip(), self.peer.port())
    }
}
