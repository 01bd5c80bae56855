//! After a restart of the daemon: links that went on without it are written down again.
//!
//! Whoever announces a queue pair proves with its ticket that the number was given to it; of two
//! with a ticket for the same number, which has then been given twice, the later one has it. Both
//! ends announce what they hold. A link counts when both have, and the same checks hold as for a
//! new one. An end whose other end does not announce itself in time is told that its peer is
//! dead: most likely it died while nobody was watching. A link to the engine ended with the engine;
//! who announces one is told that its peer is dead. All this is heard only for a while after the
//! daemon was started.

use crate::ids::{LinkKey, SessionId};
use crate::links::End;
use crate::numbers;
use crate::path::Why;
use crate::tables::{Link, Qp};
use crate::tenancy::Tenancy;
use crate::tickets::Claim;
use omniverb_session::body::{
    CLOSED_BY_DEATH, CLOSED_BY_PEER, ConnectQp, CreateQp, LinkClosed, RESUME_LINK, RESUME_WIRE,
};
use omniverb_terms::{Errno, Qpn, Service};

impl Tenancy {
    /// Checks that a session may have the number it asks for, and makes it free.
    pub(crate) fn claim(
        &mut self,
        id: SessionId,
        m: &CreateQp,
        service: Service,
        now: u64,
    ) -> Result<(), Errno> {
        let session = self.sessions.get(&id).filter(|s| s.resume).ok_or(Errno::EINVAL)?;
        if !numbers::is_qpn(m.qpn) {
            return Err(Errno::EINVAL);
        }
        let (vnic, uid) = (session.client.vnic, session.client.uid);
        if !self.vnics.contains_key(&vnic) {
            return Err(Errno::EINVAL);
        }
        let vnic = self.proof(vnic);
        let (qpn, issued) = (m.qpn, m.issued);
        let claim = Claim { qpn, service, vnic, uid, issued };
        if !self.tickets.are_taken(now) || !self.tickets.proves(&claim, m.ticket) {
            return Err(Errno::EPERM);
        }
        let held = |holder: &Qp| holder.session == id || holder.issued >= issued;
        if self.qps.get(&qpn).is_some_and(held) {
            return Err(Errno::EADDRINUSE);
        }
        self.tickets.seen(issued);
        self.numbers.note(qpn);
        self.displace(qpn, now);
        Ok(())
    }

    /// The ticket that a session's process would have been given; for tests, which play liars.
    pub(crate) fn ticket(
        &self,
        id: SessionId,
        (qpn, service): (Qpn, Service),
        issued: u64,
    ) -> [u8; 16] {
        let Some(client) = self.sessions.get(&id).map(|s| &s.client) else { return [0; 16] };
        let (vnic, uid) = (self.proof(client.vnic), client.uid);
        self.tickets.make(&Claim { qpn, service, vnic, uid, issued })
    }

    /// Takes a number from a session that had it before its owner. Peers whose links were taken
    /// for that session's wait on for the owner.
    fn displace(&mut self, qpn: Qpn, now: u64) {
        let Some(qp) = self.qps.get(&qpn) else { return };
        let survivors = qp.links.iter().filter(|peer| **peer != qpn).filter_map(|peer| {
            let key = LinkKey::new(qpn, *peer);
            let link = self.links.get(&key).filter(|link| link.place.is_none())?;
            let (sgid, dgid) = link.ways[usize::from(key.1 == *peer)];
            Some((
                key,
                ConnectQp {
                    qpn: *peer,
                    dest_qpn: qpn,
                    sgid,
                    dgid,
                    resume: RESUME_LINK,
                    reserved: 0,
                },
            ))
        });
        for (key, announcement) in survivors.collect::<Vec<_>>() {
            self.remove_link(key);
            self.wait_for(&announcement, now);
        }
        self.close_all(qpn, CLOSED_BY_PEER);
        self.strike_qp(qpn);
    }

    pub(crate) fn announce(
        &mut self,
        m: &ConnectQp,
        service: Service,
        now: u64,
    ) -> Result<(), Errno> {
        let Some(qp) = self.qps.get(&m.qpn) else { return Ok(()) };
        if m.resume == RESUME_WIRE {
            // Its far end died with the daemon before us.
            self.abandon_resume(m.qpn, m.dest_qpn);
            return Ok(());
        }
        if qp.is_linked(m.dest_qpn) || qp.wishes.contains_key(&m.dest_qpn) {
            return Ok(());
        }
        // A connected queue pair has one peer; a datagram one as many as its session may have.
        if service.is_connected() && !qp.wishes.is_empty() {
            return Err(Errno::EINVAL);
        }
        if qp.wishes.len() + qp.links.len() >= self.limits.links_per_session {
            return Err(Errno::ENOMEM);
        }
        self.wait_for(m, now);
        self.advance_wish(m.qpn, m.dest_qpn, now);
        Ok(())
    }

    /// Writes down that a link survived, if its other end says so before long.
    fn wait_for(&mut self, m: &ConnectQp, now: u64) {
        self.wish(m, true);
        let deadline = now.saturating_add(self.limits.resume_time_ns);
        if let Some(wish) = self.qps.get_mut(&m.qpn).and_then(|qp| qp.wishes.get_mut(&m.dest_qpn)) {
            wish.deadline = deadline;
        }
        self.set_wish_timer(m.qpn, m.dest_qpn, deadline);
    }

    /// The other end did not announce itself.
    pub(crate) fn abandon_resume(&mut self, qpn: Qpn, peer: Qpn) {
        // The client forgets whatever has that number, what is newer included.
        self.close_link(qpn, peer, CLOSED_BY_PEER);
        if let Some(session) = self.qps.get(&qpn).map(|qp| qp.session) {
            let closed = LinkClosed { qpn, peer_qpn: peer, reason: CLOSED_BY_DEATH, reserved: 0 };
            self.event(session, closed);
        }
    }

    /// Writes down a link that both ends still hold.
    pub(crate) fn record_link(&mut self, one: End, other: End, now: u64) -> Result<(), Errno> {
        let key = LinkKey::new(one.0, other.0);
        let (first, second) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        let ways = [(first.1, first.2), (second.1, second.2)];
        let (sessions, vnics, receipts) = self.charge_link(key, None)?;
        let (questions, why) = ([None; 2], Why::Survivor);
        let (place, uninvited) = (None, None);
        let link = Link { receipts, place, sessions, vnics, ways, questions, why, uninvited };
        self.insert_link(key, link, now);
        self.trace_survivor(key);
        Ok(())
    }
}
