//! Computes the timeouts of the kernel's calls when a program's call is made in parts.
//!
//! Who is about to sleep while others, who are awake, have still to read what he sent them sleeps
//! for [`SHORT_MS`] first: they mostly have it by then, and to take back what is in many rings
//! costs both ends more than that ([`super::unread::flush_unless_polled`]).

use core::ffi::c_int;

use libc::timespec;

use crate::clock;

/// In milliseconds: the least that `epoll_wait` knows.
pub(super) const SHORT_MS: c_int = 1;
const MILLISECOND: i64 = 1_000_000;
const SHORT_NS: i64 = SHORT_MS as i64 * MILLISECOND;
const SECOND: i64 = 1_000_000_000;

/// Whether a call waits until something is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// It does. Before it sleeps it may look for so long, by the processor's count: a part of what
    /// the program has said.
    AtMost(u64),
    /// It asks, and returns.
    Zero,
}

impl Timeout {
    /// Of milliseconds; less than 0: for ever.
    #[inline]
    pub(crate) fn of_milliseconds(asked: c_int) -> Self {
        match u64::try_from(asked) {
            Ok(0) => Self::Zero,
            Ok(asked) => Self::AtMost(asked.saturating_mul(clock::SECOND >> 12)),
            Err(_) => Self::AtMost(u64::MAX),
        }
    }

    /// Of a time in seconds and nanoseconds; `None`: for ever. What is no time the kernel refuses,
    /// when it comes to that.
    pub(crate) fn of_time(asked: Option<(i64, i64)>) -> Self {
        match asked {
            None => Self::AtMost(u64::MAX),
            Some((0, 0)) => Self::Zero,
            Some((seconds, nanoseconds)) => {
                let total = seconds.saturating_mul(SECOND).saturating_add(nanoseconds);
                let thousands = u64::try_from(total / 1000).unwrap_or(0);
                Self::AtMost(thousands.saturating_mul(clock::SECOND >> 22))
            }
        }
    }
}

/// How the kernel is asked by `poll` and the like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelPoll {
    /// As the program has called.
    Blocking,
    /// For what is there now.
    NonBlocking,
    /// The same, with signals blocked as they are: something is there that the kernel does not see,
    /// and what is there is told before a signal is.
    SignalsBlocked,
}

impl KernelPoll {
    pub(crate) fn is_blocking(self) -> bool {
        self == Self::Blocking
    }

    /// The signals that the program lets through meanwhile.
    pub(crate) fn mask(self, asked: *const libc::sigset_t) -> *const libc::sigset_t {
        if self == Self::SignalsBlocked { core::ptr::null() } else { asked }
    }
}

/// For how long a call waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelTimeout {
    /// As the program has said.
    AsRequested,
    /// Not at all.
    Zero,
    /// For a moment, but no longer than the program has said.
    Short,
    /// For what is left after so many milliseconds.
    RestAfter(u64),
}

impl KernelTimeout {
    /// What is left of it now, if it began then, in milliseconds.
    pub(super) fn without(self, began: u64) -> Self {
        let gone = clock::milliseconds().saturating_sub(began);
        match self {
            Self::RestAfter(before) => Self::RestAfter(before.saturating_add(gone)),
            _ => Self::RestAfter(gone),
        }
    }

    /// What the program has said in milliseconds; less than 0: for ever.
    #[inline]
    pub(crate) fn milliseconds(self, asked: c_int) -> c_int {
        match self {
            Self::AsRequested => asked,
            Self::Zero => 0,
            Self::Short if asked < 0 => SHORT_MS,
            Self::Short => asked.min(SHORT_MS),
            Self::RestAfter(_) if asked < 0 => asked,
            Self::RestAfter(gone) => {
                asked.saturating_sub(c_int::try_from(gone).unwrap_or(c_int::MAX)).max(0)
            }
        }
    }

    /// The same; `None`: for ever. What is no time stays none.
    pub(crate) fn time(self, asked: Option<&timespec>) -> Option<timespec> {
        let of = |all: i64| timespec { tv_sec: all / SECOND, tv_nsec: all % SECOND };
        let valid = |time: &timespec| time.tv_sec >= 0 && (0..SECOND).contains(&time.tv_nsec);
        let total =
            |time: &timespec| time.tv_sec.saturating_mul(SECOND).saturating_add(time.tv_nsec);
        match (self, asked) {
            (Self::Zero, _) => Some(of(0)),
            (Self::Short, None) => Some(of(SHORT_NS)),
            (Self::Short, Some(time)) if valid(time) => Some(of(total(time).min(SHORT_NS))),
            (Self::RestAfter(gone), Some(time)) if valid(time) => {
                let gone = i64::try_from(gone).unwrap_or(i64::MAX).saturating_mul(MILLISECOND);
                Some(of(total(time).saturating_sub(gone).max(0)))
            }
            (_, asked) => asked.copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_together_are_what_was_asked() {
        for asked in [0, 1, 2, 1000, c_int::MAX] {
            let parts = [KernelTimeout::Short, KernelTimeout::RestAfter(SHORT_MS as u64)]
                .map(|limit| limit.milliseconds(asked));
            assert_eq!(parts[0] + parts[1], asked);
            let time = timespec { tv_sec: i64::from(asked), tv_nsec: i64::from(asked) % SECOND };
            let parts = [KernelTimeout::Short, KernelTimeout::RestAfter(SHORT_MS as u64)]
                .map(|limit| limit.time(Some(&time)).unwrap());
            let nanoseconds = |time: &timespec| time.tv_sec * SECOND + time.tv_nsec;
            assert_eq!(nanoseconds(&parts[0]) + nanoseconds(&parts[1]), nanoseconds(&time));
        }
    }

    #[test]
    fn for_ever_ends_in_the_second_part_only() {
        assert_eq!(
            [KernelTimeout::Short, KernelTimeout::RestAfter(SHORT_MS as u64)]
                .map(|limit| limit.milliseconds(-1)),
            [1, -1]
        );
        assert!(KernelTimeout::Short.time(None).is_some_and(|time| time.tv_nsec == SHORT_NS));
        assert!(
            KernelTimeout::RestAfter(SHORT_MS as u64).time(None).is_none()
                && KernelTimeout::AsRequested.time(None).is_none()
        );
    }

    #[test]
    fn what_is_no_time_is_left_to_the_kernel() {
        let none = timespec { tv_sec: 1, tv_nsec: SECOND };
        for limit in [
            KernelTimeout::AsRequested,
            KernelTimeout::Short,
            KernelTimeout::RestAfter(SHORT_MS as u64),
        ] {
            assert_eq!(limit.time(Some(&none)).map(|time| time.tv_nsec), Some(SECOND));
        }
    }
}
