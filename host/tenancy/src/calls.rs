//! From a message to the function that handles it, and the simple objects: queue pair numbers and
//! keys.

use crate::accounts::Kind;
use crate::action::{Action, Arrived, Channel};
use crate::ids::SessionId;
use crate::mr::Mr;
use crate::numbers::{self, QPN_ORDINARY};
use crate::tables::Qp;
use crate::tenancy::Tenancy;
use crate::tickets::Claim;
use omniverb_session::Message;
use omniverb_session::body::{
    CLOSED_BY_DEATH, CLOSED_BY_PEER, CreateQp, DeregMr, DestroyQp, Done, MrRegistered, QpCreated,
    ROLE_VERBS, RegMr,
};
use omniverb_session::limits::STATISTICS_SLOTS;
use omniverb_terms::{Errno, Qpn, Rkey, Service};
use std::collections::{BTreeMap, BTreeSet};

impl Tenancy {
    pub(crate) fn dispatch(&mut self, id: SessionId, arrived: &Arrived, now: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (tag, message) = (arrived.tag, &arrived.message);
        if arrived.channel == Channel::Events {
            return match message {
                Message::Adopted(adopted) if session.welcomed => {
                    self.adopted(id, adopted, arrived.memory);
                }
                Message::Released(released) if session.welcomed => {
                    self.extents_released(id, released.rkey);
                }
                _ => self.out.push(Action::Drop {
                    session: id,
                    reason: "sent something other than an answer on its events socket",
                }),
            };
        }
        if session.waiting.is_some() {
            return self.fail(id, tag, Errno::EBUSY);
        }
        if let Message::Hello(hello) = message {
            return self.hello(id, tag, hello, now);
        }
        if !session.welcomed {
            return self.fail(id, tag, Errno::EPROTO);
        }
        if session.role != ROLE_VERBS {
            return self.fail(id, tag, Errno::EPERM);
        }
        let result = match message {
            Message::QueryGids(_) => return self.query_gids(id, tag, now),
            Message::ConnectQp(m) => return self.connect_qp(id, tag, m, now),
            Message::CreateQp(m) => self.create_qp(id, m, now).map(Message::from),
            Message::DestroyQp(m) => self.destroy_qp(id, m, now).map(Message::from),
            Message::DisconnectQp(m) => self.disconnect_qp(id, m).map(Message::from),
            Message::QpFailed(m) => self.qp_failed(id, m).map(Message::from),
            Message::RegMr(m) => self.reg_mr(id, m).map(Message::from),
            Message::DeregMr(m) => self.dereg_mr(id, m).map(Message::from),
            Message::RequestGrant(m) => self.request_grant(id, m, now).map(Message::from),
            _ => Err(Errno::EPROTO),
        };
        match result {
            Ok(message) => self.reply(id, tag, message),
            Err(errno) => self.fail(id, tag, errno),
        }
    }

    fn create_qp(&mut self, id: SessionId, m: &CreateQp, now: u64) -> Result<QpCreated, Errno> {
        let session = self.sessions.get(&id).ok_or(Errno::EPROTO)?;
        let (key, uid) = (session.client.vnic, session.client.uid);
        if !self.vnics.contains_key(&key) {
            return Err(Errno::EPROTO);
        }
        let service = Service::from_qp_type(m.qp_type).ok_or(Errno::EOPNOTSUPP)?;
        if m.statistics_slot as usize >= STATISTICS_SLOTS {
            return Err(Errno::EINVAL);
        }
        let receipt = session.account.charge(&[Kind::Qp])?;
        let claimed = m.qpn != Qpn(0);
        let (qpn, issued) = if claimed {
            self.claim(id, m, service, now)?;
            (m.qpn, m.issued)
        } else {
            let taken = |n: Qpn| self.qps.contains_key(&n);
            let new = self.tickets.are_taken(now);
            let apart = self.generation.filter(|_| new).map(numbers::apart);
            let number = [apart, Some(QPN_ORDINARY)]
                .into_iter()
                .flatten()
                .find_map(|range| self.numbers.take(range, self.entropy.as_mut(), taken));
            (number.ok_or(Errno::ENOMEM)?, self.tickets.issue(now))
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.qps.insert(qpn);
        }
        self.qps.insert(
            qpn,
            Qp {
                receipt,
                session: id,
                vnic: key,
                service,
                pd: m.pd,
                slot: m.statistics_slot,
                issued,
                claimed,
                failed: false,
                wishes: BTreeMap::new(),
                links: BTreeSet::new(),
                wires: BTreeMap::new(),
            },
        );
        self.open_port(key);
        let claim = Claim { qpn, service, vnic: self.proof(key), uid, issued };
        Ok(QpCreated { qpn, reserved: 0, issued, ticket: self.tickets.make(&claim) })
    }

    /// A queue pair of this session.
    pub(crate) fn own_qp(&self, id: SessionId, qpn: Qpn) -> Result<&Qp, Errno> {
        self.qps.get(&qpn).filter(|qp| qp.session == id).ok_or(Errno::ENOENT)
    }

    fn destroy_qp(&mut self, id: SessionId, m: &DestroyQp, now: u64) -> Result<Done, Errno> {
        let before = self.taken(id);
        self.own_qp(id, m.qpn)?;
        self.remove_qp(m.qpn, CLOSED_BY_PEER, now);
        Ok(self.done_since(id, before))
    }

    /// Closes all links of a queue pair and gives its number back.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn, reason: u32, now: u64) {
        self.close_all(qpn, reason);
        let Some(qp) = self.strike_qp(qpn) else { return };
        for wisher in self.wishers.of(qpn) {
            // Others must not learn what becomes of queue pairs in places they did not find.
            let wish = self.qps.get(&wisher).and_then(|other| other.wishes.get(&qpn));
            let known = wish.is_some_and(|wish| wish.target == Some(qp.vnic));
            // Through the engine, the peer of a queue pair that was only closed goes on asking,
            // as on any network, until its retries are over.
            let linked = self.qps.get(&wisher).is_some_and(|other| other.is_linked(qpn));
            if known && (!linked || reason == CLOSED_BY_DEATH) {
                self.peer_is_gone(wisher, qpn, reason, now);
            }
        }
    }

    /// Takes a queue pair without links out of the tables.
    pub(crate) fn strike_qp(&mut self, qpn: Qpn) -> Option<Qp> {
        let qp = self.qps.remove(&qpn)?;
        if let Some(session) = self.sessions.get_mut(&qp.session) {
            session.qps.remove(&qpn);
        }
        Some(qp)
    }

    fn reg_mr(&mut self, id: SessionId, m: &RegMr) -> Result<MrRegistered, Errno> {
        let session = self.sessions.get_mut(&id).ok_or(Errno::EPROTO)?;
        if m.addr.checked_add(m.length).is_none() {
            return Err(Errno::EINVAL);
        }
        let receipt = session.account.charge(&[Kind::Mr])?;
        let rkey = if m.rkey == Rkey(0) {
            let mrs = &session.mrs;
            numbers::key(self.entropy.as_mut(), |k| mrs.contains_key(&k)).ok_or(Errno::ENOMEM)?
        } else if !session.resume {
            // Needs no ticket: keys are the session's own, and nobody else's are touched.
            return Err(Errno::EINVAL);
        } else if session.mrs.contains_key(&m.rkey) {
            return Err(Errno::EADDRINUSE);
        } else {
            m.rkey
        };
        session.mrs.insert(rkey, receipt.pays_for(Mr::from(m)));
        Ok(MrRegistered { rkey, reserved: 0 })
    }

    fn dereg_mr(&mut self, id: SessionId, m: &DeregMr) -> Result<Done, Errno> {
        let session = self.sessions.get_mut(&id).ok_or(Errno::EPROTO)?;
        session.mrs.remove(&m.rkey).ok_or(Errno::ENOENT)?;
        self.remove_extents(id, m.rkey);
        // A grant of it that is under way finds no region when the owner answers.
        Ok(Done { take_back: 0 })
    }
}
