//! Sleeping on a word of memory that another process shares, and waking who does.
//!
//! The kernel compares 32 bits: the low half of the word. Whoever shares the memory can wake a
//! sleeper early, or never; so every sleep has a limit, and proves nothing when it ends.
// UNSAFETY: the kernel is given the address of one half of an atomic.
#![expect(unsafe_code)]

use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// The half of a word that the kernel looks at.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    let offset = if cfg!(target_endian = "little") { 0 } else { 1 };
    let address = std::ptr::from_ref(word).cast::<AtomicU32>();
    // SAFETY: inside the word, aligned, and as long-lived as it is. Nothing but the kernel reads
    // through it, and it reads atomically.
    unsafe { &*address.add(offset) }
}

/// Sleeps while the low half of `word` is `value`, until somebody wakes us or `limit` has passed.
pub fn wait(word: &AtomicU64, value: u32, limit: Duration) {
    let Ok(limit) = futex::Timespec::try_from(limit) else { return };
    // Woken, too late, interrupted, changed already: the caller looks for itself.
    let _ = futex::wait(low_half(word), futex::Flags::empty(), value, Some(&limit));
}

/// Wakes everybody who sleeps on `word`.
pub fn wake(word: &AtomicU64) {
    let _ = futex::wake(low_half(word), futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    #[test]
    fn sleeps_until_it_is_woken_or_time_is_over() {
        let word = AtomicU64::new(7);
        wait(&word, 8, Duration::from_secs(60)); // not the value: no sleep
        let began = Instant::now();
        wait(&word, 7, Duration::from_millis(5));
        assert!(began.elapsed() >= Duration::from_millis(5));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 7 {
                    wait(&word, 7, Duration::from_secs(60));
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            word.store(8, Ordering::Release);
            wake(&word);
        });
        assert!(began.elapsed() < Duration::from_secs(50), "it was woken");
    }
}
