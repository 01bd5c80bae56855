//! Wraps eventfd, for use *inside* one process.
//!
//! Between processes that do not trust each other use [`crate::doorbell_listener`]: a holder of a
//! descriptor of the same eventfd can clear its non-blocking flag and fill its counter, and the
//! next writer hangs.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A non-blocking eventfd.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A counter that [`take`](Self::take) empties at once.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// A counter that [`take`](Self::take) lowers by one.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn semaphore() -> io::Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(EventFd(eventfd(0, flags)?))
    }

    /// Adds one. A counter that is full stays readable, so that is no error.
    pub fn signal(&self) {
        while let Err(Errno::INTR) = write(&self.0, &1u64.to_ne_bytes()) {}
    }

    /// Takes the count (a semaphore: one), or `None` if it is zero.
    pub fn take(&self) -> Option<u64> {
        let mut count = [0; 8];
        loop {
            match read(&self.0, &mut count) {
                Ok(8) => return Some(u64::from_ne_bytes(count)),
                Err(Errno::INTR) => {}
                _ => return None,
            }
        }
    }

    /// Sleeps until the count is not zero; `false` after `timeout`. Does not take.
    ///
    /// # Errors
    /// What `poll` says, `EINTR` included.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        readable(self.0.as_fd(), timeout)
    }
}

/// Sleeps until `file` is readable or hung up; `false` after `timeout`.
///
/// # Errors
/// What `poll` says, `EINTR` included.
pub fn readable(file: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let timeout = timeout.map(timespec);
    let mut files = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
    Ok(poll(&mut files, timeout.as_ref())? > 0)
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for EventFd {
    fn from(file: OwnedFd) -> EventFd {
        EventFd(file)
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> OwnedFd {
        event.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eventfd_adds_up_its_writes() {
        let event = EventFd::new().unwrap();
        assert_eq!(event.take(), None);
        assert!(!event.wait(Some(Duration::ZERO)).unwrap());
        event.signal();
        event.signal();
        assert!(event.wait(None).unwrap());
        assert_eq!(event.take(), Some(2));
        assert_eq!(event.take(), None);
    }

    #[test]
    fn a_semaphore_gives_one_at_a_time() {
        let event = EventFd::semaphore().unwrap();
        event.signal();
        event.signal();
        assert_eq!(event.take(), Some(1));
        assert_eq!(event.take(), Some(1));
        assert_eq!(event.take(), None);
    }
}
