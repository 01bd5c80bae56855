//! Places records of a long WRITE that wait one behind the other together: each copy on a peer's
//! behalf is a system call.

use super::InboundState;
use crate::limits::{CHUNK, CHUNK_ENGINE};
use crate::qp::{Inner, Qp};
use crate::verbs_constants::{access, counted};
use omniverb_link::record::{IMMEDIATE, LAST};
use omniverb_link::{PeekedRequest, Request};
use omniverb_ring::UserMemory;

/// Bytes placed together, at most: what a host takes in one go.
const BYTES: usize = CHUNK_ENGINE;
/// Records placed together, at most.
const TOGETHER: usize = BYTES / CHUNK;

impl Inner {
    /// Serves the records at the head of a link that go on with a WRITE, if it is more than one:
    /// those with nothing but data, whose memory is there. Says how many. The next one is for the
    /// general way, which also finds out what is wrong with it.
    pub(super) fn serve_write_train(&mut self, qp: &Qp, index: usize) -> u8 {
        let link = &self.links[index];
        let endpoint = &link.endpoint;
        let InboundState::Write { region: Some(region), address, left, total } = &link.incoming
        else {
            return 0;
        };
        let (address, left, total) = (*address, *left, *total);
        let begin = endpoint.requests_passed();
        let mut payloads = [UserMemory::EMPTY; TOGETHER];
        let mut ends = [begin; TOGETHER + 1];
        let (mut count, mut bytes) = (0, 0);
        while count < TOGETHER
            && let Ok(Some(PeekedRequest { request, source: None, record, end })) =
                endpoint.request_after(ends[count])
            && let Request::WriteMore { flags, .. } = request
            && flags & IMMEDIATE == 0
            && (1..=BYTES - bytes).contains(&record.length)
            && ((bytes + record.length) as u64) <= left
            && (flags & LAST != 0) == ((bytes + record.length) as u64 == left)
        {
            payloads[count] = endpoint.request_memory(&record);
            bytes += record.length;
            count += 1;
            ends[count] = end;
        }
        if count < 2 {
            return 0;
        }
        // The key is looked at again: it may have been deregistered meanwhile.
        let target =
            self.remote_access(qp).target(region.rkey, access::REMOTE_WRITE, address, bytes as u64);
        let Ok((region, memory)) = target else { return 0 };
        let mut pieces = [(UserMemory::EMPTY, UserMemory::EMPTY); TOGETHER];
        let mut begin = 0;
        for (payload, piece) in payloads.iter().zip(&mut pieces[..count]) {
            *piece = (*payload, memory.skip(begin).first(payload.len()));
            begin += payload.len();
        }
        let own = region.own_mapping();
        let placed = match own.place(pieces[0].0, pieces[0].1) {
            true => {
                1 + pieces[1..count].iter().take_while(|(from, to)| own.place(*from, *to)).count()
            }
            false => {
                region.note_kernel_copy(&*qp.shared.host, bytes);
                qp.shared.host.place_all(&pieces[..count])
            }
        };
        let done = pieces[..placed].iter().map(|(payload, _)| payload.len() as u64).sum::<u64>();
        region.moved.note(done);
        let link = &mut self.links[index];
        if let InboundState::Write { address, left, .. } = &mut link.incoming {
            *address += done;
            *left -= done;
        }
        if done == left {
            link.incoming = InboundState::Idle;
            self.counting.served(counted::REMOTE_RDMA_WRITE, total);
            self.meter.written(total);
        }
        if placed > 0 {
            self.links[index].endpoint.pass_requests_to(ends[placed]);
        }
        placed as u8
    }
}
