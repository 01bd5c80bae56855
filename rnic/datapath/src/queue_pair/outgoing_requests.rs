//! Turns records of the application's request ring into requests of the transport.

use crate::memory_accounts::{Room, RoomPart};
use crate::pages::mapped_pages::{MappedPages, Target};
use crate::pages::payload_sources_offered_to_app::Sources;
use crate::vnic_memory_allowance::Allowance;
use omniverb_link::record::{FIRST, IMMEDIATE, INVALIDATE, LAST, PLACED, SOLICITED};
use omniverb_link::{Broken, Endpoint, Nak, PeekedRequest, Request, Response, Source};
use omniverb_ring::{Record, UserMemory};
use omniverb_terms::{Operations, Rkey};
use omniverb_transport::{
    GatherOutcome, Operation, PlaceOutcome, Request as Order, RequestId, Status, SubmitError,
};
use omniverb_wire::PacketPosition;
use std::collections::VecDeque;

/// Budget: records taken and not over.
const PIECES_MAX: usize = 4096;
/// Budget: bytes of READ data kept for an application that does not take them, within its vNIC's.
/// Data without room are requested again later.
const KEPT_MAX: usize = 1 << 20;
/// Bytes that kept READ data take beside their own: their place in the queue and the allocator's
/// overhead.
const OVERHEAD: usize = size_of::<Answer>() + 32;
/// Places that an empty queue keeps.
const QUEUE_SPARE: usize = 64;

/// So far ahead of the packet that is made, bytes are fetched: they come from the cache of another
/// processor.
const AHEAD: usize = 8192;

/// The state of a QP when one of its requests is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    GoesOn,
    /// The request failed, and the QP with it.
    Failed,
}

/// A record that was taken.
struct Piece {
    record: Record,
    /// Where it ends in the ring.
    end: u64,
    kind: Kind,
    /// Where its payload is, if not in the ring.
    source: Option<Source>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    Read { length: u64 },
    Atomic,
    Flush,
}

/// Address, key and length of a whole WRITE.
type Write = (u64, Rkey, u64);

/// Something that the application is to be told.
struct Answer {
    response: Response,
    data: Box<[u8]>,
    /// Of the room for READ data.
    _part: Option<RoomPart>,
}

/// The records under way, oldest first.
pub struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Number of the oldest.
    first: u64,
    /// Where the last one taken ends.
    ahead: u64,
    /// XRC: the SRQ that what follows is for.
    srq: u32,
    /// The WRITE whose last piece was not taken yet.
    write: Option<Write>,
    /// Those ever taken whose payload was not in the ring.
    pub in_place: u64,
    /// Operations that may not be requested of the peer.
    pub refused: Operations,
    /// The next record to take is such a request.
    is_refused: bool,
    /// Answers to the application for which there was no room.
    answers: VecDeque<Answer>,
    /// For READ data in it.
    room: Room,
    /// READ data without room in the ring are not kept.
    keeps_nothing: bool,
}

impl Outgoing {
    pub fn new(allowance: &Allowance) -> Outgoing {
        Outgoing {
            pieces: VecDeque::new(),
            first: 0,
            ahead: 0,
            srq: 0,
            write: None,
            in_place: 0,
            refused: Operations::NONE,
            is_refused: false,
            answers: VecDeque::new(),
            room: allowance.answers.within(KEPT_MAX),
            keeps_nothing: false,
        }
    }

    /// READ data for which there is no room in the ring are to be asked for again.
    pub fn keep_nothing(&mut self) {
        self.keeps_nothing = true;
    }

    /// The WRITE that the latest record taken goes on with.
    pub fn open_write(&self) -> Option<Write> {
        self.write
    }

    /// Begins with the record at `position`, which goes on with this WRITE.
    pub fn resume_at(&mut self, position: u64, write: Option<Write>) {
        (self.ahead, self.write) = (position, write);
    }

    /// Hands records to `submit`. True: there may be more, but the transport is full.
    pub fn take(
        &mut self,
        endpoint: &Endpoint,
        mut submit: impl FnMut(Order) -> Result<(), SubmitError>,
    ) -> Result<bool, Broken> {
        while self.pieces.len() < PIECES_MAX {
            let Some(ahead) = endpoint.request_after(self.ahead)? else { return Ok(false) };
            let PeekedRequest { request, source, record, end } = ahead;
            if let Request::ForSrq { number } = request {
                // It leaves the ring with what is behind it.
                (self.srq, self.ahead) = (number, end);
                continue;
            }
            let operation = request.operation();
            self.is_refused = !operation.is_empty() && self.refused.contains(operation);
            if self.is_refused {
                return Ok(false);
            }
            let id = RequestId(self.first + self.pieces.len() as u64);
            let (order, kind, write) = self.order(id, &request, &record).ok_or(Broken)?;
            match submit(order) {
                Ok(()) => {}
                Err(SubmitError::Full) => return Ok(true),
                Err(SubmitError::Failed) => return Ok(false),
                Err(SubmitError::Length | SubmitError::Sequence) => return Err(Broken),
            }
            self.write = write;
            self.ahead = end;
            self.in_place += u64::from(source.is_some());
            self.pieces.push_back(Piece { record, end, kind, source });
        }
        Ok(true)
    }

    /// A record as a request; what it leaves open.
    fn order(
        &self,
        id: RequestId,
        request: &Request,
        record: &Record,
    ) -> Option<(Order, Kind, Option<Write>)> {
        let (operation, flags, kind) = match *request {
            Request::Send { flags, immediate } => (send(flags, immediate), flags, Kind::Data),
            Request::WriteFirst { flags, address, rkey, immediate, total } => {
                let flags = flags | FIRST;
                (write((address, rkey, total), flags, immediate), flags, Kind::Data)
            }
            Request::WriteMore { flags, immediate } => {
                let flags = flags & !FIRST;
                (write(self.write?, flags, immediate), flags, Kind::Data)
            }
            Request::Read { address, rkey, length } => {
                (Operation::Read { address, key: rkey }, FIRST | LAST, Kind::Read { length })
            }
            Request::CompareSwap { address, rkey, compare, swap } => {
                let operation = Operation::CompareSwap { address, key: rkey, compare, swap };
                (operation, FIRST | LAST, Kind::Atomic)
            }
            Request::FetchAdd { address, rkey, add } => {
                (Operation::FetchAdd { address, key: rkey, add }, FIRST | LAST, Kind::Atomic)
            }
            Request::AtomicWrite { address, rkey, value } => {
                (Operation::AtomicWrite { address, key: rkey, value }, FIRST | LAST, Kind::Atomic)
            }
            Request::Flush { address, rkey, length, placement, selectivity } => {
                // As many as fit into the packet, and no region has more (`Selectivity::Range`).
                let length = u32::try_from(length).ok()?;
                let key = rkey;
                let flush = Operation::Flush { address, key, length, placement, selectivity };
                (flush, FIRST | LAST, Kind::Flush)
            }
            Request::ReadAgain { .. }
            | Request::Datagram { .. }
            | Request::Grouped { .. }
            | Request::ForSrq { .. } => return None,
        };
        if flags & PLACED != 0 || kind != Kind::Data && record.length != 0 {
            return None;
        }
        let length = match kind {
            Kind::Data => record.length as u64,
            Kind::Read { length } => length,
            Kind::Atomic => 8,
            Kind::Flush => 0,
        };
        let place = PacketPosition::new(flags & FIRST != 0, flags & LAST != 0);
        let open = match operation {
            Operation::Write { address, key, total, .. } if flags & LAST == 0 => {
                Some((address, key, total))
            }
            _ => None,
        };
        let srq = self.srq;
        Some((Order { id, operation, srq, length, place, is_fenced: false }, kind, open))
    }

    /// `bytes` of a request under way, into pieces that follow each other: all of them, or none.
    pub fn gather<'a>(
        &self,
        (endpoint, sources): (&mut Endpoint, &mut Sources),
        grants: &mut impl MappedPages,
        (id, offset): (RequestId, u64),
        pieces: impl Iterator<Item = &'a mut [u8]>,
        bytes: usize,
        now: u64,
    ) -> GatherOutcome {
        let Some(piece) = self.piece(id) else { return GatherOutcome::Failed };
        let end = offset.checked_add(bytes as u64);
        let Some(end) = end.filter(|end| *end <= piece.record.length as u64) else {
            return GatherOutcome::Failed;
        };
        if let Some(source) = piece.source
            && !endpoint.is_filled(piece.end)
        {
            let target = Target {
                key: source.key,
                address: source.address,
                length: piece.record.length as u64,
            };
            if grants.gather(endpoint, (target, offset), pieces, bytes, now) {
                return GatherOutcome::Filled;
            }
            sources.withdraw(endpoint, source.key, now);
            if !endpoint.is_filled(piece.end) {
                endpoint.want_filled(piece.end);
            }
            return GatherOutcome::Later;
        }
        let mut at = offset as usize;
        for target in pieces {
            let length = target.len();
            UserMemory::lend_mut(target, |memory| {
                endpoint.request_payload(&piece.record, at, memory);
            });
            at += length;
        }
        let from = end as usize + AHEAD.saturating_sub(bytes);
        endpoint.prefetch_requests_behind(&piece.record, from, bytes.min(AHEAD));
        GatherOutcome::Filled
    }

    /// Bytes that a READ brought.
    pub fn place(
        &mut self,
        endpoint: &mut Endpoint,
        id: RequestId,
        offset: u64,
        data: &[u8],
    ) -> Result<PlaceOutcome, Broken> {
        let Some(Kind::Read { length }) = self.piece(id).map(|piece| piece.kind) else {
            return Ok(PlaceOutcome::Failed);
        };
        let response = Response::ReadData { last: offset + data.len() as u64 == length };
        if self.answer(endpoint)? && say(endpoint, &response, data)? {
            return Ok(PlaceOutcome::Done);
        }
        let part = self.room.part(data.len() + OVERHEAD);
        let Some(part) = part.filter(|_| !self.keeps_nothing) else {
            return Ok(PlaceOutcome::Full);
        };
        self.answers.push_back(Answer { response, data: data.into(), _part: Some(part) });
        Ok(PlaceOutcome::Done)
    }

    fn piece(&self, id: RequestId) -> Option<&Piece> {
        self.pieces.get(usize::try_from(id.0.checked_sub(self.first)?).ok()?)
    }

    /// The oldest request is over.
    pub fn completed(
        &mut self,
        endpoint: &mut Endpoint,
        status: Status,
        original: Option<u64>,
    ) -> Result<Fate, Broken> {
        let Some(piece) = self.pieces.pop_front() else { return Ok(Fate::GoesOn) };
        self.first += 1;
        if status != Status::Success {
            // The application itself flushes the requests behind it.
            self.pieces.clear();
            self.tell(Response::Nak { code: nak(status) });
            self.answer(endpoint)?;
            return Ok(Fate::Failed);
        }
        match piece.kind {
            Kind::Data => {}
            Kind::Read { length: 0 } => self.tell(Response::ReadData { last: true }),
            Kind::Read { .. } => {}
            Kind::Atomic | Kind::Flush => {
                let original = original.unwrap_or_default();
                self.tell(Response::AtomicResult { original });
            }
        }
        endpoint.pass_requests_until(piece.end);
        self.answer(endpoint)?;
        Ok(Fate::GoesOn)
    }

    /// The connection failed by itself: the application is told.
    pub fn give_up(&mut self, endpoint: &mut Endpoint, status: Status) {
        self.pieces.clear();
        self.tell(Response::Nak { code: nak(status) });
        let _ = self.answer(endpoint);
    }

    fn tell(&mut self, response: Response) {
        self.answers.push_back(Answer { response, data: Box::default(), _part: None });
    }

    /// Says what is to be said; false: no room for all of it.
    pub fn answer(&mut self, endpoint: &mut Endpoint) -> Result<bool, Broken> {
        while let Some(Answer { response, data, .. }) = self.answers.front() {
            if !say(endpoint, response, data)? {
                return Ok(false);
            }
            self.answers.pop_front();
            // An empty queue keeps no memory for a long one.
            if self.answers.is_empty() && self.answers.capacity() > QUEUE_SPARE {
                self.answers = VecDeque::new();
            }
        }
        Ok(true)
    }

    /// Whether everything that was asked before is over, and what comes next may not be asked.
    pub fn asks_refused(&self) -> bool {
        self.is_refused && self.pieces.is_empty()
    }

    /// Whether some were taken that are not over.
    pub fn has_some_under_way(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Something waits for the application: room for an answer.
    pub fn waits(&self) -> bool {
        !self.answers.is_empty()
    }
}

fn say(endpoint: &mut Endpoint, response: &Response, data: &[u8]) -> Result<bool, Broken> {
    UserMemory::lend(data, |memory| endpoint.send_response(response, memory))
}

fn send(flags: u32, immediate: u32) -> Operation {
    Operation::Send {
        immediate: (flags & IMMEDIATE != 0).then(|| immediate.to_ne_bytes()),
        invalidate: (flags & INVALIDATE != 0).then_some(Rkey(immediate)),
        solicited: flags & SOLICITED != 0,
    }
}

fn write((address, key, total): Write, flags: u32, immediate: u32) -> Operation {
    Operation::Write {
        address,
        key,
        total,
        immediate: (flags & IMMEDIATE != 0).then(|| immediate.to_ne_bytes()),
        solicited: flags & SOLICITED != 0,
    }
}

/// The answer to the application.
fn nak(status: Status) -> Nak {
    match status {
        Status::Refused(refusal) => Nak::Refused(refusal),
        Status::RetryExceeded => Nak::RetryExceeded,
        Status::RnrRetryExceeded => Nak::RnrRetryExceeded,
        Status::BadResponse => Nak::BadResponse,
        Status::Success | Status::LocalProtection | Status::Flushed => Nak::Flushed,
    }
}
