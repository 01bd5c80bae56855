//! Serves a SEND: places it into the oldest receive.

use super::receive_completions::Delivered;
use super::{InboundState, Outcome};
use crate::cq::SolicitedEvent;
use crate::memory_region::RegionCache;
use crate::qp::link_table::LinkEnd;
use crate::qp::{Inner, Qp};
use crate::scatter_gather::{Sge, resolve, total};
use crate::verbs_constants::{Wc, access, status, wc_opcode};
use omniverb_link::Broken;
use omniverb_link::record::{FIRST, INVALIDATE, LAST};
use omniverb_ring::Record;
use omniverb_terms::{Refusal, Rkey, Service};

/// Copies the record's payload to bytes `offset ..` of a scatter list. Checks what the payload
/// touches, as hardware does: a receive may be wider than its region.
/// False: the payload would touch memory that it may not.
#[inline(always)]
pub(super) fn scatter(
    qp: &Qp,
    cache: &mut RegionCache,
    pd: u32,
    link: &LinkEnd,
    record: &Record,
    list: &[Sge],
    offset: u64,
) -> bool {
    let (mut before, mut done) = (offset, 0);
    for sge in list {
        if done == record.length {
            break;
        }
        let length = u64::from(sge.length);
        if before >= length {
            before -= length;
            continue;
        }
        let sge = sge.touched(before, record.length - done);
        let regions = &qp.shared.regions;
        let Some(target) = resolve(regions, cache, pd, &sge, access::LOCAL_WRITE) else {
            return false;
        };
        link.endpoint.request_payload(record, done, target);
        done += target.len();
        before = 0;
    }
    done == record.length
}

impl Inner {
    #[inline(always)]
    pub(super) fn serve_send(
        &mut self,
        qp: &Qp,
        index: usize,
        flags: u32,
        immediate: u32,
        record: &Record,
    ) -> Outcome {
        let first = flags & FIRST != 0;
        let incoming = std::mem::replace(&mut self.links[index].incoming, InboundState::Idle);
        let incoming = match incoming {
            // UC takes up again at the first record of a message, whatever was lost before it.
            InboundState::Skip | InboundState::Write { .. }
                if first && qp.service == Service::Uc =>
            {
                InboundState::Idle
            }
            incoming => incoming,
        };
        let (receive, placed, capacity) = match incoming {
            InboundState::Idle if first => {
                let receive = match self.take_receive(qp, index, flags) {
                    Ok(receive) => receive,
                    Err(outcome) => return outcome,
                };
                let capacity = total(receive.sges.as_slice());
                (receive, 0, capacity)
            }
            InboundState::Send { receive, placed, capacity }
                if !first && self.extended.stays_on_target(qp) =>
            {
                (receive, placed, capacity)
            }
            // It begins inside another one, or goes on for another SRQ. The receive was taken from
            // a queue that outlives the connection: it is given back by a completion.
            InboundState::Send { receive, .. }
                if qp.service.is_reliable() && qp.shares_receives() =>
            {
                let failed = Box::new((receive, status::WR_FLUSH_ERR));
                return Outcome::Refused(Refusal::InvalidRequest, Some(failed));
            }
            // UC lost the end of a message: its receive serves the next one.
            InboundState::Send { receive, capacity, .. } if qp.service == Service::Uc => {
                (receive, 0, capacity)
            }
            _ if qp.service == Service::Uc => return self.links[index].skip(flags),
            _ => return Outcome::Refused(Refusal::InvalidRequest, None),
        };
        if placed + record.length as u64 > capacity {
            if qp.service.is_reliable() {
                let failed = Box::new((receive, status::LOC_LEN_ERR));
                return Outcome::Refused(Refusal::InvalidRequest, Some(failed));
            }
            // UC drops the message.
            self.deliveries().put_back(qp, &receive, status::LOC_LEN_ERR);
            return self.links[index].skip(flags);
        }
        let pd = self.extended.receive_pd(qp);
        let link = &mut self.links[index];
        let list = receive.sges.as_slice();
        if !scatter(qp, &mut self.recv_cache, pd, link, record, list, placed) {
            return match qp.service {
                service if service.is_reliable() => Outcome::Refused(
                    Refusal::RemoteOperation,
                    Some(Box::new((receive, status::LOC_PROT_ERR))),
                ),
                _ => {
                    self.deliveries().fail(qp, &receive, status::LOC_PROT_ERR);
                    self.links[index].skip(flags)
                }
            };
        }
        let placed = placed + record.length as u64;
        if flags & LAST == 0 {
            link.incoming = InboundState::Send { receive, placed, capacity };
            return Outcome::Passed;
        }
        // The message is there, but its sender asks for what it may not: as with rdma_rxe, the
        // receive tells that, and the connection is over.
        if flags & INVALIDATE != 0 && !qp.shared.regions.invalidate(qp.number, Rkey(immediate)) {
            return Outcome::Refused(
                Refusal::RemoteAccess,
                Some(Box::new((receive, status::REM_INV_REQ_ERR))),
            );
        }
        let from = link.peer.qpn;
        let (wr_id, opcode, length) = (receive.wr_id, wc_opcode::RECV, placed);
        let message = Delivered { wr_id, opcode, length, flags, immediate, from };
        self.deliveries().deliver(qp, message);
        Outcome::Passed
    }

    /// The way of most messages: a SEND of one record and no more than data, a receive of this QP
    /// that is waiting, long enough, and sound. Gives its completion, and whether it is
    /// to raise an event. `None`: none of it happened, see the general way.
    #[inline(always)]
    pub(super) fn serve_plain_send(
        &mut self,
        qp: &Qp,
        index: usize,
    ) -> Result<Option<(Wc, SolicitedEvent)>, Broken> {
        let link = &mut self.links[index];
        let Some(record) = link.endpoint.next_plain_send()? else { return Ok(None) };
        if !matches!(link.incoming, InboundState::Idle) {
            return Ok(None);
        }
        let Some((wr_id, list)) = self.receives.oldest() else { return Ok(None) };
        let length = record.length as u64;
        if length > total(list)
            || !scatter(qp, &mut self.recv_cache, qp.receive_pd, link, &record, list, 0)
        {
            return Ok(None);
        }
        link.end_starving();
        link.endpoint.pass_request(&record);
        let src_qp = link.peer.qpn.0;
        self.receives.pass();
        self.machine.note_traffic(qp);
        self.meter.received(length);
        let (opcode, qp_num) = (wc_opcode::RECV, qp.number.0);
        let byte_len = length as u32;
        let wc = Wc { wr_id, opcode, byte_len, qp_num, src_qp, ..Wc::default() };
        Ok(Some((wc, SolicitedEvent::of(record.tag))))
    }

    /// Takes messages off one link whose completions go straight to `out`, as long as there are
    /// plain ones and nothing else is due before them. Returns how many; the general way does the
    /// rest.
    #[inline(always)]
    pub(crate) fn serve_straight(&mut self, qp: &Qp, index: usize, out: &mut [Wc]) -> usize {
        let first = self.receives.are_plain()
            && self.machine.receives_messages()
            && self.receives.completed() == 0
            // Sends that the peer consumed before complete before.
            && !self.sends.has_started();
        if !first || self.links[index].endpoint.has_response() {
            return 0;
        }
        let mut count = 0;
        // A broken record is the general way's to find.
        while count < out.len()
            && let Ok(Some((wc, _))) = self.serve_plain_send(qp, index)
        {
            out[count] = wc;
            count += 1;
        }
        if count > 0 {
            qp.release_receives(&mut self.receives, count as u64);
            self.links[index].endpoint.publish_requests();
        }
        count
    }
}
