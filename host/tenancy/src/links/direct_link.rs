//! Describes a direct link.

use super::doorbell_assignment::BellSlot;
use crate::accounts::Receipt;
use crate::network::route_destination_cache::Question;
use crate::qp_data_path::PathReason;
use crate::row_keys::SessionId;
use crate::vm_pair_windows::window_table::PairReceipts;
use omniverb_terms::{Gid, Operations, VnicId};

/// The receipts of a link: for its ends, for being direct in one vNIC or two, for being uninvited,
/// and for being in a pair window.
#[derive(Debug)]
pub(crate) struct LinkReceipts {
    pub(crate) ends: [Receipt; 2],
    pub(crate) direct: [Option<Receipt>; 2],
    pub(crate) uninvited: Option<Receipt>,
    pub(crate) pair: Option<PairReceipts>,
}

/// Its own GID, the peer's.
pub(crate) type GidPair = (Gid, Gid);

/// A datagram link that one end did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invitation {
    /// The vNIC that opened it, and pays.
    pub(crate) from: VnicId,
    /// The vNIC that did not ask for it.
    pub(crate) to: VnicId,
}

/// A direct link. Only its refused operations change while it lives. Of fields for both ends, the
/// first is that of the queue pair with the smaller number.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) receipts: LinkReceipts,
    /// `None` for a link that survived a restart: its bell is older than we are.
    pub(crate) place: Option<BellSlot>,
    pub(crate) sessions: [SessionId; 2],
    pub(crate) vnics: [VnicId; 2],
    /// Each end's own GID and that which it knows the other by.
    pub(crate) ways: [GidPair; 2],
    /// The questions that the network must go on answering, for each end.
    pub(crate) questions: [Option<Question>; 2],
    pub(crate) why: PathReason,
    /// The port of rdma_cm by which its ends were connected, if both know one.
    pub(crate) port: Option<u16>,
    /// Operations that each end refuses from the other.
    pub(crate) refused: [Operations; 2],
    /// `None`: both ends asked for it, or are of one vNIC.
    pub(crate) uninvited: Option<Invitation>,
}

impl Link {
    /// The end that did not ask for it, if there is one, and the vNIC that opened it.
    pub(super) fn uninvited_end(&self) -> Option<UninvitedEnd> {
        let to = self.uninvited?.to;
        let end = usize::from(self.vnics[1] == to);
        let (session, inviter) = (self.sessions[end], self.sessions[1 - end]);
        Some(UninvitedEnd { session, vnic: to, inviter })
    }
}

/// The end of a link that did not ask for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct UninvitedEnd {
    pub(super) session: SessionId,
    pub(super) vnic: VnicId,
    /// The process at the other end.
    pub(super) inviter: SessionId,
}
