//! Lays out a link's memory.
//!
//! Each side has a page of words that it alone writes and the other reads. Words that change with
//! every message have a cache line of their own; words that hardly ever change share one, which
//! therefore stays in the reader's cache.

/// Bytes of one request ring of a direct link. Holds many records of a long message, so that both
/// ends copy at the same time; small enough for the second-level cache.
pub const REQUEST_BYTES: usize = 256 << 10;
/// Bytes of one response ring of a direct link.
pub const RESPONSE_BYTES: usize = 64 << 10;
/// Least bytes of a request ring: the longest datagram is one record.
pub const REQUEST_BYTES_MIN: usize = 32 << 10;
/// Least bytes of a response ring: several answers fit.
pub const RESPONSE_BYTES_MIN: usize = 4 << 10;

/// Offset of a side's words.
pub const fn side(side: usize) -> usize {
    side * 0x1000
}

const RINGS: usize = 0x2000;

/// Offset of the request ring that `side` sends on.
pub const fn request_ring(side: usize, request_bytes: usize) -> usize {
    RINGS + side * request_bytes
}

/// Offset of the response ring that `side` sends on.
pub const fn response_ring(side: usize, request_bytes: usize, response_bytes: usize) -> usize {
    RINGS + 2 * request_bytes + side * response_bytes
}

/// Bytes of a whole link.
pub const fn link_bytes(request_bytes: usize, response_bytes: usize) -> usize {
    RINGS + 2 * request_bytes + 2 * response_bytes
}

/// Words within a side's page.
pub mod word {
    /// Position up to which this side consumed the peer's requests.
    pub const REQUEST_CONSUMED: usize = 0x00;
    /// Receives this side ever posted (low 32 bits, wrapping) and the least capacity among them in
    /// bytes (high 32), or [`super::NO_CREDITS`].
    pub const CREDITS: usize = 0x40;
    /// Position up to which this side consumed the peer's responses.
    pub const RESPONSE_CONSUMED: usize = 0x80;
    /// 1: this side does not look at the link's rings by itself; set its ready bit.
    pub const WAKE: usize = 0xc0;
    /// Counts revocations of this side's MR grants: a change voids all of them.
    pub const EPOCH: usize = 0xc8;
    /// One of [`super::state`].
    pub const STATE: usize = 0xd0;
    /// This side's `min_rnr_timer` in nanoseconds.
    pub const RNR_TIMER: usize = 0xd8;
    /// 1: this side waits for consumption or credits; set its ready bit when there is news.
    pub const BLOCKED: usize = 0xe0;
    /// [`super::RNR_VALID`] and a position: the request at that position of the peer's ring waits
    /// for a receive to be posted.
    pub const RNR: usize = 0xe8;
    /// A [`crate::qp_attributes_for_engine::ReceiveAttributes`]: only a far end on a network reads
    /// it.
    pub const RECEIVING: usize = 0xf0;
    /// A [`crate::qp_attributes_for_engine::SendAttributes`]; likewise.
    pub const SENDING: usize = 0xf8;
    /// A [`crate::qp_attributes_for_engine::GlobalRoute`]; likewise.
    pub const GLOBAL_ROUTE: usize = 0x100;
    /// The number of the nap that this side takes; 0: none. See [`crate::poller_sleep`].
    pub const NAP: usize = 0x108;
    /// What it waits for: the peer has consumed up to this position.
    pub const NAP_UNTIL: usize = 0x110;
    /// The number of the last nap of the peer that this side ended; the peer sleeps on it.
    pub const WOKEN: usize = 0x118;
    /// Up to where this side wants the peer's records filled. See [`crate::payload_source`].
    pub const FILL: usize = 0x120;
    /// Up to where this side's records are filled.
    pub const FILLED: usize = 0x128;
    /// Four keys: of regions that this side sends from.
    pub const SOURCES_WANTED: usize = 0x140;
    /// Four keys, each with the peer's EPOCH: of its regions that this side has mapped.
    pub const SOURCES: usize = 0x160;
    /// 1: this side is at pages that the peer granted. See [`crate::granted_page_use`].
    pub const REACHING: usize = 0x180;
}

/// Credits word of a side whose receives cannot be promised to one link (SRQ, UD): senders
/// complete when their message was consumed.
pub const NO_CREDITS: u64 = u64::MAX;

/// Marks [`word::RNR`] as set.
pub const RNR_VALID: u64 = 1 << 63;

/// Values of [`word::STATE`].
pub mod state {
    /// Not attached yet.
    pub const NEW: u64 = 0;
    /// Attached: requests are received.
    pub const OPEN: u64 = 1;
    /// Will never receive again.
    pub const CLOSED: u64 = 2;
}
