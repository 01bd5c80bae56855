//! Implements the lock of the data path: held for the time of a request or a poll, by a thread of
//! this process, never across a sleep.
//!
//! It is a spin lock, because it is released by a plain store: a lock that can wake sleepers needs
//! a second atomic read-modify-write for that, and six of those are as much as the rest of a short
//! SEND. A thread that does not get it yields the processor soon, so that a holder that was
//! preempted can go on, and sleeps in the end: a real-time thread that yields goes on at once, and
//! a holder on its processor would never run.

use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Looks at the lock before the processor is given up.
const SPINS: u32 = 32;
/// How often the processor is given up before sleeping.
const YIELDS: u32 = 100;
/// How long to sleep: well beyond the time that a request takes.
const SLEEP: Duration = Duration::from_micros(50);

/// The lock around a queue pair or a completion queue. A waiting thread spins a moment, yields the
/// processor some times, and sleeps only then.
pub(crate) struct Lock<T>(SpinMutex<T>);
/// What holding it looks like.
pub(crate) type Guard<'a, T> = SpinMutexGuard<'a, T>;

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Lock::new(T::default())
    }
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock(SpinMutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock()
    }

    /// Spins a moment, then yields.
    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut turns = 0;
        loop {
            for _ in 0..SPINS {
                if !self.0.is_locked()
                    && let Some(guard) = self.0.try_lock()
                {
                    return guard;
                }
                core::hint::spin_loop();
            }
            if turns < YIELDS {
                turns += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(SLEEP);
            }
        }
    }
}

/// Locks what is not on the data path, also after a panic elsewhere: the data behind our locks is
/// valid at every step.
#[inline(always)]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A thread that waits for a slow holder uses next to nothing of the processor.
    #[test]
    fn long_waits_are_slept() {
        let lock = Lock::new(0);
        let held = Duration::from_millis(300);
        let used = std::thread::scope(|scope| {
            let guard = lock.lock();
            let waiter = scope.spawn(|| {
                let before = ticks();
                *lock.lock() += 1;
                ticks() - before
            });
            std::thread::sleep(held);
            drop(guard);
            waiter.join().unwrap()
        });
        assert_eq!(*lock.lock(), 1);
        assert!(used < held / 3, "{used:?} of {held:?}");
    }

    #[test]
    fn counts_are_exact_under_contention() {
        let lock = Lock::new(0u64);
        let end = Instant::now() + Duration::from_millis(100);
        let counted: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = 0;
                        while Instant::now() < end {
                            *lock.lock() += 1;
                            mine += 1;
                        }
                        mine
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(*lock.lock(), counted);
    }

    /// Processor time of this thread.
    fn ticks() -> Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        let used = text.split_whitespace().next().and_then(|word| word.parse().ok());
        Duration::from_nanos(used.unwrap())
    }
}
