//! Decides what rules allow on links, and applies changed rules to links that exist.
//!
//! Queue pairs connect if the rules accept `connect` in both directions, since each names the
//! other. Their operations are decided for each direction.

use super::Pairing;
use super::Unlinker;
use super::direct_link::GidPair;
use super::engine_link::{Cause, Delivery, EngineLink, Flow, Refused, Route};
use crate::action::Action;
use crate::links::{Linker, Observer};
use crate::network::Network;
use crate::qp_data_path::PathReason;
use crate::row_keys::{LinkKey, SessionId};
use crate::rules::vnic_rules::{Refusal, RuleEnd};
use crate::vnics_and_policies::Tenants;
use omniverb_session::body::{CLOSED_BY_NETWORK, CLOSED_BY_PEER, LinkRefuses, TAKE_ALL, TakeBack};
use omniverb_session::carried_links::GIVE_LINK_TIME_NS;
use omniverb_terms::{Gid, Operations, Qpn, Rkey, Service, VnicId};
use std::collections::BTreeSet;

/// The verdict of rules on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkVerdict {
    /// There may be one.
    pub(crate) is_allowed: bool,
    /// Operations that each end refuses from the other.
    pub(crate) refused: [Operations; 2],
}

impl Tenants {
    /// Whether two ends may connect with each other.
    pub(crate) fn may_connect(&self, ends: [RuleEnd; 2]) -> bool {
        let [one, other] = ends;
        let allows = |from, to| self.rules.allowed(from, to, None).contains(Operations::CONNECT);
        allows(one, other) && allows(other, one)
    }

    /// Whether datagrams may go from an address of a vNIC to a vNIC, if it is known, by a GID.
    pub(super) fn may_send(
        &self,
        network: &Network,
        from: VnicId,
        sgid: Gid,
        (to, dgid): (Option<VnicId>, Gid),
    ) -> bool {
        let address = |gid| network.address_of(self, from, gid);
        let ends = ((Some(from), address(sgid)), (to, address(dgid)));
        self.rules.allowed(ends.0, ends.1, None).contains(Operations::DATAGRAM)
    }

    /// Whether datagrams of the sender that a flow leads to may reach a vNIC.
    pub(super) fn may_receive(
        &self,
        network: &Network,
        at: VnicId,
        flow: Flow,
        source: Option<VnicId>,
    ) -> bool {
        let sender = (source, network.address_of(self, at, flow.dgid));
        let own = (Some(at), network.address_of(self, at, flow.sgid));
        self.rules.allowed(sender, own, None).contains(Operations::DATAGRAM)
    }

    /// The verdict of rules on a link between two vNICs of this host. Each has the address at which
    /// the network has shown it to the other: a process chooses its own address freely.
    pub(super) fn judge(
        &self,
        network: &Network,
        service: Service,
        vnics: [VnicId; 2],
        ways: [GidPair; 2],
        port: Option<u16>,
    ) -> LinkVerdict {
        let end =
            |at: usize| (Some(vnics[at]), network.address_of(self, vnics[at], ways[1 - at].1));
        self.judge_ends(service, [end(0), end(1)], port)
    }

    /// The port of rdma_cm by which the two queue pairs of a link were connected: what one end says
    /// alone is not believed.
    pub(super) fn port_of_link(
        &self,
        key: LinkKey,
        vnics: [VnicId; 2],
        ways: [GidPair; 2],
    ) -> Option<u16> {
        let port = |end: usize, peer| self.connected_ports.port((vnics[end], ways[end].1, peer));
        port(0, key.1).filter(|one| port(1, key.0) == Some(*one))
    }

    fn judge_ends(&self, service: Service, ends: [RuleEnd; 2], port: Option<u16>) -> LinkVerdict {
        let kinds = match service {
            Service::Ud => Operations::DATAGRAM,
            _ => Operations::ON_LINKS,
        };
        // By each end: the requests that it may send.
        let allowed = [(ends[1], ends[0]), (ends[0], ends[1])]
            .map(|(from, to)| self.rules.allowed(from, to, port));
        let refused = allowed.map(|allowed| kinds.without(allowed));
        let is_allowed = match service {
            Service::Ud => refused == [Operations::NONE; 2],
            _ => allowed.iter().all(|allowed| allowed.contains(Operations::CONNECT)),
        };
        LinkVerdict { is_allowed, refused }
    }
}

impl Observer<'_> {
    /// The rule that has denied a link, which leads nowhere therefore.
    pub(super) fn refusal_of(&self, link: &EngineLink) -> Option<Refusal> {
        let EngineLink { vnic, service, flow, port, .. } = *link;
        let address = |gid| self.network.address_of(self.tenants, vnic, gid);
        let (own, theirs) = (address(flow.sgid), address(flow.dgid));
        let wished = self.queue_pairs.wish(flow.qpn, flow.peer).and_then(|wish| wish.target);
        let to = wished.or_else(|| self.tenants.owner_of(vnic, theirs));
        let ends = [(Some(vnic), own), (to, theirs)];
        let refusal = |from: RuleEnd, to: RuleEnd, operation| {
            self.tenants.rules.refusal(from, to, port, operation)
        };
        match service {
            Service::Ud => refusal(ends[0], ends[1], Operations::DATAGRAM),
            _ => refusal(ends[0], ends[1], Operations::CONNECT)
                .or_else(|| refusal(ends[1], ends[0], Operations::CONNECT)),
        }
    }
}

impl Pairing<'_> {
    /// Whether rules let a connected queue pair be linked with what its wish names, which the
    /// network has led to.
    pub(super) fn may_link(&self, qpn: Qpn, peer: Qpn, target: Option<VnicId>) -> bool {
        let Some(qp) = self.queue_pairs.get(qpn) else { return true };
        let Some(wish) = qp.wish(peer) else { return true };
        let address = |gid| self.network.address_of(self.tenants, qp.vnic(), gid);
        let ends = [(Some(qp.vnic()), address(wish.sgid)), (target, address(wish.dgid))];
        let port = self.tenants.connected_ports.port((qp.vnic(), wish.dgid, peer));
        self.tenants.judge_ends(qp.service(), ends, port).is_allowed
    }
}

impl Linker<'_> {
    /// The operations that a link to the engine refuses.
    pub(super) fn refused_by_engine(
        &self,
        (vnic, service, port): (VnicId, Service, Option<u16>),
        flow: Flow,
        route: Route,
    ) -> Refused {
        match route.cause {
            // Its end is no single peer.
            Cause::Group => Refused::default(),
            Cause::Requested | Cause::Stranger if route.delivery == Delivery::Lost => {
                Refused::default()
            }
            Cause::Requested | Cause::Stranger => {
                let ends = flow_ends((self.network, self.tenants), vnic, flow, route.within);
                refused(self.tenants.judge_ends(service, ends, port))
            }
        }
    }
}

/// The queue pair's end of a link to the engine, and the peer's.
fn flow_ends(
    (network, tenants): (&Network, &Tenants),
    vnic: VnicId,
    flow: Flow,
    within: Option<VnicId>,
) -> [RuleEnd; 2] {
    let address = |gid| network.address_of(tenants, vnic, gid);
    [(Some(vnic), address(flow.sgid)), (within, address(flow.dgid))]
}

fn refused(verdict: LinkVerdict) -> Refused {
    let [inbound, outbound] = verdict.refused;
    Refused { inbound, outbound }
}

/// Whether pages may have been granted for an operation.
fn concerns_pages(lost: Operations) -> bool {
    let on_pages = Operations::READ.with(Operations::WRITE).with(Operations::ATOMIC);
    !lost.in_both(on_pages).is_empty()
}

impl Unlinker<'_> {
    /// Compares all links with rules that have changed.
    pub(crate) fn review_links(&mut self) {
        let mut concerned = BTreeSet::new();
        let direct: Vec<LinkKey> = self.links.all_direct().map(|(key, _)| key).collect();
        for key in direct {
            self.review_direct(key, &mut concerned);
        }
        let engine: Vec<EngineLink> = self.links.all_engine().map(|link| **link).collect();
        for link in engine {
            self.review_engine(&link, &mut concerned);
        }
        for session in concerned {
            self.take_all_back(session);
        }
    }

    /// A process takes back all pages that it granted: those of them that may be granted still are
    /// asked for anew.
    fn take_all_back(&mut self, session: SessionId) {
        let all = TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 };
        self.tenants.event(self.context, session, all);
    }

    fn review_direct(&mut self, key: LinkKey, concerned: &mut BTreeSet<SessionId>) {
        let Some(link) = self.links.direct(key) else { return };
        let service = self.queue_pairs.get(key.0).map_or(Service::Rc, |qp| qp.service());
        let verdict = self.tenants.judge(self.network, service, link.vnics, link.ways, link.port);
        let before = link.refused;
        let lost = [0, 1].map(|end: usize| verdict.refused[end].without(before[end]));
        // A SEND may be complete for its sender before it was looked at.
        let loses_send = lost.iter().any(|lost| lost.contains(Operations::SEND));
        if !verdict.is_allowed || loses_send {
            return self.part_link(key);
        }
        if verdict.refused == before {
            return;
        }
        if lost.into_iter().any(concerns_pages) {
            concerned.extend(link.sessions);
        }
        if let Some(link) = self.links.direct.get_mut(key) {
            link.refused = verdict.refused;
        }
        self.tell_refused(key, before);
    }

    /// Tells the ends of a link that an earlier daemon made what they refuse, and has pages taken
    /// back that rules do not let be granted.
    pub(super) fn tell_survivor(&mut self, key: LinkKey) {
        // A process keeps refusing until it gets another list.
        self.tell_refused(key, [Operations::NONE; 2]);
        let Some(link) = self.links.direct(key) else { return };
        if link.refused.into_iter().any(concerns_pages) {
            link.sessions.into_iter().for_each(|session| self.take_all_back(session));
        }
    }

    /// Tells the ends of a direct link what they refuse, if that is something else than before.
    fn tell_refused(&mut self, key: LinkKey, before: [Operations; 2]) {
        let Some(link) = self.links.direct(key) else { return };
        let (sessions, refused) = (link.sessions, link.refused);
        let ends = [(key.0, key.1), (key.1, key.0)];
        for (end, (qpn, peer_qpn)) in ends.into_iter().enumerate() {
            if refused[end] != before[end] {
                let refused = refused[end].bits();
                let told = LinkRefuses { qpn, peer_qpn, refused, reserved: 0 };
                self.tenants.event(self.context, sessions[end], told);
            }
        }
    }

    fn review_engine(&mut self, link: &EngineLink, concerned: &mut BTreeSet<SessionId>) {
        let EngineLink { session, vnic, service, flow, within, cause, delivery, why, port, .. } =
            *link;
        let Flow { qpn, peer, .. } = flow;
        // Another one of the same number may have taken it along.
        if cause == Cause::Group || self.links.engine.get(qpn, flow.remote_peer()).is_none() {
            return;
        }
        let is_lost = delivery == Delivery::Lost;
        // Lost for another reason than a rule.
        if is_lost && why != PathReason::Denied {
            return;
        }
        let ends = flow_ends((self.network, self.tenants), vnic, flow, within);
        let verdict = self.tenants.judge_ends(service, ends, port);
        let now = refused(verdict);
        if service == Service::Ud {
            let essential = match cause {
                Cause::Stranger => now.inbound,
                Cause::Requested | Cause::Group => now.outbound,
            };
            // The next message asks again for its way.
            if is_lost == essential.is_empty() {
                return self.end_engine_links(qpn, peer, Some(CLOSED_BY_PEER));
            }
        } else if !is_lost && !verdict.is_allowed {
            return self.end_engine_links(qpn, peer, Some(CLOSED_BY_NETWORK));
        }
        if is_lost || now == link.refused {
            return;
        }
        if concerns_pages(now.inbound.without(link.refused.inbound)) {
            concerned.insert(session);
        }
        if let Some(link) = self.links.engine.get_mut(qpn, flow.remote_peer()) {
            link.refused = now;
        }
        let Refused { inbound, outbound } = now;
        let told = LinkRefuses { qpn, peer_qpn: peer, refused: inbound.bits(), reserved: 0 };
        self.tenants.event(self.context, session, told);
        self.context.act(Action::RefuseEngine { vnic, qpn, peer_qpn: peer, inbound, outbound });
        if !outbound.is_empty() {
            self.ask_for_link((qpn, flow.remote_peer()), GIVE_LINK_TIME_NS);
        }
    }
}
