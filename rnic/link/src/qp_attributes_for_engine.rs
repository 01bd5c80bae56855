//! Publishes attributes of a side's queue pair for the engine, which speaks for it on a network.
//!
//! Three words in the side's own page. A peer that is itself a queue pair needs none of them; the
//! engine turns them into packet sequence numbers, timers and header fields. Whatever they say
//! concerns the packets of that queue pair only, so the reader checks nothing but their range.
//!
//! ```text
//! RECEIVING    := valid:1 | 0:15 | max_dest_rd_atomic:8 | min_rnr_timer:8 | path_mtu:8 | rq_psn:24
//! SENDING      := valid:1 | 0:7 | max_rd_atomic:8 | rnr_retry:8 | retry_count:8 | timeout:8
//!                 | sq_psn:24
//! GLOBAL_ROUTE := valid:1 | 0:23 | hop_limit:8 | traffic_class:8 | 0:4 | flow_label:20
//! ```

use crate::endpoint::Endpoint;
use crate::layout::word;
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_terms::Psn;

/// Marks a word as set.
const VALID: u64 = 1 << 63;
/// Bits of a flow label.
const FLOW_LABEL: u64 = 0xf_ffff;

/// Attributes of the receiving half. Known when the queue pair is ready to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveAttributes {
    /// The packet sequence number that is expected first.
    pub rq_psn: Psn,
    /// `enum ibv_mtu`: 1 (256 bytes) to 5 (4096 bytes).
    pub path_mtu: u8,
    /// Code of the time that a requester is asked to wait for a receive; 5 bits.
    pub min_rnr_timer: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
}

/// Attributes of the sending half. Known when the queue pair is ready to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendAttributes {
    /// The packet sequence number to begin with.
    pub sq_psn: Psn,
    /// Code of the time to wait for an acknowledgement; 5 bits, 0: for ever.
    pub timeout: u8,
    /// How often to try again; 3 bits.
    pub retry_count: u8,
    /// How often to try again when the peer lacks a receive; 3 bits, 7: for ever.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding.
    pub max_rd_atomic: u8,
}

/// What the application's address vector says of the header by which packets travel (the fields of
/// `struct ibv_global_route` that an IP header has).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit as the application gave it. Many give 0 or 1 and mean nothing by it.
    pub hop_limit: u8,
    /// Flow label; 20 bits.
    pub flow_label: u32,
}

/// Byte `shift / 8` of a word.
const fn byte(word: u64, shift: u32) -> u8 {
    (word >> shift) as u8
}

impl ReceiveAttributes {
    /// As a word.
    pub fn encode(&self) -> u64 {
        VALID
            | u64::from(self.rq_psn.number())
            | u64::from(self.path_mtu) << 24
            | u64::from(self.min_rnr_timer) << 32
            | u64::from(self.max_dest_rd_atomic) << 40
    }

    /// From a word; `None` if it is not set, or is no such word.
    pub fn decode(word: u64) -> Option<Self> {
        let it = Self {
            rq_psn: Psn::new(word as u32),
            path_mtu: byte(word, 24),
            min_rnr_timer: byte(word, 32),
            max_dest_rd_atomic: byte(word, 40),
        };
        let sane = it.encode() == word && (1..=5).contains(&it.path_mtu) && it.min_rnr_timer < 32;
        sane.then_some(it)
    }
}

impl SendAttributes {
    /// As a word.
    pub fn encode(&self) -> u64 {
        VALID
            | u64::from(self.sq_psn.number())
            | u64::from(self.timeout) << 24
            | u64::from(self.retry_count) << 32
            | u64::from(self.rnr_retry) << 40
            | u64::from(self.max_rd_atomic) << 48
    }

    /// From a word; `None` if it is not set, or is no such word.
    pub fn decode(word: u64) -> Option<Self> {
        let it = Self {
            sq_psn: Psn::new(word as u32),
            timeout: byte(word, 24),
            retry_count: byte(word, 32),
            rnr_retry: byte(word, 40),
            max_rd_atomic: byte(word, 48),
        };
        let sane = it.encode() == word && it.timeout < 32 && it.retry_count < 8 && it.rnr_retry < 8;
        sane.then_some(it)
    }
}

impl GlobalRoute {
    /// As a word.
    pub fn encode(&self) -> u64 {
        VALID
            | u64::from(self.flow_label) & FLOW_LABEL
            | u64::from(self.traffic_class) << 24
            | u64::from(self.hop_limit) << 32
    }

    /// From a word; `None` if it is not set, or is no such word.
    pub fn decode(word: u64) -> Option<Self> {
        let it = Self {
            traffic_class: byte(word, 24),
            hop_limit: byte(word, 32),
            flow_label: (word & FLOW_LABEL) as u32,
        };
        (it.encode() == word).then_some(it)
    }
}

impl Endpoint {
    /// Publishes our receiving half's attributes; before [`Endpoint::open`].
    pub fn publish_receiving(&mut self, receiving: &ReceiveAttributes) {
        self.publish(word::RECEIVING, receiving.encode());
    }

    /// Publishes our sending half's attributes; before the first request.
    pub fn publish_sending(&mut self, sending: &SendAttributes) {
        self.publish(word::SENDING, sending.encode());
    }

    /// Publishes how packets are to travel; before [`Endpoint::open`].
    pub fn publish_global_route(&mut self, route: &GlobalRoute) {
        self.publish(word::GLOBAL_ROUTE, route.encode());
    }

    /// The peer's receiving half, if it is known.
    pub fn peer_receiving(&self) -> Option<ReceiveAttributes> {
        ReceiveAttributes::decode(self.theirs.load(word::RECEIVING, Ordering::Acquire))
    }

    /// The peer's sending half, if it is known.
    pub fn peer_sending(&self) -> Option<SendAttributes> {
        SendAttributes::decode(self.theirs.load(word::SENDING, Ordering::Acquire))
    }

    /// How the peer wants packets to travel, if it is known.
    pub fn peer_global_route(&self) -> Option<GlobalRoute> {
        GlobalRoute::decode(self.theirs.load(word::GLOBAL_ROUTE, Ordering::Acquire))
    }

    fn publish(&mut self, word: usize, value: u64) {
        self.ours.store(word, value, Ordering::Release);
        self.notify_blocked();
    }
}
