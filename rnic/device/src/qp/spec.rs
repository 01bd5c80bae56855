//! What a queue pair is made of, what it got, and whom it is linked with.

use crate::cq::Cq;
use crate::srq::Srq;
use omniverb_terms::{Gid, Qpn, Service};
use std::sync::Arc;

/// What a QP is to be like; limits have been checked.
pub struct QpSpec {
    /// How it serves its user.
    pub service: Service,
    /// Protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Receives come from here, if given.
    pub srq: Option<Arc<Srq>>,
    /// Send work requests at most.
    pub send_max: u32,
    /// Receive work requests at most.
    pub recv_max: u32,
    /// Entries per send.
    pub send_sge_max: u32,
    /// Entries per receive.
    pub recv_sge_max: u32,
    /// Inline bytes at most.
    pub inline_max: u32,
    /// Every send is signalled.
    pub signal_all: bool,
}

/// Granted capacities.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // as in struct ibv_qp_cap
pub struct Caps {
    pub send_max: u32,
    pub recv_max: u32,
    pub send_sge_max: u32,
    pub recv_sge_max: u32,
    pub inline_max: u32,
}

/// Who is at the far end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its QP.
    pub qpn: Qpn,
    /// Its GID.
    pub dgid: Gid,
    /// Ours.
    pub sgid: Gid,
    /// Who is at the far end of the link.
    pub far_end: FarEnd,
}

/// Who is at the far end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FarEnd {
    /// The peer's process: the link is direct.
    #[default]
    Process,
    /// An engine that speaks for the peer.
    Engine,
}

impl Peer {
    /// Whether an engine speaks for it.
    #[inline(always)]
    pub fn is_beyond_engine(&self) -> bool {
        self.far_end == FarEnd::Engine
    }
}
