//! Admits sessions and ends them. The quotas of the host are shared by all, so room for one may be
//! made by ending another, and everything that it has.

use crate::accounts::{Account, Kind};
use crate::action::Action;
use crate::row_keys::SessionId;
use crate::sessions::session::Waiting;
use crate::tenancy::Tenancy;
use crate::timers::Timer;
use omniverb_session::body::{BellClosed, CLOSED_BY_DEATH, Hello, ROLE_VERBS};
use omniverb_terms::{Errno, VnicId};

impl Tenancy {
    pub(crate) fn hello(&mut self, id: SessionId, tag: u64, hello: &Hello, now: u64) {
        let Some(session) = self.tenants.sessions.get_mut(&id) else { return };
        if !session.is_new() {
            return self.context.fail(id, tag, Errno::EPROTO);
        }
        let key = session.client().vnic;
        session.introduce(hello);
        match hello.role {
            ROLE_VERBS => {
                if let Err(errno) = self.admit(id, key, now) {
                    return self.context.fail(id, tag, errno);
                }
                let Some(session) = self.tenants.sessions.get_mut(&id) else { return };
                session.admit(hello, tag);
                self.tenants.answer_when_known(&mut self.context, id, key);
            }
            _ => self.context.fail(id, tag, Errno::EINVAL),
        }
    }

    /// Makes the session a process of its vNIC, if there is room for it.
    fn admit(&mut self, id: SessionId, key: VnicId, now: u64) -> Result<(), Errno> {
        let account = self.tenants.vnics.get(&key).map(|vnic| vnic.account());
        let full = |own: &Account| own.full(&[Kind::Process]).is_some_and(|full| full.is(own));
        if account.is_some_and(full) {
            return Err(Errno::ENOMEM);
        }
        self.make_room_for_process(id, now)?;
        self.make_room_for_vnic(id, now)?;
        self.tenants.join(&self.context, id, key)
    }

    /// Makes room for one more process. The host's quotas are shared by all, so over them the
    /// largest holder yields to a smaller one.
    fn make_room_for_process(&mut self, id: SessionId, now: u64) -> Result<(), Errno> {
        if self.context.host().full(&[Kind::Process]).is_none() {
            return Ok(());
        }
        let session = self.tenants.sessions.get(&id).ok_or(Errno::EPROTO)?;
        let other =
            self.tenants.sessions.yields_to(&session.client().holder).ok_or(Errno::ENOMEM)?;
        self.make_yield(other, "made room: its user has the most processes here", now);
        Ok(())
    }

    /// Makes room for its vNIC, if that is new.
    fn make_room_for_vnic(&mut self, id: SessionId, now: u64) -> Result<(), Errno> {
        let session = self.tenants.sessions.get(&id).ok_or(Errno::EPROTO)?;
        if self.tenants.vnics.contains_key(&session.client().vnic)
            || self.context.host().full(&[Kind::Vnic]).is_none()
        {
            return Ok(());
        }
        let other = self.tenants.vnics.yields_to(&session.client().holder);
        let other = other.and_then(|other| self.tenants.vnics.get(&other));
        let sessions = other.map(|vnic| vnic.processes().clone()).ok_or(Errno::ENOMEM)?;
        for other in sessions {
            self.make_yield(other, "made room: its user has the most vNICs here", now);
        }
        Ok(())
    }

    /// The table of GIDs is new: a call that waited for that is answered.
    pub(crate) fn addresses_known(&mut self, id: SessionId) {
        let Some(session) = self.tenants.sessions.get_mut(&id) else { return };
        match session.take_waiting() {
            Some(Waiting::Hello { tag }) => self.tenants.welcome(&mut self.context, id, tag),
            Some(Waiting::Gids { tag }) => self.tenants.tell_gids(&mut self.context, id, tag),
            Some(Waiting::Address { tag, message }) => self.dispatch_again(id, tag, *message),
            // It waits for its time, not for addresses.
            Some(paced @ Waiting::Paced { .. }) => session.wait(paced),
            None => {}
        }
    }

    pub(crate) fn end_session(&mut self, id: SessionId, now: u64) {
        let Some(session) = self.tenants.sessions.get_mut(&id) else { return };
        session.end();
        let key = session.client().vnic;
        self.context.timers.clear(Timer::PacedCall(id));
        self.cm().end_connections(id, now);
        for qpn in self.queue_pairs.of(id) {
            self.unlinker().remove_qp(qpn, CLOSED_BY_DEATH, now);
        }
        self.grants().end_grants(id);
        self.grants().remove_all_extents(id);
        self.observer().end_trace(id);
        for (other, bell) in self.links.end_session(id) {
            self.tenants.event(&mut self.context, other, BellClosed { bell });
        }
        self.tenants.sessions.remove(&id);
        let Some(vnic) = self.tenants.vnics.get_mut(&key) else { return };
        vnic.leave(id);
        if vnic.processes().is_empty() {
            self.cm().last_farewells(key);
            self.tenants.remove_vnic(key);
            self.context.act(Action::VnicGone { vnic: key });
            for vnic in self.tenants.vnics.values_mut() {
                vnic.forget_neighbour(key);
            }
            self.pairing().forget_vnic(key, now);
            self.cm().forget_early(key);
        }
    }

    /// Drops a session of the largest holder of something that another needs, too.
    pub(crate) fn make_yield(&mut self, id: SessionId, reason: &'static str, now: u64) {
        self.end_session(id, now);
        self.context.act(Action::Drop { session: id, reason });
    }
}
