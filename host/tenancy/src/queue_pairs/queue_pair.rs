//! Describes a queue pair and its wishes for peers. Its links are rows of their own (`links/`).

use crate::accounts::Receipt;
use crate::row_keys::SessionId;
use omniverb_session::body::ConnectQp;
use omniverb_terms::{Gid, Qpn, Service, VnicId};
use std::collections::BTreeMap;

/// Where a queue pair wants to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// The queue pair's own name.
    pub(crate) sgid: Gid,
    /// The peer's name.
    pub(crate) dgid: Gid,
    /// The vNIC with address `dgid`, once that is known.
    pub(crate) target: Option<VnicId>,
    /// Of a link that is announced as surviving a restart of the daemon: when the other end is
    /// taken for dead. `None`: a new link is wished.
    pub(crate) survivor_until: Option<u64>,
    /// Times the network was asked in vain.
    pub(crate) failures: u32,
    /// The peer is gone, for this reason (`CLOSED_*`); said when the timer is due.
    pub(crate) gone: Option<u32>,
    /// Its process offers to carry the link.
    pub(crate) is_offered: bool,
}

impl Wish {
    /// A wish for which no network was asked yet.
    pub(crate) fn new(m: &ConnectQp, survivor_until: Option<u64>) -> Wish {
        let ConnectQp { sgid, dgid, carries, .. } = *m;
        let is_offered = carries != 0;
        Wish { sgid, dgid, target: None, survivor_until, failures: 0, gone: None, is_offered }
    }

    /// It is for a link that outlived the daemon before.
    pub(crate) fn is_survivor(&self) -> bool {
        self.survivor_until.is_some()
    }
}

/// How a queue pair came by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This daemon gave it.
    Given,
    /// An earlier daemon did: its process showed the ticket.
    Claimed,
}

/// The attributes of a queue pair from its beginning to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    /// The process that has it.
    pub(crate) session: SessionId,
    /// The vNIC of that process.
    pub(crate) vnic: VnicId,
    pub(crate) service: Service,
    /// The process's own number of its protection domain.
    pub(crate) pd: u32,
    /// Which statistics slot of its process it writes.
    pub(crate) slot: u32,
    /// When its number was given out: of two with the same, the later one has it.
    pub(crate) issued: u64,
    pub(crate) origin: Origin,
}

/// A queue pair. Its table changes it.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) receipt: Receipt,
    attributes: Attributes,
    pub(super) failed: bool,
    /// By peer: one for RC and UC; for UD only surviving links that wait for their other end.
    pub(super) wishes: BTreeMap<Qpn, Wish>,
}

impl QueuePair {
    /// A queue pair without wishes.
    pub(crate) fn new(attributes: Attributes, receipt: Receipt) -> QueuePair {
        QueuePair { receipt, attributes, failed: false, wishes: BTreeMap::new() }
    }

    /// The session of the process that has it.
    pub(crate) fn session(&self) -> SessionId {
        self.attributes.session
    }

    /// The vNIC of its process.
    pub(crate) fn vnic(&self) -> VnicId {
        self.attributes.vnic
    }

    pub(crate) fn service(&self) -> Service {
        self.attributes.service
    }

    /// Its process's number of its protection domain.
    pub(crate) fn pd(&self) -> u32 {
        self.attributes.pd
    }

    /// Its statistics slot.
    pub(crate) fn slot(&self) -> u32 {
        self.attributes.slot
    }

    /// When its number was given out.
    pub(crate) fn issued(&self) -> u64 {
        self.attributes.issued
    }

    /// It was made before this daemon was started.
    pub(crate) fn is_claimed(&self) -> bool {
        self.attributes.origin == Origin::Claimed
    }

    /// Its process says that it is in ERR, and it has no link since; nothing is granted through it.
    pub(crate) fn is_failed(&self) -> bool {
        self.failed
    }

    /// The charge for this queue pair.
    pub(crate) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Whether it has wishes.
    pub(crate) fn has_wishes(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// The peers that it wishes for, in order.
    pub(crate) fn wished(&self) -> impl ExactSizeIterator<Item = Qpn> {
        self.wishes.keys().copied()
    }

    /// The first that it wishes for from this number on.
    pub(crate) fn next_wished(&self, from: Qpn) -> Option<Qpn> {
        self.wishes.range(from..).next().map(|(peer, _)| *peer)
    }

    /// Its wish for a peer.
    pub(crate) fn wish(&self, peer: Qpn) -> Option<&Wish> {
        self.wishes.get(&peer)
    }
}
