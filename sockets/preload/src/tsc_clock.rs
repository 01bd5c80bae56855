//! Measures time roughly, by the processor's time stamp counter, without a system call.

use omniverb_connection::readiness::Timeout;

use crate::user_memory::UserPtr;

/// Of the count. A second of a slow processor is a third of one of a fast one.
pub(crate) const SECOND: u64 = 1 << 31;
/// Some twenty microseconds: what was seen of the kernel's socket is true for so long.
pub(crate) const MOMENT: u64 = 1 << 16;

/// The count. It is never so exact that an order of events could be told by it.
#[inline(always)]
pub(crate) fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// The kernel's monotonic clock, where it has to be exact, in nanoseconds.
pub(crate) fn nanoseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// The monotonic clock in milliseconds.
pub(crate) fn milliseconds() -> u64 {
    nanoseconds() / 1_000_000
}

/// So much has gone by since. A count that goes backwards (another processor's) counts as that.
#[inline(always)]
pub(crate) fn is_over(since: u64, much: u64) -> bool {
    now().wrapping_sub(since) >= much
}

/// What a program has said of how long a call may wait, or nothing: for ever. `None`: that is no
/// time, or cannot be read.
pub(crate) fn timeout_of(limit: UserPtr<'_, libc::timespec>) -> Option<Timeout> {
    if !limit.is_readable() {
        return None;
    }
    match limit.read() {
        None => Some(Timeout::Forever),
        Some(limit) => Timeout::of_time(limit.tv_sec, limit.tv_nsec),
    }
}

/// The time limit of a call like `select`.
pub(crate) fn timeout_of_timeval(limit: UserPtr<'_, libc::timeval>) -> Option<Timeout> {
    if !limit.is_readable() {
        return None;
    }
    match limit.read() {
        None => Some(Timeout::Forever),
        Some(limit) => Timeout::of_microseconds(limit.tv_sec, limit.tv_usec),
    }
}
