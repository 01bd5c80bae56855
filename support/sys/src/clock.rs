//! Reads the clock: the only place that does.
//!
//! Through libc, not rustix: rustix finds the vDSO by itself, in a way that fails under valgrind,
//! and programs that use our library are run under valgrind.
// UNSAFETY: one libc call that fills in a struct of ours.
#![expect(unsafe_code)]

/// Nanoseconds since some fixed point in the past, never going back.
#[must_use]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live struct of the right type. The monotonic clock exists on
    // every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Bytes of a page of memory. Through libc for the same reason.
#[must_use]
pub fn page_bytes() -> usize {
    // SAFETY: no pointers; the answer is a constant of the machine.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_never_goes_back() {
        let before = super::now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let passed = super::now() - before;
        assert!((2_000_000..2_000_000_000).contains(&passed), "{passed}");
    }
}
