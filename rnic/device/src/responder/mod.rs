//! The receiving half of a QP: takes records off a link, checks them, places data into this
//! process's own memory and completes this process's own receives.
//!
//! Checks come in the order of the InfiniBand specification (9.7.4): sequence, operation allowed,
//! resources, length, key, execution. Nothing is placed before all checks that can be made on the
//! first record of a message have been made.

mod atomic;
mod datagram;
mod read;
mod receives;
mod send;
mod write;

pub(crate) use receives::Receives;

use crate::constants::status;
use crate::cq::Entry;
use crate::limits::UNRELIABLE_WAIT;
use crate::qp::{Inner, LinkEnd, Qp};
use crate::queue::Receive;
use crate::region::Region;
use crate::shared::AsyncEvent;
use omniverb_link::{Broken, Nak, Request, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_terms::{Refusal, Rkey, Service};
use std::sync::Arc;

/// Requests served in one go, so that one busy peer does not keep a poll from returning.
const BATCH: usize = 256;

/// What is under way on one link, seen from the responder.
pub(crate) enum Incoming {
    /// Between messages.
    Idle,
    /// Inside a SEND.
    Send { receive: Receive, placed: u64, capacity: u64 },
    /// Inside a WRITE.
    Write { region: Option<Arc<Region>>, address: u64, left: u64, total: u64 },
    /// Answering a READ: so many bytes are out.
    Read { sent: u64 },
    /// An atomic was executed; its answer waits for room.
    Answer { original: u64 },
    /// Dropping the rest of a UC message.
    Skip,
    /// Never again.
    Deaf,
}

/// What came of asking for a receive.
pub(crate) enum Taken {
    /// Here it is.
    Receive(Receive),
    /// There is none now.
    Later,
    /// There has been none for too long: the message is lost.
    Lost,
}

/// What became of the request at the head.
pub(crate) enum Outcome {
    /// Done, take it off.
    Passed,
    /// It stays until something else happens.
    Later,
    /// Refused: the QP fails. The receive it took, if any, completes with the given status. Boxed,
    /// so that the usual outcomes are one byte.
    Refused(Refusal, Option<Box<(Receive, u32)>>),
}

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
        for _ in 0..BATCH {
            if qp.service == Service::Rc
                && let Some((wc, solicited)) = self.serve_plain_send(qp, index)?
            {
                self.receives.complete(Entry { wc, release: qp.receive_release(), solicited });
                continue;
            }
            let Some((request, record)) = self.links[index].endpoint.next_request()? else {
                self.links[index].starved = None;
                more = false;
                break;
            };
            self.note_traffic(qp);
            match self.serve_request(qp, index, &request, &record)? {
                Outcome::Passed => self.links[index].endpoint.pass_request(&record),
                Outcome::Later => {
                    more = false;
                    break;
                }
                Outcome::Refused(refusal, receive) => {
                    self.refuse(qp, index, refusal, receive);
                    return Ok(());
                }
            }
        }
        self.links[index].endpoint.publish_requests();
        // The ready bit is taken; what is left must be found by somebody.
        if (more || more_responses) && !self.links[index].looks.are_made() {
            self.come_back(qp);
        }
        Ok(())
    }

    /// Has the progress thread look at this QP once more, on its next turn.
    #[cold]
    pub(crate) fn come_back(&self, qp: &Qp) {
        crate::lock::lock(&qp.shared.cooling).push(qp.me.clone());
        qp.shared.host.attend();
    }

    #[inline(always)]
    fn serve_request(
        &mut self,
        qp: &Qp,
        index: usize,
        request: &Request,
        record: &Record,
    ) -> Result<Outcome, Broken> {
        if (qp.service == Service::Ud) != matches!(request, Request::Datagram { .. }) {
            return Err(Broken);
        }
        match *request {
            Request::Send { flags, immediate } => {
                Ok(self.serve_send(qp, index, flags, immediate, record))
            }
            Request::WriteFirst { flags, address, rkey, immediate, total } => {
                Ok(self.serve_write(qp, index, flags, (address, rkey, total), immediate, record))
            }
            Request::WriteMore { flags, immediate } => {
                Ok(self.serve_write_more(qp, index, flags, immediate, record))
            }
            Request::Datagram { flags, immediate, qkey } => {
                Ok(self.serve_datagram(qp, index, flags, immediate, qkey, record))
            }
            _ if qp.service != Service::Rc => Err(Broken),
            Request::Read { address, rkey, length } => {
                self.serve_read(qp, index, address, rkey, length)
            }
            Request::CompareSwap { address, rkey, compare, swap } => {
                self.serve_atomic(qp, index, address, rkey, |cell| cell.compare_swap(compare, swap))
            }
            Request::FetchAdd { address, rkey, add } => {
                self.serve_atomic(qp, index, address, rkey, |cell| cell.fetch_add(add))
            }
        }
    }

    /// Takes a receive for a message at the head of link `index`.
    #[inline(always)]
    fn take_receive(&mut self, qp: &Qp, index: usize) -> Taken {
        let receive = match &qp.srq {
            None => self.receives.take(),
            Some(srq) => srq.take(&qp.me),
        };
        match receive {
            Some(receive) => {
                self.links[index].starved = None;
                Taken::Receive(receive)
            }
            None => self.lack_receive(qp, index),
        }
    }

    /// RC tells the requester, whose RNR timer runs. UC and UD messages wait a while, as they might
    /// in a switch, so that a receiver that is merely late loses nothing; then they are lost.
    #[inline(never)]
    fn lack_receive(&mut self, qp: &Qp, index: usize) -> Taken {
        let link = &mut self.links[index];
        if link.starved.is_none() {
            self.meter.waited();
        }
        if qp.service == Service::Rc {
            link.starved = Some(0);
            link.endpoint.report_lack_of_receive();
            return Taken::Later;
        }
        let now = qp.shared.host.now();
        let since = *link.starved.get_or_insert(now);
        if now.saturating_sub(since) >= UNRELIABLE_WAIT {
            return Taken::Lost;
        }
        self.settle(qp);
        Taken::Later
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
        let link = &mut self.links[index];
        link.endpoint.publish_requests();
        if qp.service == Service::Rc {
            // There always is room for one, and nobody to tell if the link is broken.
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
            self.complete_receive(qp, &receive, why);
        }
        self.enter_error(qp, Some(status::WR_FLUSH_ERR));
        if let Some(event) = event {
            qp.event(event);
        }
    }

    /// Looks a remote key up for an access; the order of checks is that of the specification.
    fn target(
        &self,
        qp: &Qp,
        rkey: Rkey,
        access: u32,
        address: u64,
        length: u64,
    ) -> Result<(Arc<Region>, UserMemory), Refusal> {
        let region = qp.shared.regions.by_rkey(rkey).ok_or(Refusal::RemoteAccess)?;
        if region.pd != qp.pd || region.access & access != access {
            return Err(Refusal::RemoteAccess);
        }
        let part = region.part(address, length).ok_or(Refusal::RemoteAccess)?;
        Ok((region, part))
    }
}
