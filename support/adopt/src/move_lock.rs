//! Locks the whole process while pages move, and across `fork()`.
//!
//! `std::sync::Mutex` does not fit: the fork hooks lock in one function and unlock in another, and
//! the child must be able to reset a lock whose waiters exist only in the parent.

use core::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

pub(crate) struct MoveLock(AtomicU32);

pub(crate) static MOVES: MoveLock = MoveLock(AtomicU32::new(FREE));

impl MoveLock {
    pub(crate) fn acquire(&self) {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            // Errors (EINTR, EAGAIN) only mean: look again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, CONTENDED, None);
        }
    }

    /// Only by the thread that acquired it.
    pub(crate) fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// In a forked child, which has no other thread.
    pub(crate) fn reset(&self) {
        self.0.store(FREE, Ordering::Release);
    }

    pub(crate) fn guard(&self) -> MoveGuard<'_> {
        self.acquire();
        MoveGuard(self)
    }
}

pub(crate) struct MoveGuard<'a>(&'a MoveLock);

impl Drop for MoveGuard<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn the_lock_excludes_other_threads() {
        let lock = Arc::new(MoveLock(AtomicU32::new(FREE)));
        let count = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (lock, count) = (lock.clone(), count.clone());
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = lock.guard();
                        let seen = count.load(Ordering::Relaxed);
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), 80_000);
    }
}
