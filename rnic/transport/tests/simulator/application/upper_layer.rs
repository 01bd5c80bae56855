//! Answers what the transport asks of the application under test.

use super::Application;
use crate::model::{BASE, KEY, READABLE, WRITABLE, byte, readable};
use omniverb_transport::{
    AtomicOperation, AtomicRequest, Delivery, FetchOutcome, FlushRequest, GatherOutcome, Kind,
    LateAnswer, Operation, Part, PlaceOutcome, ReadRequest, RequestId, RunOutcome, Ticket,
    UpperLayer,
};
use omniverb_wire::WriteRun;

impl UpperLayer for Application {
    fn gather(&mut self, request: RequestId, offset: u64, target: &mut [u8]) -> GatherOutcome {
        if self.stalls() {
            return GatherOutcome::Later;
        }
        let (item, base) = ((request.0 >> 32) as usize, request.0 & 0xffff_ffff);
        for (at, target) in (base + offset..).zip(target) {
            *target = byte(self.mine.seed, item, at);
        }
        GatherOutcome::Filled
    }

    fn place(&mut self, request: RequestId, offset: u64, data: &[u8]) -> PlaceOutcome {
        if self.stalls() {
            return PlaceOutcome::Full;
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
        PlaceOutcome::Done
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
                assert_eq!(part.is_solicited, solicited && ends);
            }
            (
                Operation::Write { address, key, total, immediate, solicited },
                Kind::Write { address: to, key: with, total: all },
            ) => {
                assert_eq!((to, with, all), (address, key, total));
                assert_eq!(part.immediate, immediate.filter(|_| ends));
                assert_eq!(part.is_solicited, solicited && ends && immediate.is_some());
                let begin = (address - BASE + part.offset) as usize;
                self.written[begin..begin + part.data.len()].copy_from_slice(part.data);
            }
            (wanted, found) => panic!("message {cursor} is {wanted:?}, not {found:?}"),
        }
        if ends {
            (self.cursor, self.offset) = (cursor + 1, 0);
        }
        if lacking || self.random.chance(self.manners.late) {
            self.answer_late(ticket, LateAnswer::Done, cursor, part.takes_receive());
            return Delivery::Later;
        }
        self.receives -= u64::from(part.takes_receive());
        Delivery::Done
    }

    fn deliver_run(&mut self, part: &Part<'_>, run: &WriteRun<'_>) -> RunOutcome {
        if self.stalls() || self.void {
            return RunOutcome::Nothing;
        }
        self.skip_reads();
        let (cursor, item) = (self.cursor, self.theirs.items[self.cursor]);
        let Operation::Write { address, key, total, .. } = item.operation else {
            panic!("message {cursor} is no WRITE");
        };
        if self.manners.refuses == Some(cursor) || self.random.chance(3000) {
            return RunOutcome::Nothing;
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
        RunOutcome::All
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
            self.answer_late(ticket, LateAnswer::Gone, usize::MAX, false);
            return Delivery::Later;
        }
        if self.random.chance(5000) { Delivery::Done } else { Delivery::Later }
    }

    fn fetch(&mut self, ticket: Ticket, offset: u64, target: &mut [u8]) -> FetchOutcome {
        if self.gone.contains(&ticket) || self.stalls() {
            return FetchOutcome::Later;
        }
        // As an application behind a link: it reads in the order it was asked to, and only so much
        // is kept of what was asked for earlier.
        let older: u64 = self.reads.range(..ticket).map(|(_, request)| request.length).sum();
        if older > self.kept_max {
            return FetchOutcome::Behind;
        }
        let request = self.reads[&ticket];
        assert!(offset + target.len() as u64 <= request.length);
        for (at, target) in (request.address - BASE - WRITABLE + offset..).zip(target) {
            *target = readable(self.mine.seed, self.host, at);
        }
        FetchOutcome::Filled
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
            self.answer_late(ticket, LateAnswer::Original(original), cursor, false);
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
            self.answer_late(ticket, LateAnswer::Original(0), cursor, false);
            return Err(Delivery::Later);
        }
        Ok(0)
    }
}
