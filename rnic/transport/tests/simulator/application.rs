//! The layer above one end: memory, receives, and answers that come at once, late, or after a
//! refusal for lack of a receive. It compares everything that arrives with the plan.

use crate::model::{BASE, COUNTERS, Item, KEY, Plan, READABLE, WRITABLE, byte, readable};
use omniverb_terms::Refusal;
use omniverb_transport::random::Random;
use omniverb_transport::{
    Answer, AtomicOperation, AtomicRequest, Connection, Delivery, Fetched, FlushRequest, Gathered,
    Kind, Operation, Part, Placed, ReadRequest, RequestId, Taken, Ticket, Time, Upper,
};
use omniverb_wire::Run;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// How the layer above behaves; chances in ten thousand.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    pub late: u64,
    pub stall: u64,
    /// Longest time to an answer.
    pub pause: Time,
    /// Receives are posted a few at a time.
    pub scarce: bool,
    /// Whether a missing receive is reported at once or found out later.
    pub reports_late: bool,
    /// This message of the peer, and no other, is refused.
    pub refuses: Option<usize>,
    /// What was read is gone as soon as the reader has it.
    pub forgets: bool,
}

/// An answer that is due.
struct Late {
    time: Time,
    ticket: Ticket,
    answer: Answer,
    /// Which message of the peer it belongs to.
    message: usize,
    needs_receive: bool,
    told: bool,
}

pub struct Application {
    host: usize,
    pub mine: Rc<Plan>,
    pub theirs: Rc<Plan>,
    manners: Manners,
    random: Random,
    pub now: Time,
    pub written: Vec<u8>,
    pub counters: [u64; COUNTERS as usize],
    /// Which message of the peer comes next, and how much of it is here.
    pub cursor: usize,
    offset: u64,
    receives: u64,
    next_post: Time,
    late: VecDeque<Late>,
    resume: Option<Time>,
    /// READs of the peer, oldest first.
    reads: BTreeMap<Ticket, ReadRequest>,
    kept_max: u64,
    ticket: u64,
    /// A refusal is on its way: what arrives is neither compared nor placed.
    void: bool,
    /// Messages of the peer that are over there.
    pub heard: usize,
    /// READs whose memory is gone.
    gone: HashSet<Ticket>,
    /// How much of my READs is here.
    placed: HashMap<u64, u64>,
}

impl Application {
    pub fn new(
        host: usize,
        mine: Rc<Plan>,
        theirs: Rc<Plan>,
        manners: Manners,
        random: Random,
    ) -> Application {
        Application {
            host,
            mine,
            theirs,
            manners,
            random,
            now: 0,
            written: vec![0; WRITABLE as usize],
            counters: [0; COUNTERS as usize],
            cursor: 0,
            offset: 0,
            receives: if manners.scarce { 1 } else { u64::MAX / 2 },
            next_post: 0,
            late: VecDeque::new(),
            resume: None,
            reads: BTreeMap::new(),
            kept_max: 100_000,
            ticket: 0,
            void: false,
            heard: 0,
            gone: HashSet::new(),
            placed: HashMap::new(),
        }
    }

    /// Whether every message of the peer before this one was answered.
    pub fn answered_before(&self, message: usize) -> bool {
        self.late.iter().all(|late| late.message >= message)
    }

    fn stalls(&mut self) -> bool {
        let stalls = self.random.chance(self.manners.stall);
        if stalls {
            self.stall();
        }
        stalls
    }

    fn stall(&mut self) {
        if self.resume.is_none() {
            self.resume = Some(self.now + self.random.between(1, self.manners.pause.max(1)));
        }
    }

    fn answer_late(&mut self, ticket: Ticket, answer: Answer, message: usize, needs_receive: bool) {
        let pause = self.random.between(1, self.manners.pause);
        let before = self.late.back().map_or(0, |late| late.time);
        let time = (self.now + pause).max(before);
        self.late.push_back(Late { time, ticket, answer, message, needs_receive, told: false });
    }

    /// When it has something to do.
    pub fn next_time(&self) -> Option<Time> {
        let late = self
            .late
            .front()
            .map(|late| if late.told { late.time.max(self.next_post) } else { late.time });
        let post = (self.receives == 0).then_some(self.next_post);
        [late, post, self.resume].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn act(&mut self, now: Time, connection: &mut Connection) {
        self.now = now;
        if self.manners.scarce && now >= self.next_post {
            self.receives = self.random.between(1, 4);
            self.next_post = now + self.random.between(1000, 3_000_000);
            connection.receive_came();
        }
        while let Some(late) = self.late.front_mut().filter(|late| late.time <= now) {
            if late.needs_receive {
                if self.receives == 0 {
                    if !late.told {
                        late.told = true;
                        connection.answer(late.ticket, Answer::NotReady);
                    }
                    break;
                }
                self.receives -= 1;
            }
            if late.answer == Answer::Gone {
                self.reads.remove(&late.ticket);
            }
            if late.answer == Answer::Done && self.random.chance(5000) {
                // Whatever came before was done already, or is an atomic and not concerned.
                connection.done_through(late.ticket);
            } else {
                connection.answer(late.ticket, late.answer);
            }
            self.late.pop_front();
        }
        if self.resume.is_some_and(|time| time <= now) {
            self.resume = None;
            connection.resume(now);
        }
    }

    /// Refuses what the ticket names, at once or late.
    fn refuse(&mut self, ticket: Ticket) -> Delivery {
        let refusal = Refusal::RemoteAccess;
        if self.random.chance(self.manners.late) {
            self.answer_late(ticket, Answer::Refused(refusal), self.cursor, false);
            self.void = true;
            return Delivery::Later;
        }
        Delivery::Refused(refusal)
    }

    /// Whether nobody waits for what is asked for again, so that its memory may be gone.
    fn has_forgotten(&self, request: &ReadRequest) -> bool {
        let end = request.address + request.length;
        let reads = |item: &Item| match item.operation {
            Operation::Read { address, .. } => {
                address <= request.address && end <= address + item.length
            }
            _ => false,
        };
        self.manners.forgets
            && request.again
            && request.length > 0
            && !self.theirs.items.iter().skip(self.heard).any(reads)
    }

    /// Tickets count up.
    fn see(&mut self, ticket: Ticket) {
        assert!(ticket.0 > self.ticket, "ticket {ticket:?} after {}", self.ticket);
        self.ticket = ticket.0;
    }

    /// The peer's next message that is no READ.
    fn skip_reads(&mut self) {
        while let Some(item) = self.theirs.items.get(self.cursor) {
            if !matches!(item.operation, Operation::Read { .. }) {
                break;
            }
            self.cursor += 1;
        }
    }
}

impl Upper for Application {
    fn gather(&mut self, request: RequestId, offset: u64, target: &mut [u8]) -> Gathered {
        if self.stalls() {
            return Gathered::Later;
        }
        let (item, base) = ((request.0 >> 32) as usize, request.0 & 0xffff_ffff);
        for (at, target) in (base + offset..).zip(target) {
            *target = byte(self.mine.seed, item, at);
        }
        Gathered::Filled
    }

    fn place(&mut self, request: RequestId, offset: u64, data: &[u8]) -> Placed {
        if self.stalls() {
            return Placed::Full;
        }
        let placed = self.placed.entry(request.0).or_insert(0);
        assert_eq!(offset, *placed, "READ data of {request:?} in order, once");
        *placed += data.len() as u64;
        let Operation::Read { address, .. } = self.mine.items[(request.0 >> 32) as usize].operation
        else {
            panic!("{request:?} is no READ");
        };
        for (at, found) in (address - BASE - WRITABLE + offset..).zip(data) {
            assert_eq!(*found, readable(self.mine.seed, 1 - self.host, at), "READ data at {at}");
        }
        Placed::Done
    }

    fn deliver(&mut self, ticket: Ticket, part: &Part<'_>) -> Delivery {
        self.see(ticket);
        if self.stalls() {
            return Delivery::Full;
        }
        self.skip_reads();
        if self.void {
            return Delivery::Later;
        }
        if self.manners.refuses == Some(self.cursor) {
            return self.refuse(ticket);
        }
        let lacking = part.takes_receive() && self.receives == 0;
        if lacking && !self.manners.reports_late {
            return Delivery::NotReady;
        }
        let (seed, cursor) = (self.theirs.seed, self.cursor);
        let item = self.theirs.items[cursor];
        assert_eq!(part.offset, self.offset, "message {cursor} in order, once");
        assert_eq!(part.place.begins(), self.offset == 0);
        self.offset += part.data.len() as u64;
        assert_eq!(part.place.ends(), self.offset == item.length, "end of message {cursor}");
        for (at, found) in (part.offset..).zip(part.data) {
            assert_eq!(*found, byte(seed, cursor, at), "message {cursor} at {at}");
        }
        let ends = part.place.ends();
        match (item.operation, part.kind) {
            (Operation::Send { immediate, invalidate, solicited }, Kind::Send) => {
                assert_eq!(part.immediate, immediate.filter(|_| ends));
                assert_eq!(part.invalidate, invalidate.filter(|_| ends));
                assert_eq!(part.solicited, solicited && ends);
            }
            (
                Operation::Write { address, key, total, immediate, solicited },
                Kind::Write { address: to, key: with, total: all },
            ) => {
                assert_eq!((to, with, all), (address, key, total));
                assert_eq!(part.immediate, immediate.filter(|_| ends));
                assert_eq!(part.solicited, solicited && ends && immediate.is_some());
                let begin = (address - BASE + part.offset) as usize;
                self.written[begin..begin + part.data.len()].copy_from_slice(part.data);
            }
            (wanted, found) => panic!("message {cursor} is {wanted:?}, not {found:?}"),
        }
        if ends {
            (self.cursor, self.offset) = (cursor + 1, 0);
        }
        if lacking || self.random.chance(self.manners.late) {
            self.answer_late(ticket, Answer::Done, cursor, part.takes_receive());
            return Delivery::Later;
        }
        self.receives -= u64::from(part.takes_receive());
        Delivery::Done
    }

    fn deliver_run(&mut self, part: &Part<'_>, run: &Run<'_>) -> Taken {
        if self.stalls() || self.void {
            return Taken::Nothing;
        }
        self.skip_reads();
        let (cursor, item) = (self.cursor, self.theirs.items[self.cursor]);
        let Operation::Write { address, key, total, .. } = item.operation else {
            panic!("message {cursor} is no WRITE");
        };
        if self.manners.refuses == Some(cursor) || self.random.chance(3000) {
            return Taken::Nothing;
        }
        assert_eq!(part.kind, Kind::Write { address, key, total });
        assert_eq!((part.offset, part.place.begins()), (self.offset, self.offset == 0));
        for payload in run.payloads() {
            for (at, found) in (self.offset..).zip(payload) {
                assert_eq!(*found, byte(self.theirs.seed, cursor, at), "message {cursor} at {at}");
            }
            let begin = (address - BASE + self.offset) as usize;
            self.written[begin..begin + payload.len()].copy_from_slice(payload);
            self.offset += payload.len() as u64;
        }
        assert!(self.offset < item.length, "message {cursor} goes on");
        Taken::All
    }

    fn read(&mut self, ticket: Ticket, request: &ReadRequest) -> Delivery {
        self.see(ticket);
        if request.length > 0 {
            let offset = request.address.checked_sub(BASE + WRITABLE).expect("READ below");
            assert!(offset + request.length <= READABLE && request.key == KEY);
        }
        self.reads.insert(ticket, *request);
        if self.has_forgotten(request) {
            self.gone.insert(ticket);
            self.answer_late(ticket, Answer::Gone, usize::MAX, false);
            return Delivery::Later;
        }
        if self.random.chance(5000) { Delivery::Done } else { Delivery::Later }
    }

    fn fetch(&mut self, ticket: Ticket, offset: u64, target: &mut [u8]) -> Fetched {
        if self.gone.contains(&ticket) || self.stalls() {
            return Fetched::Later;
        }
        // As an application behind a link: it reads in the order it was asked to, and only so much
        // is kept of what was asked for earlier.
        let older: u64 = self.reads.range(..ticket).map(|(_, request)| request.length).sum();
        if older > self.kept_max {
            return Fetched::Behind;
        }
        let request = self.reads[&ticket];
        assert!(offset + target.len() as u64 <= request.length);
        for (at, target) in (request.address - BASE - WRITABLE + offset..).zip(target) {
            *target = readable(self.mine.seed, self.host, at);
        }
        Fetched::Filled
    }

    fn release(&mut self, ticket: Ticket) {
        assert!(self.reads.remove(&ticket).is_some(), "{ticket:?} released once");
    }

    fn atomic(&mut self, ticket: Ticket, request: &AtomicRequest) -> Result<u64, Delivery> {
        self.see(ticket);
        if self.stalls() {
            return Err(Delivery::Full);
        }
        self.skip_reads();
        let cursor = self.cursor;
        if self.void {
            return Err(Delivery::Later);
        }
        if self.manners.refuses == Some(cursor) {
            return Err(self.refuse(ticket));
        }
        let index = ((request.address - BASE - WRITABLE - READABLE) / 8) as usize;
        let value = &mut self.counters[index];
        let original = *value;
        let finds = !matches!(request.operation, AtomicOperation::Write { .. });
        match (self.theirs.items[cursor].operation, request.operation) {
            (Operation::FetchAdd { add, .. }, AtomicOperation::FetchAdd { add: found }) => {
                assert_eq!(add, found);
                *value = value.wrapping_add(add);
            }
            (
                Operation::CompareSwap { compare, swap, .. },
                AtomicOperation::CompareSwap { compare: found, swap: new },
            ) => {
                assert_eq!((compare, swap), (found, new));
                if original == compare {
                    *value = swap;
                }
            }
            (
                Operation::AtomicWrite { value: new, .. },
                AtomicOperation::Write { value: found },
            ) => {
                assert_eq!(new, found);
                *value = u64::from_ne_bytes(found);
            }
            (wanted, found) => panic!("message {cursor} is {wanted:?}, not {found:?}"),
        }
        self.cursor += 1;
        let found = finds.then_some(original);
        assert_eq!(found, self.theirs.originals[cursor], "atomic {cursor}");
        if self.random.chance(self.manners.late) {
            self.answer_late(ticket, Answer::Original(original), cursor, false);
            return Err(Delivery::Later);
        }
        Ok(original)
    }

    fn flush(&mut self, ticket: Ticket, request: &FlushRequest) -> Result<u64, Delivery> {
        self.see(ticket);
        if self.stalls() {
            return Err(Delivery::Full);
        }
        self.skip_reads();
        let cursor = self.cursor;
        if self.void {
            return Err(Delivery::Later);
        }
        if self.manners.refuses == Some(cursor) {
            return Err(self.refuse(ticket));
        }
        let Operation::Flush { address, key, length, placement, selectivity } =
            self.theirs.items[cursor].operation
        else {
            panic!("message {cursor} is no FLUSH");
        };
        let length = u64::from(length);
        assert_eq!(*request, FlushRequest { address, key, length, placement, selectivity });
        self.cursor += 1;
        if self.random.chance(self.manners.late) {
            self.answer_late(ticket, Answer::Original(0), cursor, false);
            return Err(Delivery::Later);
        }
        Ok(0)
    }
}
