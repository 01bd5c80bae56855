//! How two queue pairs find each other.
//!
//! RC and UC: each side states a *wish*: the peer's number and GID. When both wishes name each
//! other and each GID turned out (see `neighbours.rs`) to be an address of the other's vNIC, the
//! link is made. A wish nobody answers stays; the queue pair behaves as on a dead network.
//!
//! UD: a call names a destination and waits until the network has answered in both directions,
//! because a link, once there, carries both.

use crate::errno::{EHOSTUNREACH, EINVAL, ENOENT, ENOMEM};
use crate::neighbours::Resolved;
use crate::tables::{SessionId, VnicKey, Waiter, Waiting, Wish};
use crate::tenancy::{Tenancy, Timer};
use omniverb_session::body::{
    CLOSED_BY_DEATH, CLOSED_BY_PEER, ConnectQp, Connected, LinkClosed, QP_UD,
};

/// Times the network is asked for a peer that names us back.
const FAILURES_MAX: u32 = 8;

/// Largest 24-bit number.
const NUMBER_MAX: u32 = 0x00ff_ffff;

impl Tenancy {
    pub(crate) fn connect_qp(&mut self, id: SessionId, tag: u64, m: &ConnectQp, now: u64) {
        let (qp_type, linked, resume) = match self.connect_checked(id, m) {
            Ok(found) => found,
            Err(errno) => return self.fail(id, tag, errno),
        };
        let ready = Connected { qpn: m.qpn, ready: 1 };
        if resume {
            let answer = self.announce(m, qp_type, now);
            return match answer {
                Ok(()) => self.reply(id, tag, ready),
                Err(errno) => self.fail(id, tag, errno),
            };
        }
        if linked {
            return self.reply(id, tag, ready);
        }
        if qp_type == QP_UD {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.waiting = Some(Waiting::Datagram { tag, connect: *m });
            }
            return self.advance_call(id, now);
        }
        self.close_all(m.qpn, CLOSED_BY_PEER);
        self.wish(m, false);
        self.advance_wish(m.qpn, m.dest_qpn, now);
        let Some(qp) = self.qps.get(&m.qpn) else { return };
        if qp.wishes.contains_key(&m.dest_qpn) {
            let is_ready = u32::from(qp.links.contains(&m.dest_qpn));
            self.reply(id, tag, Connected { qpn: m.qpn, ready: is_ready });
        } else {
            self.fail(id, tag, ENOMEM);
        }
    }

    /// Type of the queue pair, whether the link is there, and whether it is an announcement.
    fn connect_checked(&self, id: SessionId, m: &ConnectQp) -> Result<(u32, bool, bool), u32> {
        let qp = self.own_qp(id, m.qpn)?;
        let resume = m.resume != 0;
        let allowed = self.sessions.get(&id).is_some_and(|s| s.resume);
        if m.dest_qpn > NUMBER_MAX || !self.owns(qp.vnic, m.sgid) || (resume && !allowed) {
            return Err(EINVAL);
        }
        Ok((qp.qp_type, qp.links.contains(&m.dest_qpn), resume))
    }

    /// Writes down where a queue pair wants to go.
    pub(crate) fn wish(&mut self, m: &ConnectQp, resumed: bool) {
        let wish = Wish {
            sgid: m.sgid,
            dgid: m.dgid,
            target: None,
            resumed,
            failures: 0,
            timer: None,
            gone: None,
            deadline: 0,
        };
        if let Some(qp) = self.qps.get_mut(&m.qpn) {
            qp.wishes.insert(m.dest_qpn, wish);
            self.wishers.entry(m.dest_qpn).or_default().insert(m.qpn);
        }
    }

    /// Takes a wish as far as it gets: finds out whose address it names, then, if the peer wishes
    /// the same, makes the link.
    pub(crate) fn advance_wish(&mut self, qpn: u32, peer: u32, now: u64) {
        let Some(qp) = self.qps.get(&qpn) else { return };
        let Some(wish) = qp.wishes.get(&peer) else { return };
        if qp.links.contains(&peer) {
            return;
        }
        let vnic = qp.vnic;
        let way = (vnic, wish.sgid, wish.dgid);
        let answer = self.resolve(way, vnic, Waiter::Wish { qpn, peer }, now);
        let target = match answer {
            Resolved::Is(target) => Some(target),
            Resolved::Asking => return,
            Resolved::Nobody | Resolved::Busy => None,
        };
        let mutual = self.is_mutual(qpn, peer);
        let Some(wish) = self.qps.get_mut(&qpn).and_then(|qp| qp.wishes.get_mut(&peer)) else {
            return;
        };
        wish.target = target;
        if target.is_none() {
            // Somebody is there and wants us, so the network may still be coming up. Without
            // that, asking again would be idle: the peer's own wish asks again for both.
            wish.failures += 1;
            let again = now.saturating_add(self.limits.stranger_time_ns);
            let again = (mutual && wish.failures < FAILURES_MAX).then_some(again);
            let given_up = wish.resumed.then_some(wish.deadline);
            if let Some(at) = again.into_iter().chain(given_up).min() {
                self.set_wish_timer(qpn, peer, at);
            }
            return;
        }
        if !mutual {
            if !self.qps.contains_key(&peer) && self.numbers.was_given(peer) {
                self.peer_is_gone(qpn, peer, CLOSED_BY_DEATH, now);
            }
            return;
        }
        match self.wish_target(peer, qpn) {
            None => self.advance_wish(peer, qpn, now),
            Some(back) if target == self.vnic_of(peer) && self.vnic_of(qpn) == Some(back) => {
                self.fulfil(qpn, peer);
            }
            Some(_) => {}
        }
    }

    fn vnic_of(&self, qpn: u32) -> Option<VnicKey> {
        self.qps.get(&qpn).map(|qp| qp.vnic)
    }

    fn wish_target(&self, qpn: u32, peer: u32) -> Option<VnicKey> {
        self.qps.get(&qpn)?.wishes.get(&peer)?.target
    }

    /// Both queue pairs are of one type and wish each other.
    fn is_mutual(&self, qpn: u32, peer: u32) -> bool {
        let (Some(one), Some(other)) = (self.qps.get(&qpn), self.qps.get(&peer)) else {
            return false;
        };
        match (one.wishes.get(&peer), other.wishes.get(&qpn)) {
            (Some(there), Some(back)) => {
                one.qp_type == other.qp_type && there.resumed == back.resumed
            }
            _ => false,
        }
    }

    fn fulfil(&mut self, qpn: u32, peer: u32) {
        let Some(wish) = self.qps.get(&qpn).and_then(|qp| qp.wishes.get(&peer)).copied() else {
            return;
        };
        let Some(back) = self.qps.get(&peer).and_then(|qp| qp.wishes.get(&qpn)).copied() else {
            return;
        };
        let made = if wish.resumed {
            self.record_link(qpn, peer)
        } else {
            self.make_link((qpn, wish.sgid, wish.dgid), (peer, back.sgid, back.dgid), None)
        };
        for (from, to) in [(qpn, peer), (peer, qpn)] {
            self.clear_wish_timer(from, to);
        }
        let datagram = self.qps.get(&qpn).is_some_and(|qp| qp.qp_type == QP_UD);
        if made.is_err() {
            self.refuse_wishes(qpn, peer);
        } else if datagram {
            self.drop_wish(qpn, peer);
            self.drop_wish(peer, qpn);
        }
    }

    pub(crate) fn set_wish_timer(&mut self, qpn: u32, peer: u32, at: u64) {
        self.clear_wish_timer(qpn, peer);
        if let Some(wish) = self.qps.get_mut(&qpn).and_then(|qp| qp.wishes.get_mut(&peer)) {
            wish.timer = Some(at);
            self.timers.insert((at, Timer::Wish { qpn, peer }));
        }
    }

    pub(crate) fn clear_wish_timer(&mut self, qpn: u32, peer: u32) {
        if let Some(wish) = self.qps.get_mut(&qpn).and_then(|qp| qp.wishes.get_mut(&peer))
            && let Some(at) = wish.timer.take()
        {
            self.timers.remove(&(at, Timer::Wish { qpn, peer }));
        }
    }

    pub(crate) fn drop_wish(&mut self, qpn: u32, peer: u32) {
        self.clear_wish_timer(qpn, peer);
        let removed = self.qps.get_mut(&qpn).and_then(|qp| qp.wishes.remove(&peer));
        if removed.is_some()
            && let Some(wishers) = self.wishers.get_mut(&peer)
        {
            wishers.remove(&qpn);
            if wishers.is_empty() {
                self.wishers.remove(&peer);
            }
        }
    }

    /// A wish cannot come true: its peer does not exist any more. The first caller's reason counts.
    pub(crate) fn peer_is_gone(&mut self, qpn: u32, peer: u32, reason: u32, now: u64) {
        let Some(wish) = self.qps.get_mut(&qpn).and_then(|qp| qp.wishes.get_mut(&peer)) else {
            return;
        };
        // What is announced after a restart has its own time limit; somebody may yet come back.
        if wish.resumed || wish.gone.is_some() {
            return;
        }
        wish.gone = Some(reason);
        self.set_wish_timer(qpn, peer, now.saturating_add(self.limits.absence_time_ns));
    }

    /// A wish's timer is due: ask again, or give up what survived only on one side.
    pub(crate) fn wish_due(&mut self, qpn: u32, peer: u32, at: u64, now: u64) {
        let Some(wish) = self.qps.get_mut(&qpn).and_then(|qp| qp.wishes.get_mut(&peer)) else {
            return;
        };
        if wish.timer != Some(at) {
            return;
        }
        wish.timer = None;
        if let Some(reason) = wish.gone {
            self.drop_wish(qpn, peer);
            if let Some(session) = self.qps.get(&qpn).map(|qp| qp.session) {
                self.event(session, LinkClosed { qpn, peer_qpn: peer, reason, reserved: 0 });
            }
            return;
        }
        if wish.resumed && now >= wish.deadline {
            self.abandon_resume(qpn, peer);
        } else {
            self.advance_wish(qpn, peer, now);
        }
    }

    /// Takes a session's datagram call as far as it gets, and answers it if that is the end.
    pub(crate) fn advance_call(&mut self, id: SessionId, now: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(Waiting::Datagram { tag, connect }) = session.waiting else { return };
        let result = match self.connect_datagram(id, &connect, now) {
            Ok(false) => return,
            Ok(true) => Ok(Connected { qpn: connect.qpn, ready: 1 }),
            Err(errno) => Err(errno),
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.waiting = None;
        }
        match result {
            Ok(connected) => self.reply(id, tag, connected),
            Err(errno) => self.fail(id, tag, errno),
        }
    }

    /// `Ok(true)`: linked. `Ok(false)`: the network is being asked.
    fn connect_datagram(&mut self, id: SessionId, m: &ConnectQp, now: u64) -> Result<bool, u32> {
        let qp = self.own_qp(id, m.qpn)?;
        if qp.links.contains(&m.dest_qpn) {
            return Ok(true);
        }
        let ours = qp.vnic;
        let waiter = Waiter::Call(id);
        let theirs = match self.resolve((ours, m.sgid, m.dgid), ours, waiter, now) {
            Resolved::Is(vnic) => vnic,
            Resolved::Nobody => return Err(EHOSTUNREACH),
            Resolved::Busy => return Err(ENOMEM),
            Resolved::Asking => return Ok(false),
        };
        let peer = self.qps.get(&m.dest_qpn).filter(|qp| qp.vnic == theirs).ok_or(ENOENT)?;
        if peer.qp_type != QP_UD {
            return Err(ENOENT);
        }
        if theirs != ours {
            match self.resolve((theirs, m.dgid, m.sgid), ours, waiter, now) {
                Resolved::Is(back) if back == ours => {}
                Resolved::Busy => return Err(ENOMEM),
                Resolved::Asking => return Ok(false),
                Resolved::Is(_) | Resolved::Nobody => return Err(EHOSTUNREACH),
            }
        }
        let invited = (theirs != ours).then_some((ours, theirs));
        let ends = ((m.qpn, m.sgid, m.dgid), (m.dest_qpn, m.dgid, m.sgid));
        self.make_link(ends.0, ends.1, invited)?;
        Ok(true)
    }
}
