//! Paces messages of an unreliable service by the reports of their receiver.
//!
//! Between two Omniverbs the receiver reports how far it got
//! ([`crate::pacing::unreliable_message_window`]); to other implementations a receiver that falls
//! behind sends congestion notifications, and a sender that gets them pauses
//! ([`crate::pacing::sender_throttle`]). A group gets no reports: a packet by its link would go to
//! all members.

use crate::pacing::sender_throttle::Throttle;
use crate::pacing::unreliable_message_window::{Inflow, Outflow, PacketRoute, SendPermission};
use crate::queue_pair::unreliable_backlog::Backlog;
use omniverb_terms::Qpn;
use omniverb_wire::{Bth, Packet, write_notification, write_report};
use std::sync::Arc;

/// Both directions between a queue pair and one peer.
pub struct MessagePacing {
    qpn: Qpn,
    peer_qpn: Qpn,
    /// To another Omniverb: the receiver reports, and a window follows that.
    outflow: Option<Outflow>,
    inflow: Inflow,
    way: PacketRoute,
    leaving: bool,
    /// To other implementations: congestion notifications slow it down.
    throttle: Arc<Throttle>,
    /// When to look again, if it is too early to send.
    due: Option<u64>,
}

/// The next packet to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// The next message.
    Message,
    /// A notice was written instead, of so many bytes.
    Notice(usize),
    /// Nothing before [`MessagePacing::due`].
    Nothing,
}

impl MessagePacing {
    /// `features`: bits of [`crate::peer_features`] that the peer has.
    pub fn new((qpn, peer_qpn): (Qpn, Qpn), features: u32) -> MessagePacing {
        MessagePacing::throttled((qpn, peer_qpn), features, Arc::default())
    }

    /// Like `new`, slowed down with others.
    pub fn throttled(
        (qpn, peer_qpn): (Qpn, Qpn),
        features: u32,
        throttle: Arc<Throttle>,
    ) -> MessagePacing {
        MessagePacing {
            qpn,
            peer_qpn,
            outflow: (features != 0).then(Outflow::default),
            inflow: Inflow::default(),
            way: PacketRoute::default(),
            leaving: false,
            throttle,
            due: None,
        }
    }

    /// The next packet to leave; `backlog`: bytes that the application here has not taken.
    pub fn next(&mut self, now: u64, backlog: &mut Backlog, datagram: &mut [u8]) -> Leaves {
        self.due = None;
        let written = |length: Option<usize>| length.map_or(Leaves::Nothing, Leaves::Notice);
        let left =
            if backlog.is_empty() { SendPermission::Nothing } else { SendPermission::Something };
        if let Some(psn) = self.inflow.report(left) {
            return written(write_report(datagram, self.peer_qpn, self.qpn, psn));
        }
        if let Some(out) = &mut self.outflow {
            self.due = out.may_send(self.way, now).err();
        } else if !self.peer_qpn.is_group() && backlog.asks(now) {
            return written(write_notification(datagram, self.peer_qpn));
        } else {
            self.due = self.throttle.due(now);
        }
        if self.due.is_some() { Leaves::Nothing } else { Leaves::Message }
    }

    /// Packets from now on take this route.
    pub fn take_way(&mut self, way: PacketRoute) {
        self.way = if self.leaving { PacketRoute::Only } else { way };
    }

    /// The application is going: what it has sent leaves now or never.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// This packet of a message leaves.
    pub fn on_send(&mut self, datagram: &mut [u8]) {
        if let Some(out) = &mut self.outflow {
            out.on_send(datagram);
        }
    }

    /// A packet of a message arrived.
    pub fn on_packet(&mut self, header: &Bth) {
        self.inflow.on_packet(header);
    }

    /// A notification or a report arrived.
    pub fn on_notification(&mut self, now: u64, packet: &Packet<'_>) {
        match (packet.report(), &mut self.outflow) {
            (Some((_, psn)), Some(out)) => out.on_report(psn),
            (None, None) => self.throttle.on_notification(now),
            _ => {}
        }
    }

    /// When something may be sent again, if it is too early now.
    pub fn due(&self) -> Option<u64> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_receiver_notifies_its_sender_and_never_a_group() {
        let next = |peer| {
            let mut pacing = MessagePacing::new((Qpn(7), peer), 0);
            pacing.next(1 << 40, &mut Backlog::full(), &mut [0; 200])
        };
        assert!(matches!(next(Qpn(8)), Leaves::Notice(_)));
        assert_eq!(next(Qpn::of_group(1)), Leaves::Message);
    }
}
