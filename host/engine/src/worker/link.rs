//! One link as a packet thread sees it.

use crate::command::{QpCounters, Service};
use crate::connected::Connected;
use crate::datagram::Datagrams;
use omniverb_wire::Flow;

/// When a link that waits for its application is looked at again, in nanoseconds.
const LOOK_AGAIN: u64 = 1_000_000;

/// What is at the link's far end.
pub(super) enum Kind {
    Connected(Box<Connected>),
    Datagrams(Box<Datagrams>),
}

/// One link.
pub(super) struct Link {
    pub(super) vnic: u64,
    pub(super) qpn: u32,
    pub(super) peer_qpn: u32,
    pub(super) service: Service,
    /// From us to the peer.
    pub(super) flow: Flow,
    pub(super) interface: u32,
    pub(super) within: bool,
    pub(super) kind: Kind,
    pub(super) bell: u64,
    pub(super) slot: u32,
    /// When its timer goes off.
    pub(super) armed: Option<u64>,
    /// It is in the list of those to be served.
    pub(super) queued: bool,
    /// It waits for its vNIC's limit.
    pub(super) parked: bool,
    /// Somebody looked at it a moment after it began to wait for its application.
    pub(super) looked_again: bool,
    /// Packets and bytes; the rest is the transport's to count.
    pub(super) counted: QpCounters,
}

impl Link {
    pub(super) fn timeout(&mut self, now: u64) {
        if let Kind::Connected(connected) = &mut self.kind {
            connected.timeout(now);
        }
    }

    pub(super) fn counters(&self) -> QpCounters {
        let (resent_packets, duplicate_packets, window) = match &self.kind {
            Kind::Connected(connected) => connected.numbers(),
            Kind::Datagrams(_) => (0, 0, 0),
        };
        QpCounters { resent_packets, duplicate_packets, window, ..self.counted }
    }

    /// Whether something waits for the application.
    pub(super) fn waits(&self) -> bool {
        match &self.kind {
            Kind::Connected(connected) => connected.waits(),
            Kind::Datagrams(datagrams) => datagrams.waits(),
        }
    }

    /// When it wants to be looked at.
    pub(super) fn next_timeout(&mut self, now: u64) -> Option<u64> {
        let own = match &self.kind {
            Kind::Connected(connected) => connected.next_timeout(),
            Kind::Datagrams(datagrams) => datagrams.next_timeout(),
        };
        // The application may have done what we wait for without seeing that we do: neither side
        // uses a memory fence. So one look is due a moment after the last news.
        let again = (!self.looked_again && self.waits()).then_some(now + LOOK_AGAIN);
        own.into_iter().chain(again).min()
    }

    /// Its application is going.
    pub(super) fn leave(&mut self, now: u64) {
        if let Kind::Connected(connected) = &mut self.kind {
            connected.leave(now);
        }
    }

    /// Nothing is taken or sent any more.
    pub(super) fn close(&mut self) {
        match &mut self.kind {
            Kind::Connected(connected) => connected.close(),
            Kind::Datagrams(datagrams) => datagrams.close(),
        }
    }
}
