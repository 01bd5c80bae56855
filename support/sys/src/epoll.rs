//! Wraps level-triggered epoll, with a number of the caller's choice for each descriptor.

use crate::eventfd::timespec;
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Tokens one [`Poller::wait`] can report. More are reported by the next call.
const EVENTS_MAX: usize = 64;

/// What a descriptor is watched for, besides its end and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Input,
    /// Room to write.
    Room,
    /// Something to read or room to write, whichever comes.
    Both,
    /// Neither: only hang-up and errors.
    Neither,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Interest::Input => epoll::EventFlags::IN,
            Interest::Room => epoll::EventFlags::OUT,
            Interest::Both => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Interest::Neither => epoll::EventFlags::empty(),
        }
    }

    fn once(self) -> epoll::EventFlags {
        self.flags() | epoll::EventFlags::ONESHOT
    }
}

/// Watches descriptors for input, hang-up and errors.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Poller> {
        Ok(Poller(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches `file`; it is reported as `token`.
    ///
    /// # Errors
    /// `EEXIST` if it is watched already, `EPERM` if it cannot be, `ENOSPC` over the user's limit.
    pub fn add(&self, file: impl AsFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.0, file, data, epoll::EventFlags::IN)?)
    }

    /// Changes what `file` is watched for, beside its end.
    ///
    /// # Errors
    /// `ENOENT` if it is not watched.
    pub fn watch(&self, file: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, file, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Watches `file`, which is reported once and then not before [`once_more`](Self::once_more).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_once(&self, file: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.0, file, epoll::EventData::new_u64(token), interest.once())?)
    }

    /// Reports `file`, which is watched, once, also if it was before.
    ///
    /// # Errors
    /// `ENOENT` if it is not watched.
    pub fn once_more(&self, file: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, file, epoll::EventData::new_u64(token), interest.once())?)
    }

    /// No longer watches `file`.
    ///
    /// # Errors
    /// `ENOENT` if it is not watched.
    pub fn remove(&self, file: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, file)?)
    }

    /// Sleeps until something is ready or `timeout` is over, then puts the tokens into `ready`
    /// (emptied first). A signal ends the sleep early, with nothing ready.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<u64>) -> io::Result<()> {
        ready.clear();
        let timeout = timeout.map(timespec);
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.0, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                ready.extend(events.iter().map(|event| event.data.u64()));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventFd;

    #[test]
    fn reports_what_is_ready() {
        let poller = Poller::new().unwrap();
        let (one, two) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        poller.add(&one, 1).unwrap();
        poller.add(&two, u64::MAX).unwrap();
        let mut ready = vec![7];
        poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert!(ready.is_empty());
        two.signal();
        poller.wait(None, &mut ready).unwrap();
        assert_eq!(ready, [u64::MAX]);
        poller.remove(&two).unwrap();
        poller.wait(Some(Duration::from_millis(5)), &mut ready).unwrap();
        assert!(ready.is_empty());
    }

    #[test]
    fn what_is_watched_once_is_reported_once_and_for_what_was_asked() {
        let poller = Poller::new().unwrap();
        let (empty, room) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        poller.add_once(&empty, 1, Interest::Input).unwrap();
        poller.add_once(&room, 2, Interest::Room).unwrap();
        let mut ready = Vec::new();
        let mut look = || {
            poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
            ready.clone()
        };
        assert_eq!(look(), [2]);
        assert!(look().is_empty());
        poller.once_more(&room, 2, Interest::Room).unwrap();
        assert_eq!(look(), [2]);
        empty.signal();
        assert_eq!(look(), [1]);
        assert!(look().is_empty());
    }
}
