//! Welcomes sessions, and answers with their vNIC's table of GIDs.

use super::session::{Session, Waiting};
use super::vnic_members::Vnic;
use crate::accounts::{Kind, Quotas};
use crate::action::Action;
use crate::decision_context::Context;
use crate::row_keys::SessionId;
use crate::vnics_and_policies::Tenants;
use omniverb_session::body::{Extent, GidEntry, Gids, Welcome};
use omniverb_session::limits::GIDS_MAX;
use omniverb_terms::{Errno, Gid, VnicId};

impl Tenants {
    /// Makes the session one of its vNIC's, and the vNIC if it is the first.
    pub(crate) fn join(
        &mut self,
        context: &Context,
        id: SessionId,
        key: VnicId,
    ) -> Result<(), Errno> {
        let holder = self.sessions.get(&id).ok_or(Errno::EPROTO)?.client().holder.clone();
        let known = self.vnics.get(&key).map(|vnic| vnic.account().clone());
        let new = match known {
            Some(_) => None,
            None => Some(context.host().charge(&[Kind::Vnic])?),
        };
        let account =
            known.unwrap_or_else(|| context.host().below(Quotas::of_vnic(context.limits())));
        let process = account.charge(&[Kind::Process])?;
        let own = account.below(Quotas::of_session(context.limits()));
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

    pub(crate) fn answer_when_known(&mut self, context: &mut Context, id: SessionId, key: VnicId) {
        if self.vnics.get(&key).is_some_and(|vnic| vnic.names.are_known()) {
            let waiting = self.sessions.get_mut(&id).and_then(Session::take_waiting);
            if let Some(Waiting::Hello { tag }) = waiting {
                self.welcome(context, id, tag);
            }
        } else {
            self.read_addresses(context, key, Some(id));
        }
    }

    pub(crate) fn welcome(&mut self, context: &mut Context, id: SessionId, tag: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.welcome();
        let key = session.client().vnic;
        let welcome = self.welcome_message(context, id, key);
        context.act(Action::Welcome { session: id, tag, welcome });
        self.take_back_after_restart(context, id);
    }

    fn welcome_message(&self, context: &Context, id: SessionId, key: VnicId) -> Welcome {
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
            qp_max: most(Kind::Qp).min(self.policy(key).control.queue_pairs.unwrap_or(u32::MAX)),
            mr_max: most(Kind::Mr),
            link_max: most(Kind::Link),
            daemon: context.number,
            vnic,
            area: Extent::NONE,
        }
    }

    /// Has the vNIC's addresses read; `session` is answered when they are there.
    pub(crate) fn read_addresses(
        &mut self,
        context: &mut Context,
        key: VnicId,
        session: Option<SessionId>,
    ) {
        if self.vnics.get_mut(&key).is_some_and(|vnic| vnic.names.wait(session)) {
            context.act(Action::ReadAddresses { vnic: key });
        }
    }

    pub(crate) fn query_gids(&mut self, context: &mut Context, id: SessionId, tag: u64, now: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let key = session.client().vnic;
        let Some(vnic) = self.vnics.get(&key) else { return };
        if vnic.names.are_known() && !vnic.names.are_old(now, context.limits().gids_time_ns) {
            self.tell_gids(context, id, tag);
        } else {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.wait(Waiting::Gids { tag });
            }
            self.read_addresses(context, key, Some(id));
        }
    }

    pub(crate) fn tell_gids(&mut self, context: &mut Context, id: SessionId, tag: u64) {
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
        context.reply(id, tag, Gids { count, reserved: 0, entries });
    }

    /// Opens the vNIC's handshake sockets when the first queue pair is made: only then can a peer
    /// look for it.
    pub(crate) fn open_port(&mut self, context: &mut Context, key: VnicId) {
        if self.vnics.get_mut(&key).is_some_and(Vnic::open_port) {
            context.act(Action::OpenPort { vnic: key });
        }
    }
}
