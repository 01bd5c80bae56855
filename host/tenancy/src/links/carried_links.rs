//! Decides which links to other hosts their processes carry, has them given to the engine, and
//! tells both ends' ports (decision 0096).
//!
//! A process may carry where nothing is to be enforced: a connection (RC) of a flat vNIC, without
//! limit, fault, capture or encryption, to another Omniverb that knows notices of ports. All that
//! it says counts for links of its own; a lie harms its own connection.

use super::engine_link::{Cause, Delivery, EngineLink, Flow, Route};
use super::port_exchange::{Carrier, PeerNews, PortExchange};
use crate::action::Action;
use crate::link_observers::Observers;
use crate::links::{Linker, Unlinker};
use crate::network::Network;
use crate::policy::policies::Datapath;
use crate::qp_data_path::Path;
use crate::row_keys::{RemotePeer, SessionId};
use crate::timers::Timer;
use crate::vnics_and_policies::Tenants;
use omniverb_session::body::{CLOSED_BY_DEATH, Done};
use omniverb_session::carried_links::{
    AttachLink, CarriedPort, GIVE_LINK_TIME_NS, GiveLink, PeerPort,
};
use omniverb_terms::{Errno, Operations, Qpn, Service, UnderlayRoute, VnicId};
use omniverb_wire::{PORT, PortNotice};
use std::net::IpAddr;

/// How much longer a vNIC's links may take to be given, for each of them, in nanoseconds: a process
/// gives one after the other.
const EACH_LINK_TIME: u64 = 2_000_000;
/// Budget: how long they may take at most, in nanoseconds.
const GIVE_LINKS_TIME_MAX: u64 = 2_000_000_000;

fn key(link: &EngineLink) -> (Qpn, RemotePeer) {
    (link.flow.qpn, link.flow.remote_peer())
}

/// Nothing is to be enforced on what the processes of a vNIC send and get.
fn may_carry(tenants: &Tenants, network: &Network, observers: &Observers, vnic: VnicId) -> bool {
    let policy = tenants.policy(vnic);
    let is_flat = !tenants.virtual_networks.has(vnic);
    let is_free = policy.datapath == Datapath::Direct
        && !policy.is_limited()
        && policy.faults.is_none()
        && policy.encryption.is_none();
    let is_plain = !network.is_machine(vnic) && !network.is_closed(vnic);
    is_flat && is_free && is_plain && !observers.captures.cover([vnic, vnic])
}

impl Linker<'_> {
    /// Begins to exchange ports for a new link to the engine, if its peer's daemon does so.
    /// `refused`: what its process may not request. Returns the party that is to carry it.
    pub(super) fn choose_carrier(
        &mut self,
        (vnic, service): (VnicId, Service),
        flow: Flow,
        route: &Route,
        refused: Operations,
        now: u64,
    ) -> Carrier {
        if !self.exchanges_ports((vnic, service), route) {
            return Carrier::Engine;
        }
        let limits = self.context.limits();
        let most = (limits.carried_links, limits.carried_links_per_vnic);
        let offers = self.queue_pairs.wish(flow.qpn, flow.peer).is_some_and(|wish| wish.is_offered);
        let carries = offers
            && refused.is_empty()
            && may_carry(self.tenants, self.network, self.observers, vnic)
            && self.links.carried.has_room(vnic, most);
        let carrier = if carries { Carrier::Process } else { Carrier::Engine };
        let key = (flow.qpn, flow.remote_peer());
        self.links.carried.insert(key, vnic, PortExchange::new(carrier, now));
        carrier
    }

    /// Notices of ports are exchanged for such links.
    fn exchanges_ports(&self, (vnic, service): (VnicId, Service), route: &Route) -> bool {
        self.links.carried.is_on()
            && service == Service::Rc
            && route.features & PortNotice::FEATURE != 0
            && route.within.is_none()
            && route.cause == Cause::Requested
            && route.delivery == Delivery::Sent
            && !self.tenants.virtual_networks.has(vnic)
            && self.tenants.policy(vnic).encryption.is_none()
    }

    /// Begins an exchange for a link that its process has carried since before this daemon was
    /// started. False: it may not.
    pub(super) fn record_carrier(
        &mut self,
        (vnic, service): (VnicId, Service),
        flow: Flow,
        refused: Operations,
        now: u64,
    ) -> bool {
        let may = self.links.carried.is_on()
            && service == Service::Rc
            && refused.is_empty()
            && may_carry(self.tenants, self.network, self.observers, vnic);
        if may {
            let key = (flow.qpn, flow.remote_peer());
            self.links.carried.insert(key, vnic, PortExchange::new(Carrier::Survivor, now));
        }
        may
    }

    /// The link could not be recorded.
    pub(super) fn forget_carrier(&mut self, flow: Flow) {
        self.links.carried.remove((flow.qpn, flow.remote_peer()));
    }
}

impl Unlinker<'_> {
    /// The link of a session with this peer that its process carries.
    fn carried_link(&self, id: SessionId, qpn: Qpn, peer: Qpn) -> Result<EngineLink, Errno> {
        self.queue_pairs.own(id, qpn)?;
        let carried = |link: &&EngineLink| {
            let exchange = self.links.carried.get(key(link));
            exchange.is_some_and(|exchange| exchange.carrier().is_process())
        };
        self.links.engine.to(qpn, peer).find(carried).copied().ok_or(Errno::ENOENT)
    }

    /// A process says where packets for a link that it carries are to go.
    pub(crate) fn carried_port(
        &mut self,
        id: SessionId,
        m: &CarriedPort,
        now: u64,
    ) -> Result<Done, Errno> {
        let link = self.carried_link(id, m.qpn, m.peer_qpn)?;
        let port = m.process_port().ok_or(Errno::EINVAL)?;
        let exchange = self.links.carried.get_mut(key(&link)).ok_or(Errno::ENOENT)?;
        if !exchange.set_port(port, now) {
            return Err(Errno::EPERM);
        }
        self.notice_due(key(&link), now);
        Ok(Done { take_back: 0 })
    }

    /// A process gives a link to the engine.
    pub(crate) fn attach_link(
        &mut self,
        id: SessionId,
        m: &AttachLink,
        now: u64,
    ) -> Result<Done, Errno> {
        let link = self.carried_link(id, m.qpn, m.peer_qpn)?;
        let state = m.state().ok_or(Errno::EINVAL)?;
        let key = key(&link);
        let exchange = self.links.carried.get_mut(key).ok_or(Errno::ENOENT)?;
        if exchange.carrier() == Carrier::Survivor {
            self.carried_link_died(&link);
            return Err(Errno::ENOENT);
        }
        let peer_port = exchange.peer_port().unwrap_or(PORT);
        exchange.give_to_engine(now);
        self.links.carried.forget_kept(link.vnic);
        self.context.timers.clear(Timer::GiveLink { qpn: m.qpn, peer: key.1 });
        if let Some(link) = self.links.engine.get_mut(m.qpn, key.1) {
            link.path = Path::Omniverb;
        }
        self.context.act(Action::AttachCarried {
            qpn: m.qpn,
            peer_qpn: m.peer_qpn,
            peer_port,
            state: state.into(),
        });
        self.notice_due(key, now);
        Ok(Done { take_back: 0 })
    }

    /// What holds for a vNIC has changed: if its processes may not carry links any more, they are
    /// to give them to the engine.
    pub(crate) fn review_carried(&mut self, vnic: VnicId) {
        let carried = self.links.carried.of_vnic(vnic);
        if carried.is_empty() || may_carry(self.tenants, self.network, self.observers, vnic) {
            return;
        }
        let time = GIVE_LINK_TIME_NS.saturating_add(carried.len() as u64 * EACH_LINK_TIME);
        for key in carried {
            self.ask_for_link(key, time.min(GIVE_LINKS_TIME_MAX));
        }
    }

    /// The process of a carried link is to give it to the engine within this time.
    pub(super) fn ask_for_link(&mut self, (qpn, peer): (Qpn, RemotePeer), time: u64) {
        let Some(link) = self.links.engine.get(qpn, peer).copied() else { return };
        let Some(exchange) = self.links.carried.get_mut((qpn, peer)) else { return };
        match exchange.carrier() {
            Carrier::Engine => {}
            Carrier::Survivor => self.carried_link_died(&link),
            Carrier::Process if exchange.ask_for() => {
                let due = self.context.now().saturating_add(time);
                self.context.timers.set(Timer::GiveLink { qpn, peer }, due);
                let event = GiveLink { qpn, peer_qpn: peer.0 };
                self.tenants.event(self.context, link.session, event);
            }
            Carrier::Process => {}
        }
    }

    /// A process has not given a link in time.
    pub(crate) fn give_link_due(&mut self, qpn: Qpn, peer: RemotePeer) {
        if let Some(link) = self.links.engine.get(qpn, peer).copied() {
            self.carried_link_died(&link);
        }
    }

    /// The daemon cannot have the engine serve a link that its process gave.
    pub(crate) fn carried_link_lost(&mut self, qpn: Qpn, peer: Qpn) {
        let link = self.links.engine.to(qpn, peer).next().copied();
        if let Some(link) = link {
            self.carried_link_died(&link);
        }
    }

    /// A link fails as if its process had died: both ends are told.
    fn carried_link_died(&mut self, link: &EngineLink) {
        self.tell_death(link);
        self.end_engine_links(link.flow.qpn, link.flow.peer, Some(CLOSED_BY_DEATH));
    }

    /// Peers of a queue pair by these links are told that its process has died.
    pub(super) fn tell_deaths(&mut self, qpn: Qpn, peer: Qpn) {
        let links: Vec<EngineLink> = self.links.engine.to(qpn, peer).copied().collect();
        links.iter().for_each(|link| self.tell_death(link));
    }

    fn tell_death(&mut self, link: &EngineLink) {
        let Some(exchange) = self.links.carried.get(key(link)) else { return };
        let notice = exchange.last_notice(link.flow.qpn, link.flow.peer);
        self.send_notice(link, notice);
    }

    /// A link to the engine is no more, nor is its exchange.
    pub(super) fn end_exchange(&mut self, link: &EngineLink) {
        let (qpn, peer) = key(link);
        if self.links.carried.remove((qpn, peer)).is_some() {
            self.context.timers.clear(Timer::PortNotice { qpn, peer });
            self.context.timers.clear(Timer::GiveLink { qpn, peer });
        }
    }

    /// The way of a link's packets, if notices can take it. They are in plain: a vNIC whose packets
    /// are encrypted sends none and hears none.
    fn notice_route(&self, link: &EngineLink) -> Option<UnderlayRoute> {
        let EngineLink { vnic, flow, .. } = *link;
        if self.tenants.policy(vnic).encryption.is_some() {
            return None;
        }
        let route = self.network.route_to(self.tenants, vnic, flow.sgid, flow.dgid);
        route.filter(|route| route.key.is_none())
    }

    fn send_notice(&mut self, link: &EngineLink, notice: PortNotice) {
        if let Some(underlay) = self.notice_route(link) {
            let vnic = link.vnic;
            self.context.act(Action::SendNotice { vnic, underlay, datagram: notice.datagram() });
        }
    }

    /// It is time to tell a peer our port, once more if it does not answer.
    pub(crate) fn notice_due(&mut self, key: (Qpn, RemotePeer), now: u64) {
        let (qpn, peer) = key;
        let Some(link) = self.links.engine.get(qpn, peer).copied() else { return };
        let Some(exchange) = self.links.carried.get_mut(key) else { return };
        let Some(notice) = exchange.notice(qpn, peer.0) else { return };
        let timer = Timer::PortNotice { qpn, peer };
        match exchange.next_pause() {
            Some(pause) => self.context.timers.set(timer, now.saturating_add(pause)),
            None => self.context.timers.clear(timer),
        }
        self.send_notice(&link, notice);
    }

    /// A notice came to a vNIC from this address. It counts for a link that leads to the queue pair
    /// that it is from, there.
    pub(crate) fn notice_arrived(
        &mut self,
        at: VnicId,
        from: IpAddr,
        notice: &PortNotice,
        now: u64,
    ) {
        let leads = |link: &&EngineLink| {
            link.vnic == at && self.notice_route(link).is_some_and(|route| route.remote == from)
        };
        let found = self.links.engine.to(notice.to, notice.from).find(leads);
        let Some(link) = found.copied() else { return };
        let key = key(&link);
        let Some(exchange) = self.links.carried.get_mut(key) else { return };
        let news = exchange.hear(notice);
        let carrier = exchange.carrier();
        if notice.is_question || (news.is_some() && exchange.is_unheard()) {
            self.notice_due(key, now);
        } else if !exchange.is_unheard() {
            self.context.timers.clear(Timer::PortNotice { qpn: key.0, peer: key.1 });
        }
        let Flow { qpn, peer, .. } = link.flow;
        match news {
            None => {}
            Some(PeerNews::Gone) => self.end_engine_links(qpn, peer, Some(CLOSED_BY_DEATH)),
            Some(PeerNews::Port(port)) if carrier == Carrier::Engine => {
                let vnic = link.vnic;
                self.context.act(Action::SetPeerPort { vnic, qpn, peer_qpn: peer, port });
            }
            Some(PeerNews::Port(port)) => {
                let event = PeerPort { qpn, peer_qpn: peer, port: port.into(), reserved: 0 };
                self.tenants.event(self.context, link.session, event);
            }
        }
    }
}
