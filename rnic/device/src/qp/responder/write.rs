//! Serves a WRITE that travels: places it into a region, after its key allowed the whole of it.

use super::receive_completions::Deliveries;
use super::{InboundState, Outcome};
use crate::limits::MESSAGE_MAX;
use crate::memory_region::Region;
use crate::qp::link_table::LinkEnd;
use crate::qp::{Inner, Qp};
use crate::verbs_constants::{access, counted, status};
use omniverb_link::record::{IMMEDIATE, LAST, PLACED};
use omniverb_ring::Record;
use omniverb_terms::{Refusal, Rkey, Service};
use std::sync::Arc;

impl Inner {
    pub(super) fn serve_write(
        &mut self,
        qp: &Qp,
        index: usize,
        flags: u32,
        (address, rkey, total): (u64, Rkey, u64),
        immediate: u32,
        record: &Record,
    ) -> Outcome {
        match self.links[index].incoming {
            InboundState::Idle => {}
            _ if qp.service == Service::Uc => {
                let lost = std::mem::replace(&mut self.links[index].incoming, InboundState::Idle);
                self.deliveries().abandon_uc(qp, lost);
            }
            _ => return Outcome::Refused(Refusal::InvalidRequest, None),
        }
        if self.machine.attributes().access_flags & access::REMOTE_WRITE == 0 || total > MESSAGE_MAX
        {
            return refuse_write(
                &mut self.links[index],
                qp.service,
                flags,
                Refusal::InvalidRequest,
            );
        }
        let region = if total == 0 {
            None // a zero-length WRITE checks no key (C9-88)
        } else {
            match self.remote_access(qp).target(rkey, access::REMOTE_WRITE, address, total) {
                Ok((region, _)) => Some(region),
                Err(refusal) => {
                    return refuse_write(&mut self.links[index], qp.service, flags, refusal);
                }
            }
        };
        if flags & PLACED != 0 {
            if record.length != 0 || flags & (LAST | IMMEDIATE) != LAST | IMMEDIATE {
                return Outcome::Refused(Refusal::InvalidRequest, None);
            }
            return self.finish_write(qp, index, flags, immediate, total);
        }
        self.links[index].incoming = InboundState::Write { region, address, left: total, total };
        let outcome = self.serve_write_more(qp, index, flags, immediate, record);
        if matches!(outcome, Outcome::Later) {
            self.links[index].incoming = InboundState::Idle;
        }
        outcome
    }

    pub(super) fn serve_write_more(
        &mut self,
        qp: &Qp,
        index: usize,
        flags: u32,
        immediate: u32,
        record: &Record,
    ) -> Outcome {
        let length = record.length as u64;
        let link = &mut self.links[index];
        let InboundState::Write { region, address, left, total } = &mut link.incoming else {
            if qp.service == Service::Uc {
                let lost = std::mem::replace(&mut link.incoming, InboundState::Idle);
                self.deliveries().abandon_uc(qp, lost);
                return self.links[index].skip(flags);
            }
            return Outcome::Refused(Refusal::InvalidRequest, None);
        };
        let total = *total;
        let ends = flags & LAST != 0;
        if length > *left || (ends && length != *left) {
            return refuse_write(
                &mut self.links[index],
                qp.service,
                flags,
                Refusal::InvalidRequest,
            );
        }
        // The key is looked at again for every record: it may have been deregistered meanwhile.
        let (target, memory) = match region {
            None => (None, omniverb_ring::UserMemory::EMPTY),
            Some(region) => {
                let (rkey, address) = (region.rkey, *address);
                match self.remote_access(qp).target(rkey, access::REMOTE_WRITE, address, length) {
                    Ok((target, memory)) => (Some(target), memory),
                    Err(refusal) => {
                        return refuse_write(&mut self.links[index], qp.service, flags, refusal);
                    }
                }
            }
        };
        // Immediate data takes a receive; without one nothing of this record is placed.
        let receive = if ends && flags & IMMEDIATE != 0 {
            match self.take_receive(qp, index, flags) {
                Ok(receive) => Some(receive),
                Err(outcome) => return outcome,
            }
        } else {
            None
        };
        let link = &mut self.links[index];
        let payload = link.endpoint.request_memory(record);
        let place = |region: Arc<Region>| region.place(&*qp.shared.host, payload, memory);
        if length > 0 && !target.is_some_and(place) {
            // What is to be written may not be, or is gone.
            if let Some(receive) = receive {
                self.deliveries().put_back(qp, &receive, status::WR_FLUSH_ERR);
            }
            let link = &mut self.links[index];
            return refuse_write(link, qp.service, flags, Refusal::RemoteAccess);
        }
        if let InboundState::Write { region, address, left, .. } = &mut link.incoming {
            if let Some(region) = region {
                region.moved.note(length);
            }
            *address += length;
            *left -= length;
        }
        if ends {
            link.incoming = InboundState::Idle;
            self.counting.served(counted::REMOTE_RDMA_WRITE, total);
            match receive {
                Some(receive) => {
                    let from = self.links[index].peer.qpn;
                    let written = (total, flags, immediate);
                    self.deliveries().deliver_immediate(qp, from, receive.wr_id, written);
                }
                None => self.meter.written(total),
            }
        }
        Outcome::Passed
    }

    fn finish_write(
        &mut self,
        qp: &Qp,
        index: usize,
        flags: u32,
        immediate: u32,
        total: u64,
    ) -> Outcome {
        let receive = match self.take_receive(qp, index, flags) {
            Ok(receive) => receive,
            Err(outcome) => return outcome,
        };
        self.counting.served(counted::REMOTE_RDMA_WRITE, total);
        let from = self.links[index].peer.qpn;
        let written = (total, flags, immediate);
        self.deliveries().deliver_immediate(qp, from, receive.wr_id, written);
        Outcome::Passed
    }
}

impl Deliveries<'_> {
    /// A new UC message begins before the last one ended, which is lost.
    #[cold]
    pub(super) fn abandon_uc(&mut self, qp: &Qp, lost: InboundState) {
        if let InboundState::Send { receive, .. } = lost {
            self.put_back(qp, &receive, status::WR_FLUSH_ERR);
        }
    }
}

/// RC refuses; UC drops the message without a word.
#[cold]
fn refuse_write(link: &mut LinkEnd, service: Service, flags: u32, refusal: Refusal) -> Outcome {
    match service {
        Service::Uc => link.skip(flags),
        _ => Outcome::Refused(refusal, None),
    }
}
