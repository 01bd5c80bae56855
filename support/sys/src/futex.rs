//! Sleeps on words of shared memory, and wakes sleepers.
//!
//! The kernel compares 32 bits: the low half of the word. A process that shares the memory can wake
//! a sleeper early, or never; a sleep proves nothing when it ends. What one can do to the *waker*
//! is little: waking stops at the first sleepers it finds, however many there are.
// UNSAFETY: the kernel is given the address of one half of an atomic.
#![expect(unsafe_code)]

use rustix::io::Errno;
use rustix::thread::{ClockId, futex};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The half of a word that the kernel looks at.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    let offset = if cfg!(target_endian = "little") { 0 } else { 1 };
    let address = std::ptr::from_ref(word).cast::<AtomicU32>();
    // SAFETY: inside the word, aligned, and as long-lived as it is. Nothing but the kernel reads
    // through it, and it reads atomically.
    unsafe { &*address.add(offset) }
}

/// Sleeps while the low half of `word` is `value`, until woken or `limit` has passed.
pub fn wait(word: &AtomicU64, value: u32, limit: Duration) {
    let Ok(limit) = futex::Timespec::try_from(limit) else { return };
    // Woken, too late, interrupted, changed already: the caller looks for itself.
    let _ = futex::wait(low_half(word), futex::Flags::empty(), value, Some(&limit));
}

/// Wakes up to `most` sleepers on `word`. All would be as many as a hostile process likes.
pub fn wake(word: &AtomicU64, most: u32) {
    let _ = futex::wake(low_half(word), futex::Flags::empty(), most);
}

/// The half of `word` that sleeps are about.
#[must_use]
pub fn low(word: &AtomicU64) -> u32 {
    low_half(word).load(Ordering::SeqCst)
}

/// Has the half of `word` that the kernel looks at name a thread, and the other none.
pub(crate) fn own(word: &AtomicU64, thread: u32) {
    word.store(0, Ordering::Relaxed);
    low_half(word).store(thread, Ordering::Release);
}

/// How long a sleep is that the kernel refuses.
const UNABLE: Duration = Duration::from_millis(1);

/// Most words that one can sleep on at once: `FUTEX_WAITV_MAX`.
pub const WORDS_MAX: usize = 128;

/// Whether [`wait_any`] works here: Linux 5.16, and no filter that forbids `futex_waitv`.
#[must_use]
pub fn has_wait_any() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let none = futex::waitv(&[], futex::WaitvFlags::empty(), None, ClockId::Monotonic);
        none == Err(Errno::INVAL)
    })
}

/// Sleeps while the low half of every word is what is said, until woken, or the clock
/// (`crate::clock`) says `until`. The index of a word by which we were woken, if that is known.
pub fn wait_any(words: &[(&AtomicU64, u32)], until: Option<u64>) -> Option<usize> {
    let waits = words.iter().map(|(word, value)| {
        let mut wait = futex::Wait::new();
        let half = std::ptr::from_ref(low_half(word)).cast_mut();
        wait.uaddr = futex::WaitPtr::new(half.cast());
        wait.val = u64::from(*value);
        wait.flags = futex::WaitFlags::SIZE_U32;
        wait
    });
    let waits: Vec<_> = waits.collect();
    let until = until.map(|at| futex::Timespec {
        tv_sec: (at / 1_000_000_000).cast_signed(),
        tv_nsec: (at % 1_000_000_000).cast_signed(),
    });
    match futex::waitv(&waits, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) {
        Ok(word) => Some(word),
        Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => None,
        Err(_) => {
            // A filter that the process was given meanwhile: slower, but no busy loop.
            std::thread::sleep(UNABLE);
            None
        }
    }
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
            wake(&word, 1);
        });
        assert!(began.elapsed() < Duration::from_secs(50), "it was woken");
    }
}
