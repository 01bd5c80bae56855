//! Creates and destroys queue pairs.

use crate::accounts::Kind;
use crate::links::Pairing;
use crate::links::Unlinker;
use crate::queue_pairs::qp_number_tickets::Claim;
use crate::queue_pairs::qp_numbers;
use crate::queue_pairs::queue_pair::{Attributes, Origin, QueuePair};
use crate::row_keys::{LinkKey, SessionId};
use omniverb_session::body::{
    CLOSED_BY_DEATH, CLOSED_BY_PEER, CreateQp, DestroyQp, Done, QpCreated, QpFailed,
};
use omniverb_session::limits::STATISTICS_SLOTS;
use omniverb_terms::{Errno, Qpn, Service};

impl Pairing<'_> {
    pub(crate) fn create_qp(
        &mut self,
        id: SessionId,
        m: &CreateQp,
        now: u64,
    ) -> Result<QpCreated, Errno> {
        let session = self.tenants.sessions.get(&id).ok_or(Errno::EPROTO)?;
        let (key, uid) = (session.client().vnic, session.client().uid);
        if !self.tenants.vnics.contains_key(&key) {
            return Err(Errno::EPROTO);
        }
        let service = Service::from_qp_type(m.qp_type).ok_or(Errno::EOPNOTSUPP)?;
        if m.statistics_slot as usize >= STATISTICS_SLOTS {
            return Err(Errno::EINVAL);
        }
        let most = self.tenants.policy(key).control.queue_pairs;
        let of_vnic = self.tenants.vnics.get(&key).map_or(0, |vnic| vnic.account().count(Kind::Qp));
        if m.qpn == Qpn(0) && most.is_some_and(|most| of_vnic >= most as usize) {
            return Err(Errno::ENOMEM);
        }
        let receipt = session.account().charge(&[Kind::Qp])?;
        let (qpn, issued, origin) = if m.qpn == Qpn(0) {
            let range = self.tenants.virtual_networks.range(key);
            let drawn = self.queue_pairs.draw(self.context.entropy.as_mut(), range, now);
            let (qpn, issued) = drawn.ok_or(Errno::ENOMEM)?;
            (qpn, issued, Origin::Given)
        } else {
            self.claim(id, m, service, now)?;
            (m.qpn, m.issued, Origin::Claimed)
        };
        let (pd, slot) = (m.pd, m.statistics_slot);
        let attributes = Attributes { session: id, vnic: key, service, pd, slot, issued, origin };
        self.queue_pairs.insert(qpn, QueuePair::new(attributes, receipt));
        self.tenants.open_port(self.context, key);
        let claim = Claim { qpn, service, vnic: self.tenants.proof(key), uid, issued };
        Ok(QpCreated { qpn, reserved: 0, issued, ticket: self.queue_pairs.ticket(&claim) })
    }

    /// Checks that a session may have the number it asks for, and makes it free.
    fn claim(
        &mut self,
        id: SessionId,
        m: &CreateQp,
        service: Service,
        now: u64,
    ) -> Result<(), Errno> {
        let session = self
            .tenants
            .sessions
            .get(&id)
            .filter(|session| session.resumes())
            .ok_or(Errno::EINVAL)?;
        if !qp_numbers::is_qpn(m.qpn) {
            return Err(Errno::EINVAL);
        }
        let (vnic, uid) = (session.client().vnic, session.client().uid);
        let (qpn, issued) = (m.qpn, m.issued);
        let claim = Claim { qpn, service, vnic: self.tenants.proof(vnic), uid, issued };
        self.queue_pairs.check_claim(id, &claim, m.ticket, now)?;
        self.queue_pairs.accept_claim(&claim);
        self.displace(qpn, now);
        Ok(())
    }
}

impl Unlinker<'_> {
    pub(crate) fn destroy_qp(
        &mut self,
        id: SessionId,
        m: &DestroyQp,
        now: u64,
    ) -> Result<Done, Errno> {
        let before = self.tenants.taken(id);
        self.queue_pairs.own(id, m.qpn)?;
        self.remove_qp(m.qpn, CLOSED_BY_PEER, now);
        Ok(self.tenants.done_since(id, before))
    }

    /// Closes all links of a queue pair and gives its number back.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn, reason: u32, now: u64) {
        self.close_all(qpn, reason);
        let Some(qp) = self.queue_pairs.remove(qpn) else { return };
        self.tenants.virtual_networks.forget_qp(qpn);
        for wisher in self.queue_pairs.wishers_of(qpn) {
            // Others must not learn what becomes of queue pairs in places they did not find.
            let wish = self.queue_pairs.wish(wisher, qpn);
            let known = wish.is_some_and(|wish| wish.target == Some(qp.vnic()));
            // Through the engine, the peer of a queue pair that was only closed goes on asking,
            // as on any network, until its retries are over.
            let linked = self.links.is_linked(wisher, qpn);
            if known && (!linked || reason == CLOSED_BY_DEATH) {
                self.queue_pairs.peer_is_gone(self.context, wisher, qpn, reason, now);
            }
        }
    }
}

impl Unlinker<'_> {
    /// A queue pair is in ERR: its peer is not served any more.
    pub(crate) fn qp_failed(&mut self, id: SessionId, m: &QpFailed) -> Result<Done, Errno> {
        let before = self.tenants.taken(id);
        self.queue_pairs.own(id, m.qpn)?;
        self.queue_pairs.fail(m.qpn);
        for peer in self.links.peers_of(m.qpn) {
            let key = LinkKey::new(m.qpn, peer);
            if let Some(ends) = self.links.direct(key).map(|link| link.sessions) {
                self.grants().end_granted(key, ends);
            }
        }
        Ok(self.tenants.done_since(id, before))
    }
}
