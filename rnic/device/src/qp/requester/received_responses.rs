//! Handles answers of the peer: READ data, atomic results, refusals.

use super::KeptData;
use super::mapped_operations::scatter_number;
use crate::platform::AsyncEvent;
use crate::qp::qp_attributes::State;
use crate::qp::{Inner, Qp};
use crate::scatter_gather::{pieces, resolve};
use crate::verbs_constants::{access, opcode, status};
use omniverb_link::{Broken, Nak, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_terms::{Refusal, Service};

impl Inner {
    /// Takes the answer at the head of link `index`.
    pub(crate) fn handle_response(
        &mut self,
        qp: &Qp,
        index: usize,
        response: &Response,
        record: &Record,
    ) -> Result<(), Broken> {
        if self.machine.state() == State::Rtr
            || matches!(qp.service, Service::Ud | Service::XrcRecv)
        {
            return Err(Broken); // nothing was asked
        }
        if let Response::Nak { code } = *response {
            return self.refused(qp, code);
        }
        let Some((at, mut entry)) = self.sends.take_asking() else { return Err(Broken) };
        let placed = self.place(qp, index, &mut entry, response, record);
        self.sends.put_back(at, entry);
        match placed? {
            PlacedResponse::More => {}
            PlacedResponse::Complete => self.sends.answered(),
            PlacedResponse::Protection => {
                // Those before it are complete or will never be: the peer answers in order.
                self.enter_error(qp, Some(status::LOC_PROT_ERR));
                return Ok(());
            }
        }
        self.links[index].endpoint.pass_response(record);
        Ok(())
    }

    fn place(
        &mut self,
        qp: &Qp,
        index: usize,
        entry: &mut super::SendEntry,
        response: &Response,
        record: &Record,
    ) -> Result<PlacedResponse, Broken> {
        let order = &mut entry.order;
        if !order.brings_back() {
            let Response::AtomicResult { .. } = *response else { return Err(Broken) };
            if let Some(numbers) = order.traced.take() {
                self.traces().answer(qp, order, numbers, &[]);
            }
            return Ok(PlacedResponse::Complete);
        }
        let list = match &entry.data {
            KeptData::Gather(list) => list.as_slice(),
            KeptData::Bytes(_) => return Err(Broken), // a READ into inline data does not exist
        };
        let mut parts = Vec::with_capacity(list.len());
        let mut left = order.length as usize;
        for sge in list {
            let regions = &qp.shared.regions;
            let cache = &mut self.send_cache;
            let sge = sge.touched(0, left);
            left -= sge.length as usize;
            match resolve(regions, cache, qp.pd, &sge, access::LOCAL_WRITE) {
                Some(part) => parts.push(part),
                None => return Ok(PlacedResponse::Protection),
            }
        }
        let link = &self.links[index].endpoint;
        let placed = match *response {
            Response::ReadData { last } if order.opcode == opcode::RDMA_READ => {
                let length = record.length as u64;
                let rest = order.length - order.done;
                if length > rest || (last != (length == rest)) || (length == 0 && !last) {
                    return Err(Broken);
                }
                pieces(&parts, order.done, length, |at, piece: UserMemory| {
                    link.response_payload(record, at as usize, piece);
                });
                order.done += length;
                if last { PlacedResponse::Complete } else { PlacedResponse::More }
            }
            Response::AtomicResult { original } if order.is_atomic() => {
                scatter_number(&parts, original);
                PlacedResponse::Complete
            }
            _ => return Err(Broken),
        };
        if matches!(placed, PlacedResponse::Complete)
            && let Some(numbers) = order.traced.take()
        {
            self.traces().answer(qp, order, numbers, &parts);
        }
        Ok(placed)
    }

    /// This queue pair is about to refuse what it asked of itself: takes what it answered before,
    /// which else would seem to be refused.
    pub(crate) fn take_own_answers(&mut self, qp: &Qp) {
        while let Some(link) = self.links.first_mut().filter(|link| !link.is_deaf()) {
            let Ok(Some((response, record))) = link.endpoint.next_response() else { return };
            if self.handle_response(qp, 0, &response, &record).is_err() {
                return;
            }
        }
    }

    /// This queue pair refused what it asked of itself: what its oldest request, which was not
    /// consumed, completes with.
    pub(crate) fn refused_itself(&mut self, qp: &Qp, refusal: Refusal) -> u32 {
        // A link of our own is not broken.
        let _ = self.reap(qp);
        status_of(refusal)
    }

    /// The peer refused our oldest request that it has not consumed.
    #[cold]
    fn refused(&mut self, qp: &Qp, code: Nak) -> Result<(), Broken> {
        // Everything that was consumed before it succeeded.
        self.reap(qp).map_err(|(_, broken)| broken)?;
        match self.sends.oldest().map(|entry| entry.order.traced) {
            None => qp.event(AsyncEvent::QpFatal), // no completion says so
            Some(Some(numbers)) => self.traces().refused(qp, numbers, code),
            Some(None) => {}
        }
        let why = match code {
            Nak::Refused(refusal) => status_of(refusal),
            Nak::RetryExceeded => status::RETRY_EXC_ERR,
            Nak::RnrRetryExceeded => status::RNR_RETRY_EXC_ERR,
            Nak::BadResponse => status::BAD_RESP_ERR,
            Nak::Flushed => status::WR_FLUSH_ERR,
        };
        self.enter_error(qp, Some(why));
        Ok(())
    }
}

/// What the request that is refused completes with.
fn status_of(refusal: Refusal) -> u32 {
    match refusal {
        Refusal::InvalidRequest => status::REM_INV_REQ_ERR,
        Refusal::RemoteAccess => status::REM_ACCESS_ERR,
        Refusal::RemoteOperation => status::REM_OP_ERR,
    }
}

/// What became of an answer.
enum PlacedResponse {
    More,
    Complete,
    Protection,
}
