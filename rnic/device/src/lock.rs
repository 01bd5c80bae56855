//! The lock of the data path: held for the time of a request or a poll, by a thread of this
//! process, never across a sleep.
//!
//! A spin lock, because it is released by a plain store: a lock that can wake sleepers needs a
//! second atomic read-modify-write for that, and six of those are as much as the rest of a short
//! SEND. Who does not get it gives up the processor soon, so that a holder that was preempted can
//! go on.

use spin::relax::RelaxStrategy;

/// How to wait: a moment of spinning, then somebody else's turn.
pub struct SpinThenYield;

impl RelaxStrategy for SpinThenYield {
    #[inline]
    fn relax() {
        for _ in 0..32 {
            core::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// The lock.
pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, SpinThenYield>;
/// What holding it looks like.
pub(crate) type Guard<'a, T> = spin::mutex::SpinMutexGuard<'a, T, SpinThenYield>;
