//! Provides a short lock that knows its thread, and refuses a signal handler of that thread.
//!
//! A handler that interrupts its own thread there would wait for ever.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::sched_yield;

use crate::vfork_check;

/// How often the lock is looked at before the processor is given away.
const LOOKS: u32 = 64;

/// The thread that has it, or 0.
pub(super) struct Lock(AtomicU64);

/// It is given up when this is dropped.
pub(super) struct Held<'a>(&'a Lock);

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

impl Lock {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// `None`: this very thread has it.
    #[inline(always)]
    pub(super) fn take(&self) -> Option<Held<'_>> {
        self.take_by(vfork_check::this_thread())
    }

    /// Takes it for a caller that knows which thread this is.
    #[inline(always)]
    pub(super) fn take_by(&self, me: u64) -> Option<Held<'_>> {
        let mut looks = 0_u32;
        while let Err(owner) =
            self.0.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            if owner == me {
                return None;
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                sched_yield();
            } else {
                core::hint::spin_loop();
            }
        }
        Some(Held(self))
    }

    /// No thread has it at this moment.
    pub(super) fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Frees it in a child of `fork`, where no thread has it.
    pub(super) fn begin_anew(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
