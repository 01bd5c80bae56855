//! Links datagram queue pairs with the destinations that they name.
//!
//! A call names a destination, and is repeated until the network has answered, for a neighbour in
//! both directions, because a direct link carries both. The call does not wait: an answer may take
//! long, and a process has one call at a time.

use super::direct_link::Invitation;
use super::engine_link::{Cause, Flow, Route};
use crate::links::Links;
use crate::links::Pairing;
use crate::links::Unlinker;
use crate::network::route_destination_cache::Answer;
use crate::network::route_destination_probes::Resolved;
use crate::qp_data_path::PathReason;
use crate::row_keys::{LinkKey, SessionId};
use crate::vm_pair_windows::window_assignment::LinkOrigin;
use omniverb_session::body::{CLOSED_BY_PEER, CONNECT_AGAIN, ConnectQp, Connected};
use omniverb_terms::{Errno, Qpn, VnicId};

/// The result of a datagram call.
enum Found {
    /// There is a link now.
    Linked,
    /// The network is being probed, or the peer has no time: the caller asks again.
    NotYet,
}

impl Pairing<'_> {
    /// Takes a session's datagram call as far as it gets.
    pub(crate) fn connect_datagrams(&mut self, id: SessionId, tag: u64, m: &ConnectQp, now: u64) {
        match self.connect_datagram(id, m, now) {
            Ok(Found::Linked) => self.context.reply(id, tag, Connected { qpn: m.qpn, ready: 1 }),
            Ok(Found::NotYet) => {
                self.context.reply(id, tag, Connected { qpn: m.qpn, ready: CONNECT_AGAIN })
            }
            Err(errno) => self.context.fail(id, tag, errno),
        }
    }

    fn connect_datagram(&mut self, id: SessionId, m: &ConnectQp, now: u64) -> Result<Found, Errno> {
        let ours = self.queue_pairs.own(id, m.qpn)?.vnic();
        if self.links.leads_to(m) {
            return Ok(Found::Linked);
        }
        if m.dgid.is_multicast() {
            // Its end is no single peer, so no host is probed. Members of a group in a flat network
            // may belong to any tenant: each hears its own.
            let may = self.tenants.may_send(self.network, ours, m.sgid, (None, m.dgid));
            let route = match may {
                true => Route::group(),
                false => Route { why: PathReason::Denied, ..Route::nowhere() },
            };
            return self.datagrams_by_engine(m, route, now);
        }
        let answer = match self.network.resolve(
            self.context,
            self.tenants,
            (ours, m.sgid, m.dgid),
            ours,
            None,
            now,
        ) {
            Resolved::To(answer) => answer,
            Resolved::Busy => return Err(Errno::ENOMEM),
            Resolved::Asking => return Ok(Found::NotYet),
        };
        let at = match answer {
            Answer::Is(vnic) => Some(vnic),
            _ => None,
        };
        let may = self.tenants.may_send(self.network, ours, m.sgid, (at, m.dgid));
        let theirs = match answer {
            Answer::NoAccess => return Err(Errno::EHOSTUNREACH),
            Answer::Foreign(_) => return self.datagrams_by_engine(m, Route::nowhere(), now),
            _ if !may => return self.datagrams_by_engine(m, Route::denied(), now),
            Answer::Is(vnic) => vnic,
            Answer::Omniverb(features) => {
                return self.datagrams_by_engine(
                    m,
                    Route::omniverb(PathReason::Omniverb, features),
                    now,
                );
            }
            Answer::Silence | Answer::Unheard => {
                return self.datagrams_by_engine(m, Route::roce(), now);
            }
        };
        let peer = self.queue_pairs.get(m.dest_qpn).filter(|qp| qp.vnic() == theirs);
        let peer = peer.filter(|qp| !qp.service().is_connected()).ok_or(Errno::ENOENT)?;
        let invited = peer.session();
        let ends = ((ours, m.qpn), (theirs, m.dest_qpn));
        // One link would carry both directions.
        let one_way = !self.tenants.may_send(self.network, theirs, m.dgid, (Some(ours), m.sgid));
        let by_rule = one_way.then_some(PathReason::Denied);
        if let Some(why) = by_rule.or_else(|| {
            self.pair_windows.kept_apart(
                self.tenants,
                self.network,
                self.queue_pairs,
                ends.0,
                ends.1,
                LinkOrigin::ByFirst,
            )
        }) {
            // Rules are about the address at which the network shows a vNIC. A process chooses its
            // own address freely.
            if theirs != ours && self.tenants.rules.are_some() {
                match self.way_back(m, [ours, theirs], now) {
                    Resolved::To(Answer::Is(back)) if back == ours => {}
                    Resolved::Busy => return Err(Errno::ENOMEM),
                    Resolved::Asking => return Ok(Found::NotYet),
                    Resolved::To(_) => return self.datagrams_by_engine(m, Route::denied(), now),
                }
            }
            self.pair_windows.note_apart(self.network, why, ours, theirs);
            return self.datagrams_by_engine(m, Route::forwarded(why, theirs), now);
        }
        if theirs != ours {
            match self.way_back(m, [ours, theirs], now) {
                Resolved::To(Answer::Is(back)) if back == ours => {}
                Resolved::Busy => return Err(Errno::ENOMEM),
                Resolved::Asking => return Ok(Found::NotYet),
                // Datagrams need one direction only.
                Resolved::To(_) => {
                    return self.datagrams_by_engine(
                        m,
                        Route::omniverb(PathReason::OneWay, 0),
                        now,
                    );
                }
            }
        }
        if invited != id && !self.tenants.has_time(self.context, invited) {
            return Ok(Found::NotYet);
        }
        self.unlinker().end_datagrams(m.qpn, m.dest_qpn);
        self.unlinker().end_namesakes(m.qpn, m.dest_qpn);
        let invitation = (theirs != ours).then_some(Invitation { from: ours, to: theirs });
        let ends = ((m.qpn, m.sgid, m.dgid), (m.dest_qpn, m.dgid, m.sgid));
        self.linker().make_link(ends.0, ends.1, invitation, now)?;
        Ok(Found::Linked)
    }

    /// The vNIC that the sender's address leads to, seen from the vNIC that it sends to.
    fn way_back(&mut self, m: &ConnectQp, [ours, theirs]: [VnicId; 2], now: u64) -> Resolved {
        let back = (theirs, m.dgid, m.sgid);
        self.network.resolve(self.context, self.tenants, back, ours, None, now)
    }

    fn datagrams_by_engine(
        &mut self,
        m: &ConnectQp,
        route: Route,
        now: u64,
    ) -> Result<Found, Errno> {
        let peer = (m.dest_qpn, m.dgid);
        // Its own address is another one now, or the peer is not here any more.
        if self.links.has_direct(m.qpn, m.dest_qpn) || self.links.engine.get(m.qpn, peer).is_some()
        {
            self.unlinker().end_datagrams(m.qpn, m.dest_qpn);
        }
        let flow = Flow { qpn: m.qpn, peer: m.dest_qpn, sgid: m.sgid, dgid: m.dgid };
        self.linker().link_to_engine(flow, route, now)?;
        Ok(Found::Linked)
    }
}

impl Links {
    /// There is a link to exactly this destination.
    fn leads_to(&self, m: &ConnectQp) -> bool {
        let peer = (m.dest_qpn, m.dgid);
        if let Some(link) = self.engine.get(m.qpn, peer) {
            return link.flow.sgid == m.sgid;
        }
        let key = LinkKey::new(m.qpn, m.dest_qpn);
        let Some(link) = self.direct(key) else { return false };
        let wanted = if m.qpn == key.0 { [m.sgid, m.dgid] } else { [m.dgid, m.sgid] };
        // The names of a link older than this daemon are not known.
        link.place.is_none() || link.ways.map(|(sgid, _)| sgid) == wanted
    }
}

impl Unlinker<'_> {
    /// Peers of two vNICs may have one virtual number. A client cannot tell direct links with them
    /// from each other: the older one makes way.
    fn end_namesakes(&mut self, qpn: Qpn, peer: Qpn) {
        for other in self.tenants.virtual_networks.namesakes(qpn, peer) {
            if self.links.has_direct(qpn, other) {
                self.end_datagrams(qpn, other);
            }
        }
    }

    /// Links for the same number make way for one that the client cannot tell from them. Both queue
    /// pairs of a direct one may use it, so both are told.
    fn end_datagrams(&mut self, qpn: Qpn, peer: Qpn) {
        if self.links.has_direct(qpn, peer) {
            self.close_link(qpn, peer, CLOSED_BY_PEER);
            self.refuse_wish(qpn, peer);
        }
        self.end_engine_links(qpn, peer, Some(CLOSED_BY_PEER));
        // Both numbers swapped, if a stranger had that number before the peer itself.
        if self.links.engine.all_by(Cause::Stranger, peer, qpn) {
            self.end_engine_links(peer, qpn, Some(CLOSED_BY_PEER));
        }
    }
}
