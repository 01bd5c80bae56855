//! Wraps timerfd, since epoll itself counts in milliseconds.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Readable from a moment on.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Timer(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Goes off at `time` as [`crate::clock::now`] tells it, at once if that is past, and not
    /// before it is set again. Setting it also takes an earlier alarm back.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set(&self, time: u64) -> io::Result<()> {
        // Zero would mean never.
        let time = time.max(1);
        let value = Timespec {
            tv_sec: (time / 1_000_000_000).cast_signed(),
            tv_nsec: (time % 1_000_000_000).cast_signed(),
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &setting)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::Timer;
    use crate::{clock, eventfd};
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn a_timer_expires_at_its_time() {
        let timer = Timer::new().unwrap();
        let readable = |patience| {
            eventfd::readable(timer.as_fd(), Some(Duration::from_millis(patience))).unwrap()
        };
        assert!(!readable(1));
        let begin = clock::now();
        timer.set(begin + 3_000_000).unwrap();
        assert!(readable(1000));
        assert!(clock::now() >= begin + 3_000_000);
        timer.set(clock::now() + 3_600_000_000_000).unwrap();
        assert!(!readable(1), "setting it anew takes the alarm back");
    }
}
