//! What the device asks of the world: answered without blocking, the rest is left to the progress
//! thread.

use crate::carried_connections::CarriedConnections;
use crate::deferred_daemon_calls::DeferredCall;
use crate::progress_thread_state::Progress;
use omniverb_device::send_work_request::Destination;
use omniverb_device::{AsyncEvent, Host, ToleratedMismatch};
use omniverb_ring::{UserMemory, Window};
use omniverb_terms::{Qpn, Rkey};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Where asynchronous events go: the event's kind and the object's cookie.
pub type AsyncEventSink = fn(AsyncEvent, usize);

static SINK: OnceLock<AsyncEventSink> = OnceLock::new();

/// Names the receiver of asynchronous events, once.
pub fn on_async_event(sink: AsyncEventSink) {
    let _ = SINK.set(sink);
}

/// Receives requests that fail: the queue pair, and the status of the completion. Says what it
/// wants to hear besides.
pub type FailureSink = fn(Qpn, u32) -> FailureDetail;

/// What is wanted to be known of a queue pair that has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FailureDetail {
    /// No more than what the sink was called with.
    Nothing,
    /// What the daemon knows of its ways, once it has answered.
    Ways,
}

/// Receives explanations: the queue pair, and something about one of its peers. In a thread of
/// ours.
pub type ExplanationSink = fn(Qpn, &str);

static FAILURES: OnceLock<(FailureSink, ExplanationSink)> = OnceLock::new();

/// Names the receivers of failed requests, and of the ways of their queue pairs, once.
pub fn on_failure(failed: FailureSink, explained: ExplanationSink) {
    let _ = FAILURES.set((failed, explained));
}

/// The receiver of the ways of queue pairs.
pub(crate) fn explanations() -> Option<ExplanationSink> {
    FAILURES.get().map(|(_, explained)| *explained)
}

/// Receives what is not forgiven: the requester's queue pair, and what.
pub type StrictSink = fn(Qpn, ToleratedMismatch);

static STRICT: OnceLock<StrictSink> = OnceLock::new();

/// Has direct links let pass only what a wire would, once and for queue pairs made from now on;
/// names the receiver of what does not pass.
pub fn be_strict(sink: StrictSink) {
    let _ = STRICT.set(sink);
}

/// Longest nap of a poll. A wake may be missed, and the polling thread has other things to do.
const NAP_MAX: Duration = Duration::from_micros(200);

/// The device's world: this process.
pub(crate) struct ProcessHost {
    progress: Arc<Progress>,
    carried: Arc<CarriedConnections>,
}

impl ProcessHost {
    pub(crate) fn new(progress: Arc<Progress>, carried: Arc<CarriedConnections>) -> Self {
        Self { progress, carried }
    }
}

impl Host for ProcessHost {
    fn now(&self) -> u64 {
        omniverb_sys::clock::now()
    }

    #[inline(always)]
    fn carries_connections(&self) -> bool {
        self.carried.are_some()
    }

    #[inline(always)]
    fn poll_network(&self) {
        self.carried.poll();
    }

    #[inline(always)]
    fn posted_to_network(&self) {
        self.carried.posted();
    }

    fn nap(&self, word: &AtomicU64, value: u32) {
        omniverb_sys::futex::wait(word, value, NAP_MAX);
    }

    fn attend(&self) {
        self.progress.attend();
    }

    fn request_grant(&self, qpn: Qpn, peer_qpn: Qpn, rkey: Rkey, range: (u64, u64)) {
        self.progress.run(DeferredCall::Grant { qpn, peer_qpn, rkey, range });
    }

    fn own_pages(&self, rkey: Rkey) {
        self.progress.run(DeferredCall::OwnPages { rkey });
    }

    fn qp_failed(&self, qpn: Qpn) {
        self.progress.run(DeferredCall::Failed { qpn });
    }

    fn hand_over(&self, qpn: Qpn, part: u32) {
        self.progress.run(DeferredCall::HandOver { qpn, part });
    }

    fn receiver_event(&self, qpn: Qpn, event: AsyncEvent) {
        self.progress.run(DeferredCall::Tell { qpn, event });
    }

    fn discard(&self, qpn: Qpn) {
        self.progress.run(DeferredCall::Discard { qpn });
    }

    fn request_failed(&self, qpn: Qpn, status: u32) {
        if let Some((failed, _)) = FAILURES.get()
            && failed(qpn, status) == FailureDetail::Ways
        {
            self.progress.run(DeferredCall::Explain { qpn });
        }
    }

    fn is_strict(&self) -> bool {
        STRICT.get().is_some()
    }

    fn forgiven(&self, qpn: Qpn, what: ToleratedMismatch) {
        if let Some(hears) = STRICT.get() {
            hears(qpn, what);
        }
    }

    fn place(&self, ours: UserMemory, program: UserMemory) -> bool {
        omniverb_sys::fault_safe_copy::place(ours, program)
    }

    fn place_all(&self, pieces: &[(UserMemory, UserMemory)]) -> usize {
        omniverb_sys::fault_safe_copy::place_all(pieces)
    }

    fn fetch(&self, program: UserMemory, ours: UserMemory) -> bool {
        omniverb_sys::fault_safe_copy::fetch(program, ours)
    }

    fn bears_atomics(&self, program: UserMemory) -> bool {
        omniverb_sys::fault_safe_copy::bears_atomics(program)
    }

    fn resident(&self, window: &Window, start: usize, found: &mut [u8]) -> bool {
        omniverb_sys::mapping_as_ring_window::residency_for_sure(window, start, found).is_ok()
    }

    fn request_datagram_link(&self, qpn: Qpn, destination: Destination) {
        self.progress.run(DeferredCall::DatagramLink { qpn, destination });
    }

    fn async_event(&self, event: AsyncEvent, cookie: usize) {
        if let Some(sink) = SINK.get() {
            sink(event, cookie);
        }
    }
}
