//! Sends datagrams, each to a destination of its own.
//!
//! The daemon makes the link to a new destination, in the background: see `unresolved_datagrams`.

use super::request_state::{CompletionCondition, RequestHeader, TryOutcome, WaitReason};
use super::transmit::last_flags;
use super::unresolved_datagrams::{Resolution, UnresolvedDatagrams};
use crate::limits::DATAGRAM_MAX;
use crate::qp::link_table::Links;
use crate::qp::qp_attributes::QpAttributes;
use crate::qp::{Inner, Qp};
use crate::send_work_request::{DatagramAddress, Destination};
use crate::verbs_constants::status;
use omniverb_link::{Broken, Request};
use omniverb_ring::UserMemory;
use omniverb_terms::Qkey;

impl QpAttributes {
    /// Bit 31: a privileged Q_Key, taken from the QP (specification 10.2.5).
    #[inline(always)]
    pub(super) fn qkey_to(&self, to: &DatagramAddress) -> Qkey {
        if to.qkey.is_controlled() { self.qkey } else { to.qkey }
    }
}

impl Links {
    /// Puts a datagram into the ring of its link, or holds it back until there is one.
    pub(super) fn transmit_datagram(
        &mut self,
        unresolved: &mut UnresolvedDatagrams,
        attributes: &QpAttributes,
        qp: &Qp,
        order: &mut RequestHeader,
        parts: &[UserMemory],
    ) -> TryOutcome {
        let Some(to) = order.to else {
            return TryOutcome::Fail(status::LOC_QP_OP_ERR);
        };
        if order.length > DATAGRAM_MAX {
            return TryOutcome::Fail(status::LOC_LEN_ERR);
        }
        let qkey = attributes.qkey_to(&to);
        let flags = last_flags(order.opcode, order.flags);
        let request = Request::Datagram { flags, immediate: order.immediate, qkey };
        let Some(index) = self.to(&to.destination) else {
            return unresolved.hold_back(qp, &to, request, order.length, parts);
        };
        let link = &mut self[index];
        if link.endpoint.peer_has_closed() {
            return TryOutcome::Started(CompletionCondition::Done); // lost, as on any network
        }
        link.take_route(to.route);
        // A peer that has not attached yet finds the datagram when it does.
        let length = order.length as usize;
        let mut sent = link.endpoint.send_request(&request, length, parts);
        // The peer may have made room before it saw that we wait for that.
        if sent == Ok(false) && !link.is_lossy() && link.endpoint.set_blocked(true) {
            sent = link.endpoint.send_request(&request, length, parts);
        }
        match sent {
            Ok(true) => {
                link.end_losing();
                link.endpoint.set_blocked(false);
                TryOutcome::Started(CompletionCondition::Done)
            }
            Ok(false) if link.is_lossy() => TryOutcome::Started(CompletionCondition::Done),
            Ok(false) => TryOutcome::Wait(WaitReason::Room),
            Err(Broken) => {
                let broken = link.peer;
                self.forget(|peer| *peer == broken);
                TryOutcome::Started(CompletionCondition::Done)
            }
        }
    }
}

impl UnresolvedDatagrams {
    /// No link to that destination yet: asks for one, unless it is known to lead nowhere.
    #[cold]
    fn hold_back(
        &mut self,
        qp: &Qp,
        to: &DatagramAddress,
        request: Request,
        length: u64,
        parts: &[UserMemory],
    ) -> TryOutcome {
        let now = qp.shared.host.now();
        match self.resolve(&to.destination, now) {
            Resolution::Unreachable => return TryOutcome::Started(CompletionCondition::Done),
            Resolution::Ask => qp.shared.host.request_datagram_link(qp.number, to.destination),
            Resolution::Asked => {}
        }
        if self.keep(to, request, length as usize, parts, now) {
            TryOutcome::Started(CompletionCondition::Done)
        } else {
            TryOutcome::Wait(WaitReason::Link)
        }
    }
}

impl Inner {
    /// The link is there: sends what was held back, oldest first; what does not fit is lost.
    pub(crate) fn send_held_back(&mut self, qp: &Qp, destination: &Destination, index: usize) {
        let (route, list) = self.unresolved.take(destination);
        if !list.is_empty() {
            self.links[index].take_route(route);
        }
        for (request, bytes) in list {
            let sent = UserMemory::lend(&bytes, |memory| {
                let endpoint = &mut self.links[index].endpoint;
                let sent = endpoint.send_request(&request, bytes.len(), [&memory]);
                if sent == Ok(true) && self.path.is_traced() {
                    let (length, now) = (bytes.len() as u64, qp.shared.host.now());
                    self.traces().datagram_on(qp, index, &request, length, &[memory], now);
                }
                sent
            });
            if sent != Ok(true) {
                break;
            }
        }
    }
}
