//! How datagrams find their way: a call names a destination, and is made again until the network
//! has answered, for a neighbour in both directions, because a direct link, once there, carries
//! both. It does not wait: that may be long, and a process has one call at a time.

use crate::directory::asking::Resolved;
use crate::directory::neighbours::Answer;
use crate::ids::{LinkKey, SessionId};
use crate::path::Why;
use crate::tenancy::Tenancy;
use crate::wire::{Route, Way};
use omniverb_session::body::{CLOSED_BY_PEER, CONNECT_AGAIN, ConnectQp, Connected};
use omniverb_terms::{Errno, Qpn};

impl Tenancy {
    /// Takes a session's datagram call as far as it gets.
    pub(crate) fn connect_datagrams(&mut self, id: SessionId, tag: u64, m: &ConnectQp, now: u64) {
        match self.connect_datagram(id, m, now) {
            Ok(true) => self.reply(id, tag, Connected { qpn: m.qpn, ready: 1 }),
            Ok(false) => self.reply(id, tag, Connected { qpn: m.qpn, ready: CONNECT_AGAIN }),
            Err(errno) => self.fail(id, tag, errno),
        }
    }

    /// `Ok(true)`: linked. `Ok(false)`: the network is being asked, or the peer has no time.
    fn connect_datagram(&mut self, id: SessionId, m: &ConnectQp, now: u64) -> Result<bool, Errno> {
        let ours = self.own_qp(id, m.qpn)?.vnic;
        if self.leads_to(m) {
            return Ok(true);
        }
        let theirs = match self.resolve((ours, m.sgid, m.dgid), ours, None, now) {
            Resolved::To(Answer::Is(vnic)) => vnic,
            Resolved::To(Answer::NoAccess) => return Err(Errno::EHOSTUNREACH),
            Resolved::To(Answer::Omniverb(features)) => {
                return self.datagrams_by_engine(m, Route::wire(Why::Omniverb, features), now);
            }
            Resolved::To(Answer::Silence) => {
                return self.datagrams_by_engine(m, Route::roce(), now);
            }
            Resolved::Busy => return Err(Errno::ENOMEM),
            Resolved::Asking => return Ok(false),
        };
        let peer = self.qps.get(&m.dest_qpn).filter(|qp| qp.vnic == theirs).ok_or(Errno::ENOENT)?;
        if peer.service.is_connected() {
            return Err(Errno::ENOENT);
        }
        let far = peer.session;
        if let Some(why) = self.through_engine(ours, theirs) {
            return self.datagrams_by_engine(m, Route::forwarded(why, theirs), now);
        }
        if theirs != ours {
            match self.resolve((theirs, m.dgid, m.sgid), ours, None, now) {
                Resolved::To(Answer::Is(back)) if back == ours => {}
                Resolved::Busy => return Err(Errno::ENOMEM),
                Resolved::Asking => return Ok(false),
                // Datagrams need one direction only.
                Resolved::To(_) => {
                    return self.datagrams_by_engine(m, Route::wire(Why::OneWay, 0), now);
                }
            }
        }
        if far != id && !self.has_time(far) {
            return Ok(false);
        }
        self.end_datagrams(m.qpn, m.dest_qpn);
        let invited = (theirs != ours).then_some((ours, theirs));
        let ends = ((m.qpn, m.sgid, m.dgid), (m.dest_qpn, m.dgid, m.sgid));
        self.make_link(ends.0, ends.1, invited, now)?;
        Ok(true)
    }

    fn datagrams_by_engine(
        &mut self,
        m: &ConnectQp,
        route: Route,
        now: u64,
    ) -> Result<bool, Errno> {
        let qp = self.qps.get(&m.qpn).ok_or(Errno::ENOENT)?;
        // Its own address is another one now, or the peer is not here any more.
        if qp.links.contains(&m.dest_qpn) || qp.wires.contains_key(&(m.dest_qpn, m.dgid)) {
            self.end_datagrams(m.qpn, m.dest_qpn);
        }
        let way = Way { qpn: m.qpn, peer: m.dest_qpn, sgid: m.sgid, dgid: m.dgid };
        self.make_wire(way, route, now)?;
        Ok(true)
    }

    /// There is a link to exactly this destination.
    fn leads_to(&self, m: &ConnectQp) -> bool {
        let far = (m.dest_qpn, m.dgid);
        if let Some(wire) = self.qps.get(&m.qpn).and_then(|qp| qp.wires.get(&far)) {
            return wire.sgid == m.sgid;
        }
        let key = LinkKey::new(m.qpn, m.dest_qpn);
        let Some(link) = self.links.get(&key) else { return false };
        let wanted = if m.qpn == key.0 { [m.sgid, m.dgid] } else { [m.dgid, m.sgid] };
        // Of a link that is older than this daemon nobody says where it leads.
        link.place.is_none() || link.ways.map(|(sgid, _)| sgid) == wanted
    }

    /// Links for the same number make way for one that the client cannot tell from them. Both queue
    /// pairs of a direct one may use it, so both are told.
    fn end_datagrams(&mut self, qpn: Qpn, peer: Qpn) {
        let linked = self.links.contains_key(&LinkKey::new(qpn, peer));
        if linked {
            self.close_link(qpn, peer, CLOSED_BY_PEER);
            self.refuse_wish(qpn, peer);
        }
        self.end_wires(qpn, peer, Some(CLOSED_BY_PEER));
        // The same numbers the other way round, if a stranger was there before the peer itself.
        let back = self.qps.get(&peer);
        if back.is_some_and(|back| back.wires_to(qpn).all(|wire| wire.uninvited)) {
            self.end_wires(peer, qpn, Some(CLOSED_BY_PEER));
        }
    }
}
