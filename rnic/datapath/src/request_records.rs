//! Turns the peer's requests into records of a link, by which the application is asked.

use omniverb_link::Request;
use omniverb_link::record::{FIRST, IMMEDIATE, INVALIDATE, LAST, SOLICITED};
use omniverb_transport::{AtomicOperation, AtomicRequest, FlushRequest, Kind, Part, ReadRequest};

/// A part of a message as a record.
pub fn part(part: &Part<'_>) -> Request {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let flags = flag(part.place.ends(), LAST)
        | flag(part.is_solicited, SOLICITED)
        | flag(part.immediate.is_some(), IMMEDIATE);
    let immediate = part.immediate.map_or(0, u32::from_ne_bytes);
    match part.kind {
        Kind::Send => Request::Send {
            flags: flags
                | flag(part.place.begins(), FIRST)
                | flag(part.invalidate.is_some(), INVALIDATE),
            immediate: part.invalidate.map_or(immediate, |key| key.0),
        },
        Kind::Write { address, key, total } if part.place.begins() => {
            Request::WriteFirst { flags, address, rkey: key, immediate, total }
        }
        Kind::Write { .. } => Request::WriteMore { flags, immediate },
    }
}

/// A READ of the peer as a record.
pub fn read(request: &ReadRequest) -> Request {
    let (address, rkey, length) = (request.address, request.key, request.length);
    // A request that goes on to another process of an XRC domain has no mark for a repetition
    // there; which of XRC's do is not known here.
    match request.is_repeated && request.srq == 0 {
        true => Request::ReadAgain { address, rkey, length },
        false => Request::Read { address, rkey, length },
    }
}

/// An atomic of the peer as a record.
pub fn atomic(request: &AtomicRequest) -> Request {
    let (address, rkey) = (request.address, request.key);
    match request.operation {
        AtomicOperation::CompareSwap { compare, swap } => {
            Request::CompareSwap { address, rkey, compare, swap }
        }
        AtomicOperation::FetchAdd { add } => Request::FetchAdd { address, rkey, add },
        AtomicOperation::Write { value } => Request::AtomicWrite { address, rkey, value },
    }
}

/// A FLUSH of the peer as a record.
pub fn flush(request: &FlushRequest) -> Request {
    let FlushRequest { address, key: rkey, length, placement, selectivity } = *request;
    Request::Flush { address, rkey, length, placement, selectivity }
}
