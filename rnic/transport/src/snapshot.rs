//! Describes one end of a connection so that another [`crate::Connection`] can go on with it, in
//! another process.
//!
//! Out of [`crate::Connection::snapshot`]. The new end need not believe it: every value is checked,
//! and with values that pass a connection may send its own peer wrong packets, and does no other
//! harm. Times, round trips and windows begin anew.

use omniverb_terms::{Psn, Rkey};

pub use crate::requester::OpenMessage;
use crate::upper_layer::Ticket;

/// PSNs that a snapshot may speak of, before or behind the one it begins with: half of all there
/// are, since others are ambiguous (9.7.1).
pub(crate) const PSNS_MAX: u64 = 1 << 23;

/// A state that no connection is ever in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no connection is ever in such a state")]
pub struct SnapshotError;

/// The state of both halves of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSnapshot {
    /// What the peer sent.
    pub responder: ResponderSnapshot,
    /// What was sent to it.
    pub requester: RequesterSnapshot,
}

/// The sending half. Packets are counted from the first one of the oldest request that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequesterSnapshot {
    /// The PSN of that packet; of the next request, if all are over.
    pub first: Psn,
    /// Packets of that request that are over: acknowledged, and their answers taken.
    pub acknowledged: u32,
    /// Packets that were sent.
    pub sent: u32,
    /// The message that the oldest request goes on with.
    pub open: Option<OpenMessage>,
    /// What was asked for and is not answered completely, oldest first. A READ must not be asked
    /// for in other parts than before (9.4.4).
    pub extents: Vec<SentExtent>,
}

/// A READ request, or the like, that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentExtent {
    /// Its first packet.
    pub first: u32,
    /// PSNs that it takes.
    pub count: u32,
}

/// The receiving half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponderSnapshot {
    /// The PSN that is expected.
    pub expected: Psn,
    /// Messages completed: 24 bits (9.7.7.1).
    pub messages: u32,
    /// The message that has begun and not ended.
    pub message: Option<IncomingMessage>,
    /// The requester has named what is left of a WRITE.
    pub has_named: bool,
    /// Packets that the layer above has been given and that are not acknowledged, oldest first, up
    /// to the one that is expected.
    pub unanswered: Vec<UnansweredPart>,
    /// READs and the like that may be asked for again, oldest first.
    pub remembered: Vec<RememberedSnapshot>,
}

/// A message in the middle of which the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as in `Kind`; `offset`: bytes of it that have come
pub enum IncomingMessage {
    Send { offset: u64 },
    Write { address: u64, key: Rkey, total: u64, offset: u64 },
}

/// A packet that is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredPart {
    /// It was handed over under this one. The new end hands out higher ones than all of these.
    pub ticket: Ticket,
    /// It is where it belongs, and only one before it is not.
    pub is_done: bool,
    /// The requester asked for an acknowledgement.
    pub is_ack_requested: bool,
    /// A message ends with it.
    pub is_end_of_message: bool,
}

/// Something that may be asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedSnapshot {
    /// PSNs from its first one to the one that is expected.
    pub back: u32,
    /// What its repetition is answered with.
    pub answer: RememberedAnswer,
}

/// How a repeated READ or atomic is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as in `ReadRequest`
pub enum RememberedAnswer {
    /// The bytes, as they are then.
    Read { address: u64, key: Rkey, length: u64 },
    /// What the atomic found.
    Found(u64),
    /// That it is done: an ATOMIC WRITE or a FLUSH.
    Done,
}
