//! Threads that are in the middle of something that others wait for.
//!
//! A thread may be cancelled there, and never say that it is done. So it is known by its id, and
//! who waits asks whether there is such a thread still.

use core::sync::atomic::{AtomicU64, Ordering};

/// Threads at a time.
const MOST: usize = 16;

/// Those that are at it, by their ids.
#[derive(Debug)]
pub struct UnderWay([AtomicU64; MOST]);

impl UnderWay {
    /// No thread is at it so far.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MOST])
    }

    /// This thread begins, and is at it until what it gets is 0 again. `None`: there are too many.
    pub fn begin(&self, id: u64) -> Option<&AtomicU64> {
        let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
        self.0.iter().find(|place| place.compare_exchange(0, id, ok, err).is_ok())
    }

    /// In a child of `fork`: no other thread is there.
    pub fn begin_anew(&self) {
        self.0.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }

    /// Waits until all are done that are at it now. `pause` waits for a moment, and is told how
    /// often it did so for this thread. It says whether to ask if the thread `is_over`.
    pub fn settle(&self, mut pause: impl FnMut(u32) -> bool, is_over: impl Fn(u64) -> bool) {
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

impl Default for UnderWay {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_is_at_it_is_waited_for() {
        let all = UnderWay::new();
        all.settle(|_| panic!("nobody is"), |_| false);
        let (one, times) = (all.begin(7).unwrap(), Cell::new(0));
        all.settle(
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
    fn who_was_cancelled_in_the_middle_is_not() {
        let all = UnderWay::new();
        let _ = all.begin(7);
        let other = all.begin(8).unwrap();
        let is_asked = |tried| {
            if tried == 3 {
                other.store(0, Ordering::SeqCst);
            }
            tried > 1
        };
        all.settle(is_asked, |id| id == 7);
        all.settle(|_| panic!("nobody is"), |_| false);
        assert!((0..MOST).all(|_| all.begin(9).is_some()) && all.begin(9).is_none());
        all.begin_anew();
        assert!(all.begin(9).is_some());
    }
}
