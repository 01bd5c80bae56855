//! Grants: the pages of one MR for one linked peer.
//!
//! The initiator names a key. If the key is its peer's, of the peer queue pair's protection
//! domain and open to remote access at all, the owner is asked for the pages; what it hands out is
//! checked against the region before the initiator gets it. Where the far end of the owner's link
//! is the engine, the engine is the initiator, for whoever is beyond it.

use crate::action::{Action, MemoryFacts};
use crate::adoption::Adoption;
use crate::errno::{
    EACCES, ECONNRESET, EINVAL, ENOENT, ENOMEM, EOPNOTSUPP, EPERM, EPROTO, ETIMEDOUT,
};
use crate::tables::{Grantee, Mr, PendingGrant, SessionId};
use crate::tenancy::{Tenancy, Timer};
use omniverb_session::body::{
    Adopt, Adopted, Connected, GrantDenied, Granted, QP_UD, RequestGrant,
};

const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
const PAGE_BYTES: u64 = 4096;

impl Tenancy {
    pub(crate) fn request_grant(
        &mut self,
        id: SessionId,
        m: &RequestGrant,
        now: u64,
    ) -> Result<Connected, u32> {
        let qp = self.own_qp(id, m.qpn)?;
        // What is beyond the engine is the other engine's to map.
        if qp.qp_type == QP_UD || qp.wires_to(m.peer_qpn).next().is_some() {
            return Err(EOPNOTSUPP);
        }
        if !qp.links.contains(&m.peer_qpn) {
            return Err(ENOENT);
        }
        if self.adoption_of(m.qpn, m.peer_qpn) == Adoption::Off {
            return Err(EPERM);
        }
        let (owner, _) = self.grantable(m.peer_qpn, m.rkey)?;
        let session = self.sessions.get_mut(&id).ok_or(EPROTO)?;
        if session.grants >= self.limits.grants_per_session {
            return Err(ENOMEM);
        }
        session.grants += 1;
        let (qpn, peer_qpn, rkey) = (m.qpn, m.peer_qpn, m.rkey);
        let initiator = Grantee::Session(id);
        self.ask_owner(PendingGrant { initiator, owner, qpn, peer_qpn, rkey, deadline: 0 }, now);
        Ok(Connected { qpn: m.qpn, ready: 0 })
    }

    /// Somebody beyond the engine names a key to `qpn`, which it is connected with. If nothing
    /// comes of it, everything goes on through the application.
    pub fn engine_wants(&mut self, qpn: u32, peer_qpn: u32, rkey: u32, now: u64) -> Vec<Action> {
        let _ = self.ask_for_engine(qpn, peer_qpn, rkey, now);
        std::mem::take(&mut self.out)
    }

    fn ask_for_engine(&mut self, qpn: u32, peer_qpn: u32, rkey: u32, now: u64) -> Result<(), u32> {
        let qp = self.qps.get(&qpn).ok_or(ENOENT)?;
        if qp.qp_type == QP_UD || qp.wires_to(peer_qpn).next().is_none() {
            return Err(ENOENT);
        }
        // The engine is no vNIC's: it takes what the owner's may give, and checks every access.
        if self.policy(qp.vnic).adoption == Adoption::Off {
            return Err(EPERM);
        }
        let (owner, _) = self.grantable(qpn, rkey)?;
        let session = self.sessions.get_mut(&owner).ok_or(ENOENT)?;
        if session.engine_grants >= self.limits.grants_per_session {
            return Err(ENOMEM);
        }
        session.engine_grants += 1;
        // To the engine's queue pair the owner's is the peer, as for any initiator.
        let (qpn, peer_qpn) = (peer_qpn, qpn);
        let initiator = Grantee::Engine;
        self.ask_owner(PendingGrant { initiator, owner, qpn, peer_qpn, rkey, deadline: 0 }, now);
        Ok(())
    }

    /// Asks the owner for pages.
    fn ask_owner(&mut self, grant: PendingGrant, now: u64) {
        let mut token = self.entropy.next();
        while self.grants.contains_key(&token) {
            token = token.wrapping_add(1);
        }
        let deadline = now.saturating_add(self.limits.grant_time_ns);
        self.grants.insert(token, PendingGrant { deadline, ..grant });
        self.timers.insert((deadline, Timer::Grant(token)));
        self.event(grant.owner, Adopt { token, rkey: grant.rkey, qpn: grant.peer_qpn });
    }

    /// The owner and the region of a key that the peers of `qpn` may use.
    fn grantable(&self, qpn: u32, rkey: u32) -> Result<(SessionId, Mr), u32> {
        let qp = self.qps.get(&qpn).ok_or(ENOENT)?;
        let owner = self.sessions.get(&qp.session).ok_or(ENOENT)?;
        let mr = owner.mrs.get(&rkey).ok_or(ENOENT)?;
        let remote = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
        if mr.pd != qp.pd || mr.access & remote == 0 {
            return Err(EACCES);
        }
        Ok((qp.session, *mr))
    }

    /// The owner's answer.
    pub(crate) fn adopted(&mut self, id: SessionId, m: &Adopted, memory: Option<MemoryFacts>) {
        // An unknown token is an answer that came too late; somebody else's is not ours to judge.
        if self.grants.get(&m.token).is_none_or(|grant| grant.owner != id) {
            return;
        }
        let Some(grant) = self.take_grant(m.token) else { return };
        match self.check_adopted(&grant, m, memory) {
            Ok(granted) => self.out.push(match grant.initiator {
                Grantee::Session(session) => Action::Grant { session, granted },
                Grantee::Engine => {
                    let (qpn, peer_qpn) = (grant.peer_qpn, grant.qpn);
                    let vnic = self.qps.get(&qpn).map(|qp| qp.vnic);
                    let Some(vnic) = vnic else { return };
                    Action::GrantEngine { vnic, granted: Granted { qpn, peer_qpn, ..granted } }
                }
            }),
            Err(errno) => self.deny(&grant, errno),
        }
    }

    fn check_adopted(
        &self,
        grant: &PendingGrant,
        m: &Adopted,
        memory: Option<MemoryFacts>,
    ) -> Result<Granted, u32> {
        if m.errno != 0 {
            return Err(m.errno);
        }
        // The link may have been closed and the region replaced since the question.
        let linked = match grant.initiator {
            Grantee::Session(id) => self
                .qps
                .get(&grant.qpn)
                .is_some_and(|qp| qp.session == id && qp.links.contains(&grant.peer_qpn)),
            Grantee::Engine => self
                .qps
                .get(&grant.peer_qpn)
                .is_some_and(|qp| qp.wires_to(grant.qpn).next().is_some()),
        };
        if !linked {
            return Err(ENOENT);
        }
        let allowed = match grant.initiator {
            Grantee::Session(_) => self.adoption_of(grant.qpn, grant.peer_qpn),
            Grantee::Engine => {
                let owner = self.qps.get(&grant.peer_qpn).map(|qp| self.policy(qp.vnic).adoption);
                owner.unwrap_or(Adoption::Off)
            }
        };
        if allowed == Adoption::Off {
            return Err(EPERM);
        }
        let (owner, mr) = self.grantable(grant.peer_qpn, grant.rkey)?;
        if owner != grant.owner {
            return Err(ENOENT);
        }
        let end = m.page_start.checked_add(m.page_length).ok_or(EINVAL)?;
        let aligned =
            m.page_start.is_multiple_of(PAGE_BYTES) && m.page_length.is_multiple_of(PAGE_BYTES);
        let inside = m.page_start >= mr.addr && end <= mr.addr.saturating_add(mr.length);
        if m.page_length == 0 || !aligned || !inside {
            return Err(EINVAL);
        }
        let memory = memory.ok_or(EINVAL)?;
        let writable = mr.access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
        if !memory.sound || (!writable && !memory.write_sealed) {
            return Err(EINVAL);
        }
        Ok(Granted {
            qpn: grant.qpn,
            peer_qpn: grant.peer_qpn,
            rkey: grant.rkey,
            access: mr.access,
            addr: mr.addr,
            length: mr.length,
            page_start: m.page_start,
            page_length: m.page_length,
            epoch: m.epoch,
            reserved: 0,
        })
    }

    fn take_grant(&mut self, token: u64) -> Option<PendingGrant> {
        let grant = self.grants.remove(&token)?;
        self.timers.remove(&(grant.deadline, Timer::Grant(token)));
        match grant.initiator {
            Grantee::Session(id) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.grants -= 1;
                }
            }
            Grantee::Engine => {
                if let Some(session) = self.sessions.get_mut(&grant.owner) {
                    session.engine_grants -= 1;
                }
            }
        }
        Some(grant)
    }

    /// The engine asks once and goes on without: it need not be told.
    fn deny(&mut self, grant: &PendingGrant, errno: u32) {
        let PendingGrant { qpn, peer_qpn, rkey, .. } = *grant;
        if let Grantee::Session(id) = grant.initiator {
            self.event(id, GrantDenied { qpn, peer_qpn, rkey, errno });
        }
    }

    /// A link to the engine has ended: what is asked for it is void. There may be another one for
    /// the same queue pairs soon, and an answer to the old question must not count for that.
    pub(crate) fn end_engine_grants(&mut self, qpn: u32, peer_qpn: u32) {
        let owner = self.qps.get(&qpn).and_then(|qp| self.sessions.get(&qp.session));
        if owner.is_none_or(|owner| owner.engine_grants == 0) {
            return;
        }
        let names = |grant: &PendingGrant| {
            grant.initiator == Grantee::Engine && (grant.peer_qpn, grant.qpn) == (qpn, peer_qpn)
        };
        let tokens: Vec<u64> =
            self.grants.iter().filter(|(_, g)| names(g)).map(|(token, _)| *token).collect();
        for token in tokens {
            self.take_grant(token);
        }
    }

    pub(crate) fn grant_timed_out(&mut self, token: u64) {
        if let Some(grant) = self.take_grant(token) {
            self.deny(&grant, ETIMEDOUT);
        }
    }

    /// A session is gone: what it asked for is void, what was asked of it is denied.
    pub(crate) fn end_grants(&mut self, id: SessionId) {
        let touched = |g: &&PendingGrant| g.initiator == Grantee::Session(id) || g.owner == id;
        let mut tokens: Vec<u64> =
            self.grants.iter().filter(|(_, g)| touched(g)).map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        for token in tokens {
            if let Some(grant) = self.take_grant(token) {
                self.deny(&grant, ECONNRESET);
            }
        }
    }
}
