//! Orders the application's answers: READ data, results of atomics, refusals.
//!
//! They come in the order of their requests.
//!
//! READ data usually go from the ring straight into a packet. Only when the peer repeats an earlier
//! READ while a later one is being answered, the later one's data, which come first, are kept until
//! their turn. Data over the bound are dropped, and requested of the application again when their
//! turn has come (a READ may be executed again, 9.4.4): nothing else would ever make room, since
//! answers leave in order.

use crate::memory_accounts::{Room, RoomPart};
use crate::pages::read_execution::Filling;
use crate::vnic_memory_allowance::Allowance;
use omniverb_link::{Broken, Endpoint, Nak, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_transport::{FetchOutcome, ReadRequest, Ticket};
use std::collections::VecDeque;

/// Budget: bytes that are kept for one QP, within its vNIC's.
const KEPT_MAX: usize = 2 << 20;
/// Budget: how long nothing of it may be wanted, in nanoseconds. Then it is read anew when its turn
/// comes.
const KEPT: u64 = 3_000_000_000;

/// Bytes that a kept byte takes: a queue that grows has up to twice the memory that it needs.
const COST: usize = 2;
/// Bytes of memory that an empty queue keeps.
const SPARE: usize = 32 << 10;

/// Something the application was asked.
struct AwaitedAnswer {
    ticket: Ticket,
    kind: Kind,
}

enum Kind {
    Read(Reading),
    /// An atomic, or a FLUSH: a number answers it.
    Once,
}

struct Reading {
    /// The request, and where in the peer's READ it begins.
    request: ReadRequest,
    begin: u64,
    /// Bytes still to come out of the ring.
    left: u64,
    /// The last of them was there.
    complete: bool,
    /// The packet that is being made needs its bytes.
    wanted: bool,
    /// Bytes that came before their turn.
    kept: KeptAnswer,
}

impl Reading {
    /// Its bytes are not kept, those that still come neither.
    fn drop_kept(&mut self) {
        self.wanted = false;
        self.kept.forget();
    }
}

/// Bytes that came before their turn, and their part of the room for such.
struct KeptAnswer {
    bytes: VecDeque<u8>,
    part: RoomPart,
}

impl KeptAnswer {
    fn new(room: &Room) -> KeptAnswer {
        KeptAnswer { bytes: VecDeque::new(), part: room.stretch(0) }
    }

    fn forget(&mut self) {
        self.part.shrink(COST * self.bytes.len());
        self.bytes = VecDeque::new();
    }
}

/// The next answer of the application.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// An atomic found this.
    Original(Ticket, u64),
    /// The oldest request that it has not consumed is refused.
    Refused(Nak),
    /// The data of this READ, which was answered before, are gone. `None`: and no packet needs
    /// them.
    Gone(Option<Ticket>),
    /// READ data is there to be fetched.
    Data,
}

/// Requests that the application has not answered completely, oldest first.
pub struct Readings {
    asked: VecDeque<AwaitedAnswer>,
    /// Bytes of the record at the head that were taken already.
    taken: usize,
    /// For all bytes that are kept.
    room: Room,
    /// When bytes were kept or taken last.
    progress: u64,
    /// READs whose data were dropped. The transport has no more of them under way than it allows
    /// the peer (`max_dest_rd_atomic`), and as many that it answers again.
    dropped: Vec<(Ticket, ReadRequest, u64)>,
}

impl Readings {
    pub fn new(allowance: &Allowance) -> Readings {
        let room = allowance.kept.within(KEPT_MAX);
        Readings { asked: VecDeque::new(), taken: 0, room, progress: 0, dropped: Vec::new() }
    }

    /// Whether the application has answered everything.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.dropped.is_empty() && self.taken == 0
    }

    /// When what is kept is too old, if nothing of it is wanted until then.
    pub fn due(&self) -> Option<u64> {
        (self.room.taken() > 0).then(|| self.progress.saturating_add(KEPT))
    }

    /// Drops what is too old by now.
    pub fn expire(&mut self, now: u64) {
        if self.due().is_some_and(|due| due <= now) {
            self.drop_kept(|| true);
        }
    }

    /// Drops what is kept, the latest first, while the vNIC keeps more than it may.
    pub fn give_way(&mut self, allowance: &Allowance) {
        self.drop_kept(|| allowance.kept.is_over());
    }

    /// Drops kept bytes as long as that is `necessary`; their READs are asked for anew when their
    /// turns have come.
    fn drop_kept(&mut self, necessary: impl Fn() -> bool) {
        for index in (0..self.asked.len()).rev() {
            let Kind::Read(reading) = &mut self.asked[index].kind else { continue };
            if !reading.wanted || reading.kept.bytes.is_empty() || !necessary() {
                continue;
            }
            reading.drop_kept();
            let (request, begin, complete) = (reading.request, reading.begin, reading.complete);
            self.dropped.push((self.asked[index].ticket, request, begin));
            if complete {
                self.asked.remove(index);
            }
        }
    }

    /// A READ was passed on, or what is left of it from `begin` on.
    pub fn read(&mut self, ticket: Ticket, request: &ReadRequest, begin: u64) {
        self.dropped.retain(|(dropped, ..)| *dropped != ticket);
        let reading = Reading {
            request: *request,
            begin,
            left: request.length,
            complete: false,
            wanted: true,
            kept: KeptAnswer::new(&self.room),
        };
        self.asked.push_back(AwaitedAnswer { ticket, kind: Kind::Read(reading) });
    }

    /// An atomic or a FLUSH was passed on.
    pub fn once(&mut self, ticket: Ticket) {
        self.asked.push_back(AwaitedAnswer { ticket, kind: Kind::Once });
    }

    /// No packet needs the rest of this READ.
    pub fn release(&mut self, ticket: Ticket) {
        self.dropped.retain(|(dropped, ..)| *dropped != ticket);
        let Some(index) = self.wanted(ticket) else { return };
        if let Kind::Read(reading) = &mut self.asked[index].kind {
            reading.wanted = false;
            reading.kept.forget();
            if reading.complete {
                self.asked.remove(index);
            }
        }
    }

    /// Where the READ, or atomic, with this ticket is; what was dropped does not count.
    fn wanted(&self, ticket: Ticket) -> Option<usize> {
        let dropped = |asked: &AwaitedAnswer| matches!(&asked.kind, Kind::Read(r) if !r.wanted);
        self.asked.iter().position(|asked| asked.ticket == ticket && !dropped(asked))
    }

    /// The application's next answer, taken out, except READ data, which are fetched.
    pub fn next(&mut self, endpoint: &mut Endpoint) -> Result<Option<Answer>, Broken> {
        let Some((response, record)) = self.look(endpoint)? else { return Ok(None) };
        let answer = match response {
            Response::ReadData { .. } => return Ok(Some(Answer::Data)),
            Response::Nak { code } => Answer::Refused(code),
            Response::Gone => {
                let (index, reading) = self.reading()?;
                if !reading.request.is_repeated {
                    return Err(Broken);
                }
                let wanted = reading.wanted;
                let ticket = self.asked.remove(index).map(|asked| asked.ticket);
                Answer::Gone(ticket.filter(|_| wanted))
            }
            Response::AtomicResult { original } => {
                let index = self.current().ok_or(Broken)?;
                let asked = self.asked.remove(index).ok_or(Broken)?;
                if !matches!(asked.kind, Kind::Once) {
                    return Err(Broken);
                }
                Answer::Original(asked.ticket, original)
            }
        };
        endpoint.pass_response(&record);
        Ok(Some(answer))
    }

    /// The subject of the response at the head: the oldest that is not complete.
    fn current(&self) -> Option<usize> {
        let complete = |asked: &AwaitedAnswer| matches!(&asked.kind, Kind::Read(r) if r.complete);
        self.asked.iter().position(|asked| !complete(asked))
    }

    /// The READ that the data at the head belong to.
    fn reading(&mut self) -> Result<(usize, &mut Reading), Broken> {
        let index = self.current().ok_or(Broken)?;
        match self.asked.get_mut(index).map(|asked| &mut asked.kind) {
            Some(Kind::Read(reading)) => Ok((index, reading)),
            _ => Err(Broken),
        }
    }

    /// The response at the head. READ data that no packet needs are thrown away.
    fn look(&mut self, endpoint: &mut Endpoint) -> Result<Option<(Response, Record)>, Broken> {
        loop {
            let Some((response, record)) = endpoint.next_response()? else { return Ok(None) };
            let Response::ReadData { last } = response else {
                return Ok(Some((response, record)));
            };
            let (_, reading) = self.reading()?;
            let length = record.length as u64;
            let fits = length <= reading.left && last == (length == reading.left);
            if !fits || length == 0 && !last {
                return Err(Broken);
            }
            if reading.wanted && length > 0 {
                return Ok(Some((response, record)));
            }
            self.pass(endpoint, &record, last)?;
        }
    }

    /// Done with a record of READ data.
    fn pass(&mut self, endpoint: &mut Endpoint, record: &Record, last: bool) -> Result<(), Broken> {
        let (index, reading) = self.reading()?;
        reading.left = reading.left.checked_sub(record.length as u64).ok_or(Broken)?;
        if last {
            reading.complete = true;
            if !reading.wanted || reading.kept.bytes.is_empty() {
                self.asked.remove(index);
            }
        }
        self.taken = 0;
        endpoint.pass_response(record);
        Ok(())
    }

    /// The request to repeat, if a READ was dropped of which the bytes from `offset` on are needed
    /// now.
    fn anew(&self, ticket: Ticket, offset: u64) -> Option<ReadRequest> {
        let (_, request, begin) = self.dropped.iter().find(|(dropped, ..)| *dropped == ticket)?;
        let passed = offset.saturating_sub(*begin);
        Some(ReadRequest {
            address: request.address.wrapping_add(passed),
            length: request.length.saturating_sub(passed),
            is_repeated: true,
            ..*request
        })
    }

    /// Fills a packet with the bytes at `offset` of a READ, which are the next of it.
    pub fn fetch(
        &mut self,
        endpoint: &mut Endpoint,
        (ticket, offset): (Ticket, u64),
        target: &mut [u8],
        now: u64,
    ) -> Result<Filling, Broken> {
        loop {
            if let Some(rest) = self.anew(ticket, offset) {
                return Ok(Filling::Travels(rest));
            }
            if self.take_kept(ticket, target) {
                self.progress = now;
                return Ok(Filling::Done(FetchOutcome::Filled));
            }
            let Some((Response::ReadData { last }, record)) = self.look(endpoint)? else {
                return Ok(Filling::Done(FetchOutcome::Later));
            };
            let rest = record.length.checked_sub(self.taken).ok_or(Broken)?;
            let index = self.current().ok_or(Broken)?;
            let asked = self.asked.get_mut(index).ok_or(Broken)?;
            let Kind::Read(reading) = &mut asked.kind else { return Err(Broken) };
            if asked.ticket == ticket && reading.kept.bytes.is_empty() && rest >= target.len() {
                UserMemory::lend_mut(target, |memory| {
                    endpoint.response_payload(&record, self.taken, memory);
                });
                self.taken += target.len();
                if self.taken == record.length {
                    self.pass(endpoint, &record, last)?;
                }
                return Ok(Filling::Done(FetchOutcome::Filled));
            }
            // A packet that spans two records, or another READ's turn.
            if asked.ticket == ticket {
                // The rest of one record, and not for long.
                reading.kept.part.stretch(COST * rest);
            } else if !reading.kept.part.grow(COST * rest) {
                reading.drop_kept();
                self.dropped.push((asked.ticket, reading.request, reading.begin));
                continue;
            }
            let mut bytes = vec![0; rest];
            UserMemory::lend_mut(&mut bytes, |memory| {
                endpoint.response_payload(&record, self.taken, memory);
            });
            reading.kept.bytes.extend(bytes);
            self.progress = now;
            self.pass(endpoint, &record, last)?;
        }
    }

    /// Fills a packet from what was kept; false: there is not enough.
    fn take_kept(&mut self, ticket: Ticket, target: &mut [u8]) -> bool {
        let Some(index) = self.wanted(ticket) else { return false };
        let Kind::Read(reading) = &mut self.asked[index].kind else { return false };
        if reading.kept.bytes.len() < target.len() {
            return false;
        }
        let count = target.len();
        for (to, from) in target.iter_mut().zip(reading.kept.bytes.drain(..count)) {
            *to = from;
        }
        reading.kept.part.shrink(COST * count);
        if reading.kept.bytes.is_empty() && reading.kept.bytes.capacity() > SPARE {
            reading.kept.bytes = VecDeque::new();
        }
        if reading.complete && reading.kept.bytes.is_empty() {
            self.asked.remove(index);
        }
        true
    }
}
