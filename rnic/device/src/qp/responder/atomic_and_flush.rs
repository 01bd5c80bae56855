//! Atomics and FLUSHes that travel: executed once, and answered with a number. Atomics are executed
//! with the CPU's own atomic instructions, so that they are atomic with mapped ones of other
//! initiators and with the program's own.

use super::remote_access::RemoteAccess;
use super::{InboundState, Outcome};
use crate::qp::{Inner, Qp};
use crate::verbs_constants::access;
use omniverb_link::{Broken, Request, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::{Placement, Refusal, Rkey, Selectivity};

impl Inner {
    pub(super) fn serve_once(
        &mut self,
        qp: &Qp,
        index: usize,
        request: &Request,
    ) -> Result<Outcome, Broken> {
        let begins = matches!(self.links[index].incoming, InboundState::Idle);
        let original = match self.links[index].incoming {
            // Executed on an earlier turn, exactly once; only the answer is missing.
            InboundState::Answer { original } => original,
            InboundState::Idle => match self.remote_access(qp).execute(request) {
                Ok(original) => original,
                Err(refusal) => return Ok(Outcome::Refused(refusal, None)),
            },
            _ => return Ok(Outcome::Refused(Refusal::InvalidRequest, None)),
        };
        let link = &mut self.links[index];
        let answer = Response::AtomicResult { original };
        if !link.endpoint.send_response(&answer, UserMemory::EMPTY)? {
            link.incoming = InboundState::Answer { original };
            if link.endpoint.set_blocked(true) || begins {
                qp.come_back_later(); // as for READ
            }
            return Ok(Outcome::Later);
        }
        link.incoming = InboundState::Idle;
        Ok(Outcome::Passed)
    }
}

impl RemoteAccess<'_> {
    /// Does it; what it found, or 0.
    fn execute(&self, request: &Request) -> Result<u64, Refusal> {
        const ATOMIC: u32 = access::REMOTE_ATOMIC;
        match *request {
            Request::CompareSwap { address, rkey, compare, swap } => {
                self.atomic((address, rkey, ATOMIC), |cell| cell.compare_swap(compare, swap))
            }
            Request::FetchAdd { address, rkey, add } => {
                self.atomic((address, rkey, ATOMIC), |cell| cell.fetch_add(add))
            }
            Request::AtomicWrite { address, rkey, value } => {
                let access = access::REMOTE_WRITE;
                self.atomic((address, rkey, access), |cell| cell.store(value).map(|()| 0))
            }
            Request::Flush { address, rkey, length, placement, selectivity } => {
                let range = (selectivity == Selectivity::Range).then_some((address, length));
                self.flush(rkey, range, placement)
            }
            _ => Err(Refusal::InvalidRequest),
        }
    }

    /// Whether peers may do this on this queue pair.
    fn allows(&self, access: u32) -> bool {
        let attributes = self.attributes;
        attributes.access_flags & access == access && attributes.max_dest_rd_atomic != 0
    }

    fn atomic(
        &self,
        (address, rkey, access): (u64, Rkey, u32),
        execute: impl Fn(&UserMemory) -> Option<u64>,
    ) -> Result<u64, Refusal> {
        if !self.allows(access) || !address.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest);
        }
        let (region, cell) = self.target(rkey, access, address, 8)?;
        region.moved.note(8);
        // The IOVA is aligned; the memory behind it may not be.
        if !cell.address().is_multiple_of(8) {
            return Err(Refusal::InvalidRequest);
        }
        if let Some(original) = region.own_mapping().with_cell(cell, &execute) {
            return original.ok_or(Refusal::InvalidRequest);
        }
        let host = &*self.qp.shared.host;
        region.note_kernel_copy(host, 8);
        if !host.bears_atomics(cell) {
            return Err(Refusal::RemoteAccess);
        }
        execute(&cell).ok_or(Refusal::InvalidRequest)
    }

    /// What came before it is in this process's memory, and so visible to every reader of that. No
    /// region of ours takes what is to survive a loss of power: none was registered for it.
    fn flush(
        &self,
        rkey: Rkey,
        range: Option<(u64, u64)>,
        placement: Placement,
    ) -> Result<u64, Refusal> {
        let right = |what: Placement, flag: u32| if placement.asks(what) { flag } else { 0 };
        let access = right(Placement::GLOBAL, access::FLUSH_GLOBAL)
            | right(Placement::PERSISTENT, access::FLUSH_PERSISTENT);
        if !self.allows(access) {
            return Err(Refusal::InvalidRequest);
        }
        match range {
            Some((address, length)) => self.target(rkey, access, address, length).map(|_| 0),
            None => self.opened(rkey, access).map(|_| 0),
        }
    }
}
