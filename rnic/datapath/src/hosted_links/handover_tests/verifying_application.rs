//! Plays an application that asks for everything a reliable connection has, serves what its peer
//! asks for, and compares all of it with a model.

use crate::testing::end;
use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_link::record::{FIRST, IMMEDIATE, LAST};
use omniverb_link::{Endpoint, Request, Response};
use omniverb_ring::{UserMemory, Window};
use omniverb_terms::{Placement, Psn, Rkey, Selectivity};
use omniverb_transport::splitmix64::Random;
use std::collections::VecDeque;

const MTU: u64 = 256;
const KEY: Rkey = Rkey(5);
/// Addresses: what WRITEs change, what READs see, what atomics change.
const WRITABLE: u64 = 0x1_0000;
const READABLE: u64 = 0x2_0000;
const COUNTERS: u64 = 0x3_0000;
const WRITABLE_BYTES: u64 = 8 << 10;
const READABLE_BYTES: u64 = 16 << 10;
const COUNT: u64 = 4;
/// Bytes of a receive.
const RECEIVE: u32 = 1 << 16;

/// Memory of a link, with an application's queue pair at its first side.
pub(super) fn memory() -> Window {
    Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN))
}

/// How an application behaves as a responder.
#[derive(Clone, Copy)]
pub(super) struct Behaviour {
    /// Its receives are promised to the link; else they are shared.
    pub is_promising: bool,
    /// It does nothing now and then.
    pub is_slow: bool,
    /// It lacks a receive now and then.
    pub is_short_of_receives: bool,
}

/// What the peer must see, in this order.
pub(super) enum Asked {
    Message(Vec<u8>),
    Immediate(u32),
}

/// An answer that must come, in this order.
enum Awaited {
    Data { all: Vec<u8>, got: Vec<u8> },
    Number(u64),
}

/// An answer that is to be given.
enum Due {
    Data { address: u64, left: u64 },
    Number(u64),
}

/// A record that is to be posted behind those before it.
type NextRecord = (Request, Vec<u8>);

pub(super) struct Application {
    endpoint: Endpoint,
    behaviour: Behaviour,
    posted: u32,
    /// Of those, how many were published, and how many were taken.
    published: u32,
    taken: u32,
    /// Shared receives that are left.
    shared: u64,
    /// It does nothing for so many steps.
    pause: u64,
    // What it has.
    written: Vec<u8>,
    counters: [u64; COUNT as usize],
    /// Of the WRITE that arrives: where its next byte goes, and how many are left.
    write: Option<(u64, u64)>,
    message: Option<Vec<u8>>,
    due: VecDeque<Due>,
    // What it asks for.
    pub(super) asked: VecDeque<Asked>,
    awaited: VecDeque<Awaited>,
    behind: VecDeque<NextRecord>,
    number: u32,
    // What the peer must have in the end.
    model: Vec<u8>,
    model_counters: [u64; COUNT as usize],
}

/// Byte of the readable memory, the same at both applications.
fn readable(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

impl Application {
    pub(super) fn new(memory: &Window, behaviour: Behaviour) -> Application {
        let mut endpoint = end(memory, 0).unwrap();
        endpoint.publish_receiving(&ReceiveAttributes {
            rq_psn: Psn::new(0xff_fff0),
            path_mtu: 1,
            min_rnr_timer: 1,
            max_dest_rd_atomic: 4,
        });
        endpoint.publish_sending(&SendAttributes {
            sq_psn: Psn::new(0xff_fff0),
            timeout: 18,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
        });
        let posted = 3;
        if behaviour.is_promising {
            endpoint.publish_credits(posted, RECEIVE);
        } else {
            endpoint.publish_no_credits();
        }
        endpoint.open(0);
        Application {
            endpoint,
            behaviour,
            posted,
            published: posted,
            taken: 0,
            shared: 4,
            pause: 0,
            written: vec![0; WRITABLE_BYTES as usize],
            counters: [0; COUNT as usize],
            write: None,
            message: None,
            due: VecDeque::new(),
            asked: VecDeque::new(),
            awaited: VecDeque::new(),
            behind: VecDeque::new(),
            number: 0,
            model: vec![0; WRITABLE_BYTES as usize],
            model_counters: [0; COUNT as usize],
        }
    }

    /// Posts one operation, at least its first record. False: there is no room.
    pub(super) fn post(&mut self, random: &mut Random) -> bool {
        if !self.behind.is_empty() {
            return false;
        }
        self.number += 1;
        let length = match random.below(5) {
            0 => 0,
            1 => random.below(40),
            2 => MTU * random.between(1, 8),
            _ => random.below(5000),
        };
        let data: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let index = random.below(COUNT) as usize;
        let (counter, rkey) = (COUNTERS + 8 * index as u64, KEY);
        let value = &mut self.model_counters[index];
        match random.below(9) {
            0..=2 => {
                self.asked.push_back(Asked::Message(data.clone()));
                for (flags, part) in pieces(&data, random) {
                    self.behind.push_back((Request::Send { flags, immediate: 0 }, part));
                }
            }
            3..=5 => {
                let address = WRITABLE + random.below(WRITABLE_BYTES - length + 1);
                let at = (address - WRITABLE) as usize;
                self.model[at..at + data.len()].copy_from_slice(&data);
                let immediate = self.number;
                let tells = random.below(3) == 0;
                if tells {
                    self.asked.push_back(Asked::Immediate(immediate));
                }
                for (flags, part) in pieces(&data, random) {
                    let told = if tells && flags & LAST != 0 { IMMEDIATE } else { 0 };
                    let flags = flags & LAST | told;
                    let request = if self.behind.is_empty() {
                        Request::WriteFirst { flags, address, rkey, immediate, total: length }
                    } else {
                        Request::WriteMore { flags, immediate }
                    };
                    self.behind.push_back((request, part));
                }
            }
            6 => {
                let address = READABLE + random.below(READABLE_BYTES - length + 1);
                let all = (address..address + length).map(readable).collect();
                self.awaited.push_back(Awaited::Data { all, got: Vec::new() });
                self.behind.push_back((Request::Read { address, rkey, length }, Vec::new()));
            }
            7 => {
                let add = random.next();
                self.awaited.push_back(Awaited::Number(*value));
                *value = value.wrapping_add(add);
                let request = Request::FetchAdd { address: counter, rkey, add };
                self.behind.push_back((request, Vec::new()));
            }
            _ => {
                let request = match random.below(3) {
                    0 => {
                        let (compare, swap) = (*value ^ random.below(2), random.next());
                        self.awaited.push_back(Awaited::Number(*value));
                        if *value == compare {
                            *value = swap;
                        }
                        Request::CompareSwap { address: counter, rkey, compare, swap }
                    }
                    1 => {
                        self.awaited.push_back(Awaited::Number(0));
                        *value = random.next();
                        let value = value.to_ne_bytes();
                        Request::AtomicWrite { address: counter, rkey, value }
                    }
                    _ => {
                        self.awaited.push_back(Awaited::Number(0));
                        let (placement, selectivity) = (Placement::GLOBAL, Selectivity::Range);
                        let address = WRITABLE;
                        Request::Flush { address, rkey, length, placement, selectivity }
                    }
                };
                self.behind.push_back((request, Vec::new()));
            }
        }
        self.post_next();
        true
    }

    /// Asks for so many bytes.
    pub(super) fn read(&mut self, length: u64) {
        let all = (READABLE..READABLE + length).map(readable).collect();
        self.awaited.push_back(Awaited::Data { all, got: Vec::new() });
        let request = Request::Read { address: READABLE, rkey: KEY, length };
        assert_eq!(self.endpoint.send_request(&request, 0, []), Ok(true));
    }

    /// Posts a SEND of one record.
    pub(super) fn send(&mut self, data: &[u8]) {
        self.asked.push_back(Asked::Message(data.to_vec()));
        let request = Request::Send { flags: FIRST | LAST, immediate: 0 };
        let sent = UserMemory::lend(data, |part| {
            self.endpoint.send_request(&request, data.len(), [&part])
        });
        assert_eq!(sent, Ok(true));
    }

    /// Its queue pair goes.
    pub(super) fn close(&mut self) {
        self.endpoint.close();
    }

    /// Whether the host has closed the link.
    pub(super) fn is_closed(&self) -> bool {
        self.endpoint.peer_has_closed()
    }

    /// Posts what is left of the operation, unless it takes its time.
    pub(super) fn go_on_posting(&mut self, random: &mut Random) {
        if random.below(4) > 0 {
            self.post_next();
        }
    }

    fn post_next(&mut self) {
        while let Some((request, part)) = self.behind.front() {
            let sent = UserMemory::lend(part, |memory| {
                self.endpoint.send_request(request, part.len(), [&memory]).unwrap()
            });
            if !sent {
                return;
            }
            self.behind.pop_front();
            // The next piece comes later.
            if self.number.is_multiple_of(3) {
                return;
            }
        }
    }

    /// Everything that was asked for is over, as far as this one knows.
    pub(super) fn is_idle(&mut self) -> bool {
        self.behind.is_empty()
            && self.awaited.is_empty()
            && self.asked.is_empty()
            && self.due.is_empty()
            && self.endpoint.under_way().unwrap() == 0
    }

    /// Takes up to `most` requests of the peer, and answers. `asked`: what the peer asked for.
    /// True: something happened.
    pub(super) fn serve(
        &mut self,
        asked: &mut VecDeque<Asked>,
        most: u64,
        random: &mut Random,
    ) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        if self.behaviour.is_slow && random.below(200) == 0 {
            self.pause = random.below(100);
        }
        if !self.behaviour.is_promising && self.shared == 0 {
            let is_late = self.behaviour.is_short_of_receives && random.below(50) > 0;
            self.shared = if is_late { 0 } else { random.between(1, 6) };
        }
        let mut news = false;
        for _ in 0..most {
            if self.due.len() > 8 || !self.take(asked) {
                break;
            }
            news = true;
        }
        self.endpoint.publish_requests();
        if self.behaviour.is_promising
            && !(self.behaviour.is_short_of_receives && random.below(50) > 0)
        {
            self.published = self.posted;
            self.endpoint.publish_credits(self.posted, RECEIVE);
        }
        news | self.answer()
    }

    /// Takes a request. False: there is none, or no receive for it.
    fn take(&mut self, asked: &mut VecDeque<Asked>) -> bool {
        let Some((request, record)) = self.endpoint.next_request().unwrap() else { return false };
        let takes_receive = match request {
            Request::Send { flags, .. } => flags & FIRST != 0,
            Request::WriteFirst { flags, .. } | Request::WriteMore { flags, .. } => {
                flags & IMMEDIATE != 0
            }
            _ => false,
        };
        if takes_receive && self.behaviour.is_promising {
            assert!(self.taken < self.published, "more than was promised");
            (self.posted, self.taken) = (self.posted + 1, self.taken + 1);
        } else if takes_receive && self.shared == 0 {
            self.endpoint.report_lack_of_receive();
            return false;
        } else if takes_receive {
            self.shared -= 1;
        }
        let mut data = vec![0; record.length];
        UserMemory::lend_mut(&mut data, |to| self.endpoint.request_payload(&record, 0, to));
        match request {
            Request::Send { flags, .. } => {
                assert_eq!(self.message.is_none(), flags & FIRST != 0);
                let mut message = self.message.take().unwrap_or_default();
                message.extend(data);
                if flags & LAST == 0 {
                    self.message = Some(message);
                } else {
                    let Some(Asked::Message(all)) = asked.pop_front() else { panic!("a SEND") };
                    assert!(all == message, "a SEND of something else");
                }
            }
            Request::WriteFirst { flags, address, rkey, immediate, total } => {
                assert!(rkey == KEY && self.write.is_none());
                self.write = Some((address, total));
                self.place(&data, flags, immediate, asked);
            }
            Request::WriteMore { flags, immediate } => self.place(&data, flags, immediate, asked),
            Request::Read { address, length, .. } | Request::ReadAgain { address, length, .. } => {
                self.due.push_back(Due::Data { address, left: length });
            }
            Request::FetchAdd { address, add, .. } => {
                let value = &mut self.counters[((address - COUNTERS) / 8) as usize];
                self.due.push_back(Due::Number(*value));
                *value = value.wrapping_add(add);
            }
            Request::CompareSwap { address, compare, swap, .. } => {
                let value = &mut self.counters[((address - COUNTERS) / 8) as usize];
                self.due.push_back(Due::Number(*value));
                if *value == compare {
                    *value = swap;
                }
            }
            Request::AtomicWrite { address, value, .. } => {
                self.counters[((address - COUNTERS) / 8) as usize] = u64::from_ne_bytes(value);
                self.due.push_back(Due::Number(0));
            }
            Request::Flush { .. } => self.due.push_back(Due::Number(0)),
            other => panic!("{other:?}"),
        }
        self.endpoint.pass_request(&record);
        true
    }

    fn place(&mut self, data: &[u8], flags: u32, immediate: u32, asked: &mut VecDeque<Asked>) {
        let (address, left) = self.write.take().expect("a WRITE under way");
        let at = (address - WRITABLE) as usize;
        self.written[at..at + data.len()].copy_from_slice(data);
        let left = left.checked_sub(data.len() as u64).expect("too long");
        assert_eq!(left == 0, flags & LAST != 0);
        if left > 0 {
            self.write = Some((address + data.len() as u64, left));
        }
        if flags & IMMEDIATE != 0 {
            let Some(Asked::Immediate(number)) = asked.pop_front() else { panic!("a number") };
            assert_eq!(number, immediate);
        }
    }

    /// Answers as far as there is room. True: something was.
    fn answer(&mut self) -> bool {
        let mut news = false;
        while let Some(due) = self.due.front_mut() {
            let (response, data) = match due {
                Due::Number(original) => {
                    (Response::AtomicResult { original: *original }, Vec::new())
                }
                Due::Data { address, left } => {
                    let count = (*left).min(700);
                    let data = (*address..*address + count).map(readable).collect();
                    (Response::ReadData { last: count == *left }, data)
                }
            };
            let sent = UserMemory::lend(&data, |data| self.endpoint.send_response(&response, data));
            if !sent.unwrap() {
                break;
            }
            news = true;
            match due {
                Due::Data { address, left } if data.len() as u64 != *left => {
                    *address += data.len() as u64;
                    *left -= data.len() as u64;
                }
                _ => drop(self.due.pop_front()),
            }
        }
        news
    }

    /// Takes answers to its own requests. True: there were some.
    pub(super) fn hear(&mut self, random: &mut Random) -> bool {
        let mut news = false;
        if self.behaviour.is_slow && random.below(20) > 0 {
            return false;
        }
        while self.pause == 0
            && let Some((response, record)) = self.endpoint.next_response().unwrap()
        {
            news = true;
            let mut data = vec![0; record.length];
            UserMemory::lend_mut(&mut data, |to| self.endpoint.response_payload(&record, 0, to));
            match (response, self.awaited.front_mut().expect("an answer is awaited")) {
                (Response::ReadData { last }, Awaited::Data { all, got }) => {
                    got.extend(data);
                    if last {
                        assert!(all == got, "a READ of something else");
                        self.awaited.pop_front();
                    }
                }
                (Response::AtomicResult { original }, Awaited::Number(number)) => {
                    assert_eq!(original, *number, "an atomic twice, or never, or out of order");
                    self.awaited.pop_front();
                }
                (other, _) => panic!("{other:?}"),
            }
            self.endpoint.pass_response(&record);
        }
        news
    }

    /// The peer has what this one has written.
    pub(super) fn compare(&self, peer: &Application) {
        assert!(self.model == peer.written, "the memory holds something else");
        assert_eq!(self.model_counters, peer.counters);
    }
}

/// A message in records: flags, and data of whole packets but for the last.
fn pieces(data: &[u8], random: &mut Random) -> Vec<(u32, Vec<u8>)> {
    let mut list = Vec::new();
    let mut rest = data;
    while random.below(2) == 0 {
        let count = (MTU * random.between(1, 4)) as usize;
        if count >= rest.len() {
            break;
        }
        let (piece, more) = rest.split_at(count);
        list.push((0, piece.to_vec()));
        rest = more;
    }
    list.push((LAST, rest.to_vec()));
    list[0].0 |= FIRST;
    list
}
