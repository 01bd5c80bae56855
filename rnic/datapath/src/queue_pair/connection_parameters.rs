//! Derives a connection's parameters from the application's QP and the kind of its peer.

use crate::peer_features;
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_terms::{Qpn, Service};
use omniverb_transport::{
    Acknowledgements, AddressedPackets, Config, DelayNotices, GoneReads,
    SendParameters as Requesting,
};

/// PSNs under way at most to plain RoCE; as many as Linux rxe has itself.
const WINDOW_ROCE: u64 = 128;
/// And between two Omniverbs.
const WINDOW_OMNIVERB: u64 = 1024;
/// Threads of a shared machine are late by milliseconds now and then; that is neither loss nor
/// congestion.
const LATE: u64 = 8_000_000;
/// How long a receive of another Omniverb's may be missing before RNR retries count: as long as on
/// a direct link. A process that only lost its processor is to lose no connection (0034).
const RECEIVER_LATE: u64 = 1_000_000_000;
/// Packets that one system call sends, where it is not fewer.
const TRAIN: u64 = 64;

/// The peer's use of an acknowledgement at the end of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trains {
    /// It takes it in before the rest of the train, so one may travel behind a request.
    AcknowledgementFirst,
    /// It takes in one packet after the other, or this is not known.
    OneByOne,
}

/// The attributes of a connection known before the application's QP is RTR.
pub(crate) struct Terms {
    pub peer_qpn: Qpn,
    pub service: Service,
    /// Bits of [`feature`] that the peer has.
    pub features: u32,
    pub trains: Trains,
    /// Bytes under way at most: half of the ring that they will end up in.
    pub window_bytes: u64,
}

impl Terms {
    /// All that the transport wants to know, from RTR on.
    pub fn config(&self, receiving: &ReceiveAttributes) -> Config {
        let window = if self.features == 0 { WINDOW_ROCE } else { WINDOW_OMNIVERB };
        let mut config = Config::new(self.peer_qpn);
        config.service = self.service;
        config.path_mtu = 128 << receiving.path_mtu.clamp(1, 5);
        config.rq_psn = receiving.rq_psn;
        config.min_rnr_timer = receiving.min_rnr_timer;
        config.max_dest_rd_atomic = usize::from(receiving.max_dest_rd_atomic);
        config.window = window.min(self.window_bytes / config.path_mtu as u64).max(4);
        // Also where the peer is not known: it may know us, and have so many under way.
        config.unanswered_max = config.unanswered_max.max(WINDOW_OMNIVERB as usize);
        config.window_floor = config.window / 2;
        config.early_timeout = LATE;
        config.delay_target = Some(LATE);
        if self.trains == Trains::AcknowledgementFirst {
            config.acknowledgements = Acknowledgements::Behind;
        }
        if self.features & peer_features::NAME_ALL != 0 {
            config.naming = AddressedPackets::Every;
        }
        if self.features & peer_features::DELAYS != 0 {
            config.delay_notices = DelayNotices::Agreed;
        }
        config.burst = TRAIN;
        if self.features != 0 {
            config.receiver_late = RECEIVER_LATE;
            config.ask_every = Some(config.window / 4);
            config.acknowledge_every = (config.window / 2) as u32;
            config.gone_reads = GoneReads::Refused;
        }
        config
    }
}

/// The attributes that the transport needs at RTS.
pub(crate) fn requesting(sending: &SendAttributes) -> Requesting {
    Requesting {
        sq_psn: sending.sq_psn,
        max_rd_atomic: usize::from(sending.max_rd_atomic.max(1)),
        timeout: sending.timeout,
        retry_count: sending.retry_count,
        rnr_retry: sending.rnr_retry,
    }
}
