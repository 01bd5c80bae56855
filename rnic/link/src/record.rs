//! Tags and extra words of every record that travels in a link.
//!
//! Large messages travel as several records; the first carries what the RETH carries on the wire,
//! total length included, so that an access that leaves the MR by one byte is refused before the
//! first byte is placed.

use omniverb_ring::{Consumer, Record, WordMemory};
use omniverb_terms::{Operations, Placement, Qkey, Qpn, Refusal, Rkey, Selectivity};

/// The low bits of a tag: what the record is.
pub(crate) const OPERATION: u32 = 0xff;
pub(crate) const SEND: u32 = 1;
pub(crate) const WRITE_FIRST: u32 = 2;
pub(crate) const WRITE_MORE: u32 = 3;
const READ: u32 = 4;
const COMPARE_SWAP: u32 = 5;
const FETCH_ADD: u32 = 6;
const DATAGRAM: u32 = 7;
const FOR_SRQ: u32 = 8;
const ATOMIC_WRITE: u32 = 9;
const FLUSH: u32 = 10;
const GROUPED: u32 = 11;
const READ_DATA: u32 = 32;
const ATOMIC_RESULT: u32 = 33;
const NAK: u32 = 34;
const GONE: u32 = 35;

/// Flag: the last record of its message.
pub const LAST: u32 = 1 << 8;
/// Flag: the message solicits an event.
pub const SOLICITED: u32 = 1 << 9;
/// Flag: immediate data comes along.
pub const IMMEDIATE: u32 = 1 << 10;
/// Flag: an R_Key to invalidate comes along.
pub const INVALIDATE: u32 = 1 << 11;
/// Flag: the first record of its message.
pub const FIRST: u32 = 1 << 12;
/// Flag: the requester already placed the data through a mapping; no payload comes along.
pub const PLACED: u32 = 1 << 13;
/// Flag: the payload is not in the ring; see [`crate::payload_source`].
pub const SOURCE: u32 = 1 << 14;
/// Flag of a READ: it was answered before. A peer that does not know the flag answers it like any
/// other.
const AGAIN: u32 = 1 << 15;

/// Why a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A responder refuses it.
    Refused(Refusal),
    /// The peer was silent for as long as the retries last. This and what follows comes from a far
    /// end that speaks for a peer on a network: it gives up what a requester by itself would have
    /// given up.
    RetryExceeded,
    /// The peer lacked a receive for as long as the retries last.
    RnrRetryExceeded,
    /// The peer answered what no peer answers.
    BadResponse,
    /// Given up without a fault of the request.
    Flushed,
}

impl Nak {
    /// As a word: that of a refusal is its code in a syndrome.
    pub const fn encode(self) -> u64 {
        match self {
            Nak::Refused(refusal) => refusal.code() as u64,
            Nak::RetryExceeded => 4,
            Nak::RnrRetryExceeded => 5,
            Nak::BadResponse => 6,
            Nak::Flushed => 7,
        }
    }

    /// From a word.
    pub fn decode(word: u64) -> Option<Nak> {
        Some(match word {
            4 => Nak::RetryExceeded,
            5 => Nak::RnrRetryExceeded,
            6 => Nak::BadResponse,
            7 => Nak::Flushed,
            _ => Nak::Refused(Refusal::from_code(u8::try_from(word).ok()?)?),
        })
    }
}

/// A request as the responder sees it. Payload stays in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // fields are named as in the BTH extension headers
pub enum Request {
    /// Part of a SEND.
    Send { flags: u32, immediate: u32 },
    /// First part of a WRITE of `total` bytes.
    WriteFirst { flags: u32, address: u64, rkey: Rkey, immediate: u32, total: u64 },
    /// Another part of it.
    WriteMore { flags: u32, immediate: u32 },
    /// READ of `length` bytes.
    Read { address: u64, rkey: Rkey, length: u64 },
    /// A READ that was answered before, or the rest of one: the answer was lost, or a packet came
    /// twice. Its key may have gone meanwhile. Only an engine sends it.
    ReadAgain { address: u64, rkey: Rkey, length: u64 },
    /// Atomic compare and swap.
    CompareSwap { address: u64, rkey: Rkey, compare: u64, swap: u64 },
    /// Atomic fetch and add.
    FetchAdd { address: u64, rkey: Rkey, add: u64 },
    /// Atomic WRITE of eight bytes, as they are to be in memory.
    AtomicWrite { address: u64, rkey: Rkey, value: [u8; 8] },
    /// What came before is to be visible, or kept.
    Flush { address: u64, rkey: Rkey, length: u64, placement: Placement, selectivity: Selectivity },
    /// A whole UD message.
    Datagram { flags: u32, immediate: u32, qkey: Qkey },
    /// XRC: what follows is for the shared receive queue of this number, until another is named
    /// (XRCETH, annex A14).
    ForSrq { number: u32 },
    /// A whole UD message to a group, behind the forty bytes that name its sender (A17.4.5.2). Only
    /// an engine sends it.
    Grouped { flags: u32, immediate: u32, qkey: Qkey, source: Qpn },
}

impl Request {
    /// The operation that it is, as rules name it.
    #[must_use]
    pub fn operation(&self) -> Operations {
        match self {
            Request::Send { .. } => Operations::SEND,
            Request::WriteFirst { .. }
            | Request::WriteMore { .. }
            | Request::AtomicWrite { .. }
            | Request::Flush { .. } => Operations::WRITE,
            Request::Read { .. } | Request::ReadAgain { .. } => Operations::READ,
            Request::CompareSwap { .. } | Request::FetchAdd { .. } => Operations::ATOMIC,
            Request::Datagram { .. } | Request::Grouped { .. } => Operations::DATAGRAM,
            Request::ForSrq { .. } => Operations::NONE,
        }
    }

    /// Tag and extra words to send this request with.
    #[inline(always)]
    pub fn encode(&self) -> (u32, [u64; 4], usize) {
        match *self {
            Request::Send { flags, immediate } => {
                let words = usize::from(flags & (IMMEDIATE | INVALIDATE) != 0);
                (SEND | flags, [u64::from(immediate), 0, 0, 0], words)
            }
            Request::WriteFirst { flags, address, rkey, immediate, total } => (
                WRITE_FIRST | flags,
                [address, u64::from(rkey.0) | u64::from(immediate) << 32, total, 0],
                3,
            ),
            Request::WriteMore { flags, immediate } => {
                (WRITE_MORE | flags, [u64::from(immediate), 0, 0, 0], 1)
            }
            Request::Read { address, rkey, length } => {
                (READ | LAST, [address, u64::from(rkey.0), length, 0], 3)
            }
            Request::ReadAgain { address, rkey, length } => {
                (READ | LAST | AGAIN, [address, u64::from(rkey.0), length, 0], 3)
            }
            Request::CompareSwap { address, rkey, compare, swap } => {
                (COMPARE_SWAP | LAST, [address, u64::from(rkey.0), compare, swap], 4)
            }
            Request::FetchAdd { address, rkey, add } => {
                (FETCH_ADD | LAST, [address, u64::from(rkey.0), add, 0], 3)
            }
            Request::AtomicWrite { address, rkey, value } => {
                let words = [address, u64::from(rkey.0), u64::from_ne_bytes(value), 0];
                (ATOMIC_WRITE | LAST, words, 3)
            }
            Request::Flush { address, rkey, length, placement, selectivity } => {
                let how = u64::from(placement.bits()) | u64::from(selectivity.code()) << 8;
                (FLUSH | LAST, [address, u64::from(rkey.0) | how << 32, length, 0], 3)
            }
            Request::Datagram { flags, immediate, qkey } => {
                (DATAGRAM | flags, [u64::from(qkey.0) | u64::from(immediate) << 32, 0, 0, 0], 1)
            }
            Request::ForSrq { number } => (FOR_SRQ | LAST, [u64::from(number), 0, 0, 0], 1),
            Request::Grouped { flags, immediate, qkey, source } => {
                let keys = u64::from(qkey.0) | u64::from(immediate) << 32;
                (GROUPED | flags, [keys, u64::from(source.0), 0, 0], 2)
            }
        }
    }

    /// Whether a tag is that of a SEND in one record, with nothing but data.
    #[inline(always)]
    pub fn is_plain_send(tag: u32) -> bool {
        tag & !SOLICITED == SEND | FIRST | LAST
    }

    /// Reads the request at the head. `None`: not a request.
    #[inline(always)]
    pub fn decode<M: WordMemory>(ring: &Consumer<M>, record: &Record) -> Option<Request> {
        let word = |i| ring.extra(record, i);
        let flags = record.tag & !OPERATION;
        if flags & SOURCE != 0 {
            return None; // only a far end reaches what is elsewhere
        }
        Some(match (record.tag & OPERATION, record.extra) {
            (SEND, extra @ (0 | 1)) => {
                let immediate = if extra == 1 { word(0) as u32 } else { 0 };
                // The extra word comes along exactly when a flag says so.
                if (extra == 1) != (flags & (IMMEDIATE | INVALIDATE) != 0) {
                    return None;
                }
                Request::Send { flags, immediate }
            }
            (WRITE_FIRST, 3) => {
                let key = word(1);
                Request::WriteFirst {
                    flags,
                    address: word(0),
                    rkey: Rkey(key as u32),
                    immediate: (key >> 32) as u32,
                    total: word(2),
                }
            }
            (WRITE_MORE, 1) => Request::WriteMore { flags, immediate: word(0) as u32 },
            (READ, 3) => {
                let (address, rkey, length) = (word(0), Rkey(word(1) as u32), word(2));
                match flags & AGAIN {
                    0 => Request::Read { address, rkey, length },
                    _ => Request::ReadAgain { address, rkey, length },
                }
            }
            (COMPARE_SWAP, 4) => Request::CompareSwap {
                address: word(0),
                rkey: Rkey(word(1) as u32),
                compare: word(2),
                swap: word(3),
            },
            (FETCH_ADD, 3) => {
                Request::FetchAdd { address: word(0), rkey: Rkey(word(1) as u32), add: word(2) }
            }
            (ATOMIC_WRITE, 3) => Request::AtomicWrite {
                address: word(0),
                rkey: Rkey(word(1) as u32),
                value: word(2).to_ne_bytes(),
            },
            (FLUSH, 3) => {
                let key = word(1);
                Request::Flush {
                    address: word(0),
                    rkey: Rkey(key as u32),
                    length: word(2),
                    placement: Placement::from_bits((key >> 32) as u8)?,
                    selectivity: Selectivity::from_code((key >> 40) as u8)?,
                }
            }
            (DATAGRAM, 1) => {
                let key = word(0);
                Request::Datagram { flags, immediate: (key >> 32) as u32, qkey: Qkey(key as u32) }
            }
            (FOR_SRQ, 1) => Request::ForSrq { number: word(0) as u32 },
            (GROUPED, 2) => {
                let (key, source) = (word(0), Qpn(word(1) as u32));
                let (immediate, qkey) = ((key >> 32) as u32, Qkey(key as u32));
                Request::Grouped { flags, immediate, qkey, source }
            }
            _ => return None,
        })
    }
}

/// A response as the requester sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Response {
    /// Part of what a READ asked for; the payload.
    ReadData { last: bool },
    /// What an atomic found; 0 of an atomic WRITE or a FLUSH, which find nothing.
    AtomicResult { original: u64 },
    /// The oldest request not consumed is refused; nothing after it will be looked at.
    Nak { code: Nak },
    /// To [`Request::ReadAgain`]: what was read is not there any more, and this is all there is to
    /// be said. Others go on.
    Gone,
}

impl Response {
    /// Tag and extra word to send this response with.
    pub fn encode(&self) -> (u32, u64, usize) {
        match *self {
            Response::ReadData { last } => (READ_DATA | if last { LAST } else { 0 }, 0, 0),
            Response::AtomicResult { original } => (ATOMIC_RESULT | LAST, original, 1),
            Response::Nak { code } => (NAK | LAST, code.encode(), 1),
            Response::Gone => (GONE | LAST, 0, 0),
        }
    }

    /// Reads the response at the head. `None`: not a response.
    pub fn decode<M: WordMemory>(ring: &Consumer<M>, record: &Record) -> Option<Response> {
        Some(match (record.tag & OPERATION, record.extra) {
            (READ_DATA, 0) => Response::ReadData { last: record.tag & LAST != 0 },
            (ATOMIC_RESULT, 1) => Response::AtomicResult { original: ring.extra(record, 0) },
            (NAK, 1) => Response::Nak { code: Nak::decode(ring.extra(record, 0))? },
            (GONE, 0) => Response::Gone,
            _ => return None,
        })
    }
}
