//! Grants parts of a region to a linked peer.
//!
//! The initiator names a key and a range. If the key is its peer's, of the peer queue pair's
//! protection domain, and the region's flags are such that pages can express them, the owner is
//! asked to move the extent around that range onto a file of the daemon's; its answer is checked
//! before the initiator gets the file. A late answer counts where pages would stay that others can
//! reach (`page_placement.rs`). Where the far end of the owner's link is the engine, the engine is
//! the initiator, for the remote peer.

use super::pending_grants::{Grantee, PendingGrant, Token};
use crate::accounts::{Kind, Receipt};
use crate::action::{Action, GrantOccasion, MemoryFacts};
use crate::memory::Grants;
use crate::memory::extent_file_allocator::{FileId, FileRange, PageHome};
use crate::memory::extent_table::{ExtentId, Part};
use crate::policy::page_adoption_between_vnics::Adoption;
use crate::row_keys::{LinkKey, SessionId};
use crate::sessions::memory_region::Mr;
use crate::timers::Timer;
use omniverb_session::body::{
    Adopt, Adopted, Connected, Extent, GrantDenied, Granted, Pin, RequestGrant,
};
use omniverb_session::page_rights::{self, PeerTrust};
use omniverb_terms::{Errno, Operations, Qpn, Rkey, Service};

/// A request for pages: the initiator, the owner, the range.
struct GrantRequest {
    initiator: Grantee,
    owner: SessionId,
    qpn: Qpn,
    peer_qpn: Qpn,
    rkey: Rkey,
    part: Part,
    /// Where it is to be, or is.
    home: PageHome,
    /// Its receipts: the grant, the question, and the extent, if it is new.
    paid: (Receipt, Receipt, Option<Receipt>),
}

/// Whether peers of such a queue pair may map the pages that it can reach. Of XRC the requesting
/// end serves no peer, and the regions of the other end depend on the SRQ that a request names
/// (decision 0032).
fn maps(service: Service) -> bool {
    service.is_connected() && !service.is_extended()
}

/// The access flags of operations that are refused.
fn refused_access(refused: Operations) -> u32 {
    let flags = [
        (Operations::READ, page_rights::REMOTE_READ),
        (Operations::WRITE, page_rights::REMOTE_WRITE),
        (Operations::ATOMIC, page_rights::REMOTE_ATOMIC),
    ];
    let of = flags.iter().filter(|(operation, _)| refused.contains(*operation));
    of.fold(0, |all, (_, flag)| all | flag)
}

impl Grants<'_> {
    pub(crate) fn request_grant(
        &mut self,
        id: SessionId,
        m: &RequestGrant,
        now: u64,
    ) -> Result<Connected, Errno> {
        let qp = self.queue_pairs.own(id, m.qpn)?;
        if qp.is_failed() {
            return Err(Errno::EACCES);
        }
        // Pages beyond the engine are the other engine's to map.
        if !maps(qp.service()) || self.links.has_engine(m.qpn, m.peer_qpn) {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.links.has_direct(m.qpn, m.peer_qpn) {
            return Err(Errno::ENOENT);
        }
        let initiator = Grantee::Session(id);
        let (owner, mr) = self.grantable(m.peer_qpn, m.rkey)?;
        let (home, _) = self.uses(initiator, owner, &mr, (m.peer_qpn, m.qpn))?;
        let question = self.tenants.charge_question(owner)?;
        self.tenants.may_be_granted_more(id, owner, now)?;
        self.may_keep(id, owner, &mr, home)?;
        let (part, extent) = self.choose_part(owner, (m.rkey, &mr), (m.address, m.length), home)?;
        let session = self.tenants.sessions.get(&id).ok_or(Errno::EPROTO)?;
        let paid = (session.account().charge(&[Kind::Grant])?, question, extent);
        let (qpn, peer_qpn, rkey) = (m.qpn, m.peer_qpn, m.rkey);
        self.ask_owner(
            GrantRequest { initiator, owner, qpn, peer_qpn, rkey, part, home, paid },
            now,
        )?;
        Ok(Connected { qpn: m.qpn, ready: 0 })
    }

    /// A peer beyond the engine names these bytes of a key to `qpn`, which it is connected with. If
    /// they cannot be granted, everything goes on through the application. `u64::MAX` bytes are all
    /// of the region.
    pub(crate) fn engine_wants(
        &mut self,
        (qpn, peer_qpn): (Qpn, Qpn),
        rkey: Rkey,
        range: (u64, u64),
        now: u64,
    ) {
        if let Err(errno) = self.ask_for_engine((qpn, peer_qpn), rkey, range, now) {
            self.deny_engine((qpn, peer_qpn), rkey, errno);
        }
    }

    fn ask_for_engine(
        &mut self,
        (qpn, peer_qpn): (Qpn, Qpn),
        rkey: Rkey,
        (address, length): (u64, u64),
        now: u64,
    ) -> Result<(), Errno> {
        let service = self.queue_pairs.get(qpn).ok_or(Errno::ENOENT)?.service();
        if !self.links.has_engine(qpn, peer_qpn) {
            return Err(Errno::ENOENT);
        }
        if !maps(service) {
            return Err(Errno::EOPNOTSUPP);
        }
        let initiator = Grantee::Engine;
        let (owner, mr) = self.grantable(qpn, rkey)?;
        let (home, _) = self.uses(initiator, owner, &mr, (qpn, peer_qpn))?;
        let question = self.tenants.charge_question(owner)?;
        let address = if length == u64::MAX { address.max(mr.pages().start) } else { address };
        let (part, extent) = self.choose_part(owner, (rkey, &mr), (address, length), home)?;
        let session = self.tenants.sessions.get(&owner).ok_or(Errno::ENOENT)?;
        let paid = (session.account().charge(&[Kind::EngineGrant])?, question, extent);
        // To the engine's queue pair the owner's is the peer, as for any initiator.
        let (qpn, peer_qpn) = (peer_qpn, qpn);
        self.ask_owner(
            GrantRequest { initiator, owner, qpn, peer_qpn, rkey, part, home, paid },
            now,
        )
    }

    /// Asks the owner for pages.
    fn ask_owner(&mut self, asking: GrantRequest, now: u64) -> Result<(), Errno> {
        let GrantRequest { initiator, owner, qpn, peer_qpn, rkey, part, home, paid } = asking;
        let (receipt, question, new) = paid;
        let region = (owner, rkey);
        let (extent, new_file) = match new {
            Some(paid) => self.memory.extents.add(region, &part, home, paid)?,
            None => (self.memory.extents.at(region, part.start).ok_or(Errno::ENOENT)?, None),
        };
        let FileRange { file, offset, length } =
            self.memory.extents.get(extent).ok_or(Errno::ENOENT)?.place;
        let deadline = now.saturating_add(self.context.limits().grant_time_ns);
        let pending = PendingGrant { receipt, initiator, owner, qpn, peer_qpn, rkey, part, extent };
        let token = self.memory.pending.add(self.context.entropy.next(), pending);
        self.context.timers.set(Timer::Grant(token), deadline);
        if let Some(owner) = self.tenants.sessions.get_mut(&owner) {
            owner.questions.ask(question);
        }
        let Part { start, .. } = part;
        if part.is_fresh() && home == PageHome::InPlace {
            let pin = Pin { token, rkey, qpn: peer_qpn, start, length };
            self.context.act(Action::Pin { session: owner, file, pin });
            return Ok(());
        }
        let trusted = u32::from(self.trust(initiator, owner) == PeerTrust::Trusting);
        let fresh = u32::from(part.is_fresh());
        let memory = Extent { offset, length };
        let adopt = Adopt { token, rkey, qpn: peer_qpn, start, fresh, trusted, memory };
        if part.is_fresh() {
            self.context.act(Action::Adopt { session: owner, adopt, home, file, new_file });
        } else {
            self.tenants.event(self.context, owner, adopt);
        }
        Ok(())
    }

    /// Whether an initiator may be able to read pages that it may only write. The engine keeps to
    /// the flags; and a process of the same user in the same place could read the owner's memory
    /// anyway. That is not so for containers of one pod: they share a network and may share a user,
    /// but are kept apart by their other namespaces.
    fn trust(&self, initiator: Grantee, owner: SessionId) -> PeerTrust {
        let Grantee::Session(initiator) = initiator else { return PeerTrust::Trusting };
        match (self.tenants.sessions.get(&initiator), self.tenants.sessions.get(&owner)) {
            (Some(one), Some(other)) => {
                let (one, other) = (one.client(), other.client());
                let alike =
                    (one.vnic, one.uid, one.circle) == (other.vnic, other.uid, other.circle);
                let may_look = alike && one.circle.is_some();
                let adoption = self.tenants.adoption_between(one.vnic, other.vnic);
                match may_look || adoption == Adoption::Trusting {
                    true => PeerTrust::Trusting,
                    false => PeerTrust::Exact,
                }
            }
            _ => PeerTrust::Exact,
        }
    }

    /// Where pages of a region are lent to an initiator, and the accesses that it may make by a
    /// mapping. `ends`: the owner's queue pair, and its peer.
    fn uses(
        &self,
        initiator: Grantee,
        owner: SessionId,
        mr: &Mr,
        ends: (Qpn, Qpn),
    ) -> Result<(PageHome, u32), Errno> {
        let theirs = self.tenants.sessions.get(&owner).ok_or(Errno::ENOENT)?.client().vnic;
        let adoption = match initiator {
            Grantee::Session(id) => {
                let from = self.tenants.sessions.get(&id).ok_or(Errno::ENOENT)?.client().vnic;
                self.tenants.adoption_between(from, theirs)
            }
            // The engine belongs to no vNIC: the owner's policy counts.
            Grantee::Engine => self.tenants.policy(theirs).adoption,
        };
        if adoption == Adoption::Off {
            return Err(Errno::EPERM);
        }
        let trust = self.trust(initiator, owner);
        let home = self.home(initiator, owner)?;
        let refused = refused_access(self.links.refused(ends.0, ends.1));
        // A process that maps the pages can use them for all accesses. The engine keeps to rights.
        if matches!(initiator, Grantee::Session(_)) && mr.access & refused != 0 {
            return Err(Errno::EPERM);
        }
        let uses = home.mappable(mr.access & !refused, trust);
        // The engine has the owner execute atomics.
        let useful = match initiator {
            Grantee::Session(_) => uses,
            Grantee::Engine => uses & !page_rights::REMOTE_ATOMIC,
        };
        if useful == 0 { Err(Errno::EACCES) } else { Ok((home, uses)) }
    }

    /// The owner and the region of a key that the peers of `qpn` may use.
    pub(super) fn grantable(&self, qpn: Qpn, rkey: Rkey) -> Result<(SessionId, Mr), Errno> {
        let qp = self.queue_pairs.get(qpn).ok_or(Errno::ENOENT)?;
        let owner = self.tenants.sessions.get(&qp.session()).ok_or(Errno::ENOENT)?;
        let mr = owner.regions.get(rkey).ok_or(Errno::ENOENT)?;
        if qp.is_failed() || mr.pd != qp.pd() || mr.access & page_rights::REMOTE == 0 {
            return Err(Errno::EACCES);
        }
        Ok((qp.session(), mr))
    }

    /// The owner's answer. `memory`: how the file that it was given is now.
    pub(crate) fn adopted(&mut self, id: SessionId, m: &Adopted, memory: Option<MemoryFacts>) {
        // Late or not, it has been taken.
        self.tenants.has_answered(id);
        // An unknown token is an answer that came too late; another owner's is not ours to judge.
        if self.memory.pending.get(m.token).is_none_or(|grant| grant.owner != id) {
            return self.answered_late(id, m.token, m.errno);
        }
        let Some(grant) = self.take_grant(m.token) else { return };
        if let Err(errno) = self.settle_extent(&grant, m, memory) {
            return self.deny(&grant, errno);
        }
        match self.check_adopted(&grant, m) {
            Ok((granted, file)) => match grant.initiator {
                Grantee::Session(session) => {
                    let link = LinkKey::new(grant.qpn, grant.peer_qpn);
                    let occasion = self.note_granted(grant.extent, id, link);
                    self.context.act(Action::Grant { session, file, granted, occasion });
                }
                Grantee::Engine => {
                    let (qpn, peer_qpn) = (grant.peer_qpn, grant.qpn);
                    let Some(vnic) = self.queue_pairs.vnic_of(qpn) else { return };
                    let granted = Granted { qpn, peer_qpn, ..granted };
                    self.context.act(Action::GrantEngine { vnic, file, granted });
                }
            },
            Err(errno) => {
                self.drop_unused(grant.initiator, grant.extent);
                self.deny(&grant, errno);
            }
        }
    }

    /// The grantee of this cannot be told its place: it has not got it, unless it had it before.
    pub(crate) fn not_granted(
        &mut self,
        to: SessionId,
        file: FileId,
        granted: &Granted,
        occasion: GrantOccasion,
    ) {
        let Granted { qpn, peer_qpn, rkey, page_start, .. } = *granted;
        let owner = self.queue_pairs.session_of(peer_qpn);
        let extent = owner.and_then(|owner| self.memory.extents.at((owner, rkey), page_start));
        let is_it = |id: &ExtentId| {
            self.memory.extents.get(*id).is_some_and(|extent| extent.place.file == file)
        };
        if let Some(extent) = extent.filter(is_it) {
            if occasion == GrantOccasion::First {
                self.memory.grantees.remove(extent, LinkKey::new(qpn, peer_qpn));
            }
            self.drop_unused(Grantee::Session(to), extent);
        }
        self.tenants.event(
            self.context,
            to,
            GrantDenied { qpn, peer_qpn, rkey, errno: Errno::EAGAIN },
        );
    }

    /// Applies the owner's answer to the extent.
    fn settle_extent(
        &mut self,
        grant: &PendingGrant,
        m: &Adopted,
        memory: Option<MemoryFacts>,
    ) -> Result<(), Errno> {
        let PendingGrant { part, extent, .. } = *grant;
        let writable = self.grantable(grant.peer_qpn, grant.rkey).map(|(_, mr)| mr.access);
        let writable = writable.is_ok_and(page_rights::is_writable);
        // It went while the owner was asked: the region was deregistered, or its pages taken back.
        self.memory.extents.get(extent).ok_or(Errno::EAGAIN)?;
        if m.errno == Errno(0) && !part.is_fresh() {
            return Ok(());
        }
        let sealed =
            memory.is_some_and(|memory| memory.is_final && (writable || memory.is_write_sealed));
        if m.errno == Errno(0) && sealed {
            self.memory.extent_arrived(extent);
            return Ok(());
        }
        // An owner that does not know the extent any more may be asked for a new one.
        if part.is_fresh() || m.errno == Errno::ENOENT {
            self.remove_extent(extent);
        }
        match m.errno {
            Errno::NONE => Err(Errno::EINVAL),
            Errno::ENOENT if !part.is_fresh() => Err(Errno::EAGAIN),
            errno => Err(errno),
        }
    }

    /// The grant, and the file that holds its pages.
    fn check_adopted(&self, grant: &PendingGrant, m: &Adopted) -> Result<(Granted, FileId), Errno> {
        // The link may have been closed and the region replaced since the question.
        let linked = match grant.initiator {
            Grantee::Session(id) => {
                self.queue_pairs.session_of(grant.qpn) == Some(id)
                    && self.links.has_direct(grant.qpn, grant.peer_qpn)
            }
            Grantee::Engine => self.links.has_engine(grant.peer_qpn, grant.qpn),
        };
        if !linked {
            return Err(Errno::ENOENT);
        }
        let (owner, mr) = self.grantable(grant.peer_qpn, grant.rkey)?;
        if owner != grant.owner {
            return Err(Errno::ENOENT);
        }
        let ends = (grant.peer_qpn, grant.qpn);
        let (home, uses) = self.uses(grant.initiator, owner, &mr, ends)?;
        let (whole, part) = (mr.pages(), grant.part);
        if part.start < whole.start || part.start + part.length > whole.end {
            return Err(Errno::EINVAL);
        }
        let extent = self.memory.extents.get(grant.extent).ok_or(Errno::EAGAIN)?;
        if extent.home != home {
            return Err(Errno::EAGAIN);
        }
        if let Grantee::Session(id) = grant.initiator {
            self.may_keep(id, owner, &mr, home)?;
        }
        let FileRange { file, offset, length } = extent.place;
        let granted = Granted {
            qpn: grant.qpn,
            peer_qpn: grant.peer_qpn,
            rkey: grant.rkey,
            access: uses,
            addr: mr.addr,
            length: mr.length,
            page_start: part.start,
            epoch: m.epoch,
            reserved: 0,
            memory: Extent { offset, length },
        };
        Ok((granted, file))
    }

    /// There is no memory for the pages at the moment: the owner was not asked.
    pub(crate) fn no_memory(&mut self, token: Token) {
        if let Some(question) = self.memory.pending.take_abandoned(token) {
            self.tenants.has_answered(question.owner);
            self.remove_extent(question.extent);
        }
        if let Some(grant) = self.take_grant(token) {
            self.tenants.has_answered(grant.owner);
            self.remove_extent(grant.extent);
            self.deny(&grant, Errno::EAGAIN);
        }
    }

    pub(super) fn take_grant(&mut self, token: Token) -> Option<PendingGrant> {
        let grant = self.memory.pending.remove(token)?;
        self.context.timers.clear(Timer::Grant(token));
        Some(grant)
    }

    pub(super) fn deny(&mut self, grant: &PendingGrant, errno: Errno) {
        let PendingGrant { qpn, peer_qpn, rkey, .. } = *grant;
        match grant.initiator {
            Grantee::Session(id) => {
                self.tenants.event(self.context, id, GrantDenied { qpn, peer_qpn, rkey, errno })
            }
            Grantee::Engine => self.deny_engine((peer_qpn, qpn), rkey, errno),
        }
    }

    /// The engine goes on without.
    fn deny_engine(&mut self, (qpn, peer_qpn): (Qpn, Qpn), rkey: Rkey, errno: Errno) {
        let Some(vnic) = self.queue_pairs.vnic_of(qpn) else { return };
        self.context
            .act(Action::DenyEngine { vnic, denied: GrantDenied { qpn, peer_qpn, rkey, errno } });
    }

    /// A link to the engine has ended: its requests for pages are void. There may be another one
    /// for the same queue pairs soon, and an answer to the old question must not count for that.
    pub(crate) fn end_engine_grants(&mut self, qpn: Qpn, peer_qpn: Qpn) {
        let owner =
            self.queue_pairs.session_of(qpn).and_then(|owner| self.tenants.sessions.get(&owner));
        if owner.is_none_or(|owner| owner.account().count(Kind::EngineGrant) == 0) {
            return;
        }
        for token in self.memory.pending.of_engine(qpn, peer_qpn) {
            if let Some(grant) = self.take_grant(token) {
                self.give_up_extent(token, &grant);
            }
        }
    }

    pub(crate) fn grant_timed_out(&mut self, token: Token) {
        self.give_up(token, Errno::ETIMEDOUT);
    }

    /// The owner's answer is not waited for any more.
    pub(super) fn give_up(&mut self, token: Token, errno: Errno) {
        if let Some(grant) = self.take_grant(token) {
            self.give_up_extent(token, &grant);
            self.deny(&grant, errno);
        }
    }

    /// A session is gone: its requests are void, requests to it are denied.
    pub(crate) fn end_grants(&mut self, id: SessionId) {
        for token in self.memory.pending.of(id) {
            self.give_up(token, Errno::ECONNRESET);
        }
    }
}
