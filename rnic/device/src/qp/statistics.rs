//! Counts what one QP does, in memory that the daemon shows (`omniverb status`).

use crate::limits::STATISTICS_BYTES;
use crate::link_peer::FarEnd;
use crate::qp::qp_attributes::State;
use crate::verbs_constants::{opcode, status};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Window, WordMemory};
use omniverb_terms::{Qpn, Service};

/// Word offsets; see docs/architecture.md, statistics slot.
const IDENTITY: usize = 0;
const SENDS: usize = 8;
const SENT_BYTES: usize = 16;
const RECEIVES: usize = 24;
const RECEIVED_BYTES: usize = 32;
const MAPPED: usize = 40;
const MEDIATED: usize = 48;
const OTHERS_SENT: usize = 56;
// From here on in another cache line: nothing that fast operations count.
const OTHERS_RECEIVED: usize = 64;
const RNR: usize = 72;
const RNR_HEARD: usize = 80;
const RNR_SAID: usize = 88;
const RETRIES_EXCEEDED: usize = 96;
const RNR_RETRIES_EXCEEDED: usize = 104;

/// Words of a slot; the last ones are none's yet.
const WORDS: usize = STATISTICS_BYTES / 8;

/// The counters of one QP.
pub(crate) struct Meter {
    slot: Window,
    identity: u64,
    counts: [u64; WORDS],
}

impl Meter {
    pub(crate) fn new(slot: Window, qpn: Qpn, service: Service) -> Self {
        let identity = u64::from(qpn.0) | u64::from(service.qp_type()) << 40;
        let meter = Self { slot, identity, counts: [0; WORDS] };
        (0..WORDS).for_each(|word| meter.slot.store(word * 8, 0, Ordering::Relaxed));
        meter
    }

    pub(crate) fn state(&mut self, state: State) {
        self.identity = self.identity & !(0xff << 32) | u64::from(state as u32) << 32;
        self.slot.store(IDENTITY, self.identity, Ordering::Relaxed);
    }

    #[inline(always)]
    fn count(&mut self, offset: usize, more: u64) {
        self.counts[offset / 8] += more;
        self.slot.store(offset, self.counts[offset / 8], Ordering::Relaxed);
    }

    /// A request succeeded.
    #[inline(always)]
    pub(crate) fn sent(&mut self, opcode: u32, bytes: u64) {
        let sends = [opcode::SEND, opcode::SEND_WITH_IMM, opcode::SEND_WITH_INV];
        self.count(if sends.contains(&opcode) { SENDS } else { OTHERS_SENT }, 1);
        self.count(SENT_BYTES, bytes);
    }

    /// A receive got its message.
    #[inline(always)]
    pub(crate) fn received(&mut self, bytes: u64) {
        self.count(RECEIVES, 1);
        self.count(RECEIVED_BYTES, bytes);
    }

    /// A message was taken that has no receive: a WRITE.
    pub(crate) fn written(&mut self, bytes: u64) {
        self.count(OTHERS_RECEIVED, 1);
        self.count(RECEIVED_BYTES, bytes);
    }

    #[inline(always)]
    pub(crate) fn mapped(&mut self) {
        self.path(1 << 48);
        self.count(MAPPED, 1);
    }

    pub(crate) fn mediated(&mut self) {
        self.path(2 << 48);
        self.count(MEDIATED, 1);
    }

    /// A request finds that its peer has no receive. An engine counts for itself what it hears
    /// from the network of that, and says.
    pub(crate) fn count_missing_peer_receive(&mut self, peer: FarEnd) {
        self.count(RNR, 1);
        if peer == FarEnd::Process {
            self.count(RNR_HEARD, 1);
        }
    }

    /// A message of the peer finds no receive; a reliable one hears of that.
    pub(crate) fn count_missing_receive(&mut self, peer: FarEnd, service: Service) {
        self.count(RNR, 1);
        if peer == FarEnd::Process && service.is_reliable() {
            self.count(RNR_SAID, 1);
        }
    }

    /// A request failed.
    pub(crate) fn failed(&mut self, status: u32) {
        match status {
            status::RETRY_EXC_ERR => self.count(RETRIES_EXCEEDED, 1),
            status::RNR_RETRY_EXC_ERR => self.count(RNR_RETRIES_EXCEEDED, 1),
            _ => {}
        }
    }

    #[inline(always)]
    fn path(&mut self, bit: u64) {
        if self.identity & bit == 0 {
            self.identity |= bit;
            self.slot.store(IDENTITY, self.identity, Ordering::Relaxed);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.slot.store(IDENTITY, 0, Ordering::Relaxed);
    }
}
