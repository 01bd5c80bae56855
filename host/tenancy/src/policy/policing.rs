//! What an administrator says takes effect: on the way that traffic takes, and on pages.
//!
//! In: what was set. Out: what holds between two vNICs, and who has to take pages back when that
//! changes. A switch that was turned off concerns what was granted before as well: a peer cannot be
//! made to give a mapping back, so owners are told to take the pages.

use crate::accounts::Kind;
use crate::action::Action;
use crate::ids::SessionId;
use crate::path::Why;
use crate::policy::adoption::Adoption;
use crate::policy::policies::{Datapath, Policies, Policy};
use crate::tenancy::Tenancy;
use omniverb_session::body::{TAKE_ALL, TakeBack};
use omniverb_terms::{Rkey, VnicId};
use std::collections::BTreeSet;

impl Tenancy {
    /// Takes over what the configuration says.
    pub fn configure(&mut self, policies: Policies) {
        self.policies = policies;
    }

    /// What holds for a vNIC, whether or not it has processes.
    #[must_use]
    pub fn policy(&self, key: VnicId) -> Policy {
        self.policies.of(key, self.identity(key))
    }

    /// Changes what holds for a vNIC from now on. Links that exist stay as they are: says how many
    /// direct ones. What was granted and must not be any more is taken back: by the actions.
    pub fn set_policy(&mut self, key: VnicId, policy: Policy) -> (usize, Vec<Action>) {
        let before = self.policy(key);
        self.policies.set(key, policy);
        self.adoption_changed(key, before);
        self.review_relations(key);
        (self.direct_links(key), self.decided())
    }

    /// The namespace that this was set for is no more. If one with processes has its place, what
    /// these granted and must not any more is taken back.
    #[must_use]
    pub fn forget_policy(&mut self, key: VnicId) -> Vec<Action> {
        let before = self.policy(key);
        self.policies.unset(key);
        self.adoption_changed(key, before);
        self.review_relations(key);
        self.decided()
    }

    /// Links of a vNIC's queue pairs with others that do not pass through the engine.
    #[must_use]
    pub fn direct_links(&self, key: VnicId) -> usize {
        self.vnics.get(&key).map_or(0, |vnic| vnic.account().count(Kind::Direct))
    }

    /// Link ends of a vNIC, those to the engine included.
    #[must_use]
    pub fn links_of(&self, key: VnicId) -> usize {
        let account = self.vnics.get(&key).map(|vnic| vnic.account());
        account.map_or(0, |all| all.count(Kind::Direct) + all.count(Kind::EngineLink))
    }

    /// What was set because of which traffic from one vNIC to another of this host passes through
    /// the engine.
    pub(crate) fn through_engine(&self, from: VnicId, to: VnicId) -> Option<Why> {
        let (own, peer) = (self.policy(from), self.policy(to));
        let closed = |vnic| self.network.is_closed(vnic);
        if own.limit.is_some() {
            Some(Why::Limited)
        } else if own.faults.is_some() {
            Some(Why::Faulty)
        } else if own.datapath == Datapath::Forwarded || closed(from) {
            Some(Why::Forwarded)
        } else if peer.limit.is_some() {
            Some(Why::PeerLimited)
        } else if peer.faults.is_some() {
            Some(Why::PeerFaulty)
        } else if peer.datapath == Datapath::Forwarded || closed(to) {
            Some(Why::PeerForwarded)
        } else {
            None
        }
    }

    /// What holds for pages between two vNICs.
    pub(crate) fn adoption_between(&self, one: VnicId, other: VnicId) -> Adoption {
        self.policy(one).adoption.with(self.policy(other).adoption)
    }

    /// What holds for a vNIC has changed from `before`: where less is allowed than was, its
    /// processes and all that are linked with them take back what they granted. One event for each
    /// process, however many links it has.
    pub(crate) fn adoption_changed(&mut self, key: VnicId, before: Policy) {
        let now = self.policy(key).adoption;
        if before.adoption.with(now) == before.adoption {
            return;
        }
        let own = self.sessions.iter().filter(|(_, session)| session.client().vnic == key);
        let mut concerned: BTreeSet<SessionId> = own.map(|(id, _)| *id).collect();
        let linked = self.links.all_direct().filter(|(_, link)| link.vnics.contains(&key));
        concerned.extend(linked.flat_map(|(_, link)| link.sessions));
        for session in concerned {
            self.event(session, TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 });
        }
    }

    /// A process that outlived the daemon may have granted what is not allowed any more: the
    /// configuration may be another one. With whom it has links is not known yet.
    pub(crate) fn take_back_after_restart(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        if session.resumes() && self.policies.any(Adoption::Off) {
            self.event(id, TakeBack { what: TAKE_ALL, rkey: Rkey(0), start: 0, number: 0 });
        }
    }
}
