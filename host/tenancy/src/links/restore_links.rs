//! Restores links that outlived the daemon before this one.
//!
//! A process that announces a queue pair proves with its ticket that the number was given to it; of
//! two with a ticket for the same number, which has then been given twice, the later one has it.
//! Both ends announce what they hold. A link counts when both have, and the same checks hold as for
//! a new one. An end whose other end does not announce itself in time is told that its peer is
//! dead: most likely it died while no daemon ran. A link to the engine ended with the engine; a
//! process that announces one is told that its peer is dead, unless it has carried the link itself:
//! that goes on, without the engine. Announcements are taken only for a
//! while after the daemon was started.

use crate::links::Linker;
use crate::links::Pairing;
use crate::links::Unlinker;
use crate::links::direct_link::Link;
use crate::links::direct_link_lifecycle::End;
use crate::links::link_eviction::Places;
use crate::qp_data_path::PathReason;
use crate::row_keys::LinkKey;
use omniverb_session::body::{
    CLOSED_BY_DEATH, CLOSED_BY_PEER, ConnectQp, LinkClosed, RESUME_CARRIED, RESUME_LINK,
    RESUME_WIRE,
};
use omniverb_terms::{Errno, Qpn, Service};

impl Pairing<'_> {
    /// Takes a number from a session that had it before its owner. Peers whose links were taken for
    /// that session's wait on for the owner.
    pub(super) fn displace(&mut self, qpn: Qpn, now: u64) {
        if !self.queue_pairs.contains(qpn) {
            return;
        }
        let peers = self.links.peers_of(qpn).into_iter().filter(|peer| *peer != qpn);
        let survivors = peers.filter_map(|peer| {
            let key = LinkKey::new(qpn, peer);
            let link = self.links.direct(key).filter(|link| link.place.is_none())?;
            let (sgid, dgid) = link.ways[usize::from(key.1 == peer)];
            let (resume, dest_qpn) = (RESUME_LINK, qpn);
            Some((key, ConnectQp { qpn: peer, dest_qpn, sgid, dgid, resume, carries: 0 }))
        });
        for (key, announcement) in survivors.collect::<Vec<_>>() {
            self.unlinker().remove_link(key);
            self.queue_pairs.wait_for(self.context, &announcement, now);
        }
        self.unlinker().close_all(qpn, CLOSED_BY_PEER);
        self.queue_pairs.remove(qpn);
        self.tenants.virtual_networks.forget_qp(qpn);
    }

    pub(crate) fn announce(
        &mut self,
        m: &ConnectQp,
        service: Service,
        now: u64,
    ) -> Result<(), Errno> {
        let Some(qp) = self.queue_pairs.get(m.qpn) else { return Ok(()) };
        if m.resume == RESUME_WIRE {
            // Its far end died with the daemon before us.
            self.unlinker().abandon_resume(m.qpn, m.dest_qpn);
            return Ok(());
        }
        if self.links.is_linked(m.qpn, m.dest_qpn) || qp.wish(m.dest_qpn).is_some() {
            return Ok(());
        }
        if m.resume == RESUME_CARRIED {
            let is_first = !qp.has_wishes() && self.links.engine_peers(m.qpn).is_empty();
            if !is_first || self.linker().record_carried(m, now).is_err() {
                self.unlinker().abandon_resume(m.qpn, m.dest_qpn);
            }
            return Ok(());
        }
        // A connected queue pair has one peer; a datagram one as many as its session may have.
        if service.is_connected() && qp.has_wishes() {
            return Err(Errno::EINVAL);
        }
        if qp.wished().len() + self.links.peers_of(m.qpn).len()
            >= self.context.limits().links_per_session
        {
            return Err(Errno::ENOMEM);
        }
        self.queue_pairs.wait_for(self.context, m, now);
        self.advance_wish(m.qpn, m.dest_qpn, now);
        Ok(())
    }
}

impl Unlinker<'_> {
    /// The other end did not announce itself.
    pub(crate) fn abandon_resume(&mut self, qpn: Qpn, peer: Qpn) {
        // The client forgets every link with that number, newer ones included.
        self.close_link(qpn, peer, CLOSED_BY_PEER);
        if let Some(session) = self.queue_pairs.session_of(qpn) {
            let closed = LinkClosed { qpn, peer_qpn: peer, reason: CLOSED_BY_DEATH, reserved: 0 };
            self.tenants.event(self.context, session, closed);
        }
    }
}

impl Linker<'_> {
    /// Writes down a link that both ends still hold.
    pub(crate) fn record_link(&mut self, one: End, other: End, now: u64) -> Result<(), Errno> {
        let key = LinkKey::new(one.0, other.0);
        let (first, second) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        let ways = [(first.1, first.2), (second.1, second.2)];
        let (sessions, vnics, receipts) = self.charge_link(key, None, Places::Free)?;
        let (questions, why) = ([None; 2], PathReason::Survivor);
        let (place, uninvited) = (None, None);
        let service = self.queue_pairs.get(key.0).map_or(Service::Rc, |qp| qp.service());
        // What rdma_cm said when it was made is not known any more.
        let port = None;
        let refused = self.tenants.judge(self.network, service, vnics, ways, port).refused;
        let link = Link {
            receipts,
            place,
            sessions,
            vnics,
            ways,
            questions,
            why,
            port,
            refused,
            uninvited,
        };
        self.insert_link(key, link, now);
        self.unlinker().tell_survivor(key);
        self.observer().trace_survivor(key);
        Ok(())
    }
}
