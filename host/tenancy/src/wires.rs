//! Links whose far end is the engine: for peers that are not to be reached directly.
//!
//! They need only one side's wish, and, for datagrams, not even that: what a stranger sends to a
//! queue pair makes a link, within a quota. All links of a session to the engine share one bell,
//! which goes with the last of them.

use crate::accounts::Kind;
use crate::action::{Action, WireEnd};
use crate::consents::Rest;
use crate::directory::neighbours::Answer;
use crate::ids::{Far, SessionId, VnicId};
use crate::numbers;
use crate::path::Why;
use crate::tenancy::Tenancy;
use crate::wire::{Route, Way, Wire, WireKey, kinds};
use omniverb_session::body::{
    BellClosed, CLOSED_BY_DEATH, CLOSED_BY_PEER, Extent, LinkClosed, LinkReady,
};
use omniverb_terms::{Errno, Qpn, Service};
use std::collections::BTreeSet;

/// The engine, as the other party of bells. Sessions are counted from below.
const ENGINE: SessionId = SessionId(u64::MAX);

impl Tenancy {
    /// Makes a link to the engine. There must be none for this peer yet; for datagrams there may be
    /// one for another peer of the same number.
    pub(crate) fn make_wire(&mut self, way: Way, route: Route, now: u64) -> Result<(), Errno> {
        let qp = self.qps.get(&way.qpn).ok_or(Errno::ENOENT)?;
        let (session, vnic, service) = (qp.session, qp.vnic, qp.service);
        let datagram = service == Service::Ud;
        let far: Far = (way.peer, way.dgid);
        let linked = match datagram {
            true => qp.links.contains(&way.peer) || qp.wires.contains_key(&far),
            false => qp.is_linked(way.peer),
        };
        if linked {
            return Err(Errno::EINVAL);
        }
        let underlay = self.route_to(vnic, way.sgid, way.dgid).ok_or(Errno::EHOSTUNREACH)?;
        self.make_room(session, vnic, datagram, route.uninvited, now)?;
        let account = &self.sessions.get(&session).ok_or(Errno::ENOENT)?.account;
        let receipt = account.charge(kinds(route.uninvited))?;
        let place = self.bells.take(session, ENGINE).ok_or(Errno::ENOMEM)?;
        let Route { path, why, within, uninvited, .. } = route;
        let Way { qpn, peer, sgid, dgid } = way;
        let question = within.and_then(|to| self.question(vnic, to, sgid, dgid));
        if let Some(question) = question {
            self.rest_on(question, Rest::Wire(qpn, far), now);
        }
        let wire = Wire { place, sgid, dgid, path, why, within, born: now, uninvited, question };
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.wires.insert(far, receipt.pays_for(wire));
        }
        self.audit_wire((session, vnic), qpn, far, &wire, true);
        let key: WireKey = (now, qpn, far);
        let holder = self.sessions.get(&session).map(|session| session.client.holder.in_vnic(vnic));
        self.seniority.add(key, &holder.unwrap_or_default());
        if datagram {
            self.seniority.add_datagrams(key, session);
        }
        if uninvited {
            self.seniority.add_stranger(key, vnic);
        }
        let limits = &self.limits;
        let (request_bytes, response_bytes) = match datagram {
            true => (limits.datagram_request_bytes, limits.datagram_response_bytes),
            false => (limits.wire_request_bytes, limits.wire_response_bytes),
        };
        let ready = LinkReady {
            qpn,
            peer_qpn: peer,
            side: 0,
            request_bytes,
            response_bytes,
            bell_new: u32::from(place.new),
            bell: place.bell,
            bell_side: place.sides[0],
            loopback: 0,
            local_slot: place.slots[0],
            peer_slot: place.slots[1],
            sgid,
            dgid,
            engine: 1,
            traced: 0,
            memory: Extent::NONE,
            bell_memory: Extent::NONE,
        };
        self.out.push(Action::AttachEngine(Box::new(WireEnd {
            session,
            vnic,
            service,
            underlay,
            within: within.is_some(),
            features: route.features,
            ready,
        })));
        Ok(())
    }

    /// Quotas; where they are used up by datagram links, the oldest goes.
    fn make_room(
        &mut self,
        id: SessionId,
        key: VnicId,
        datagram: bool,
        uninvited: bool,
        now: u64,
    ) -> Result<(), Errno> {
        let rested = now.saturating_sub(self.limits.datagram_link_time_ns);
        let vnic = self.vnics.get(&key).ok_or(Errno::ENOENT)?;
        if uninvited && vnic.account.full(&[Kind::Stranger]).is_some() {
            // Not with a peer that the application knows, which may have the same number.
            let alone = |qpn: &Qpn, peer: Qpn| {
                let qp = self.qps.get(qpn);
                qp.is_some_and(|qp| qp.wires_to(peer).all(|wire| wire.uninvited))
            };
            let mut old = self.seniority.strangers(key).take_while(|wire| wire.0 <= rested);
            let oldest = old.find(|(_, qpn, (peer, _))| alone(qpn, *peer));
            drop(old);
            let (_, qpn, (peer, _)) = oldest.ok_or(Errno::ENOMEM)?;
            self.end_wires(qpn, peer, Some(CLOSED_BY_PEER));
        }
        if !uninvited {
            self.make_way_to_engine(id, key);
        }
        let session = self.sessions.get(&id).ok_or(Errno::ENOENT)?;
        let Some(full) = session.account.full(kinds(uninvited)) else { return Ok(()) };
        // The host's quota is shared by all: whoever has the most of it yields.
        let host_full = full.is(&self.host);
        let holder = session.client.holder.in_vnic(key);
        let yields = host_full.then(|| self.seniority.yields_to(&holder)).flatten();
        let Some((_, qpn, (peer, _))) = yields else {
            let oldest = self.seniority.oldest(id).filter(|wire| datagram && wire.0 <= rested);
            let (_, qpn, (peer, _)) = oldest.ok_or(Errno::ENOMEM)?;
            self.end_wires(qpn, peer, Some(CLOSED_BY_PEER));
            return Ok(());
        };
        // A connected queue pair has nobody else; one for datagrams asks again.
        let alone = self.qps.get(&qpn).is_some_and(|qp| qp.service.is_connected());
        let reason = if alone { CLOSED_BY_DEATH } else { CLOSED_BY_PEER };
        self.end_wires(qpn, peer, Some(reason));
        Ok(())
    }

    /// Ends the links to the engine for this number, if there are any; the queue pair's process is
    /// told if there is something to be told.
    pub(crate) fn end_wires(&mut self, qpn: Qpn, peer: Qpn, reason: Option<u32>) -> bool {
        let Some((session, vnic, wires)) = self.remove_wires(qpn, peer) else { return false };
        if let Some(reason) = reason {
            self.event(session, LinkClosed { qpn, peer_qpn: peer, reason, reserved: 0 });
        }
        self.out.push(Action::DetachEngine { vnic, qpn, peer_qpn: peer });
        self.rest_bell(session, wires[0].place.bell);
        true
    }

    fn remove_wires(&mut self, qpn: Qpn, peer: Qpn) -> Option<(SessionId, VnicId, Vec<Wire>)> {
        let qp = self.qps.get_mut(&qpn)?;
        let (id, key, connected) = (qp.session, qp.vnic, qp.service.is_connected());
        let wires: Vec<Wire> = qp.wires_to(peer).map(|wire| **wire).collect();
        qp.wires.retain(|(number, _), _| *number != peer);
        if wires.is_empty() {
            return None;
        }
        if connected {
            self.drop_wish(qpn, peer);
            self.end_engine_grants(qpn, peer);
        }
        for wire in &wires {
            let row: WireKey = (wire.born, qpn, (peer, wire.dgid));
            if let Some(question) = wire.question {
                self.rest_no_more(question, Rest::Wire(qpn, (peer, wire.dgid)));
            }
            self.audit_wire((id, key), qpn, (peer, wire.dgid), wire, false);
            self.seniority.remove(&row, id, key);
            self.bells.give(id, ENGINE, &wire.place);
        }
        Some((id, key, wires))
    }

    /// Without links to the engine a session needs no bell with it.
    fn rest_bell(&mut self, id: SessionId, bell: u64) {
        if self.sessions.get(&id).is_some_and(|session| session.account.count(Kind::Wire) == 0) {
            self.bells.forget(id, ENGINE);
            self.event(id, BellClosed { bell });
        }
    }

    /// A link to the engine could not be made after all.
    pub(crate) fn undo_wires(&mut self, qpn: Qpn, peer: Qpn) {
        let Some((id, vnic, wires)) = self.remove_wires(qpn, peer) else { return };
        self.refuse_wish(qpn, peer);
        if wires.len() > 1 {
            // Others of the same number go with it: the client cannot tell them apart.
            self.out.push(Action::DetachEngine { vnic, qpn, peer_qpn: peer });
        }
        if wires.iter().any(|wire| wire.place.new) {
            // Its bell does not exist, and links that were to use it cannot, either.
            let qps = self.sessions.get(&id).map(|s| s.qps.clone()).unwrap_or_default();
            for qpn in qps {
                let far = self.qps.get(&qpn).into_iter().flat_map(|qp| qp.wires.keys());
                let peers: BTreeSet<Qpn> = far.map(|(peer, _)| *peer).collect();
                for peer in peers {
                    self.remove_wires(qpn, peer);
                    self.refuse_wish(qpn, peer);
                    self.out.push(Action::DetachEngine { vnic, qpn, peer_qpn: peer });
                }
            }
        }
        self.rest_bell(id, wires[0].place.bell);
    }

    /// A datagram for `qpn` came from somebody it has no link for.
    pub(crate) fn meet_stranger(&mut self, key: VnicId, way: Way, now: u64) {
        let Some(qp) = self.qps.get(&way.qpn) else { return };
        // A link for that number to somebody whom the queue pair knows stays as it is.
        let known = qp.links.contains(&way.peer) || qp.wires.contains_key(&(way.peer, way.dgid));
        let fits = qp.vnic == key && qp.service == Service::Ud && !known;
        let session = qp.session;
        if !fits || !numbers::is_qpn(way.peer) || !self.owns(key, way.sgid) {
            return;
        }
        if !self.has_time(session) {
            return;
        }
        let route = match self.local_source(key, way) {
            Some((source, why)) => Route::forwarded(why, source),
            // Nobody else has addresses of ours.
            None if way.dgid.is_loopback() || self.owns(key, way.dgid) => return,
            None => match self.known_answer(key, way.sgid, way.dgid, now) {
                Some(Answer::Omniverb(features)) => Route::wire(Why::Stranger, features),
                _ => Route { why: Why::Stranger, ..Route::roce() },
            },
        };
        let _ = self.make_wire(way, Route { uninvited: true, ..route }, now);
    }

    /// The vNIC of a sender that the engine forwards to us.
    fn local_source(&self, key: VnicId, way: Way) -> Option<(VnicId, Why)> {
        let source = self.qps.get(&way.peer)?;
        let wire = source.wires.get(&(way.qpn, way.sgid))?;
        let ours = wire.within == Some(key) && wire.sgid == way.dgid;
        let why = self.through_engine(key, source.vnic).unwrap_or(Why::PeerThroughEngine);
        ours.then_some((source.vnic, why))
    }
}
