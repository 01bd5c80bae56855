//! The receiving half of a QP: takes records off a link, checks them, places data into this
//! process's own memory and completes this process's own receives.
//!
//! Checks come in the order of the InfiniBand specification (9.7.4): sequence, operation allowed,
//! resources, length, key, execution. Nothing is placed before all checks that can be made on the
//! first record of a message have been made.

mod atomic_and_flush;
mod inbound_state;
mod read;
mod receive_completions;
mod receive_queue;
mod region_copies;
mod remote_access;
mod request_outcome;
mod send;
mod small_writes;
mod ud_receive;
mod write;
mod write_train;
mod xrc_forward;

pub(super) use inbound_state::InboundState;
pub(super) use receive_queue::{PlainMessages, Receives};
pub(super) use request_outcome::Outcome;

use crate::cq::Entry;
use crate::limits::RECEIVER_AWAY;
use crate::platform::AsyncEvent;
use crate::qp::link_table::LinkEnd;
use crate::qp::{Inner, Qp};
use crate::receive_ring::Receive;
use crate::verbs_constants::{counted, status};
use omniverb_link::record::FIRST;
use omniverb_link::{Broken, Nak, Request, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_terms::{Refusal, Service};

/// Requests served in one go, so that one busy peer does not keep a poll from returning.
const BATCH: usize = 256;

impl Inner {
    /// Serves one link: answers first, they never wait; then requests.
    pub(crate) fn serve(&mut self, qp: &Qp, index: usize) -> Result<(), Broken> {
        if self.links[index].is_deaf() {
            return Ok(());
        }
        let mut more = true;
        for _ in 0..BATCH {
            let Some((response, record)) = self.links[index].endpoint.next_response()? else {
                more = false;
                break;
            };
            self.handle_response(qp, index, &response, &record)?;
            if self.links.get(index).is_none_or(LinkEnd::is_deaf) {
                return Ok(());
            }
        }
        let more_responses = std::mem::replace(&mut more, true);
        let mut served = 0;
        while served < BATCH {
            served += 1;
            if self.receives.are_plain()
                && let Some((wc, solicits)) = self.serve_plain_send(qp, index)?
            {
                self.receives.complete(Entry::new(wc, qp.receive_release(), solicits));
                continue;
            }
            let Some((request, record)) = self.links[index].endpoint.next_request()? else {
                self.links[index].end_starving();
                more = false;
                break;
            };
            self.machine.note_traffic(qp);
            match self.serve_request(qp, index, &request, &record)? {
                Outcome::Passed => self.links[index].endpoint.pass_request(&record),
                Outcome::Several(count) => served += usize::from(count) - 1,
                Outcome::Later => {
                    more = false;
                    break;
                }
                Outcome::Refused(refusal, receive) => {
                    self.counting.refused(&request);
                    self.refuse(qp, index, refusal, receive);
                    return Ok(());
                }
            }
        }
        self.links[index].endpoint.publish_requests();
        // The ready bit is taken; a later look must find what is left.
        if (more || more_responses) && !self.links[index].looks.are_made() {
            qp.come_back();
        }
        Ok(())
    }

    #[inline(always)]
    fn serve_request(
        &mut self,
        qp: &Qp,
        index: usize,
        request: &Request,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        let is_datagram = matches!(request, Request::Datagram { .. } | Request::Grouped { .. });
        if (qp.service == Service::Ud) != is_datagram {
            return Err(Broken);
        }
        if self.links[index].refuses(request.operation())
            && let Some(outcome) = self.refuse_by_rule(qp, index, request)
        {
            return Ok(outcome);
        }
        if qp.service.is_extended() {
            if let (Request::ForSrq { number }, Service::XrcRecv) = (request, qp.service) {
                self.extended.target_srq(qp, *number);
                return Ok(Outcome::Passed);
            }
            // The other end has nothing to serve.
            if qp.service == Service::XrcSend {
                return Err(Broken);
            }
            // What annex A19 adds is of RC only.
            let added = matches!(request, Request::AtomicWrite { .. } | Request::Flush { .. });
            if let Some(number) = self.extended.target_elsewhere().filter(|_| !added) {
                return self.hand_over_request(qp, index, request, record, number);
            }
            if added || !self.extended.has_target() {
                return Ok(Outcome::Refused(Refusal::InvalidRequest, None));
            }
        }
        match *request {
            Request::Send { flags, immediate } => {
                Ok(self.serve_send(qp, index, flags, immediate, record))
            }
            Request::WriteFirst { flags, address, rkey, immediate, total } => {
                let count = self.serve_small_writes(qp, index);
                if count > 0 {
                    return Ok(Outcome::Several(count));
                }
                Ok(self.serve_write(qp, index, flags, (address, rkey, total), immediate, record))
            }
            Request::WriteMore { flags, immediate } => {
                let count = self.serve_write_train(qp, index);
                if count > 0 {
                    return Ok(Outcome::Several(count));
                }
                Ok(self.serve_write_more(qp, index, flags, immediate, record))
            }
            Request::Datagram { .. } | Request::Grouped { .. } => {
                self.serve_datagram(qp, index, request, record)
            }
            Request::ForSrq { .. } => Err(Broken),
            _ if !qp.service.is_reliable() => Err(Broken),
            Request::Read { address, rkey, length } => {
                let outcome = self.serve_read(qp, index, address, rkey, length)?;
                if matches!(outcome, Outcome::Passed) {
                    self.counting.served(counted::REMOTE_RDMA_READ, length);
                }
                Ok(outcome)
            }
            Request::ReadAgain { address, rkey, length } => {
                self.serve_read_again(qp, index, address, rkey, length)
            }
            ref once => self.serve_once(qp, index, once),
        }
    }

    /// What becomes of a request that the peer may not make: what becomes of one for which the
    /// queue pair lacks the access flag. A SEND that has begun goes on.
    #[cold]
    fn refuse_by_rule(&mut self, qp: &Qp, index: usize, request: &Request) -> Option<Outcome> {
        let flags = match *request {
            Request::Send { flags, .. } if flags & FIRST == 0 => return None,
            Request::Send { flags, .. }
            | Request::WriteFirst { flags, .. }
            | Request::WriteMore { flags, .. } => flags,
            _ => 0,
        };
        Some(match qp.service {
            Service::Ud => Outcome::Passed,
            Service::Uc => {
                let lost = std::mem::replace(&mut self.links[index].incoming, InboundState::Idle);
                self.deliveries().abandon_uc(qp, lost);
                self.links[index].skip(flags)
            }
            _ => Outcome::Refused(Refusal::InvalidRequest, None),
        })
    }

    /// Takes a receive for the message that the record at the head of link `index`, with these
    /// flags, is of; or says what becomes of the record without one.
    #[inline(always)]
    fn take_receive(&mut self, qp: &Qp, index: usize, flags: u32) -> Result<Receive, Outcome> {
        let receive = match &qp.srq {
            None if qp.service == Service::XrcRecv => self.extended.take_of_target(qp),
            None => self.receives.take(),
            Some(srq) => srq.take(&qp.me),
        };
        match receive {
            Some(receive) => {
                self.links[index].end_starving();
                Ok(receive)
            }
            None => Err(self.lack_receive(qp, index, flags)),
        }
    }

    /// RC tells the requester, whose RNR timer runs. UC and UD messages wait a while, as they might
    /// in a switch, so that a receiver that is merely late loses nothing; then they are lost.
    #[inline(never)]
    fn lack_receive(&mut self, qp: &Qp, index: usize, flags: u32) -> Outcome {
        let link = &mut self.links[index];
        if !link.is_starved() {
            self.meter.count_missing_receive(link.peer.far_end, qp.service);
        }
        if qp.service.is_reliable() {
            link.starve(0);
            link.endpoint.report_lack_of_receive();
            return Outcome::Later;
        }
        let now = qp.shared.host.now();
        let since = link.starve(now);
        if now.saturating_sub(since) >= RECEIVER_AWAY {
            return match qp.service {
                Service::Ud => Outcome::Passed,
                _ => self.links[index].skip(flags),
            };
        }
        let _ = self.settle(qp);
        Outcome::Later
    }

    /// Refuses the request at the head: tells the peer, completes the receive, fails the QP.
    #[cold]
    fn refuse(
        &mut self,
        qp: &Qp,
        index: usize,
        refusal: Refusal,
        receive: Option<Box<(Receive, u32)>>,
    ) {
        let itself = self.links[index].peer.is(qp.number);
        if itself && qp.service.is_reliable() {
            self.take_own_answers(qp);
        }
        let link = &mut self.links[index];
        link.endpoint.publish_requests();
        if qp.service.is_reliable() {
            // There always is room for one, and no peer to tell if the link is broken.
            let _ = link
                .endpoint
                .send_response(&Response::Nak { code: Nak::Refused(refusal) }, UserMemory::EMPTY);
        }
        let event = match (&receive, refusal) {
            (Some(_), _) => None,
            (None, Refusal::InvalidRequest) => Some(AsyncEvent::QpRequestError),
            (None, Refusal::RemoteAccess) => Some(AsyncEvent::QpAccessError),
            (None, _) => Some(AsyncEvent::QpFatal),
        };
        if let Some(taken) = receive {
            let (receive, why) = *taken;
            self.deliveries().fail(qp, &receive, why);
        }
        // A queue pair that is connected with itself has no peer left to take the refusal.
        let why = if itself { self.refused_itself(qp, refusal) } else { status::WR_FLUSH_ERR };
        self.enter_error(qp, Some(why));
        if let Some(event) = event {
            qp.event(event);
        }
    }
}
