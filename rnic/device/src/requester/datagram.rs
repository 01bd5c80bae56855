//! UD: datagrams, each to a destination of its own.
//!
//! The link to a new destination is made by the daemon, in the background. Meanwhile datagrams to
//! it are held back in copies, as a network stack holds packets back while it resolves an address,
//! so that they complete at once and others are not held up.

use super::transmit::ending;
use super::{Finish, Order, Step, Why};
use crate::constants::status;
use crate::limits::{ANSWER_WAIT, DATAGRAM_MAX, HELD_BYTES_MAX, HELD_MAX, HELD_OVERHEAD};
use crate::qp::{Inner, Qp};
use crate::work::{Addressee, Destination};
use omniverb_link::wire::Route;
use omniverb_link::{Broken, Request};
use omniverb_ring::UserMemory;
use std::collections::HashMap;

/// Datagrams held back, by destination. A destination that is here has been asked for.
#[derive(Default)]
pub(crate) struct Held {
    by_destination: HashMap<Destination, Line>,
    count: usize,
}

/// What waits for one link.
#[derive(Default)]
struct Line {
    asked_at: u64,
    /// Of all that waits, with what a ring needs for it: it must fit when the link comes.
    bytes: usize,
    /// The route of the latest.
    route: Route,
    list: Vec<(Request, Box<[u8]>)>,
}

impl Held {
    fn take(&mut self, destination: &Destination) -> Line {
        let line = self.by_destination.remove(destination).unwrap_or_default();
        self.count -= line.list.len();
        line
    }

    /// These are lost: there is no way to that destination.
    pub(crate) fn drop_all(&mut self, destination: &Destination) {
        self.take(destination);
    }

    /// Nobody answered for these, and nobody asked again.
    fn drop_expired(&mut self, now: u64) {
        let expired = |line: &Line| now.saturating_sub(line.asked_at) >= ANSWER_WAIT;
        self.by_destination.retain(|_, line| !expired(line));
        self.count = self.by_destination.values().map(|line| line.list.len()).sum();
    }

    pub(crate) fn clear(&mut self) {
        *self = Held::default();
    }
}

impl Inner {
    pub(super) fn transmit_datagram(
        &mut self,
        qp: &Qp,
        order: &mut Order,
        parts: &[UserMemory],
    ) -> Step {
        let Some(to) = order.to else {
            return Step::Fail(status::LOC_QP_OP_ERR);
        };
        if order.length > DATAGRAM_MAX {
            return Step::Fail(status::LOC_LEN_ERR);
        }
        let qkey = self.qkey_to(&to);
        let flags = ending(order, true);
        let request = Request::Datagram { flags, immediate: order.immediate, qkey };
        let Some(index) = self.links.to(&to.destination) else {
            return self.hold(qp, &to, request, order.length, parts);
        };
        let link = &mut self.links[index];
        if link.endpoint.peer_has_closed() {
            return Step::Started(Finish::Done); // lost, as on any network
        }
        link.take_route(to.route);
        // A peer that has not attached yet finds the datagram when it does.
        match link.endpoint.send_request(&request, order.length as usize, parts) {
            Ok(true) => {
                link.lossy = false;
                link.endpoint.set_blocked(false);
                Step::Started(Finish::Done)
            }
            Ok(false) if link.lossy => Step::Started(Finish::Done),
            Ok(false) => {
                link.endpoint.set_blocked(true);
                Step::Wait(Why::Room)
            }
            Err(Broken) => {
                let broken = link.peer;
                self.forget_links(|peer| *peer == broken);
                Step::Started(Finish::Done)
            }
        }
    }

    /// Bit 31: a privileged Q_Key, taken from the QP (specification 10.2.5).
    #[inline(always)]
    pub(super) fn qkey_to(&self, to: &Addressee) -> u32 {
        if to.qkey >> 31 != 0 { self.machine.attributes().qkey } else { to.qkey }
    }

    /// No link to that destination yet: asks for one, unless it is known to lead nowhere.
    #[cold]
    fn hold(
        &mut self,
        qp: &Qp,
        &Addressee { destination, route, .. }: &Addressee,
        request: Request,
        length: u64,
        parts: &[UserMemory],
    ) -> Step {
        let now = qp.shared.host.now();
        self.unreachable.retain(|(_, until)| *until > now);
        if self.unreachable.iter().any(|(other, _)| *other == destination) {
            return Step::Started(Finish::Done);
        }
        let asked = self.held.by_destination.get(&destination).map(|line| line.asked_at);
        if asked.is_none_or(|at| now.saturating_sub(at) >= ANSWER_WAIT) {
            // Not asked yet, or nobody answered: what was held back until now is lost.
            self.held.drop_all(&destination);
            qp.shared.host.request_datagram_link(qp.number, destination);
            let line = Line { asked_at: now, ..Line::default() };
            self.held.by_destination.insert(destination, line);
        }
        if self.held.count >= HELD_MAX {
            self.held.drop_expired(now);
        }
        if self.held.count >= HELD_MAX {
            return Step::Wait(Why::Link);
        }
        let length = length as usize;
        let needed = length + HELD_OVERHEAD;
        let line = self.held.by_destination.get(&destination);
        if line.is_some_and(|line| line.bytes + needed > HELD_BYTES_MAX) {
            return Step::Wait(Why::Link);
        }
        let mut bytes = vec![0; length];
        let mut at = 0;
        for part in parts {
            part.read(&mut bytes[at..at + part.len()]);
            at += part.len();
        }
        if let Some(line) = self.held.by_destination.get_mut(&destination) {
            line.bytes += needed;
            line.route = route;
            line.list.push((request, bytes.into()));
            self.held.count += 1;
        }
        Step::Started(Finish::Done)
    }

    /// The link is there: sends what was held back, oldest first; what does not fit is lost.
    pub(crate) fn send_held(&mut self, qp: &Qp, destination: &Destination, index: usize) {
        let Line { route, list, .. } = self.held.take(destination);
        if !list.is_empty() {
            self.links[index].take_route(route);
        }
        for (request, bytes) in list {
            let sent = UserMemory::lend(&bytes, |memory| {
                let endpoint = &mut self.links[index].endpoint;
                let sent = endpoint.send_request(&request, bytes.len(), [&memory]);
                if sent == Ok(true) && self.telling.is_some() {
                    let (length, now) = (bytes.len() as u64, qp.shared.host.now());
                    self.tell_of_datagram(qp, index, &request, length, &[memory], now);
                }
                sent
            });
            if sent != Ok(true) {
                break;
            }
        }
    }
}
