//! Places small WRITEs that wait one behind the other together, since a copy on a peer's behalf is
//! a system call.

use super::InboundState;
use crate::memory_region::Region;
use crate::qp::{Inner, Qp};
use crate::verbs_constants::{access, counted};
use omniverb_link::record::{IMMEDIATE, LAST, PLACED};
use omniverb_link::{Endpoint, PeekedRequest, Request};
use omniverb_ring::UserMemory;
use omniverb_terms::Rkey;
use std::sync::Arc;

/// WRITEs placed together, at most, and their bytes: what a host takes in one go.
const TOGETHER: usize = 32;
const TOGETHER_BYTES: usize = 4096;
/// Longer WRITEs are placed one by one: their bytes cost more than the call.
const SMALL: usize = 1024;

/// A WRITE of one record with nothing but data, and little of it.
struct SmallWrite {
    address: u64,
    rkey: Rkey,
    payload: UserMemory,
    end: u64,
}

/// The one at a position of a link, if there is one. Whatever else is there is not looked at.
fn small(endpoint: &Endpoint, position: u64) -> Option<SmallWrite> {
    let Ok(Some(PeekedRequest { request, source: None, record, end })) =
        endpoint.request_after(position)
    else {
        return None;
    };
    let Request::WriteFirst { flags, address, rkey, total, .. } = request else { return None };
    let is_plain = flags & (LAST | IMMEDIATE | PLACED) == LAST && total == record.length as u64;
    (is_plain && (1..=SMALL).contains(&record.length)).then(|| SmallWrite {
        address,
        rkey,
        payload: endpoint.request_memory(&record),
        end,
    })
}

impl Inner {
    /// Serves the WRITEs at the head of a link that are small, if it is more than one: those
    /// whose memory is there. Says how many. The next one is for the general way, which also
    /// finds out what is wrong with it.
    pub(super) fn serve_small_writes(&mut self, qp: &Qp, index: usize) -> u8 {
        let link = &self.links[index];
        let endpoint = &link.endpoint;
        let begin = endpoint.requests_passed();
        // Most of the time one is alone.
        let Some(head) = small(endpoint, begin) else { return 0 };
        if small(endpoint, head.end).is_none()
            || !matches!(link.incoming, InboundState::Idle)
            || self.machine.attributes().access_flags & access::REMOTE_WRITE == 0
        {
            return 0;
        }
        let mut pieces = [(UserMemory::EMPTY, UserMemory::EMPTY); TOGETHER];
        let mut ends = [begin; TOGETHER + 1];
        let (mut count, mut bytes) = (0, 0);
        // Those in front, which go to own mappings.
        let mut at_once = 0;
        let mut last: Option<Arc<Region>> = None;
        while count < TOGETHER
            && let Some(SmallWrite { address, rkey, payload, end }) = small(endpoint, ends[count])
            && payload.len() <= TOGETHER_BYTES - bytes
        {
            // A thread that takes a key away waits until this link is served: once looked up is
            // enough.
            if last.as_ref().is_none_or(|region| region.rkey != rkey) {
                last = self.remote_access(qp).opened(rkey, access::REMOTE_WRITE).ok();
            }
            let Some(region) = &last else { break };
            let Some(memory) = region.part(address, payload.len() as u64) else { break };
            region.moved.note(payload.len() as u64);
            pieces[count] = (payload, memory);
            // One behind others that the kernel places has to wait for them.
            if at_once == count && region.own_mapping().place(payload, memory) {
                at_once += 1;
            } else {
                bytes += payload.len();
            }
            count += 1;
            ends[count] = end;
        }
        let mut placed = at_once;
        if placed < count {
            if let Some(region) = last {
                region.note_kernel_copy(&*qp.shared.host, bytes);
            }
            placed += qp.shared.host.place_all(&pieces[placed..count]);
        }
        for (_, memory) in &pieces[..placed] {
            let length = memory.len() as u64;
            self.counting.served(counted::REMOTE_RDMA_WRITE, length);
            self.meter.written(length);
        }
        if placed > 0 {
            self.links[index].endpoint.pass_requests_to(ends[placed]);
        }
        placed as u8
    }
}
