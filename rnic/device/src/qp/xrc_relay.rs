//! Forwards requests for SRQs of another process of an XRC domain to that process.
//!
//! In: the request at the head of our link, which stays there. Out: the same request on a link to
//! the other process, and what that answers, on ours. So order, "not ready" and refusals are as if
//! the SRQ were here, and the sender knows of nothing. One message is under way at a time.
//!
//! What comes back is the other process's word, which has the domain but is trusted with nothing
//! else: answers must fit what was asked, and a process that says anything else is cut off.

use crate::limits::CHUNK;
use crate::link_peer::Peer;
use omniverb_link::qp_attributes_for_engine::{GlobalRoute, ReceiveAttributes, SendAttributes};
use omniverb_link::record::{FIRST, LAST, PLACED};
use omniverb_link::{Broken, Endpoint, Nak, Request, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_terms::{Psn, Qpn, Refusal};

/// What became of the request at the head of our link.
#[derive(Debug)]
pub(super) enum RelayStep {
    /// Take it off.
    Passed,
    /// It stays: for an answer, or for room.
    Wait,
    /// It stays: there is no receive for it.
    Lacks,
    /// The other process refuses it.
    Refused(Refusal),
}

/// The other process broke the rules, or is gone.
#[derive(Debug)]
pub(super) enum RelayFault {
    /// The peer of the queue pair that is relayed.
    Ours,
    /// The process that requests are handed over to, and its queue pair.
    Theirs,
}

fn ours(_: Broken) -> RelayFault {
    RelayFault::Ours
}

fn theirs(_: Broken) -> RelayFault {
    RelayFault::Theirs
}

/// How far the request at the head has got.
#[derive(Default)]
struct HeadProgress {
    /// Bytes of its record that have gone on.
    sent: usize,
    /// All of it has, up to this position.
    until: Option<u64>,
    /// Bytes that came back of what a READ asks for, those of whole records.
    answered: u64,
    /// Bytes of the answer at the head that have gone on.
    passed: usize,
}

/// A link to a process that has another part of the domain.
pub(super) struct Relay {
    endpoint: Endpoint,
    pub(super) peer: Peer,
    /// The queue pair that the daemon knows this end by.
    pub(super) by: Qpn,
    /// The SRQ that what follows is for.
    named: Option<u32>,
    head: HeadProgress,
    /// A message has begun, whose end is not there yet.
    inside: bool,
    /// What goes on, on its way between two rings.
    copy: Vec<u8>,
}

/// Attributes towards an engine, where the daemon puts one between two of its processes. Every path
/// MTU is a multiple of the least one, and so are the parts that messages come in.
const PATH_MTU: u8 = 1;
const READS: u8 = 1;
const TIMEOUT: u8 = 14;
const WITHOUT_END: u8 = 7;

impl Relay {
    /// Over a link that the daemon made.
    pub(super) fn new(mut endpoint: Endpoint, peer: Peer, by: Qpn) -> Relay {
        endpoint.publish_no_credits();
        endpoint.set_watched(false);
        endpoint.set_blocked(true);
        let psn = Psn::new(0);
        let (min_rnr_timer, max_dest_rd_atomic) = (0, READS);
        endpoint.publish_global_route(&GlobalRoute::default());
        endpoint.publish_receiving(&ReceiveAttributes {
            rq_psn: psn,
            path_mtu: PATH_MTU,
            min_rnr_timer,
            max_dest_rd_atomic,
        });
        endpoint.publish_sending(&SendAttributes {
            sq_psn: psn,
            timeout: TIMEOUT,
            retry_count: WITHOUT_END,
            rnr_retry: WITHOUT_END,
            max_rd_atomic: READS,
        });
        endpoint.open(0);
        let (head, copy) = (HeadProgress::default(), Vec::new());
        Relay { endpoint, peer, by, named: None, head, inside: false, copy }
    }

    /// Whether something of a message has gone on, and its end not, or not for certain.
    pub(super) fn is_busy(&self) -> bool {
        self.inside || self.head.sent > 0 || self.head.until.is_some()
    }

    /// Nothing goes on any more.
    pub(super) fn close(&mut self) {
        self.endpoint.close();
    }

    /// Moves the request at the head of `link`, for the SRQ `number`, as far as it gets.
    pub(super) fn forward(
        &mut self,
        link: &mut Endpoint,
        request: &Request,
        record: &Record,
        number: u32,
    ) -> Result<RelayStep, RelayFault> {
        if let Some(step) = self.take_answers(link, request)? {
            return Ok(step);
        }
        if self.head.until.is_none() {
            if !self.send(link, request, record, number)? {
                return self.wait();
            }
            if !ends(request) && !self.is_held(request) {
                return Ok(self.passed(request));
            }
            self.head.until = Some(self.endpoint.request_position());
        }
        let until = self.head.until.unwrap_or_default();
        if !is_answered(request) && self.endpoint.request_consumed(until).map_err(theirs)? {
            return Ok(self.passed(request));
        }
        // What was refused is not consumed, and said before the link is closed.
        match self.take_answers(link, request)? {
            Some(step) => Ok(step),
            None => self.wait(),
        }
    }

    /// Whether the beginning of a message stays until there is a receive for it: the sender hears
    /// that there is none before any of it is taken. An engine does not say that of a beginning.
    fn is_held(&self, request: &Request) -> bool {
        let begins = matches!(request, Request::Send { flags, .. } if flags & FIRST != 0);
        begins && !self.peer.is_beyond_engine()
    }

    fn wait(&mut self) -> Result<RelayStep, RelayFault> {
        if self.endpoint.peer_lacks_receive().map_err(theirs)? {
            return Ok(RelayStep::Lacks);
        }
        match self.endpoint.peer_has_closed() {
            true => Err(RelayFault::Theirs),
            false => Ok(RelayStep::Wait),
        }
    }

    fn passed(&mut self, request: &Request) -> RelayStep {
        self.head = HeadProgress::default();
        // An earlier READ may be asked for again in the middle of a message.
        if !is_answered(request) {
            self.inside = !ends(request);
        }
        RelayStep::Passed
    }

    /// Sends what is left of the record. False: there is no room for all of it.
    fn send(
        &mut self,
        link: &Endpoint,
        request: &Request,
        record: &Record,
        number: u32,
    ) -> Result<bool, RelayFault> {
        if !self.endpoint.peer_is_open() {
            return Ok(false);
        }
        if self.named != Some(number) {
            let name = Request::ForSrq { number };
            if !self.endpoint.send_request(&name, 0, []).map_err(theirs)? {
                return Ok(false);
            }
            self.named = Some(number);
        }
        let most = self.peer.chunk_max(self.endpoint.request_payload_max());
        loop {
            // The record is read anew each time, and its writer may have made it shorter.
            let from = self.head.sent;
            let left = record.length.checked_sub(from).ok_or(RelayFault::Ours)?;
            let chunk = left.min(most);
            let piece = part_of(request, from == 0, chunk == left);
            self.copy.resize(chunk, 0);
            let endpoint = &mut self.endpoint;
            let sent = UserMemory::lend_mut(&mut self.copy, |memory| {
                link.request_payload(record, from, memory);
                endpoint.send_request(&piece, chunk, [&memory])
            });
            if !sent.map_err(theirs)? {
                return Ok(false);
            }
            self.head.sent += chunk;
            if chunk == left {
                return Ok(true);
            }
        }
    }

    /// Passes on what came back. `Some`: that was the end of the request, or our peer has no room.
    fn take_answers(
        &mut self,
        link: &mut Endpoint,
        request: &Request,
    ) -> Result<Option<RelayStep>, RelayFault> {
        while let Some((response, record)) = self.endpoint.next_response().map_err(theirs)? {
            match (response, request) {
                (Response::Nak { code: Nak::Refused(refusal) }, _) => {
                    return Ok(Some(RelayStep::Refused(refusal)));
                }
                (_, _) if self.head.until.is_none() => return Err(RelayFault::Theirs),
                (Response::ReadData { last }, Request::Read { length, .. }) => {
                    let size = record.length as u64;
                    let rest = length.saturating_sub(self.head.answered);
                    if size > rest || last != (size == rest) || (size == 0 && !last) {
                        return Err(RelayFault::Theirs);
                    }
                    if !self.pass_data(link, &record, last)? {
                        return Ok(Some(RelayStep::Wait));
                    }
                    self.endpoint.pass_response(&record);
                    (self.head.answered, self.head.passed) = (self.head.answered + size, 0);
                    if last {
                        return Ok(Some(self.passed(request)));
                    }
                }
                (
                    Response::AtomicResult { .. },
                    Request::CompareSwap { .. } | Request::FetchAdd { .. },
                ) => {
                    let answer = link.send_response(&response, UserMemory::EMPTY);
                    if !answer.map_err(ours)? {
                        return Ok(Some(RelayStep::Wait));
                    }
                    self.endpoint.pass_response(&record);
                    return Ok(Some(self.passed(request)));
                }
                _ => return Err(RelayFault::Theirs),
            }
        }
        Ok(None)
    }

    /// Passes on what a READ brought. False: there is no room for all of it.
    fn pass_data(
        &mut self,
        link: &mut Endpoint,
        record: &Record,
        last: bool,
    ) -> Result<bool, RelayFault> {
        let most = CHUNK.min(link.response_payload_max());
        loop {
            let from = self.head.passed;
            let left = record.length.checked_sub(from).ok_or(RelayFault::Theirs)?;
            let chunk = left.min(most);
            let answer = Response::ReadData { last: last && chunk == left };
            self.copy.resize(chunk, 0);
            let endpoint = &self.endpoint;
            let sent = UserMemory::lend_mut(&mut self.copy, |memory| {
                endpoint.response_payload(record, from, memory);
                link.send_response(&answer, memory)
            });
            if !sent.map_err(ours)? {
                return Ok(false);
            }
            self.head.passed += chunk;
            if chunk == left {
                return Ok(true);
            }
        }
    }
}

/// Whether a request is answered with more than that it was taken.
fn is_answered(request: &Request) -> bool {
    matches!(request, Request::Read { .. } | Request::CompareSwap { .. } | Request::FetchAdd { .. })
}

/// Whether a record is the last one of its message.
fn ends(request: &Request) -> bool {
    match *request {
        Request::Send { flags, .. }
        | Request::WriteFirst { flags, .. }
        | Request::WriteMore { flags, .. } => flags & LAST != 0,
        _ => true,
    }
}

/// A part of a record: its first, its last, or one between.
fn part_of(request: &Request, first: bool, last: bool) -> Request {
    // What a message ends with its last part says.
    let ending = |flags: u32| if last { flags } else { flags & FIRST };
    match *request {
        Request::Send { flags, immediate } => {
            let begins = if first { 0 } else { FIRST };
            Request::Send { flags: ending(flags) & !begins, immediate }
        }
        Request::WriteFirst { flags, immediate, .. } if !first => {
            Request::WriteMore { flags: ending(flags), immediate }
        }
        Request::WriteFirst { flags, address, rkey, immediate, total } => {
            Request::WriteFirst { flags: ending(flags), address, rkey, immediate, total }
        }
        Request::WriteMore { flags, immediate } => {
            Request::WriteMore { flags: ending(flags), immediate }
        }
        other => other,
    }
}

/// Whether a request may go on at all: what was placed by a mapping was not placed there.
pub(super) fn may_go_on(request: &Request) -> bool {
    match request {
        Request::WriteFirst { flags, .. } => flags & PLACED == 0,
        Request::Send { .. }
        | Request::WriteMore { .. }
        | Request::Read { .. }
        | Request::CompareSwap { .. }
        | Request::FetchAdd { .. } => true,
        _ => false,
    }
}
