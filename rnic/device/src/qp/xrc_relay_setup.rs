//! Opens and ends relays to other processes of an XRC domain, by hidden queue pairs. What is known
//! of them is in [`relays`](super::xrc_relay_table).

use super::Qp;
use super::xrc::XrcState;
use super::xrc_relay::Relay;
use super::xrc_relay_table::{RELAYED, RelayState};
use crate::link_peer::Peer;
use omniverb_link::Endpoint;
use omniverb_terms::Qpn;
use std::sync::Arc;

impl Qp {
    /// Its link will be the front's, and lead to another part of the domain.
    pub fn stand_for(&self, front: &Arc<Qp>, part: u32) {
        let _ = self.hidden.front.set((Arc::downgrade(front), part));
    }

    /// It receives for a queue pair of another process, which `sender` sends to.
    pub fn receive_for(&self, front: Qpn, sender: Qpn) {
        let _ = self.hidden.receives_for.set((front, sender));
    }

    /// Whether it is no queue pair of the application's.
    pub fn is_hidden(&self) -> bool {
        self.hidden.front.get().is_some() || self.hidden.receives_for.get().is_some()
    }

    /// The queue pair whose link its link is, and to which part that leads. `None` if it has a link
    /// of its own; `Some(None)` if the other one is gone.
    pub fn front(&self) -> Option<Option<(Arc<Qp>, u32)>> {
        let (front, part) = self.hidden.front.get()?;
        Some(front.upgrade().map(|front| (front, *part)))
    }

    /// Whether a request waits for the way to a part that is being looked for.
    pub fn wants_way(&self, part: u32) -> bool {
        let inner = self.inner();
        let relays = &inner.extended.relays;
        relays.position(part).is_some_and(|at| matches!(relays.0[at].1, RelayState::Asked))
    }

    /// Whether the link of the hidden queue pair of this number is in use.
    pub fn is_relayed_by(&self, by: Qpn) -> bool {
        self.relay_peer(by).is_some()
    }

    pub(super) fn relay_peer(&self, by: Qpn) -> Option<Peer> {
        self.inner().extended.relays.peer(by)
    }

    /// There is no way to that part: requests that wait for it are refused.
    pub fn no_way(&self, part: u32) {
        let mut inner = self.inner();
        let relays = &mut inner.extended.relays;
        if let Some(at) = relays.position(part)
            && matches!(relays.0[at].1, RelayState::Asked)
        {
            relays.0[at].1 = RelayState::Gone;
            inner.pump_all(self);
        }
    }

    /// The daemon made the link. `None`: no request waits for it any more.
    pub(super) fn attach_relay(
        &self,
        part: u32,
        peer: Peer,
        mut endpoint: Endpoint,
        by: Qpn,
    ) -> Option<usize> {
        let mut inner = self.inner();
        let relays = &mut inner.extended.relays;
        let asked = relays.position(part).filter(|at| matches!(relays.0[*at].1, RelayState::Asked));
        let Some(at) = asked else {
            endpoint.close();
            return None;
        };
        relays.0[at].1 = RelayState::Open(Box::new(Relay::new(endpoint, peer, by)));
        inner.pump_all(self);
        // The other end may have opened before it could see that we wait for that.
        self.come_back_later();
        Some(RELAYED)
    }

    /// The link that a hidden queue pair stood for has ended, or its other end.
    pub fn relay_ended(&self, by: Qpn) {
        let mut inner = self.inner();
        // What it said last counts.
        inner.pump_all(self);
        let relays = &mut inner.extended.relays;
        let is_it = |state: &RelayState| matches!(state, RelayState::Open(relay) if relay.by == by);
        let Some(at) = relays.0.iter().position(|(_, way)| is_it(way)) else { return };
        let RelayState::Open(mut relay) = std::mem::replace(&mut relays.0[at].1, RelayState::Gone)
        else {
            return;
        };
        relay.close();
        if !relay.is_busy() {
            // A request that names that part, now or later, asks anew.
            drop(relays.0.swap_remove(at));
        }
        inner.pump_all(self);
        self.shared.host.discard(by);
    }
}

impl XrcState {
    /// The connection is over, and what went on from it.
    pub(super) fn end_relays(&mut self, qp: &Qp) {
        for (_, way) in self.relays.0.drain(..) {
            if let RelayState::Open(mut relay) = way {
                relay.close();
                qp.shared.host.discard(relay.by);
            }
        }
    }
}
