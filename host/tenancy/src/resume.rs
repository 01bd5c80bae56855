//! After a restart of the daemon: links that went on without it are written down again.
//!
//! Both ends announce what they hold. A link counts when both have, and the same checks hold as
//! for a new one. An end whose other end does not announce itself in time is told that its peer is
//! dead: most likely it died while nobody was watching. A link to the engine ended with the engine;
//! who announces one is told that its peer is dead.

use crate::errno::ENOMEM;
use crate::tables::LinkKey;
use crate::tenancy::Tenancy;
use omniverb_session::body::{
    CLOSED_BY_DEATH, CLOSED_BY_PEER, ConnectQp, LinkClosed, QP_UD, RESUME_WIRE,
};

impl Tenancy {
    pub(crate) fn announce(&mut self, m: &ConnectQp, qp_type: u32, now: u64) -> Result<(), u32> {
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
        if qp_type != QP_UD && !qp.wishes.is_empty() {
            return Err(crate::errno::EINVAL);
        }
        if qp.wishes.len() + qp.links.len() >= self.limits.links_per_session {
            return Err(ENOMEM);
        }
        self.wish(m, true);
        let deadline = now.saturating_add(self.limits.resume_time_ns);
        if let Some(wish) = self.qps.get_mut(&m.qpn).and_then(|qp| qp.wishes.get_mut(&m.dest_qpn)) {
            wish.deadline = deadline;
        }
        self.set_wish_timer(m.qpn, m.dest_qpn, deadline);
        self.advance_wish(m.qpn, m.dest_qpn, now);
        Ok(())
    }

    /// The other end did not announce itself.
    pub(crate) fn abandon_resume(&mut self, qpn: u32, peer: u32) {
        // The client forgets whatever has that number, what is newer included.
        self.close_link(qpn, peer, CLOSED_BY_PEER);
        if let Some(session) = self.qps.get(&qpn).map(|qp| qp.session) {
            let closed = LinkClosed { qpn, peer_qpn: peer, reason: CLOSED_BY_DEATH, reserved: 0 };
            self.event(session, closed);
        }
    }

    /// Writes down a link that both ends still hold.
    pub(crate) fn record_link(&mut self, one: u32, other: u32) -> Result<(), u32> {
        let key = LinkKey::new(one, other);
        self.insert_link(key, None, None, None)?;
        self.trace_survivor(key);
        Ok(())
    }
}
