//! Makes and ends links to the engine: for peers that are not to be reached directly.
//!
//! They need only one side's wish, and, for datagrams, not even that: a stranger's datagram to a
//! queue pair makes a link, within a quota. All links of a session to the engine share one
//! doorbell, which goes with the last of them.

use super::doorbell_assignment::BellSlot;
use super::engine_link::{Cause, Delivery, EngineLink, EngineLinkAge, Flow, Route};
use super::link_eviction::Pending;
use super::reachability_table::ConsentUser;
use crate::accounts::{Kind, Receipt};
use crate::action::{Action, EngineEnd, LinkEvent};
use crate::links::Linker;
use crate::links::Links;
use crate::links::Pairing;
use crate::links::Unlinker;
use crate::network::route_destination_cache::Answer;
use crate::qp_data_path::{Path, PathReason};
use crate::queue_pairs::qp_numbers;
use crate::row_keys::SessionId;
use crate::vm_pair_windows::window_assignment::LinkOrigin;
use omniverb_session::body::{
    BellClosed, CLOSED_BY_DEATH, CLOSED_BY_PEER, ConnectQp, Extent, LinkClosed, LinkReady,
};
use omniverb_terms::{Errno, Gid, Qpn, Service, VnicId};
use omniverb_wire::PortNotice;
use std::collections::BTreeSet;

/// The engine, as the other party of bells. Sessions are counted from below.
const ENGINE: SessionId = SessionId(u64::MAX);

/// That of a link whose doorbell an earlier daemon made.
const NO_BELL: u64 = 0;

impl Linker<'_> {
    /// Records a link that its process has carried since before this daemon was started. There is
    /// no memory of it here.
    pub(super) fn record_carried(&mut self, m: &ConnectQp, now: u64) -> Result<(), Errno> {
        let ConnectQp { qpn, dest_qpn: peer, sgid, dgid, .. } = *m;
        let flow = Flow { qpn, peer, sgid, dgid };
        let qp = self.queue_pairs.get(qpn).ok_or(Errno::ENOENT)?;
        let (session, vnic, service) = (qp.session(), qp.vnic(), qp.service());
        let route = Route::omniverb(PathReason::Survivor, PortNotice::FEATURE);
        self.network.route_to(self.tenants, vnic, sgid, dgid).ok_or(Errno::EHOSTUNREACH)?;
        let refused = self.refused_by_engine((vnic, service, None), flow, route);
        if !self.record_carrier((vnic, service), flow, refused.outbound, now) {
            return Err(Errno::EPERM);
        }
        let receipt = self.engine_receipt((session, vnic, service), (route.cause, dgid), now);
        let receipt = receipt.inspect_err(|_| self.forget_carrier(flow))?;
        let client = self.tenants.sessions.get(&session).ok_or(Errno::ENOENT)?;
        let holder = client.client().holder.in_vnic(vnic.0);
        let place = BellSlot { bell: NO_BELL, is_new: false, sides: [0, 1], slots: [0, 0] };
        let Route { why, within, cause, delivery, .. } = route;
        let (path, port, question, born) = (Path::Carried, None, None, now);
        let link = EngineLink {
            session,
            vnic,
            service,
            place,
            flow,
            path,
            why,
            port,
            within,
            born,
            cause,
            delivery,
            refused,
            question,
        };
        self.observer().audit_engine_link(&link, LinkEvent::Made);
        self.links.engine.insert(receipt.pays_for(link), &holder);
        Ok(())
    }

    /// Makes a link to the engine. There must be none for this peer yet; for datagrams there may be
    /// one for another peer of the same number.
    pub(super) fn link_to_engine(
        &mut self,
        flow: Flow,
        route: Route,
        now: u64,
    ) -> Result<(), Errno> {
        let Flow { qpn, peer, sgid, dgid } = flow;
        let qp = self.queue_pairs.get(qpn).ok_or(Errno::ENOENT)?;
        let (session, vnic, service) = (qp.session(), qp.vnic(), qp.service());
        let linked = match service {
            Service::Ud => self.links.knows(flow),
            _ => self.links.is_linked(qpn, peer),
        };
        if linked {
            return Err(Errno::EINVAL);
        }
        let underlay =
            self.network.route_to(self.tenants, vnic, sgid, dgid).ok_or(Errno::EHOSTUNREACH)?;
        let receipt = self.engine_receipt((session, vnic, service), (route.cause, dgid), now)?;
        let client = self.tenants.sessions.get(&session).ok_or(Errno::ENOENT)?;
        let holder = client.client().holder.in_vnic(vnic.0);
        let place = self.links.bells.take(session, ENGINE).ok_or(Errno::ENOMEM)?;
        let port = self.tenants.connected_ports.port((vnic, dgid, peer));
        let refused = self.refused_by_engine((vnic, service, port), flow, route);
        let outbound = refused.outbound;
        let carrier = self.choose_carrier((vnic, service), flow, &route, outbound, now);
        let Route { path, why, within, cause, features, delivery } = route;
        let path = if carrier.is_process() { Path::Carried } else { path };
        let question =
            within.and_then(|to| self.network.question(self.tenants, vnic, to, sgid, dgid));
        if let Some(question) = question {
            let payer = if cause == Cause::Stranger { within.unwrap_or(vnic) } else { vnic };
            self.links.rely_on(
                self.context,
                question,
                ConsentUser::Engine(qpn, flow.remote_peer()),
                payer,
                now,
            );
        }
        let born = now;
        let link = EngineLink {
            session,
            vnic,
            service,
            place,
            flow,
            path,
            why,
            port,
            within,
            born,
            cause,
            delivery,
            refused,
            question,
        };
        self.observer().audit_engine_link(&link, LinkEvent::Made);
        self.links.engine.insert(receipt.pays_for(link), &holder);
        let limits = self.context.limits();
        let (request_bytes, response_bytes) = match service {
            Service::Ud => (limits.datagram_request_bytes, limits.datagram_response_bytes),
            _ => (limits.engine_request_bytes, limits.engine_response_bytes),
        };
        let ready = LinkReady {
            qpn,
            peer_qpn: peer,
            side: 0,
            request_bytes,
            response_bytes,
            bell_new: u32::from(place.is_new),
            bell: place.bell,
            bell_side: place.sides[0],
            loopback: 0,
            local_slot: place.slots[0],
            peer_slot: place.slots[1],
            sgid,
            dgid,
            engine: 1,
            traced: 0,
            refused: refused.inbound.bits(),
            carried: u32::from(carrier.is_process()),
            memory: Extent::NONE,
            bell_memory: Extent::NONE,
        };
        self.context.act(Action::AttachEngine(Box::new(EngineEnd {
            session,
            vnic,
            service,
            underlay,
            // Packets of a vNIC to itself for a number that it does not have are lost.
            within: if delivery == Delivery::Lost { Some(vnic) } else { within },
            features,
            refused: refused.outbound,
            ready,
        })));
        self.unlinker().notice_due((qpn, flow.remote_peer()), now);
        Ok(())
    }

    /// The receipt of a link to the engine. Where quotas are used up by datagram links, the oldest
    /// goes, of strangers that of the sender with most. No link goes for one that cannot be made
    /// all the same.
    fn engine_receipt(
        &mut self,
        (id, key, service): (SessionId, VnicId, Service),
        (cause, newcomer): (Cause, Gid),
        now: u64,
    ) -> Result<Receipt, Errno> {
        let rested = now.saturating_sub(self.context.limits().datagram_link_time_ns);
        let kinds = cause.kinds(service);
        let vnic = self.tenants.vnics.get(&key).ok_or(Errno::ENOENT)?;
        let (mut stranger, mut uninvited) = (None, None);
        match cause {
            Cause::Stranger if vnic.account().full(&[Kind::Stranger]).is_some() => {
                // Not with a peer that the application knows, which may have the same number.
                let alone = |qpn: Qpn, peer: Qpn| {
                    self.queue_pairs.contains(qpn)
                        && self.links.engine.all_by(Cause::Stranger, qpn, peer)
                };
                let mut old = self.links.engine.strangers(key, newcomer, rested).into_iter();
                let first = old.find(|(_, qpn, (peer, _))| alone(*qpn, *peer));
                let (_, qpn, (peer, _)) = first.ok_or(Errno::ENOMEM)?;
                stranger = Some((qpn, peer));
            }
            Cause::Stranger => {}
            // No other link would make room for it.
            Cause::Group if self.tenants.is_full_of_groups(id) => return Err(Errno::ENOMEM),
            Cause::Requested | Cause::Group => {
                uninvited = self.in_the_way(id, key, Pending::default(), None).unwrap_or_default();
            }
        }
        let direct = uninvited.and_then(|key| self.links.direct.get(key));
        let of_direct = direct.into_iter().flat_map(|link| &link.receipts.ends);
        let receipts = |(qpn, peer): (Qpn, Qpn)| self.links.engine.receipts(qpn, peer);
        let mut returned: Vec<&Receipt> = of_direct.collect();
        returned.extend(stranger.into_iter().flat_map(receipts));
        let account = self.tenants.sessions.get(&id).ok_or(Errno::ENOENT)?.account();
        let mut oldest = None;
        if let Some(full) = account.full_after(kinds, &returned) {
            let host_full = full.is(self.context.host());
            let found = self.yielding((id, key, service), host_full, &returned, (rested, stranger));
            let found = found.ok_or(Errno::ENOMEM)?;
            returned.extend(receipts(found));
            if account.full_after(kinds, &returned).is_some() {
                return Err(Errno::ENOMEM);
            }
            oldest = Some(found);
        }
        if let Some(key) = uninvited {
            self.end_uninvited(key);
        }
        for (qpn, peer) in stranger.into_iter().chain(oldest) {
            // A connected queue pair has no other peer; one for datagrams asks again.
            let alone = self.queue_pairs.is_connected(qpn);
            let reason = if alone { CLOSED_BY_DEATH } else { CLOSED_BY_PEER };
            self.unlinker().end_engine_links(qpn, peer, Some(reason));
        }
        let session = self.tenants.sessions.get(&id).ok_or(Errno::ENOENT)?;
        Ok(session.account().note(kinds))
    }

    /// The link to the engine that makes way for one of a session: of the host's shared quota, that
    /// of the largest holder; of its own, the oldest for datagrams that has rested since `rested`,
    /// except one that goes already.
    fn yielding(
        &self,
        (id, key, service): (SessionId, VnicId, Service),
        host_full: bool,
        returned: &[&Receipt],
        (rested, gone): (u64, Option<(Qpn, Qpn)>),
    ) -> Option<(Qpn, Qpn)> {
        let holder = self.tenants.sessions.get(&id)?.client().holder.in_vnic(key.0);
        let connections = &[Kind::EngineConnection];
        let lacks_connections =
            host_full && self.context.host().full_after(connections, returned).is_some();
        let yields = match (host_full, lacks_connections && service != Service::Ud) {
            (false, _) => None,
            (true, false) => self.links.engine.yields_to(&holder),
            (true, true) => self.links.engine.connected_yields_to(&holder),
        };
        let ends = |(_, qpn, (peer, _)): EngineLinkAge| (qpn, peer);
        let stays = |link: &(Qpn, Qpn)| gone != Some(*link);
        if let Some(link) = yields {
            return Some(ends(link)).filter(stays);
        }
        let old = self.links.engine.oldest(id).take_while(|age| age.0 <= rested);
        old.filter(|_| service == Service::Ud).map(ends).find(stays)
    }
}

impl Links {
    /// There is a link to exactly this peer, or a direct one that has its number.
    fn knows(&self, flow: Flow) -> bool {
        let engine = self.engine.get(flow.qpn, flow.remote_peer());
        engine.is_some() || self.has_direct(flow.qpn, flow.peer)
    }
}

impl Unlinker<'_> {
    /// Ends the links to the engine for this number, if there are any; tells the queue pair's
    /// process if a `reason` (a `CLOSED_*`) is given.
    pub(crate) fn end_engine_links(&mut self, qpn: Qpn, peer: Qpn, reason: Option<u32>) {
        let links = self.remove_engine_links(qpn, peer);
        let Some(EngineLink { session, vnic, place, .. }) = links.first().copied() else { return };
        if let Some(reason) = reason {
            self.tenants.event(
                self.context,
                session,
                LinkClosed { qpn, peer_qpn: peer, reason, reserved: 0 },
            );
        }
        if place.bell != NO_BELL {
            self.context.act(Action::DetachEngine { vnic, qpn, peer_qpn: peer });
        }
        self.rest_bell(session, place.bell);
    }

    fn remove_engine_links(&mut self, qpn: Qpn, peer: Qpn) -> Vec<EngineLink> {
        let links = self.links.engine.remove(qpn, peer);
        if !links.is_empty() && self.queue_pairs.is_connected(qpn) {
            self.queue_pairs.drop_wish(self.context, qpn, peer);
            self.grants().end_engine_grants(qpn, peer);
        }
        for link in &links {
            self.end_exchange(link);
            if let Some(question) = link.question {
                self.links.stop_relying(
                    self.context,
                    question,
                    ConsentUser::Engine(qpn, link.flow.remote_peer()),
                );
            }
            self.observer().audit_engine_link(link, LinkEvent::Ended);
            self.links.bells.give(link.session, ENGINE, &link.place);
        }
        links
    }

    /// Without links to the engine a session needs no bell with it.
    fn rest_bell(&mut self, id: SessionId, bell: u64) {
        // Those of links that are older than this daemon are not known.
        if bell == NO_BELL {
            return;
        }
        let of = self.tenants.sessions.get(&id);
        if of.is_some_and(|session| session.account().count(Kind::EngineLink) == 0) {
            self.links.bells.forget(id, ENGINE);
            self.tenants.event(self.context, id, BellClosed { bell });
        }
    }

    /// A link to the engine could not be made after all.
    pub(crate) fn undo_engine_links(&mut self, qpn: Qpn, peer: Qpn) {
        let links = self.remove_engine_links(qpn, peer);
        let Some(EngineLink { session, vnic, place, .. }) = links.first().copied() else { return };
        self.refuse_wish(qpn, peer);
        if links.len() > 1 {
            // Others of the same number go with it: the client cannot tell them apart.
            self.context.act(Action::DetachEngine { vnic, qpn, peer_qpn: peer });
        }
        if links.iter().any(|link| link.place.is_new) {
            // Its bell does not exist, and links that were to use it cannot, either.
            for qpn in self.queue_pairs.of(session) {
                let peers: BTreeSet<Qpn> = self.links.engine_peers(qpn).into_iter().collect();
                for peer in peers {
                    self.remove_engine_links(qpn, peer);
                    self.refuse_wish(qpn, peer);
                    self.context.act(Action::DetachEngine { vnic, qpn, peer_qpn: peer });
                }
            }
        }
        self.rest_bell(session, place.bell);
    }
}

impl Pairing<'_> {
    /// A datagram for a queue pair came from a sender it has no link for.
    pub(crate) fn meet_stranger(&mut self, key: VnicId, flow: Flow, now: u64) {
        let Some(qp) = self.queue_pairs.get(flow.qpn) else { return };
        // A link for that number to a peer that the queue pair knows stays as it is.
        let fits = qp.vnic() == key && qp.service() == Service::Ud && !self.links.knows(flow);
        let session = qp.session();
        if !fits || !qp_numbers::is_qpn(flow.peer) || !self.tenants.owns(key, flow.sgid) {
            return;
        }
        let sender = self.network.address_of(self.tenants, key, flow.dgid);
        if !self.tenants.has_time(self.context, session)
            || self.tenants.is_foreign_address(key, sender)
        {
            return;
        }
        let route = match self.local_source(key, flow) {
            Some((source, why)) => Route::forwarded(why, source),
            // No other vNIC has addresses of ours.
            None if flow.dgid.is_loopback() || self.tenants.owns(key, flow.dgid) => return,
            None => match self.network.known_answer(self.tenants, key, flow.sgid, flow.dgid, now) {
                Some(Answer::Omniverb(features)) => Route::omniverb(PathReason::Stranger, features),
                _ => Route { why: PathReason::Stranger, ..Route::roce() },
            },
        };
        if !self.tenants.may_receive(self.network, key, flow, route.within) {
            return;
        }
        let _ = self.linker().link_to_engine(flow, Route { cause: Cause::Stranger, ..route }, now);
    }

    /// The vNIC of a sender that the engine forwards to us.
    fn local_source(&self, key: VnicId, flow: Flow) -> Option<(VnicId, PathReason)> {
        let source = self.links.engine.get(flow.peer, (flow.qpn, flow.sgid))?;
        let ours = source.within == Some(key) && source.flow.sgid == flow.dgid;
        let ends = ((key, flow.qpn), (source.vnic, flow.peer));
        let why = self
            .pair_windows
            .kept_apart(
                self.tenants,
                self.network,
                self.queue_pairs,
                ends.0,
                ends.1,
                LinkOrigin::ByFirst,
            )
            .unwrap_or(PathReason::PeerThroughEngine);
        ours.then_some((source.vnic, why))
    }
}
