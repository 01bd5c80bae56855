//! Tells the daemon of links that this process carries, and hears of them.

use super::Client;
use crate::carried_connections::{CarriedLink, EngineBell, HostingEnd, Outcome, QueuePairServer};
use crate::daemon_caller_trait::DaemonCaller;
use crate::deferred_daemon_calls::DeferredCall;
use omniverb_device::{Qp, Shared};
use omniverb_link::Doorbell;
use omniverb_ring::{DoorbellPage, Window};
use omniverb_session::Message;
use omniverb_session::body::LinkReady;
use omniverb_session::carried_links::{AttachLink, CarriedPort, GiveLink, PeerPort};
use omniverb_terms::{Errno, Qpn};
use std::sync::Arc;

/// What a queue pair rings of a link that it may get.
pub(super) struct LinkBells {
    /// Its own page, and what it rings.
    pub(super) page: DoorbellPage<Window>,
    pub(super) doorbell: Arc<dyn Doorbell>,
    /// The link's bit there.
    pub(super) slot: u32,
    /// The engine's, of a link that is carried.
    engine: Option<EngineBell>,
}

/// What all queue pairs of the process share.
struct DeviceShared(Arc<Shared>);

impl QueuePairServer for DeviceShared {
    fn serve(&self) {
        self.0.rung();
    }

    fn is_awaited(&self) -> bool {
        self.0.awaits_events()
    }
}

impl Client {
    /// The doorbell that the queue pair of a link is to ring: the peer's, or that of this process
    /// if that carries the link.
    pub(super) fn link_bells(
        &self,
        ready: &LinkReady,
        page: DoorbellPage<Window>,
        peer: Arc<dyn Doorbell>,
    ) -> Result<LinkBells, Errno> {
        let of_peer = (peer, ready.peer_slot);
        if ready.carried == 0 {
            let (doorbell, slot) = of_peer;
            return Ok(LinkBells { page, doorbell, slot, engine: None });
        }
        if ready.engine == 0 || ready.side != 0 || ready.loopback != 0 {
            return Err(Errno::EPROTO);
        }
        // Without a doorbell of its own the engine serves it from the beginning.
        let bell = self.carried.bell_of(ready.qpn);
        let (doorbell, slot) = bell.unwrap_or_else(|_| of_peer.clone());
        Ok(LinkBells { page, doorbell, slot, engine: Some(of_peer) })
    }

    /// Carries a link that a queue pair has just got, if it is to be carried.
    pub(super) fn carry(&self, ready: &LinkReady, memory: Window, bells: LinkBells) {
        let Some(engine) = bells.engine else { return };
        let parts = HostingEnd {
            memory,
            request_bytes: ready.request_bytes as usize,
            response_bytes: ready.response_bytes as usize,
            page: bells.page,
            slot: ready.local_slot,
        };
        let (local, peer) = (ready.sgid.address(), ready.dgid.address());
        let (qpn, peer_qpn) = (ready.qpn, ready.peer_qpn);
        let link = CarriedLink { parts, qpn, peer_qpn, local, peer, engine };
        if self.carried.carry(link, DeviceShared(self.shared.clone())).is_some() {
            // It may have been destroyed or reset meanwhile, before there was something to end.
            match self.is_linked(qpn, peer_qpn) {
                true => self.defer(DeferredCall::TellPort { qpn }),
                false => self.carried.end_link(qpn, peer_qpn),
            }
        }
    }

    /// Packets for the peer of a carried link go to this port.
    pub(super) fn hear_peer_port(&self, told: &PeerPort) {
        if let Some(port) = u16::try_from(told.port).ok().filter(|port| *port != 0) {
            self.carried.set_peer_port(told.qpn, told.peer_qpn, port);
        }
    }

    /// The engine is to have a carried link.
    pub(super) fn hear_give_link(&self, asked: &GiveLink) {
        self.carried.give(asked.qpn, asked.peer_qpn);
    }

    /// Tells the daemon the port of a carried link.
    pub(super) fn tell_port(&self, qpn: Qpn) {
        let all = self.carried.all();
        let Some((_, peer_qpn, port)) = all.into_iter().find(|(carried, _, _)| *carried == qpn)
        else {
            return;
        };
        match self.call(&port_message((qpn, peer_qpn, port))) {
            // `ENOENT`: the link is gone, which is told by an event. Without a daemon the next one
            // is told.
            Ok(_) => {}
            Err(Errno::ENOENT) => self.carried.end_link(qpn, peer_qpn),
            Err(errno) if crate::daemon_session::is_lost(errno) => {}
            Err(_) => self.carried.give(qpn, peer_qpn),
        }
    }

    /// Gives links to the engine that came to rest, and fails those that did not.
    pub(super) fn settle_carried(&self) {
        for outcome in self.carried.take_outcomes() {
            match outcome {
                Outcome::Given { qpn, peer_qpn, state, engine } => {
                    if self.carried.has(qpn) {
                        continue; // of an earlier link
                    }
                    match self.attach_to_engine(qpn, peer_qpn, &state) {
                        Ok(()) => {
                            if let Some(qp) = self.qps.get(qpn) {
                                qp.switch_doorbell(peer_qpn, &engine.0, engine.1);
                            }
                        }
                        Err(_) => self.fail_given(qpn, peer_qpn),
                    }
                }
                Outcome::Failed { qpn } => self.fail_carried(qpn),
            }
        }
    }

    fn attach_to_engine(&self, qpn: Qpn, peer_qpn: Qpn, state: &[u8]) -> Result<(), Errno> {
        let message = AttachLink::with_state(qpn, peer_qpn, state).ok_or(Errno::E2BIG)?;
        self.call(&message.into()).map(drop)
    }

    /// The engine does not take a link, or its daemon is gone, unless the queue pair has been reset
    /// meanwhile.
    fn fail_given(&self, qpn: Qpn, peer_qpn: Qpn) {
        if !self.carried.has(qpn) && self.is_linked(qpn, peer_qpn) {
            self.fail_carried(qpn);
        }
    }

    /// Whether there is such a queue pair, and a link of it leads to this peer.
    fn is_linked(&self, qpn: Qpn, peer_qpn: Qpn) -> bool {
        let leads_there = |qp: Arc<Qp>| qp.peers().iter().any(|peer| peer.qpn == peer_qpn);
        self.qps.get(qpn).is_some_and(leads_there)
    }

    /// A carried link has come to nothing: its queue pair fails as if the engine had died.
    pub(super) fn fail_carried(&self, qpn: Qpn) {
        self.carried.end(qpn);
        if let Some(qp) = self.qps.get(qpn) {
            qp.engine_died();
        }
    }
}

/// What the daemon is told of a carried link: its queue pair, the peer's, and our port.
pub(super) fn port_message((qpn, peer_qpn, port): (Qpn, Qpn, u16)) -> Message {
    CarriedPort { qpn, peer_qpn, port: port.into(), reserved: 0 }.into()
}
