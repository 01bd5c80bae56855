//! Writes what a process does on direct links into a ring that the daemon reads, while packets are
//! captured.
//!
//! ```text
//! memory := page of words | ring of TRACE_RING_BYTES
//! record := seven extra words | the payload, as far as it is kept
//! words  := time | qpn:24, peer_qpn:24, path_mtu:8, code:8 | psn:24, messages:24, keep:16
//!           | address | key:32, immediate:32 | first | second
//! ```
//!
//! A message longer than [`PIECE`] is told in pieces of that length. Of each packet's payload at
//! most `keep` bytes come along: the daemon says how many it wants. What does not fit is lost and
//! counted; the process never waits. The reader believes nothing: it knows the packets' queue pairs
//! from its own tables, and everything else is checked where packets are made of it.

use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Broken, Consumer, Producer, Record, UserMemory, Window, WordMemory};
use omniverb_terms::{Psn, Qkey, Qpn, Rkey};
use std::sync::{Mutex, PoisonError};

/// Bytes of the ring: tens of milliseconds of what one process can do.
pub const TRACE_RING_BYTES: usize = 8 << 20;
/// Bytes of the memory as a whole.
pub const TRACE_BYTES: usize = PAGE + TRACE_RING_BYTES;
/// Message bytes of one record; a multiple of every path MTU.
pub const PIECE: u64 = 16 << 10;
/// Most payload bytes of a packet.
pub const KEEP_MAX: usize = 4096;

const PAGE: usize = 4096;
/// How far the daemon has read.
const CONSUMED: usize = 0x00;
/// Payload bytes of each packet that the daemon wants.
const KEEP: usize = 0x40;
/// Packets that the process could not tell of.
const LOST: usize = 0x80;

const WORDS: usize = 7;
const NUMBER: u64 = 0xff_ffff;
const KIND: u32 = 0xff;

/// Flag: the requester knew at once that the request had succeeded.
pub const ACKNOWLEDGED: u32 = 1 << 14;
/// Flag: the peer had no receive for it; it will be tried again.
pub const NOT_READY: u32 = 1 << 15;

/// What a record is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // named as the operations are
pub enum Kind {
    #[default]
    Send = 1,
    Write = 2,
    Read = 3,
    CompareSwap = 4,
    FetchAdd = 5,
    Datagram = 6,
    AtomicWrite = 7,
    /// `immediate` is placement, and selectivity above it by 8 bits.
    Flush = 8,
    /// The peer has taken a request.
    Acknowledge = 16,
    /// It has answered a READ, or what is answered like one.
    ReadData = 17,
    /// It has answered an atomic.
    AtomicResult = 18,
    /// It has refused a request; `code` is a [`crate::Nak`].
    Refusal = 19,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::Send,
        Kind::Write,
        Kind::Read,
        Kind::CompareSwap,
        Kind::FetchAdd,
        Kind::Datagram,
        Kind::AtomicWrite,
        Kind::Flush,
        Kind::Acknowledge,
        Kind::ReadData,
        Kind::AtomicResult,
        Kind::Refusal,
    ];

    /// Whether payload belongs to it.
    pub fn has_payload(self) -> bool {
        use Kind::{AtomicWrite, Datagram, ReadData, Send, Write};
        matches!(self, Send | Write | Datagram | ReadData | AtomicWrite)
    }
}

/// What an operation is allowed by at the peer. The kind says which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// That of the region that a one-sided request names; zero if it names none.
    Remote(Rkey),
    /// That of the queue pair that a datagram is for.
    Queue(Qkey),
}

impl Default for Key {
    fn default() -> Key {
        Key::Remote(Rkey(0))
    }
}

impl Key {
    fn number(self) -> u32 {
        match self {
            Key::Remote(Rkey(number)) | Key::Queue(Qkey(number)) => number,
        }
    }

    fn new(kind: Kind, number: u32) -> Key {
        match kind {
            Kind::Datagram => Key::Queue(Qkey(number)),
            _ => Key::Remote(Rkey(number)),
        }
    }
}

/// What a process says of one operation, or of a piece of a long one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// What it is about.
    pub kind: Kind,
    /// `SOLICITED`, `IMMEDIATE`, `INVALIDATE` of [`crate::record`], and those above.
    pub flags: u32,
    /// When it happened, in monotonic nanoseconds.
    pub time: u64,
    /// The requester's queue pair; 24 bits.
    pub qpn: Qpn,
    /// Its peer; 24 bits.
    pub peer_qpn: Qpn,
    /// `enum ibv_mtu`.
    pub path_mtu: u8,
    /// Why a request was refused, or the code of the time to wait for a receive.
    pub code: u8,
    /// Of the request's first packet; of an acknowledgement, of what it acknowledges.
    pub psn: Psn,
    /// Requests up to this one; 24 bits.
    pub messages: u32,
    /// Bytes kept of each packet's payload.
    pub keep: u16,
    /// Target of a one-sided request.
    pub address: u64,
    /// R_Key of the target; of a datagram the Q_Key.
    pub key: Key,
    /// Immediate data, or the key to invalidate; of a FLUSH how it is to be done.
    pub immediate: u32,
    /// Length of the message; of an atomic what to compare or to add; or its result.
    pub first: u64,
    /// Where in the message this piece begins; of an atomic what to swap in.
    pub second: u64,
}

impl Trace {
    fn encode(&self) -> (u32, [u64; WORDS]) {
        let number = |number: u32| u64::from(number) & NUMBER;
        let qps = number(self.qpn.0)
            | number(self.peer_qpn.0) << 24
            | u64::from(self.path_mtu) << 48
            | u64::from(self.code) << 56;
        let position =
            number(self.psn.number()) | number(self.messages) << 24 | u64::from(self.keep) << 48;
        let keys = u64::from(self.key.number()) | u64::from(self.immediate) << 32;
        let words = [self.time, qps, position, self.address, keys, self.first, self.second];
        (self.kind as u32 | self.flags & !KIND, words)
    }

    fn decode(tag: u32, words: [u64; WORDS]) -> Option<Trace> {
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == tag & KIND)?;
        let [time, qps, position, address, keys, first, second] = words;
        let number = |word: u64| (word & NUMBER) as u32;
        Some(Trace {
            kind,
            flags: tag & !KIND,
            time,
            qpn: Qpn(number(qps)),
            peer_qpn: Qpn(number(qps >> 24)),
            path_mtu: (qps >> 48) as u8,
            code: (qps >> 56) as u8,
            psn: Psn::new(position as u32),
            messages: number(position >> 24),
            keep: (position >> 48) as u16,
            address,
            key: Key::new(kind, keys as u32),
            immediate: (keys >> 32) as u32,
            first,
            second,
        })
    }

    /// Bytes of a packet's payload at most; `None` if `path_mtu` is none.
    pub fn mtu_bytes(&self) -> Option<u64> {
        (1..=5).contains(&self.path_mtu).then(|| 128 << self.path_mtu)
    }
}

/// The process's end.
pub struct Tracer {
    words: Window,
    out: Mutex<Producer<Window>>,
}

impl Tracer {
    /// Over [`TRACE_BYTES`] of zeroed memory. `None`: it is shorter.
    pub fn new(memory: &Window) -> Option<Tracer> {
        let (words, ring) = parts(memory)?;
        let out = Mutex::new(Producer::new(ring, words.clone(), CONSUMED));
        Some(Tracer { words, out })
    }

    /// Payload bytes of each packet that are wanted.
    pub fn keep(&self) -> u16 {
        self.words.load(KEEP, Ordering::Relaxed).min(KEEP_MAX as u64) as u16
    }

    /// Writes a trace, with `length` bytes of payload in `parts`. False: there is no room.
    pub fn record(&self, trace: &Trace, length: usize, parts: &[UserMemory]) -> bool {
        let (tag, words) = trace.encode();
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(Some(at)) = out.reserve(WORDS, length) else { return false };
        for (index, word) in words.into_iter().enumerate() {
            out.extra(at, index, word);
        }
        let mut offset = 0;
        for part in parts {
            let part = part.first(length - offset);
            out.payload(at, WORDS, offset, part);
            offset += part.len();
        }
        out.publish(at, tag, WORDS, length);
        true
    }

    /// So many packets could not be told of.
    pub fn lose(&self, packets: u64) {
        self.words.word(LOST).fetch_add(packets, Ordering::Relaxed);
    }
}

/// The daemon's end.
pub struct TraceReader {
    words: Window,
    consumer: Consumer<Window>,
    /// Payload of the record that was read last.
    payload: Vec<u8>,
}

impl TraceReader {
    /// Over the same memory. `None`: it is shorter than [`TRACE_BYTES`].
    pub fn new(memory: &Window) -> Option<TraceReader> {
        let (words, ring) = parts(memory)?;
        let consumer = Consumer::new(ring, words.clone(), CONSUMED);
        Some(TraceReader { words, consumer, payload: Vec::new() })
    }

    /// Says how much of each packet's payload is wanted.
    pub fn want(&self, keep: usize) {
        self.words.store(KEEP, keep.min(KEEP_MAX) as u64, Ordering::Relaxed);
    }

    /// Packets that the process says it could not tell of.
    pub fn lost(&self) -> u64 {
        self.words.load(LOST, Ordering::Relaxed)
    }

    /// The next record and its payload. What is in the ring but is no record breaks it.
    pub fn take(&mut self) -> Result<Option<(Trace, &[u8])>, Broken> {
        let Some(record) = self.consumer.head()? else { return Ok(None) };
        let Record { tag, extra, length, .. } = record;
        if extra != WORDS || length as u64 > PIECE {
            return Err(Broken);
        }
        let words = std::array::from_fn(|index| self.consumer.extra(&record, index));
        let trace = Trace::decode(tag, words).ok_or(Broken)?;
        self.payload.resize(length, 0);
        let consumer = &self.consumer;
        UserMemory::lend_mut(&mut self.payload, |target| consumer.payload(&record, 0, target));
        self.consumer.pass(&record);
        Ok(Some((trace, &self.payload)))
    }

    /// Gives the room of what was read back.
    pub fn publish(&mut self) {
        self.consumer.publish();
    }
}

fn parts(memory: &Window) -> Option<(Window, Window)> {
    Some((memory.part(0, PAGE)?, memory.part(PAGE, TRACE_RING_BYTES)?))
}
