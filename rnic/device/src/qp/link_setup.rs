//! Attaches links that the daemon made to a queue pair, and ends them.

use super::cq_link_registration::CqLinkRegistration;
use super::link_table::LinkEnd;
use super::responder::InboundState;
use super::state_machine::StateMachine;
use super::xrc_relay_table::RELAYED;
use super::{Inner, Qp};
use crate::granted_peer_pages::{Denial, Grant};
use crate::link_peer::Peer;
use crate::platform::AsyncEvent;
use crate::qp::qp_attributes::State;
use crate::send_work_request::Destination;
use crate::verbs_constants::status;
use omniverb_link::{Doorbell, Endpoint, Tracer};
use omniverb_terms::{Operations, Qpn, Rkey, Service};
use std::sync::Arc;

/// The QP went to ERR.
pub(super) struct QpFailed;

impl Qp {
    /// The daemon made a link; returns its index, or `None` if this QP cannot use it (any more).
    pub fn attach(&self, peer: Peer, endpoint: Endpoint) -> Option<usize> {
        self.attach_limited(peer, endpoint, Operations::NONE, None)
    }

    /// The same; what happens on the link is traced from the beginning.
    pub fn attach_traced(
        &self,
        peer: Peer,
        endpoint: Endpoint,
        tracer: Option<&Arc<Tracer>>,
    ) -> Option<usize> {
        self.attach_limited(peer, endpoint, Operations::NONE, tracer)
    }

    /// The same; the peer may not ask for what is `refused`, see [`Qp::refuse`].
    pub fn attach_limited(
        &self,
        peer: Peer,
        mut endpoint: Endpoint,
        refused: Operations,
        tracer: Option<&Arc<Tracer>>,
    ) -> Option<usize> {
        if let Some(front) = self.front() {
            let (front, part) = front?;
            return front.attach_relay(part, peer, endpoint, self.number);
        }
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let usable = inner.machine.receives_messages()
            || (inner.machine.state() == State::Init && self.service != Service::Ud);
        if !usable || !inner.links.has_room() {
            return None;
        }
        // A queue pair that is connected with itself has both ends: it sends on the first and
        // receives on the second.
        let second = peer.is(self.number)
            && matches!(&*inner.links, [first] if first.peer == peer && !first.is_deaf());
        if self.service != Service::Ud && !second {
            // The peer was reset and came back: the old link is of no use any more.
            inner.abandon_flight(self).ok()?;
            inner.drop_links(self);
        }
        let (credits, floor) = inner.receives.promised();
        if self.service == Service::Ud || !self.posts_receives {
            endpoint.publish_no_credits();
        } else {
            endpoint.publish_credits(credits, floor);
        }
        endpoint.set_watched(false);
        let cq_links = CqLinkRegistration::new(&self.send_cq, &self.recv_cq, peer.far_end);
        let from = (peer, self.shared.daemon());
        let index = inner.links.add(LinkEnd::new(endpoint, from, credits, cq_links));
        // Packets of XRC are made nowhere but in the engine.
        if let Some(tracer) = tracer.filter(|_| !self.service.is_extended()) {
            inner.links[index].trace(tracer, &mut inner.path);
        }
        inner.refuse_operations(index, refused);
        if inner.machine.state() != State::Init {
            inner.links[index].present(self.service, &inner.machine);
        }
        let to = Destination { dgid: peer.dgid, sgid: peer.sgid, qpn: peer.qpn };
        inner.send_held_back(self, &to, index);
        inner.waiting.end_search();
        inner.pump_all(self);
        if self.service == Service::Ud {
            // Whose peer sends at once, and may not have seen that it is to tell.
            self.come_back_later();
        }
        Some(index)
    }

    /// Requests of this peer for `refused` operations fail from now on, as those to a queue pair
    /// that lacks the access flag; datagrams are dropped. All others are served again.
    pub fn refuse(&self, peer_qpn: Qpn, refused: Operations) {
        let mut guard = self.inner.lock();
        for index in 0..guard.links.len() {
            if guard.links[index].peer.qpn == peer_qpn {
                guard.refuse_operations(index, refused);
            }
        }
    }

    /// The daemon knows no way to this destination: datagrams to it are lost for a while.
    pub fn unreachable(&self, destination: Destination) {
        let mut guard = self.inner.lock();
        guard.unresolved.lead_nowhere(destination, self.shared.host.now());
        guard.pump_all(self);
    }

    /// Whether messages to a multicast group are on their way still, though they are completed: the
    /// link to it is being made.
    pub fn holds_back_for_group(&self) -> bool {
        let inner = self.inner.lock();
        let rts = inner.machine.state() == State::Rts;
        rts && inner.unresolved.waits_for_group(self.shared.host.now())
    }

    /// Whether requests that were posted are still to leave, and may: it can send, and its peer is
    /// there, or is to come. Moves them on.
    pub fn has_to_leave(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.pump_all(self);
        let gone =
            |link: &LinkEnd| link.endpoint.peer_has_closed() || link.endpoint.peer_has_died();
        let is_alone = !inner.links.is_empty() && inner.links.iter().all(gone);
        inner.machine.state() == State::Rts && !inner.sends.is_empty() && !is_alone
    }

    /// Whether the peer has no receive for the oldest of them.
    pub fn waits_for_receive(&self) -> bool {
        self.inner.lock().waiting.is_for_receive()
    }

    /// The daemon says the peer's process is gone: what it sent is delivered, then a connected
    /// QP fails.
    pub fn peer_died(&self, peer_qpn: Qpn) {
        if let Some(front) = self.front() {
            return self.end_relay_of(front);
        }
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        // A connected QP's peer may die before there is a link.
        let waits = self.service != Service::Ud && inner.machine.attributes().dest_qpn == peer_qpn;
        if !waits && !inner.links.iter().any(|link| link.peer.qpn == peer_qpn) {
            return;
        }
        inner.pump_all(self);
        if self.service == Service::Ud {
            inner.links.forget(|peer| peer.qpn == peer_qpn);
        } else if inner.machine.state() != State::Err && inner.machine.state() != State::Reset {
            inner.enter_error(self, Some(status::RETRY_EXC_ERR));
            self.event(AsyncEvent::QpFatal);
        }
    }

    /// The daemon says the peer destroyed or reset its QP. Sends fail when their retries are over.
    pub fn peer_closed(&self, peer_qpn: Qpn) {
        if let Some(front) = self.front() {
            return self.end_relay_of(front);
        }
        let mut guard = self.inner.lock();
        guard.pump_all(self);
        if self.service == Service::Ud {
            guard.links.forget(|peer| peer.qpn == peer_qpn);
        }
    }

    /// The daemon is gone, and its engine with it: what peers on a network sent is delivered, then
    /// they are as good as dead. Others are not concerned.
    pub fn engine_died(&self) {
        if let Some(front) = self.front() {
            if self.peers().iter().any(Peer::is_beyond_engine) {
                self.end_relay_of(front);
            }
            return;
        }
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if !inner.links.iter().any(|link| link.peer.is_beyond_engine()) {
            return;
        }
        inner.pump_all(self);
        if self.service == Service::Ud {
            inner.links.forget(|peer| peer.is_beyond_engine());
        } else if inner.machine.state() != State::Err && inner.machine.state() != State::Reset {
            inner.enter_error(self, Some(status::RETRY_EXC_ERR));
            self.event(AsyncEvent::QpFatal);
        }
    }

    /// The daemon's engine serves the far end of the link to this peer from now on, which this
    /// process has served: it is woken by this doorbell, and by this bit of its page.
    pub fn switch_doorbell(&self, peer_qpn: Qpn, doorbell: &Arc<dyn Doorbell>, peer_slot: u32) {
        let mut inner = self.inner.lock();
        let led_there = |link: &&mut LinkEnd| link.peer.qpn == peer_qpn;
        if let Some(link) = inner.links.iter_mut().find(led_there) {
            link.endpoint.switch_doorbell(doorbell.clone(), peer_slot);
        }
    }

    /// The daemon granted a mapping of a region of the peer `peer_qpn`. Says whether it is used:
    /// not if the link is another one by now, or what was granted may have been taken back since.
    pub fn granted(&self, peer_qpn: Qpn, grant: Grant) -> bool {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        match inner.links.first() {
            Some(link) if link.peer.qpn == peer_qpn => {
                let epoch = link.endpoint.peer_epoch();
                inner.grants.insert(epoch, grant)
            }
            _ => false,
        }
    }

    /// The daemon did not grant what was asked for.
    pub fn not_granted(&self, peer_qpn: Qpn, rkey: Rkey, denied: Denial) {
        let mut guard = self.inner.lock();
        if guard.links.first().is_some_and(|link| link.peer.qpn == peer_qpn) {
            guard.grants.refused(rkey, denied);
        }
    }

    /// What was granted of a peer's region from this page on is so no longer: lets go of it.
    pub fn grant_ended(&self, peer_qpn: Qpn, rkey: Rkey, page_start: u64) {
        let mut guard = self.inner.lock();
        let ended = match guard.links.first().is_some_and(|link| link.peer.qpn == peer_qpn) {
            true => guard.grants.take(rkey, page_start),
            false => None,
        };
        // Unmapping takes long.
        drop(guard);
        drop(ended);
    }

    /// Lets go of the mapping of a peer's region that has not been used for longest. False: there
    /// is none.
    pub fn drop_oldest_grant(&self) -> bool {
        self.inner.lock().grants.drop_oldest()
    }

    /// What the peer of a connected QP sees as its EPOCH.
    pub fn epoch(&self) -> u64 {
        self.inner.lock().links.first().map_or(0, |link| link.endpoint.epoch())
    }

    /// Something is to be granted to the peer of this QP: the host is told when it goes to ERR.
    /// False: it has gone already, or counts what peers do to our memory, which comes by here then.
    pub fn lend(&self) -> bool {
        let mut inner = self.inner.lock();
        !inner.counting.counts_peers() && inner.machine.lend()
    }

    /// Voids the grants that peers hold on our regions; call before the pages move back.
    pub fn revoke_grants(&self) {
        self.inner.lock().links.iter_mut().for_each(LinkEnd::revoke);
    }

    /// As [`Qp::revoke_grants`], without waiting for a request that is under way: it may be one of
    /// this thread, which a signal has interrupted. False: there is one.
    pub fn try_revoke_grants(&self) -> bool {
        let inner = self.inner.try_lock();
        inner.map(|mut inner| inner.links.iter_mut().for_each(LinkEnd::revoke)).is_some()
    }

    /// Whether a peer is at our pages still; to be asked a moment after [`Qp::revoke_grants`], as
    /// often as one likes to wait.
    pub fn peers_reach_pages(&self) -> bool {
        self.inner.lock().links.iter().any(|link| link.endpoint.peer_reaches_pages())
    }

    /// Whether the engine is at pages of ours that stay where they are; to be asked after
    /// [`Qp::revoke_grants`], until it is not. One whose daemon has ended is nowhere any more.
    pub fn engine_reaches_pages(&self) -> bool {
        let (inner, now) = (self.inner.lock(), self.shared.daemon());
        let of_now = |link: &&LinkEnd| link.peer.is_beyond_engine() && link.daemon == now;
        let mut beyond = inner.links.iter().filter(of_now);
        beyond.any(|link| link.endpoint.peer_reaches_pages_that_stay())
    }

    /// Waits no longer: a peer that is at our pages finds out that it may have been in vain.
    pub fn give_up_on_peers(&self) {
        let mut inner = self.inner.lock();
        let late = inner.links.iter_mut().filter(|link| link.endpoint.peer_reaches_pages());
        late.for_each(LinkEnd::revoke);
    }

    /// Uses none of the mappings of peers' regions any more.
    pub fn forget_grants(&self) {
        self.inner.lock().grants.forget();
    }

    /// Peers this QP is linked with.
    pub fn peers(&self) -> Vec<Peer> {
        if let Some(front) = self.front() {
            let peer = front.and_then(|(front, _)| front.relay_peer(self.number));
            return peer.into_iter().collect();
        }
        self.inner.lock().links.iter().map(|link| link.peer).collect()
    }

    fn end_relay_of(&self, front: Option<(Arc<Qp>, u32)>) {
        if let Some((front, _)) = front {
            front.relay_ended(self.number);
        }
    }

    /// Whether something may still come over link `index`.
    pub(crate) fn listens_to(&self, index: usize) -> bool {
        // A thread that works with it right now uses it, or one beside it.
        self.inner.try_lock().is_none_or(|inner| match index {
            RELAYED => inner.extended.relays.are_some(),
            _ => inner.links.get(index).is_some_and(|link| !link.is_deaf()),
        })
    }
}

impl LinkEnd {
    /// Tells the far end what this QP is like, as far as its state says so, and that it receives
    /// from now on.
    pub(super) fn present(&mut self, service: Service, machine: &StateMachine) {
        let route = match service {
            Service::Ud => self.route(),
            _ => machine.attributes().route,
        };
        self.publish_route(route);
        let endpoint = &mut self.endpoint;
        endpoint.publish_receiving(&machine.attributes().into());
        if machine.is_ready_to_send() {
            endpoint.publish_sending(&machine.attributes().into());
        }
        endpoint.open(machine.attributes().rnr_timer());
    }
}

impl Inner {
    fn refuse_operations(&mut self, index: usize, refused: Operations) {
        self.links[index].refuse(refused);
        // The shortest way does not look at what is refused.
        if refused.contains(Operations::SEND) {
            self.receives.be_counted();
        }
    }

    /// The peer wrote what no peer writes.
    #[cold]
    pub(crate) fn broken(&mut self, qp: &Qp, index: usize) {
        if qp.service == Service::Ud {
            let broken = self.links[index].peer;
            self.links.forget(|peer| *peer == broken);
        } else if self.machine.state() != State::Err {
            self.enter_error(qp, Some(status::FATAL_ERR));
            qp.event(AsyncEvent::QpFatal);
        }
    }

    /// The link is replaced: what became of requests under way on it will never be known. RC fails
    /// then, as it does on the wire, where their PSNs would match no more; UC says its message
    /// again.
    pub(super) fn abandon_flight(&mut self, qp: &Qp) -> Result<(), QpFailed> {
        if !self.sends.has_begun() {
            return Ok(());
        }
        if qp.service.is_reliable() {
            self.enter_error(qp, Some(status::RETRY_EXC_ERR));
            return Err(QpFailed);
        }
        self.sends.start_again();
        Ok(())
    }

    pub(super) fn drop_links(&mut self, qp: &Qp) {
        for index in 0..self.links.len() {
            match self.links[index].deafen() {
                // A shared receive does not go back; one of our own does.
                InboundState::Send { receive, .. } if qp.shares_receives() => {
                    self.deliveries().fail(qp, &receive, status::WR_FLUSH_ERR);
                }
                InboundState::Send { .. } => self.receives.put_back(),
                _ => {}
            }
            let link = &mut self.links[index];
            let stays = link.peer.is_beyond_engine().then(|| {
                // This link is not looked at any more, but the engine may use it at pages of ours.
                link.endpoint.advance_epoch();
                let there = link.endpoint.peer_reaches_pages_that_stay();
                there.then(|| link.endpoint.stay())
            });
            link.endpoint.close();
            if let Some(engine) = stays.flatten() {
                qp.shared.leave_behind(link.daemon, engine);
            }
        }
        if !self.links.is_empty() {
            qp.send_cq.unwatch(qp.number);
            qp.recv_cq.unwatch(qp.number);
        }
        self.links.clear();
        self.extended.end_relays(qp);
        self.extended.unlink(qp);
        self.grants.clear();
        self.path.untrace();
    }
}
