//! What all objects of one opened device share, and what the device needs from outside.

use crate::cq::Cq;
use crate::cq::poller::BellSource;
use crate::limits::QP_SLOTS;
use crate::lock::lock;
use crate::pages::Toll;
use crate::qp::Qp;
use crate::region::Regions;
use crate::work::Destination;
use omniverb_ring::Window;
use omniverb_terms::{Qpn, Rkey};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Asynchronous events, numbered as `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum AsyncEvent {
    CqError = 0,
    QpFatal = 1,
    QpRequestError = 2,
    QpAccessError = 3,
    CommunicationEstablished = 4,
    SqDrained = 5,
    SrqError = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
}

/// The world outside the device: clock, progress thread, daemon, application events.
/// Called with QP locks held, so nothing here may call back into a QP.
pub trait Host: Send + Sync {
    /// Monotonic nanoseconds.
    fn now(&self) -> u64;
    /// Sleeps while the low half of `word` is `value`, until woken, and at most for a moment.
    fn nap(&self, word: &AtomicU64, value: u32);
    /// Something began to wait: the progress thread must have a look.
    fn attend(&self);
    /// A CQ was armed: peers must wake this process from now on.
    fn armed(&self);
    /// Ask the daemon for a mapping of so many bytes of `rkey`, from an address on; the answer
    /// comes as [`Qp::granted`], [`Qp::not_granted`] or not at all.
    fn request_grant(&self, qpn: Qpn, peer_qpn: Qpn, rkey: Rkey, range: (u64, u64));
    /// A queue pair has gone to ERR: what was granted to its peer is to be taken back.
    fn qp_failed(&self, qpn: Qpn);
    /// For each page of a granted window from byte `start` on, whether it is in memory: bit 0 of a
    /// byte of `found`, which reaches to the end of the window at most. False: nobody knows.
    fn resident(&self, window: &Window, start: usize, found: &mut [u8]) -> bool;
    /// Ask the daemon for a datagram link; the answer comes as [`Qp::attach`] or
    /// [`Qp::unreachable`].
    fn request_datagram_link(&self, qpn: Qpn, destination: Destination);
    /// Tell the application. `cookie` is the object's.
    fn async_event(&self, event: AsyncEvent, cookie: usize);
}

/// Counts what the application has taken back by polling; see [`crate::queue`].
#[derive(Default)]
pub struct Released {
    /// Position behind the last send whose completion was polled.
    pub sends: AtomicU64,
    /// Receives whose completions were polled.
    pub receives: AtomicU64,
}

/// Shared state of one opened device.
pub struct Shared {
    /// Keys.
    pub regions: Regions,
    /// The world outside.
    pub host: Box<dyn Host>,
    /// Bells of all peer processes.
    pub bells: BellSource,
    /// How far the process has gone through pages of peers.
    pub(crate) toll: Toll,
    released: Box<[Released]>,
    free_slots: Mutex<Vec<u32>>,
    pub(crate) cqs: Mutex<Vec<Weak<Cq>>>,
    /// QPs with timers or blocked sends.
    pub(crate) waiting: Mutex<Vec<Weak<Qp>>>,
    /// Links that polls stopped looking at a moment ago.
    pub(crate) cooling: Mutex<Vec<Weak<Qp>>>,
}

impl Shared {
    /// A device without objects.
    pub fn new(host: Box<dyn Host>) -> Arc<Shared> {
        Arc::new(Shared {
            regions: Regions::default(),
            host,
            bells: BellSource::default(),
            toll: Toll::default(),
            released: (0..QP_SLOTS).map(|_| Released::default()).collect(),
            free_slots: Mutex::new((0..QP_SLOTS as u32).rev().collect()),
            cqs: Mutex::default(),
            waiting: Mutex::default(),
            cooling: Mutex::default(),
        })
    }

    /// A slot for a new QP or SRQ, zeroed; `None` when there are too many.
    pub(crate) fn take_slot(&self) -> Option<u32> {
        let slot = lock(&self.free_slots).pop()?;
        self.released(slot).sends.store(0, Ordering::Relaxed);
        self.released(slot).receives.store(0, Ordering::Relaxed);
        Some(slot)
    }

    pub(crate) fn give_slot(&self, slot: u32) {
        lock(&self.free_slots).push(slot);
    }

    #[inline(always)]
    pub(crate) fn released(&self, slot: u32) -> &Released {
        &self.released[slot as usize]
    }
}
