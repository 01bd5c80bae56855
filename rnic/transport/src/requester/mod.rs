//! The requester of a reliable connection (9.9.2): requests in, request packets out.
//!
//! Every request has its PSNs from the moment it is submitted. Three numbers say where things are:
//! before `unacked` everything is over, before `next` it is under way, before `sent` it was sent at
//! least once. Sending again means setting `next` back (go-back-N, 9.7.8), and after a silence not
//! more than [`probe_after_timeout`] allows.

mod completer;
mod probe_after_timeout;
mod response_timeout;
mod retransmit;
mod snapshot;
mod transmit;
mod write_packet_run;

use self::probe_after_timeout::ProbeWindow;
use self::response_timeout::SilenceTimer;
use crate::congestion::Congestion;
use crate::operation_rate_permit::OperationPermit;
use crate::rtt::RoundTrip;
use crate::segmentation;
use crate::unwrapped_psn::Sequence;
use crate::work_request::{Event, Operation, Request, Status, SubmitError};
use crate::{AddressedPackets, Config, MESSAGE_MAX, Time};
use omniverb_wire::PacketPosition;
use std::collections::VecDeque;

/// A request and its PSNs.
#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    request: Request,
    first: Sequence,
    last: Sequence,
    /// Bytes of its message before it.
    offset: u64,
}

impl QueuedRequest {
    /// Where in its message it stands, if it is of a WRITE whose packets all name what is left.
    fn naming(&self, config: &Config) -> Option<u64> {
        let names = config.naming == AddressedPackets::Every;
        (names && matches!(self.request.operation, Operation::Write { .. })).then_some(self.offset)
    }
}

/// A READ request or an atomic that was sent and is not answered completely. A long READ goes out
/// as several READ requests; one that is sent again must ask for no more than it did at first,
/// since the responder remembers it by its extent (9.4.4).
#[derive(Clone, Copy, Debug)]
struct Extent {
    first: Sequence,
    last: Sequence,
}

/// How far the connection is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequesterState {
    Going,
    /// The peer has refused the packet with this PSN, and answers to earlier ones are missing.
    Refused(Sequence, Status),
    /// It has ended, and so have all requests.
    Failed,
}

impl RequesterState {
    /// What the peer refused, if that is all that is known of the end.
    fn refused(self) -> Option<(Sequence, Status)> {
        match self {
            RequesterState::Refused(psn, status) => Some((psn, status)),
            RequesterState::Going | RequesterState::Failed => None,
        }
    }
}

/// The sending half of a connection.
pub(crate) struct Requester {
    jobs: VecDeque<QueuedRequest>,
    /// Where in it the job of the next packet probably is.
    at: usize,
    unacked: Sequence,
    next: Sequence,
    sent: Sequence,
    tail: Sequence,
    extents: VecDeque<Extent>,
    /// Pieces of a message are still to be submitted.
    open: Option<OpenMessage>,
    events: VecDeque<Event>,
    standing: RequesterState,

    round_trip: RoundTrip,
    pub(crate) congestion: Congestion,
    /// Packets whose acknowledgement will tell a round trip time.
    samples: VecDeque<(Sequence, Time)>,
    /// One past the last PSN that an acknowledgement was asked for.
    asked: Sequence,
    /// When it was asked for, or since when there is something to ask it for.
    asked_at: Time,
    /// Payload was not there when it was asked for; wait for news.
    starved: bool,
    /// READ data found no room; to be asked for anew.
    crowded: bool,
    /// More packets follow the one that was sent last.
    bursting: bool,
    /// Nothing was sent although there was something, because it is too early.
    paced: bool,
    /// Whether the next operation may begin.
    pub(crate) operations: OperationPermit,

    early: Option<Time>,
    backoff: u32,
    silence: SilenceTimer,
    deadline: Option<Time>,
    /// The peer said that its answers take until then; since when nothing else came.
    patient_until: Time,
    patient_since: Option<Time>,
    not_ready: Option<Time>,
    /// Since when the peer lacks a receive for the oldest packet, as far as it said so.
    unready_since: Option<Time>,
    retries: u8,
    /// A retry is due, and will be spent when what is to be sent again leaves.
    retry_is_due: bool,
    rnr_retries: u8,
    /// Already gone back to this PSN; further signs of the same loss say nothing new.
    recovering: Option<Sequence>,
    /// The peer was silent, and it is to be found out what it has.
    probing: Option<ProbeWindow>,
    pub(crate) resent: u64,
    pub(crate) not_ready_heard: u64,
    pub(crate) gaps_heard: u64,
    pub(crate) retried: u64,
}

/// A message whose last piece was not submitted yet: what its pieces must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMessage {
    /// A SEND. No packet says how many bytes there will be.
    Send {
        /// Bytes of the pieces so far.
        bytes: u64,
    },
    /// A WRITE, whose packets say how many bytes there are.
    Write {
        /// Bytes of the pieces to come.
        left: u64,
    },
}

impl Requester {
    pub(crate) fn new(config: &Config) -> Requester {
        let start = Sequence::first(config.sq_psn);
        Requester {
            jobs: VecDeque::new(),
            at: 0,
            unacked: start,
            next: start,
            sent: start,
            tail: start,
            extents: VecDeque::new(),
            open: None,
            events: VecDeque::new(),
            standing: RequesterState::Going,
            round_trip: RoundTrip::default(),
            congestion: Congestion::new(config),
            samples: VecDeque::new(),
            asked: start,
            asked_at: 0,
            starved: false,
            crowded: false,
            bursting: false,
            paced: false,
            operations: OperationPermit::default(),
            early: None,
            backoff: 0,
            silence: SilenceTimer::default(),
            deadline: None,
            patient_until: 0,
            patient_since: None,
            not_ready: None,
            unready_since: None,
            retries: config.retry_count,
            retry_is_due: false,
            rnr_retries: config.rnr_retry,
            recovering: None,
            probing: None,
            resent: 0,
            not_ready_heard: 0,
            gaps_heard: 0,
            retried: 0,
        }
    }

    /// Queues a request.
    pub(crate) fn submit(&mut self, config: &Config, request: Request) -> Result<(), SubmitError> {
        if self.standing == RequesterState::Failed {
            return Err(SubmitError::Failed);
        }
        if self.jobs.len() >= config.requests_max {
            return Err(SubmitError::Full);
        }
        let of_rc_only =
            matches!(request.operation, Operation::AtomicWrite { .. } | Operation::Flush { .. });
        if of_rc_only && config.service.is_extended() {
            return Err(SubmitError::Sequence);
        }
        let open = check(&request, self.open, config.path_mtu)?;
        let offset = offset(&request, self.open);
        self.open = open;
        let count = match request.operation {
            Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. }
            | Operation::AtomicWrite { .. }
            | Operation::Flush { .. } => 1,
            _ => segmentation::packets(request.length, config.path_mtu),
        };
        let (first, last) = (self.tail, self.tail + count - 1);
        self.jobs.push_back(QueuedRequest { request, first, last, offset });
        self.tail += count;
        Ok(())
    }

    /// The job of the next packet: mostly that of the one before, or the one behind it.
    fn next_job(&mut self) -> Option<&QueuedRequest> {
        let has = |job: Option<&QueuedRequest>, psn| {
            job.is_some_and(|j| (j.first..=j.last).contains(&psn))
        };
        if !has(self.jobs.get(self.at), self.next) {
            self.at = match has(self.jobs.get(self.at + 1), self.next) {
                true => self.at + 1,
                false => self.jobs.partition_point(|job| job.last < self.next),
            };
        }
        self.jobs.get(self.at)
    }

    /// The job that a PSN belongs to; all jobs are contiguous.
    fn job_at(&self, psn: Sequence) -> Option<&QueuedRequest> {
        self.jobs.get(self.jobs.partition_point(|job| job.last < psn)).filter(|j| j.first <= psn)
    }

    /// Whether a request waits to be sent; what is under way is not counted.
    pub(crate) fn has_unsent(&self) -> bool {
        self.next != self.tail
    }

    /// The next packet is at least as long as an acknowledgement: it is not a SEND without data.
    pub(crate) fn has_long_packet(&self) -> bool {
        self.has_unsent()
            && self.job_at(self.next).is_some_and(|job| {
                job.request.length > 0 || !matches!(job.request.operation, Operation::Send { .. })
            })
    }

    /// The next thing that the layer above is to learn, each once; `None`: nothing new.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The oldest one that is not over.
    pub(crate) fn oldest(&self) -> Option<&Request> {
        self.jobs.front().map(|job| &job.request)
    }

    /// Requests not over.
    pub(crate) fn queued(&self) -> usize {
        self.jobs.len()
    }

    /// Ends all requests; the oldest with `status`, the others flushed (10.10.3.2).
    pub(crate) fn fail(&mut self, status: Status) {
        if std::mem::replace(&mut self.standing, RequesterState::Failed) == RequesterState::Failed {
            return;
        }
        let mut status_of_next = status;
        for job in self.jobs.drain(..) {
            let id = job.request.id;
            self.events.push_back(Event::Completed { id, status: status_of_next, original: None });
            status_of_next = Status::Flushed;
        }
        if status != Status::Flushed {
            self.events.push_back(Event::Failed(status));
        }
        self.extents.clear();
        self.samples.clear();
        (self.early, self.deadline, self.not_ready) = (None, None, None);
        (self.unacked, self.next, self.sent) = (self.tail, self.tail, self.tail);
    }
}

/// Bytes of the message before a piece of it.
fn offset(request: &Request, open: Option<OpenMessage>) -> u64 {
    match (open, request.operation) {
        (Some(OpenMessage::Send { bytes }), _) => bytes,
        (Some(OpenMessage::Write { left }), Operation::Write { total, .. }) => {
            total.saturating_sub(left)
        }
        _ => 0,
    }
}

/// Checks a request, and how it goes on from the pieces before it.
pub(crate) fn check(
    request: &Request,
    open: Option<OpenMessage>,
    path_mtu: usize,
) -> Result<Option<OpenMessage>, SubmitError> {
    let Request { length, place, .. } = *request;
    let whole_packets = length > 0 && length.is_multiple_of(path_mtu as u64);
    if length > MESSAGE_MAX || !place.ends() && !whole_packets {
        return Err(SubmitError::Length);
    }
    // Nothing may follow a message that is already full, and a piece is never empty.
    if !place.begins() && length == 0 {
        return Err(SubmitError::Length);
    }
    match (request.operation, open) {
        (Operation::Send { immediate: Some(_), invalidate: Some(_), .. }, _) => {
            Err(SubmitError::Sequence)
        }
        (Operation::Send { .. }, open) => {
            let before = match open {
                None if place.begins() => 0,
                Some(OpenMessage::Send { bytes }) if !place.begins() => bytes,
                _ => return Err(SubmitError::Sequence),
            };
            // One operation, however many pieces: without an end it would be the only one.
            match before + length {
                bytes if bytes > MESSAGE_MAX => Err(SubmitError::Length),
                bytes => Ok((!place.ends()).then_some(OpenMessage::Send { bytes })),
            }
        }
        (Operation::Write { total, .. }, open) => {
            let left = match open {
                None if place.begins() && total <= MESSAGE_MAX => total,
                Some(OpenMessage::Write { left }) if !place.begins() => left,
                _ => return Err(SubmitError::Sequence),
            };
            match left.checked_sub(length) {
                Some(0) if place.ends() => Ok(None),
                Some(left @ 1..) if !place.ends() => Ok(Some(OpenMessage::Write { left })),
                _ => Err(SubmitError::Length),
            }
        }
        (Operation::Read { .. }, None) if place == PacketPosition::Only => Ok(None),
        (
            Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. }
            | Operation::AtomicWrite { .. },
            None,
        ) if place == PacketPosition::Only && length == 8 => Ok(None),
        (Operation::Flush { .. }, None) if place == PacketPosition::Only && length == 0 => Ok(None),
        _ => Err(SubmitError::Sequence),
    }
}
