//! Waits for threads that are inside a critical section, which may be cancelled there.
//!
//! A cancelled thread never says that it has left. So each thread is known by its id, and the
//! waiting thread asks whether there is such a thread still.

use core::sync::atomic::{AtomicU64, Ordering};

/// Threads at a time.
const CAPACITY: usize = 16;

/// The ids of threads in the section; 0: a free place.
#[derive(Debug)]
pub struct ActiveThreads([AtomicU64; CAPACITY]);

impl ActiveThreads {
    /// No thread is in the section.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; CAPACITY])
    }

    /// Registers this thread, which is in the section until it sets the returned word to 0. `None`:
    /// there are too many.
    pub fn enter(&self, id: u64) -> Option<&AtomicU64> {
        let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
        self.0.iter().find(|place| place.compare_exchange(0, id, ok, err).is_ok())
    }

    /// In a child of `fork`, which has no other threads: forgets them all.
    pub fn clear(&self) {
        self.0.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }

    /// Waits until all threads have left that are in the section now. `pause` waits for a moment,
    /// and is given how often it did so for this thread. It says whether to ask if the thread
    /// `is_over`.
    pub fn wait_for_all(&self, mut pause: impl FnMut(u32) -> bool, is_over: impl Fn(u64) -> bool) {
        for place in &self.0 {
            let (first, mut tried) = (place.load(Ordering::SeqCst), 0);
            while first != 0 && place.load(Ordering::SeqCst) == first {
                if pause(tried) && is_over(first) {
                    let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
                    _ = place.compare_exchange(first, 0, ok, err);
                }
                tried += 1;
            }
        }
    }
}

impl Default for ActiveThreads {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_thread_in_the_section_is_waited_for() {
        let all = ActiveThreads::new();
        all.wait_for_all(|_| panic!("no thread is in the section"), |_| false);
        let (one, times) = (all.enter(7).unwrap(), Cell::new(0));
        all.wait_for_all(
            |tried| {
                assert_eq!(tried, times.replace(tried + 1));
                if tried == 5 {
                    one.store(0, Ordering::SeqCst);
                }
                true
            },
            |id| id != 7,
        );
        assert_eq!(times.get(), 6);
    }

    #[test]
    fn a_cancelled_thread_is_not_waited_for() {
        let all = ActiveThreads::new();
        let _ = all.enter(7);
        let other = all.enter(8).unwrap();
        let asks_after_two = |tried| {
            if tried == 3 {
                other.store(0, Ordering::SeqCst);
            }
            tried > 1
        };
        all.wait_for_all(asks_after_two, |id| id == 7);
        all.wait_for_all(|_| panic!("no thread is in the section"), |_| false);
        assert!((0..CAPACITY).all(|_| all.enter(9).is_some()) && all.enter(9).is_none());
        all.clear();
        assert!(all.enter(9).is_some());
    }
}
