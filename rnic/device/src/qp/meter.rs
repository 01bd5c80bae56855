//! Counters of one QP, in memory that the daemon shows (`omniverb status`).

use crate::qp::attributes::State;
use omniverb_ring::sync::Ordering;
use omniverb_ring::{Window, WordMemory};
use omniverb_terms::{Qpn, Service};

/// Word offsets; see docs/architecture.md, statistics slot.
const IDENTITY: usize = 0;
const SENT: usize = 8;
const SENT_BYTES: usize = 16;
const RECEIVED: usize = 24;
const RECEIVED_BYTES: usize = 32;
const MAPPED: usize = 40;
const MEDIATED: usize = 48;
const RNR: usize = 56;

/// The counters of one QP.
pub(crate) struct Meter {
    slot: Window,
    identity: u64,
    counts: [u64; 8],
}

impl Meter {
    pub(crate) fn new(slot: Window, qpn: Qpn, service: Service) -> Self {
        let identity = u64::from(qpn.0) | u64::from(service.qp_type()) << 40;
        let meter = Self { slot, identity, counts: [0; 8] };
        (0..8).for_each(|word| meter.slot.store(word * 8, 0, Ordering::Relaxed));
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

    #[inline(always)]
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.count(SENT, 1);
        self.count(SENT_BYTES, bytes);
    }

    #[inline(always)]
    pub(crate) fn received(&mut self, bytes: u64) {
        self.count(RECEIVED, 1);
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

    pub(crate) fn waited(&mut self) {
        self.count(RNR, 1);
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
