//! The beginning of a session, and its vNIC's table of GIDs.

use crate::accounts::{Kind, Quotas};
use crate::action::Action;
use crate::ids::{SessionId, VnicId};
use crate::tables::{Vnic, Waiting};
use crate::tenancy::Tenancy;
use omniverb_session::body::{Extent, GidEntry, Gids, Hello, ROLE_VERBS, Welcome};
use omniverb_session::limits::GIDS_MAX;
use omniverb_terms::{Errno, Gid};

impl Tenancy {
    pub(crate) fn hello(&mut self, id: SessionId, tag: u64, hello: &Hello, now: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.welcomed || session.role != 0 {
            return self.fail(id, tag, Errno::EPROTO);
        }
        let key = session.client.vnic;
        session.name = omniverb_session::text::name(&hello.name);
        match hello.role {
            ROLE_VERBS => {
                let vnic = self.vnics.get(&key);
                let full = vnic.is_some_and(|v| {
                    v.account.full(&[Kind::Process]).is_some_and(|full| full.is(&v.account))
                });
                let may = !full && self.make_room_for_process(id, now);
                if !may || !self.make_room_for_vnic(id, now) {
                    return self.fail(id, tag, Errno::ENOMEM);
                }
                if let Err(errno) = self.join(id, key) {
                    return self.fail(id, tag, errno);
                }
                let Some(session) = self.sessions.get_mut(&id) else { return };
                session.role = ROLE_VERBS;
                session.resume = hello.resume != 0;
                session.waiting = Some(Waiting::Hello { tag });
                self.answer_when_known(id, key);
            }
            _ => self.fail(id, tag, Errno::EINVAL),
        }
    }

    /// True if there may be one more process. The host's quotas are shared by all, so over them the
    /// largest holder yields to whoever would have less.
    fn make_room_for_process(&mut self, id: SessionId, now: u64) -> bool {
        if self.host.full(&[Kind::Process]).is_none() {
            return true;
        }
        let Some(session) = self.sessions.get(&id) else { return false };
        let other = self.sessions.yields_to(&session.client.holder);
        if let Some(other) = other {
            self.make_yield(other, "made room: its user has the most processes here", now);
        }
        other.is_some()
    }

    /// The same for its vNIC, if that is new.
    fn make_room_for_vnic(&mut self, id: SessionId, now: u64) -> bool {
        let Some(session) = self.sessions.get(&id) else { return false };
        if self.vnics.contains_key(&session.client.vnic) || self.host.full(&[Kind::Vnic]).is_none()
        {
            return true;
        }
        let other = self.vnics.yields_to(&session.client.holder);
        let other = other.and_then(|other| self.vnics.get(&other));
        let Some(sessions) = other.map(|vnic| vnic.sessions.clone()) else { return false };
        for other in sessions {
            self.make_yield(other, "made room: its user has the most vNICs here", now);
        }
        true
    }

    /// Makes the session one of its vNIC's, and the vNIC if it is the first.
    fn join(&mut self, id: SessionId, key: VnicId) -> Result<(), Errno> {
        let session = self.sessions.get_mut(&id).ok_or(Errno::EPROTO)?;
        let (known, holder) = (self.vnics.get(&key), session.client.holder.clone());
        let new = match known {
            Some(_) => None,
            None => Some(self.host.charge(&[Kind::Vnic])?),
        };
        let account = known.map(|vnic| vnic.account.clone());
        let account = account.unwrap_or_else(|| self.host.below(Quotas::of_vnic(&self.limits)));
        session.process = Some(account.charge(&[Kind::Process])?);
        session.account = account.below(Quotas::of_session(&self.limits));
        self.sessions.count(id, &holder);
        if let Some(receipt) = new {
            self.vnics.insert(key, Vnic::new(account, receipt));
            self.vnics.count(key, &holder);
        }
        if let Some(vnic) = self.vnics.get_mut(&key) {
            vnic.sessions.insert(id);
        }
        Ok(())
    }

    fn answer_when_known(&mut self, id: SessionId, key: VnicId) {
        if self.vnics.get(&key).is_some_and(|vnic| vnic.read_at.is_some()) {
            let waiting = self.sessions.get_mut(&id).and_then(|s| s.waiting.take());
            if let Some(Waiting::Hello { tag }) = waiting {
                self.welcome(id, tag);
            }
        } else {
            self.read_addresses(key, Some(id));
        }
    }

    pub(crate) fn welcome(&mut self, id: SessionId, tag: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.welcomed = true;
        let key = session.client.vnic;
        let message = self.welcome_message(id, key);
        self.reply(id, tag, message);
        self.take_back_after_restart(id);
    }

    fn welcome_message(&self, id: SessionId, key: VnicId) -> Welcome {
        let account = self.sessions.get(&id).map(|session| &session.account);
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
            reserved: 0,
            vnic,
            area: Extent::NONE,
        }
    }

    /// The vNIC's name for people.
    #[must_use]
    pub fn vnic_name(&self, key: VnicId) -> &str {
        self.identities.get(&key).map_or("?", |identity| &identity.name)
    }

    pub(crate) fn node_guid(&self, key: VnicId) -> [u8; 8] {
        self.identities.get(&key).map_or([0; 8], |identity| identity.guid)
    }

    pub(crate) fn query_gids(&mut self, id: SessionId, tag: u64, now: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let key = session.client.vnic;
        let Some(vnic) = self.vnics.get(&key) else { return };
        let fresh =
            vnic.read_at.is_some_and(|at| now.saturating_sub(at) < self.limits.gids_time_ns);
        if fresh {
            self.tell_gids(id, tag);
        } else {
            session.waiting = Some(Waiting::Gids { tag });
            self.read_addresses(key, Some(id));
        }
    }

    pub(crate) fn tell_gids(&mut self, id: SessionId, tag: u64) {
        let Some(vnic) = self.sessions.get(&id).and_then(|s| self.vnics.get(&s.client.vnic)) else {
            return;
        };
        let none = GidEntry { gid: Gid::ZERO, ifindex: 0, mtu: 0 };
        let mut entries = [none; GIDS_MAX];
        for (to, from) in entries.iter_mut().zip(&vnic.gids) {
            *to = *from;
        }
        let count = u32::try_from(vnic.gids.len().min(GIDS_MAX)).unwrap_or(0);
        self.reply(id, tag, Gids { count, reserved: 0, entries });
    }

    /// Opens the vNIC's handshake sockets when the first queue pair is made: only then can
    /// somebody look for it.
    pub(crate) fn open_port(&mut self, key: VnicId) {
        if let Some(vnic) = self.vnics.get_mut(&key)
            && !vnic.port
        {
            vnic.port = true;
            self.out.push(Action::OpenPort { vnic: key });
        }
    }
}
