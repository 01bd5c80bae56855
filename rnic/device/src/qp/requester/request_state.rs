//! Holds a work request on its way: what was asked for, how far it has got, and what it waits for.

use crate::receive_ring::SgeList;
use crate::send_work_request::{Data, DatagramAddress};
use crate::verbs_constants::{access, opcode};
use omniverb_terms::{Psn, Rkey};

/// Bytes that an atomic reads and writes, at both ends.
pub(super) const ATOMIC_BYTES: u64 = 8;

/// The numbers of a request that was traced, its answer not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceNumbers {
    pub(super) psn: Psn,
    /// Of its last packet.
    pub(super) last: Psn,
    pub(super) messages: u32,
}

/// A work request without its data.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestHeader {
    pub(super) wr_id: u64,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) immediate: u32,
    pub(super) address: u64,
    pub(super) rkey: Rkey,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    /// XRC: the SRQ it is for.
    pub(super) srq: u32,
    pub(super) to: Option<DatagramAddress>,
    /// Bytes in all.
    pub(super) length: u64,
    /// Bytes handed to the link, or for a READ received.
    pub(super) done: u64,
    /// Something of it is in the link already.
    pub(super) has_begun: bool,
    /// The receive it goes into is promised.
    pub(super) is_promised: bool,
    /// Number in the send queue: one more than sends posted before it.
    pub(super) position: u64,
    /// It was traced, and the answer was not yet.
    pub(super) traced: Option<TraceNumbers>,
    /// That the peer had no receive for it was traced.
    pub(super) has_traced_wait: bool,
}

/// Data of a queued work request.
pub(crate) enum KeptData {
    Gather(SgeList),
    Bytes(Box<[u8]>),
}

/// A work request that did not finish when it was posted.
#[derive(Default)]
pub(crate) struct SendEntry {
    pub(in crate::qp) order: RequestHeader,
    pub(super) data: KeptData,
    pub(super) finish: CompletionCondition,
}

impl Default for KeptData {
    fn default() -> Self {
        KeptData::Gather(SgeList::default())
    }
}

/// When a started request is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CompletionCondition {
    /// It is complete.
    #[default]
    Done,
    /// When the peer consumed our requests on link `.0` up to `.1`.
    Consumed(usize, u64),
    /// When the answer is complete.
    Response,
}

/// What came of trying a request.
pub(crate) enum TryOutcome {
    /// It is on its way (or done).
    Started(CompletionCondition),
    /// It has to wait, and is to be tried again.
    Wait(WaitReason),
    /// It fails with this completion status.
    Fail(u32),
}

/// Why a request cannot go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// The ring is full.
    Room,
    /// The peer has no receive.
    Receive,
    /// There is no peer (yet, or any more).
    Peer,
    /// The datagram link is being made.
    Link,
    /// Earlier requests must finish first.
    Order,
}

/// What becomes of a request that waited too long.
pub(crate) enum TimeoutOutcome {
    /// An unreliable message is lost: it completes.
    Drop,
    /// It fails with this status.
    Fail(u32),
}

impl RequestHeader {
    #[inline(always)]
    pub(super) fn needs_answer(&self) -> bool {
        self.brings_back() || matches!(self.opcode, opcode::ATOMIC_WRITE | opcode::FLUSH)
    }

    /// Whether something comes back that goes into our memory.
    #[inline(always)]
    pub(super) fn brings_back(&self) -> bool {
        matches!(
            self.opcode,
            opcode::RDMA_READ | opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD
        )
    }

    /// Whether the peer has no part in it.
    #[inline(always)]
    pub(super) fn is_local(&self) -> bool {
        matches!(self.opcode, opcode::BIND_MW | opcode::LOCAL_INV)
    }

    /// Whether what comes back is what an atomic found.
    pub(super) fn is_atomic(&self) -> bool {
        self.brings_back() && self.opcode != opcode::RDMA_READ
    }

    /// Whether it must be as long as an atomic is.
    #[inline(always)]
    pub(super) fn is_eight_long(&self) -> bool {
        self.is_atomic() || self.opcode == opcode::ATOMIC_WRITE
    }
}

#[inline(always)]
pub(super) fn local_access(order: &RequestHeader) -> u32 {
    if order.brings_back() { access::LOCAL_WRITE } else { 0 }
}

/// Keeps what a queued request needs later; inline data is copied now.
pub(super) fn keep(data: &Data<'_>, order: &RequestHeader) -> KeptData {
    match data {
        Data::Gather(list) => KeptData::Gather(SgeList::new(list)),
        Data::Inline(parts) => {
            let mut bytes = vec![0; order.length as usize];
            let mut at = 0;
            for part in *parts {
                part.read(&mut bytes[at..at + part.len()]);
                at += part.len();
            }
            KeptData::Bytes(bytes.into())
        }
    }
}
