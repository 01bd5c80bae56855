//! Defines keys of table rows: sessions, links, remote peers, probes.

use omniverb_terms::{Gid, Qpn};

/// A client connection. Numbers are never reused while the daemon lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A peer beyond the engine: its number and its GID.
pub(crate) type RemotePeer = (Qpn, Gid);

/// The two queue pairs of a link, the smaller number first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkKey(pub(crate) Qpn, pub(crate) Qpn);

impl LinkKey {
    pub(crate) fn new(one: Qpn, other: Qpn) -> LinkKey {
        LinkKey(one.min(other), one.max(other))
    }
}

/// Names a probe under way. It travels in the probe's datagram and is drawn at random, so only a
/// host that has seen that datagram knows it.
pub type ProbeId = u128;
