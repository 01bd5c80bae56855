//! One link as a packet thread sees it.

use crate::command::QpCounters;
use crate::identity::VnicId;
use crate::queue_pair::connected::Connected;
use crate::queue_pair::datagram::Datagrams;
use omniverb_sys::futex;
use omniverb_terms::{Qpn, Service};
use omniverb_wire::Flow;

/// Threads of an application that are woken from naps on one link at once. One naps as a rule; how
/// many a hostile one has is not for us to go through.
const NAPPERS: u32 = 8;
/// When a link that waits for its application is looked at again, in nanoseconds.
const LOOK_AGAIN: u64 = 1_000_000;
/// How long an acknowledgement waits for the application's answer, in nanoseconds, or for one turn
/// of the application, where it has to share our processor: less than a system call takes.
const HOLD_MAX: u64 = 2_000;

/// What is at the link's far end.
pub(super) enum Kind {
    Connected(Box<Connected>),
    Datagrams(Box<Datagrams>),
}

/// One link.
pub(super) struct Link {
    pub(super) vnic: VnicId,
    pub(super) qpn: Qpn,
    pub(super) peer_qpn: Qpn,
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
    /// Its acknowledgement has been waiting for company since then.
    pub(super) held: Option<u64>,
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
        let (mapped_operations, in_place) = match &self.kind {
            Kind::Connected(connected) => {
                (connected.application.mapped(), connected.application.outgoing.in_place)
            }
            Kind::Datagrams(_) => (0, 0),
        };
        QpCounters {
            resent_packets,
            duplicate_packets,
            window,
            mapped_operations,
            in_place,
            ..self.counted
        }
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

    /// Whether to let the application answer before an acknowledgement leaves, so that both are one
    /// system call: a short message came, alone, and a short time ago.
    pub(super) fn hold(&mut self, now: u64) -> bool {
        let may = match &mut self.kind {
            Kind::Connected(connected) => connected.may_wait(),
            Kind::Datagrams(_) => false,
        };
        let holds = may && now.saturating_sub(*self.held.get_or_insert(now)) < HOLD_MAX;
        if !holds {
            self.held = None;
        }
        holds
    }

    /// Whether its application sleeps, and waits for what has happened by now.
    pub(super) fn nap_is_over(&mut self) -> bool {
        match &mut self.kind {
            Kind::Connected(connected) => connected.application.endpoint.nap_is_over(),
            Kind::Datagrams(_) => false,
        }
    }

    /// Wakes it.
    pub(super) fn wake_napping(&mut self) {
        if let Kind::Connected(connected) = &mut self.kind {
            futex::wake(connected.application.endpoint.answer_nap(), NAPPERS);
        }
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
