//! Does most requests on the spot: those of one piece of memory that have nothing to wait for.
//!
//! Does what the general path would do, without the notes that waiting needs. What does not fit
//! takes the general path, from the start.

use super::PathSelection;
use super::transmit::last_flags;
use crate::granted_peer_pages::Grants;
use crate::limits::CHUNK;
use crate::memory_region::RegionCache;
use crate::qp::attached_completion_counters::AttachedCounters;
use crate::qp::link_table::Links;
use crate::qp::qp_attributes::{QpAttributes, State};
use crate::qp::state_machine::StateMachine;
use crate::qp::statistics::Meter;
use crate::qp::{Inner, Qp};
use crate::scatter_gather::resolve;
use crate::send_work_request::{Data, SendWork};
use crate::verbs_constants::{access, opcode};
use omniverb_link::Credit;
use omniverb_link::Request;
use omniverb_link::record::FIRST;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_terms::Service;
use std::sync::atomic::Ordering;

impl PathSelection {
    /// After a change of state, or of what is counted.
    pub(crate) fn choose(
        &mut self,
        machine: &StateMachine,
        service: Service,
        counting: &AttachedCounters,
    ) {
        let is_allowed = machine.state() == State::Rts
            && matches!(service, Service::Rc | Service::Uc)
            && !counting.is_enabled();
        match is_allowed {
            true => self.open_fast_path(),
            false => self.close_fast_path(),
        }
    }
}

/// What a request of the fast path uses.
pub(super) struct FastPath<'q> {
    links: &'q mut Links,
    grants: &'q mut Grants,
    meter: &'q mut Meter,
    cache: &'q mut RegionCache,
    attributes: &'q QpAttributes,
}

impl Inner {
    #[inline(always)]
    pub(super) fn fast_path(&mut self) -> FastPath<'_> {
        FastPath {
            links: &mut self.links,
            grants: &mut self.grants,
            meter: &mut self.meter,
            cache: &mut self.send_cache,
            attributes: self.machine.attributes(),
        }
    }
}

impl FastPath<'_> {
    /// True: it is done. False: nothing happened.
    #[inline(always)]
    pub(super) fn try_post(&mut self, qp: &Qp, work: &SendWork<'_>, length: u64) -> bool {
        if work.opcode == opcode::RDMA_READ {
            return self.read(qp, work, length);
        }
        let part = match work.data {
            Data::Gather([sge]) => {
                let regions = &qp.shared.regions;
                match resolve(regions, self.cache, qp.pd, sge, 0) {
                    Some(part) => part,
                    None => return false,
                }
            }
            Data::Inline([part]) => *part,
            _ => return false,
        };
        match work.opcode {
            opcode::SEND | opcode::SEND_WITH_IMM => self.send(qp, work, length, &part),
            opcode::RDMA_WRITE => self.write(qp, work, length, &part),
            _ => false,
        }
    }

    /// A SEND of one record into a promised receive.
    #[inline(always)]
    fn send(&mut self, qp: &Qp, work: &SendWork<'_>, length: u64, part: &UserMemory) -> bool {
        let Some(link) = self.links.first_mut() else { return false };
        let endpoint = &mut link.endpoint;
        if qp.service != Service::Rc
            || length > CHUNK.min(endpoint.request_payload_max()) as u64
            || !endpoint.peer_is_open()
            || endpoint.peer_has_died()
        {
            return false;
        }
        if !matches!(endpoint.credit(), Credit::Promised { floor } if length <= floor) {
            return false;
        }
        let flags = FIRST | last_flags(work.opcode, work.flags);
        let request = Request::Send { flags, immediate: work.immediate };
        // Broken or full: the general way finds out the same, and knows what to do.
        if endpoint.send_request(&request, length as usize, [part]) != Ok(true) {
            return false;
        }
        endpoint.use_credit();
        true
    }

    /// A WRITE to mapped pages.
    #[inline(always)]
    fn write(&mut self, qp: &Qp, work: &SendWork<'_>, length: u64, part: &UserMemory) -> bool {
        let needed = access::REMOTE_WRITE;
        self.on_mapped(qp, work, length, needed, |window, offset| {
            window.fill_last_byte_last(offset, *part);
            let at = window.address().wrapping_add(offset);
            let from = at.wrapping_sub(work.address as usize);
            qp.mapped_at.store(from, Ordering::Relaxed);
        })
    }

    /// A READ of mapped pages. Nothing is outstanding, since nothing is in the queue.
    #[inline(never)]
    fn read(&mut self, qp: &Qp, work: &SendWork<'_>, length: u64) -> bool {
        let Data::Gather([sge]) = work.data else { return false };
        let (regions, needed) = (&qp.shared.regions, access::LOCAL_WRITE);
        let Some(part) = resolve(regions, self.cache, qp.pd, sge, needed) else {
            return false;
        };
        if self.attributes.max_rd_atomic == 0 {
            return false;
        }
        let needed = access::REMOTE_READ;
        self.on_mapped(qp, work, length, needed, |window, offset| window.drain(offset, part))
    }

    /// Does this to the pages that a request means, where they are mapped, if everything that was
    /// sent before it was consumed and the owner admits holders of such a right. False: it did not,
    /// or the owner did not wait for the end of it.
    #[inline(always)]
    fn on_mapped(
        &mut self,
        qp: &Qp,
        work: &SendWork<'_>,
        length: u64,
        needed: u32,
        act: impl FnOnce(&Window, usize),
    ) -> bool {
        let Some(link) = self.links.first_mut() else { return false };
        let endpoint = &mut link.endpoint;
        let position = endpoint.request_position();
        if !endpoint.peer_is_open()
            || endpoint.peer_has_died()
            || endpoint.request_consumed(position) != Ok(true)
        {
            return false;
        }
        let epoch = endpoint.peer_epoch();
        let range = (work.address, length);
        let Some(place) = self.grants.known(epoch, work.rkey, range, needed) else {
            return false;
        };
        let outside = (qp.shared.toll(), &*qp.shared.host);
        let Some((window, offset)) = self.grants.at_hand(outside, place, length as usize) else {
            return false;
        };
        if !endpoint.enter_pages(epoch) {
            return false;
        }
        act(window, offset);
        if !endpoint.leave_pages(epoch) {
            return false;
        }
        self.meter.mapped();
        true
    }
}
