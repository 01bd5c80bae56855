//! Defines requests of the layer above, and what becomes of them.

use omniverb_terms::{Placement, Refusal, Rkey, Selectivity};
use omniverb_wire::PacketPosition;

/// Names a request of the layer above; its choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND: into a receive of the peer's.
    Send {
        /// Immediate data for the peer's completion, in network order, with the last packet.
        immediate: Option<[u8; 4]>,
        /// R_Key that the responder shall invalidate.
        invalidate: Option<Rkey>,
        /// The peer's completion solicits an event (9.2.2); of a WRITE only with immediate data.
        solicited: bool,
    },
    /// RDMA WRITE: into memory of the peer's, which learns of it only if immediate data come along.
    Write {
        /// Virtual address at the responder, of the first byte of the whole message.
        address: u64,
        /// R_Key of the peer's region.
        key: Rkey,
        /// Bytes of the whole message, of which this may be a piece.
        total: u64,
        /// Immediate data for the peer's completion, in network order, with the last packet.
        immediate: Option<[u8; 4]>,
        /// The peer's completion solicits an event (9.2.2); of a WRITE only with immediate data.
        solicited: bool,
    },
    /// RDMA READ: what it brings goes to [`crate::UpperLayer::place`].
    Read {
        /// Virtual address at the responder, of the first byte of the whole message.
        address: u64,
        /// R_Key of the peer's region.
        key: Rkey,
    },
    /// Compare and swap.
    CompareSwap {
        /// Virtual address at the responder, of the first byte of the whole message.
        address: u64,
        /// R_Key of the peer's region.
        key: Rkey,
        /// The value it must have.
        compare: u64,
        /// The value it gets.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// Virtual address at the responder, of the first byte of the whole message.
        address: u64,
        /// R_Key of the peer's region.
        key: Rkey,
        /// What to add.
        add: u64,
    },
    /// A WRITE of eight bytes that nobody sees a part of (A19).
    AtomicWrite {
        /// Virtual address at the responder; a multiple of eight.
        address: u64,
        /// R_Key of the peer's region.
        key: Rkey,
        /// The bytes, as they are to be in memory.
        value: [u8; 8],
    },
    /// What was written before is to be visible, or kept (A19). The request has no length.
    Flush {
        /// Virtual address at the responder, of the first byte.
        address: u64,
        /// R_Key of the peer's region.
        key: Rkey,
        /// Bytes from there on.
        length: u32,
        /// How far it is to have got.
        placement: Placement,
        /// How much of the region.
        selectivity: Selectivity,
    },
}

impl Operation {
    /// Whether it is answered with more than an acknowledgement.
    pub(crate) fn has_response(&self) -> bool {
        !matches!(self, Operation::Send { .. } | Operation::Write { .. })
    }
}

/// A request. A SEND or WRITE may be submitted in several pieces, each with a name of its own, so
/// that the memory of the first can be released before the last is there.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What its [`Event`] will name it by.
    pub id: RequestId,
    /// What to do.
    pub operation: Operation,
    /// XRC: the number of the SRQ that it is for. Others leave it out.
    pub srq: u32,
    /// Bytes of this piece; of all but the last, a multiple of the path MTU. Eight of an atomic.
    pub length: u64,
    /// Where in its message this piece stands.
    pub place: PacketPosition,
    /// Wait until earlier READs and atomics are complete (10.8.3.3).
    pub is_fenced: bool,
}

/// Why a request is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Too many requests.
    #[error("too many requests under way")]
    Full,
    /// Too long, or a piece of an impossible length.
    #[error("impossible length")]
    Length,
    /// A piece where none belongs, or the operation is not one of this service.
    #[error("not a request of this service, or out of place")]
    Sequence,
    /// The connection failed.
    #[error("the connection failed")]
    Failed,
}

/// How a request ended; the names of the verbs' completion statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    Success,
    LocalProtection,
    Flushed,
    BadResponse,
    /// The responder will not.
    Refused(Refusal),
    RetryExceeded,
    RnrRetryExceeded,
}

/// What the layer above is to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request is over. They end in the order they were submitted in (9.5.1).
    Completed {
        /// The one that was submitted under this name.
        id: RequestId,
        /// Success, or why not; [`Status::Flushed`] if only one before it failed.
        status: Status,
        /// What an atomic that succeeded found; `None` of everything else.
        original: Option<u64>,
    },
    /// We refused a request of the peer: the QP is to go to the error state (9.9.3).
    Refused(Refusal),
    /// A request of ours failed: the QP is to go to the error state (9.9.2).
    Failed(Status),
}
