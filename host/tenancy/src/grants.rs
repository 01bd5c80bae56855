//! Grants: the pages of one MR for one linked peer.
//!
//! The initiator names a key. If the key is its peer's, of the peer queue pair's protection
//! domain and open to remote access at all, the owner is asked for the pages; what it hands out is
//! checked against the region before the initiator gets it.

use crate::action::{Action, MemoryFacts};
use crate::errno::{EACCES, ECONNRESET, EINVAL, ENOENT, ENOMEM, EOPNOTSUPP, EPROTO, ETIMEDOUT};
use crate::tables::{Mr, PendingGrant, SessionId};
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
        // Through the engine nothing is mapped.
        if qp.qp_type == QP_UD || qp.wires_to(m.peer_qpn).next().is_some() {
            return Err(EOPNOTSUPP);
        }
        if !qp.links.contains(&m.peer_qpn) {
            return Err(ENOENT);
        }
        let (owner, _) = self.grantable(m.peer_qpn, m.rkey)?;
        let session = self.sessions.get_mut(&id).ok_or(EPROTO)?;
        if session.grants >= self.limits.grants_per_session {
            return Err(ENOMEM);
        }
        session.grants += 1;
        let mut token = self.entropy.next();
        while self.grants.contains_key(&token) {
            token = token.wrapping_add(1);
        }
        let deadline = now.saturating_add(self.limits.grant_time_ns);
        let grant = PendingGrant {
            initiator: id,
            owner,
            qpn: m.qpn,
            peer_qpn: m.peer_qpn,
            rkey: m.rkey,
            deadline,
        };
        self.grants.insert(token, grant);
        self.timers.insert((deadline, Timer::Grant(token)));
        self.event(owner, Adopt { token, rkey: m.rkey, qpn: m.peer_qpn });
        Ok(Connected { qpn: m.qpn, ready: 0 })
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
            Ok(granted) => {
                self.out.push(Action::Grant { session: grant.initiator, granted });
            }
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
        let linked = self
            .qps
            .get(&grant.qpn)
            .is_some_and(|qp| qp.session == grant.initiator && qp.links.contains(&grant.peer_qpn));
        if !linked {
            return Err(ENOENT);
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
        })
    }

    fn take_grant(&mut self, token: u64) -> Option<PendingGrant> {
        let grant = self.grants.remove(&token)?;
        self.timers.remove(&(grant.deadline, Timer::Grant(token)));
        if let Some(session) = self.sessions.get_mut(&grant.initiator) {
            session.grants -= 1;
        }
        Some(grant)
    }

    fn deny(&mut self, grant: &PendingGrant, errno: u32) {
        let PendingGrant { qpn, peer_qpn, rkey, .. } = *grant;
        self.event(grant.initiator, GrantDenied { qpn, peer_qpn, rkey, errno });
    }

    pub(crate) fn grant_timed_out(&mut self, token: u64) {
        if let Some(grant) = self.take_grant(token) {
            self.deny(&grant, ETIMEDOUT);
        }
    }

    /// A session is gone: what it asked for is void, what was asked of it is denied.
    pub(crate) fn end_grants(&mut self, id: SessionId) {
        let touched = |g: &&PendingGrant| g.initiator == id || g.owner == id;
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
