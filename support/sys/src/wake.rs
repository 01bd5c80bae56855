//! Waking another process that need not be trusted.
//!
//! One direction is an eventfd E and an epoll instance P that watches E, edge-triggered. The waker
//! holds E alone and writes to it; the sleeper holds P alone and waits for that. Nobody reads E.
//! Neither end can carry a descriptor or a byte, be made blocking by the other, or be filled by it.
//! A waker that is gone leaves P silent, and takes what it signalled just before with it: who ends
//! is told of by the daemon. Why nothing simpler will do is decision 0020.

use crate::epoll::take_edge;
use crate::payers::Payers;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The end that wakes: E.
#[derive(Debug)]
pub struct Waker(OwnedFd);

/// The end that sleeps: P.
#[derive(Debug)]
pub struct Sleeper(OwnedFd);

/// One direction. P is made in the name of one of `payers`, which `who` has a part in choosing, or
/// without any in ours.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`; `ENOSPC` over the limit of watches.
pub fn direction(payers: Option<&Payers>, who: u64) -> io::Result<(Waker, Sleeper)> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let watching = |view: OwnedFd| -> io::Result<OwnedFd> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&view, &bell, epoll::EventData::new_u64(0), flags)?;
        Ok(view)
    };
    let view = match payers {
        Some(payers) => payers.first_who_can(who, watching)?,
        None => watching(epoll::create(epoll::CreateFlags::CLOEXEC)?)?,
    };
    Ok((Waker(bell), Sleeper(view)))
}

impl Waker {
    /// Wakes the sleeper. Never blocks: nobody else can fill the counter or change its flags.
    pub fn signal(&self) {
        while let Err(Errno::INTR) = write(&self.0, &1u64.to_ne_bytes()) {}
    }

    /// What somebody who is trusted says is such an end.
    ///
    /// # Errors
    /// `EINVAL` if writing to it may block.
    pub fn received(file: OwnedFd) -> io::Result<Waker> {
        match fcntl_getfl(&file)?.contains(OFlags::NONBLOCK) {
            true => Ok(Waker(file)),
            false => Err(Errno::INVAL.into()),
        }
    }
}

impl Sleeper {
    /// Takes the news; `true` if there was any. Never blocks.
    pub fn take(&self) -> bool {
        take_edge(self.0.as_fd()).unwrap_or(false)
    }

    /// Sleeps until there is news; `false` after `timeout`. Does not take.
    ///
    /// # Errors
    /// What `poll` says, `EINTR` included.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        crate::event::readable(self.0.as_fd(), timeout)
    }

    /// What somebody who is trusted says is such an end.
    ///
    /// # Errors
    /// `EINVAL` if it is something else, which might be ready for ever.
    pub fn received(file: OwnedFd) -> io::Result<Sleeper> {
        // A wake that came before is not lost: whoever attaches a bell looks at it.
        take_edge(file.as_fd())?;
        Ok(Sleeper(file))
    }
}

impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Waker> for OwnedFd {
    fn from(end: Waker) -> OwnedFd {
        end.0
    }
}

impl From<Sleeper> for OwnedFd {
    fn from(end: Sleeper) -> OwnedFd {
        end.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Poller;
    use std::sync::atomic::{AtomicU64, Ordering};

    const NOW: Option<Duration> = Some(Duration::ZERO);
    const LONG: Option<Duration> = Some(Duration::from_secs(10));

    #[test]
    fn every_wake_is_seen_until_it_is_taken_and_only_then_gone() {
        let (waker, sleeper) = direction(None, 0).unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&sleeper, 7).unwrap();
        let mut ready = Vec::new();
        let mut seen = |sleeper: &Sleeper| {
            poller.wait(NOW, &mut ready).unwrap();
            let direct = sleeper.wait(NOW).unwrap();
            assert_eq!(direct, ready == [7]);
            direct
        };
        assert!(!seen(&sleeper) && !sleeper.take());
        for wakes in [1, 1, 2, 100] {
            (0..wakes).for_each(|_| waker.signal());
            assert!(seen(&sleeper) && seen(&sleeper));
            assert!(sleeper.take());
            assert!(!sleeper.take() && !seen(&sleeper));
        }
        waker.signal();
        drop(waker);
        assert!(!seen(&sleeper), "a dead waker must not look like a wake");
    }

    #[test]
    fn no_wake_is_lost_under_stress() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        static HEARD: AtomicU64 = AtomicU64::new(0);
        const WAKES: u64 = 50_000;
        let ((waker, sleeper), (back, waits)) =
            (direction(None, 0).unwrap(), direction(None, 0).unwrap());
        let other = std::thread::spawn(move || {
            let poller = Poller::new().unwrap();
            poller.add(&sleeper, 0).unwrap();
            let (mut ready, mut heard) = (Vec::new(), 0);
            while heard < WAKES {
                poller.wait(LONG, &mut ready).unwrap();
                assert!(!ready.is_empty(), "lost after {heard}");
                sleeper.take();
                heard = TOLD.load(Ordering::SeqCst);
                HEARD.store(heard, Ordering::SeqCst);
                back.signal();
            }
        });
        for told in 1..=WAKES {
            TOLD.store(told, Ordering::SeqCst);
            waker.signal();
            while told % 3 == 0 && HEARD.load(Ordering::SeqCst) < told {
                assert!(waits.wait(LONG).unwrap(), "the answer to {told} was lost");
                waits.take();
            }
        }
        other.join().unwrap();
    }

    /// What the waker can do to its own end: the sleeper goes on.
    #[test]
    fn a_hostile_waker_stops_nobody() {
        let (Waker(bell), sleeper) = direction(None, 0).unwrap();
        let mut count = [0; 8];
        write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(sleeper.take());
        rustix::io::read(&bell, &mut count).unwrap();
        rustix::io::ioctl_fionbio(&bell, false).unwrap();
        let nests: Vec<Poller> = (0..64).map(|_| Poller::new().unwrap()).collect();
        nests.iter().for_each(|nest| nest.add(&bell, 0).unwrap());
        assert!(!sleeper.take() && !sleeper.wait(NOW).unwrap());
        write(&bell, &1u64.to_ne_bytes()).unwrap();
        assert!(sleeper.wait(NOW).unwrap() && sleeper.take());
    }

    /// What the sleeper can do to its own end: waking goes on.
    #[test]
    fn a_hostile_sleeper_stops_nobody() {
        let (waker, Sleeper(view)) = direction(None, 0).unwrap();
        assert!(rustix::io::read(&view, &mut [0u8; 8]).is_err());
        assert!(write(&view, &[0; 8]).is_err());
        rustix::io::ioctl_fionbio(&view, false).unwrap();
        let mut nests: Vec<Poller> = Vec::new();
        for _ in 0..8 {
            let nest = Poller::new().unwrap();
            let below = nests.last().map_or(view.as_fd(), |below| below.as_fd());
            // Until the kernel has had enough of it.
            let _ = nest.add(below, 0);
            nests.push(nest);
        }
        (0..1000).for_each(|_| waker.signal());
        drop(view);
        waker.signal();
    }

    #[test]
    fn what_is_something_else_is_refused() {
        let (one, other) = rustix::pipe::pipe().unwrap();
        assert!(Sleeper::received(one).is_err());
        assert!(Waker::received(other).is_err());
        let (waker, sleeper) = direction(None, 0).unwrap();
        let waker = Waker::received(waker.into()).unwrap();
        let sleeper = Sleeper::received(sleeper.into()).unwrap();
        waker.signal();
        assert!(sleeper.take());
    }
}
