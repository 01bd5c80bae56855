//! Describes the far end of a link.

use crate::limits::{CHUNK, CHUNK_ENGINE, PATH_MTU_MAX};
use omniverb_terms::{Gid, Qpn};

/// The kind of peer that a queue pair is linked with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Number of its QP.
    pub qpn: Qpn,
    /// GID of its port.
    pub dgid: Gid,
    /// Ours, by which it knows us.
    pub sgid: Gid,
    /// Whether it has the link itself.
    pub far_end: FarEnd,
}

/// The far end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FarEnd {
    /// The peer's process: the link is direct.
    #[default]
    Process,
    /// An engine that speaks for the peer.
    Engine,
}

impl Peer {
    /// Whether it is the queue pair of this number of this host. Elsewhere there may be another
    /// one of the same number.
    #[inline(always)]
    pub fn is(&self, number: Qpn) -> bool {
        self.qpn == number && self.far_end == FarEnd::Process
    }

    /// Whether an engine speaks for it.
    #[inline(always)]
    pub fn is_beyond_engine(&self) -> bool {
        self.far_end == FarEnd::Engine
    }

    /// Bytes of a message that a record of a link to it has at most, where the ring takes so many.
    #[inline(always)]
    pub(crate) fn chunk_max(&self, most: usize) -> usize {
        match self.is_beyond_engine() {
            // Whole packets, of whatever path MTU.
            true => CHUNK_ENGINE.min(most - most % PATH_MTU_MAX),
            false => CHUNK.min(most),
        }
    }
}
