//! The beginning of a session, and its vNIC's table of GIDs.

use super::session::{Session, Waiting};
use super::vnic::Vnic;
use crate::accounts::{Account, Kind, Quotas};
use crate::action::Action;
use crate::ids::SessionId;
use crate::tenancy::Tenancy;
use omniverb_session::body::{Extent, GidEntry, Gids, Hello, ROLE_VERBS, Welcome};
use omniverb_session::limits::GIDS_MAX;
use omniverb_terms::{Errno, Gid, VnicId};

impl Tenancy {
    pub(crate) fn hello(&mut self, id: SessionId, tag: u64, hello: &Hello, now: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if !session.is_new() {
            return self.fail(id, tag, Errno::EPROTO);
        }
        let key = session.client().vnic;
        session.introduce(hello);
        match hello.role {
            ROLE_VERBS => {
                if let Err(errno) = self.admit(id, key, now) {
                    return self.fail(id, tag, errno);
                }
                let Some(session) = self.sessions.get_mut(&id) else { return };
                session.admit(hello, tag);
                self.answer_when_known(id, key);
            }
            _ => self.fail(id, tag, Errno::EINVAL),
        }
    }

    /// Makes the session a process of its vNIC, if there is room for it.
    fn admit(&mut self, id: SessionId, key: VnicId, now: u64) -> Result<(), Errno> {
        let account = self.vnics.get(&key).map(|vnic| vnic.account());
        let full = |own: &Account| own.full(&[Kind::Process]).is_some_and(|full| full.is(own));
        if account.is_some_and(full) {
            return Err(Errno::ENOMEM);
        }
        self.make_room_for_process(id, now)?;
        self.make_room_for_vnic(id, now)?;
        self.join(id, key)
    }

    /// Makes room for one more process. The host's quotas are shared by all, so over them the
    /// largest holder yields to whoever would have less.
    fn make_room_for_process(&mut self, id: SessionId, now: u64) -> Result<(), Errno> {
        if self.host().full(&[Kind::Process]).is_none() {
            return Ok(());
        }
        let session = self.sessions.get(&id).ok_or(Errno::EPROTO)?;
        let other = self.sessions.yields_to(&session.client().holder).ok_or(Errno::ENOMEM)?;
        self.make_yield(other, "made room: its user has the most processes here", now);
        Ok(())
    }

    /// The same for its vNIC, if that is new.
    fn make_room_for_vnic(&mut self, id: SessionId, now: u64) -> Result<(), Errno> {
        let session = self.sessions.get(&id).ok_or(Errno::EPROTO)?;
        if self.vnics.contains_key(&session.client().vnic)
            || self.host().full(&[Kind::Vnic]).is_none()
        {
            return Ok(());
        }
        let other = self.vnics.yields_to(&session.client().holder);
        let other = other.and_then(|other| self.vnics.get(&other));
        let sessions = other.map(|vnic| vnic.processes().clone()).ok_or(Errno::ENOMEM)?;
        for other in sessions {
            self.make_yield(other, "made room: its user has the most vNICs here", now);
        }
        Ok(())
    }

    /// Makes the session one of its vNIC's, and the vNIC if it is the first.
    fn join(&mut self, id: SessionId, key: VnicId) -> Result<(), Errno> {
        let holder = self.sessions.get(&id).ok_or(Errno::EPROTO)?.client().holder.clone();
        let known = self.vnics.get(&key).map(|vnic| vnic.account().clone());
        let new = match known {
            Some(_) => None,
            None => Some(self.host().charge(&[Kind::Vnic])?),
        };
        let account = known.unwrap_or_else(|| self.host().below(Quotas::of_vnic(self.limits())));
        let process = account.charge(&[Kind::Process])?;
        let own = account.below(Quotas::of_session(self.limits()));
        if let Some(session) = self.sessions.get_mut(&id) {
            session.join(process, own);
        }
        self.sessions.count(id, &holder);
        if let Some(receipt) = new {
            self.vnics.insert(key, Vnic::new(account, receipt));
            self.vnics.count(key, &holder);
        }
        if let Some(vnic) = self.vnics.get_mut(&key) {
            vnic.join(id);
        }
        Ok(())
    }

    fn answer_when_known(&mut self, id: SessionId, key: VnicId) {
        if self.vnics.get(&key).is_some_and(|vnic| vnic.names.are_known()) {
            let waiting = self.sessions.get_mut(&id).and_then(Session::take_waiting);
            if let Some(Waiting::Hello { tag }) = waiting {
                self.welcome(id, tag);
            }
        } else {
            self.read_addresses(key, Some(id));
        }
    }

    pub(crate) fn welcome(&mut self, id: SessionId, tag: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.welcome();
        let key = session.client().vnic;
        let welcome = self.welcome_message(id, key);
        self.act(Action::Welcome { session: id, tag, welcome });
        self.take_back_after_restart(id);
    }

    fn welcome_message(&self, id: SessionId, key: VnicId) -> Welcome {
        let account = self.sessions.get(&id).map(|session| session.account());
        let most = |kind| {
            let most = account.map_or(0, |account| account.least_quota(kind));
            u32::try_from(most).unwrap_or(u32::MAX)
        };
        let mut vnic = [0; 32];
        for (to, from) in vnic.iter_mut().zip(self.vnic_name(key).bytes().take(31)) {
            *to = from;
        }
        Welcome {
            session: id.0,
            node_guid: self.node_guid(key),
            qp_max: most(Kind::Qp),
            mr_max: most(Kind::Mr),
            link_max: most(Kind::Link),
            daemon: self.number,
            vnic,
            area: Extent::NONE,
        }
    }

    /// The vNIC's name for people.
    #[must_use]
    pub fn vnic_name(&self, key: VnicId) -> &str {
        self.identity(key).map_or("?", |identity| &identity.name)
    }

    pub(crate) fn node_guid(&self, key: VnicId) -> [u8; 8] {
        self.identity(key).map_or([0; 8], |identity| identity.guid)
    }

    /// Has the vNIC's addresses read; `session` is answered when they are there.
    pub(crate) fn read_addresses(&mut self, key: VnicId, session: Option<SessionId>) {
        if self.vnics.get_mut(&key).is_some_and(|vnic| vnic.names.wait(session)) {
            self.act(Action::ReadAddresses { vnic: key });
        }
    }

    /// The table of GIDs is new: a call that waited for that is answered.
    pub(crate) fn addresses_known(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match session.take_waiting() {
            Some(Waiting::Hello { tag }) => self.welcome(id, tag),
            Some(Waiting::Gids { tag }) => self.tell_gids(id, tag),
            Some(Waiting::Address { tag, message }) => self.dispatch_again(id, tag, *message),
            None => {}
        }
    }

    pub(crate) fn query_gids(&mut self, id: SessionId, tag: u64, now: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let key = session.client().vnic;
        let Some(vnic) = self.vnics.get(&key) else { return };
        if vnic.names.are_known() && !vnic.names.are_old(now, self.limits().gids_time_ns) {
            self.tell_gids(id, tag);
        } else {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.wait(Waiting::Gids { tag });
            }
            self.read_addresses(key, Some(id));
        }
    }

    pub(crate) fn tell_gids(&mut self, id: SessionId, tag: u64) {
        let Some(vnic) = self.sessions.get(&id).and_then(|s| self.vnics.get(&s.client().vnic))
        else {
            return;
        };
        let none = GidEntry { gid: Gid::ZERO, ifindex: 0, mtu: 0 };
        let mut entries = [none; GIDS_MAX];
        for (to, from) in entries.iter_mut().zip(vnic.names.table()) {
            *to = *from;
        }
        let count = u32::try_from(vnic.names.table().len().min(GIDS_MAX)).unwrap_or(0);
        self.reply(id, tag, Gids { count, reserved: 0, entries });
    }

    /// Opens the vNIC's handshake sockets when the first queue pair is made: only then can
    /// somebody look for it.
    pub(crate) fn open_port(&mut self, key: VnicId) {
        if self.vnics.get_mut(&key).is_some_and(Vnic::open_port) {
            self.act(Action::OpenPort { vnic: key });
        }
    }
}
