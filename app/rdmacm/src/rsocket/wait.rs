//! Waiting until something holds of a socket: looking for a while, then asleep on its descriptors.

use core::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::MutexGuard;

use libc::{POLLIN, pollfd};
use omniverb_sys::clock;
use omniverb_terms::Errno;

use super::gate::{Enter, Gate};
use super::queues::Queues;
use super::restart;
use crate::errno::last;

/// How often to look before sleeping.
pub(crate) const LOOKS: u32 = 64;

/// What is locked of a socket, and changes while somebody sleeps.
pub(crate) trait Sleepy {
    /// Takes notice of what has happened.
    fn progress(&mut self);
    /// The descriptor of what is not data.
    fn fd(&self) -> RawFd;
    /// The queues, when there are some.
    fn queues(&self) -> Option<&Queues>;
    fn gate(&mut self) -> &mut Gate;
    /// What is told is for all who sleep; it is not that of those who come first.
    fn is_for_all(&self) -> bool {
        true
    }
}

/// A socket.
pub(crate) trait Awaited {
    type Inner: Sleepy;
    fn lock(&self) -> MutexGuard<'_, Self::Inner>;
}

/// Gets ready to sleep: on the descriptors that tell when something happens.
///
/// # Errors
/// `EAGAIN`: look once more, and try again.
pub(crate) fn enter(inner: &mut impl Sleepy) -> Result<[pollfd; 2], Errno> {
    let queue = inner.queues().map_or(-1, Queues::fd);
    match inner.gate().enter(queue >= 0) {
        Enter::Sleep => Ok([inner.fd(), queue].map(|fd| pollfd { fd, events: POLLIN, revents: 0 })),
        Enter::Again => {
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
            Err(Errno::EAGAIN)
        }
        Enter::Arm => {
            let _ = inner.queues().map(Queues::arm);
            Err(Errno::EAGAIN)
        }
    }
}

/// Sleeps no more, with what the kernel said of the descriptors.
pub(crate) fn leave(inner: &mut impl Sleepy, files: &[pollfd]) {
    let saw = files.iter().any(|file| file.revents != 0) && inner.is_for_all();
    if !inner.gate().leave(saw) {
        return;
    }
    if let Some(queues) = inner.queues()
        && is_readable(queues.fd())
    {
        queues.take_event();
        inner.gate().taken();
    }
}

fn is_readable(fd: c_int) -> bool {
    let mut file = pollfd { fd, events: POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut file, 1, 0) == 1 }
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    Endless,
    /// Until then, in nanoseconds of [`clock::now`], and signals do not end it.
    Until(u64),
}

impl Patience {
    /// Of a call that waits, or does not.
    pub(crate) fn of(blocks: bool) -> Patience {
        if blocks { Patience::Endless } else { Patience::None }
    }

    /// For so many seconds, whatever happens meanwhile.
    pub(crate) fn seconds(seconds: u32) -> Patience {
        Patience::Until(clock::now() + u64::from(seconds) * 1_000_000_000)
    }

    /// What `poll` is to be told; nothing if there is none left.
    fn timeout(self) -> Option<c_int> {
        match self {
            Patience::None => None,
            Patience::Endless => Some(-1),
            Patience::Until(end) => {
                let left = end.saturating_sub(clock::now()).div_ceil(1_000_000);
                (left > 0).then(|| c_int::try_from(left).unwrap_or(c_int::MAX))
            }
        }
    }

    fn ends_with_signals(self) -> bool {
        !matches!(self, Patience::Until(_))
    }
}

/// Waits until something holds; with the socket locked, then.
///
/// # Errors
/// `EAGAIN`: it does not hold, and there is no patience left. `EINTR`: a signal came whose handler
/// has no `SA_RESTART`, but not if it is to wait [until](Patience::Until) some time.
pub(crate) fn until<S: Awaited>(
    socket: &S,
    patience: Patience,
    holds: impl Fn(&S::Inner) -> bool,
) -> Result<MutexGuard<'_, S::Inner>, Errno> {
    let mut looks = 0;
    loop {
        let mut inner = socket.lock();
        inner.progress();
        if holds(&inner) {
            return Ok(inner);
        }
        let timeout = patience.timeout().ok_or(Errno::EAGAIN)?;
        if looks < LOOKS {
            looks += 1;
            drop(inner);
            core::hint::spin_loop();
            continue;
        }
        let Ok(mut files) = enter(&mut *inner) else { continue };
        drop(inner);
        // SAFETY: two entries.
        let count = unsafe { libc::poll(files.as_mut_ptr(), 2, timeout) };
        let errno = last();
        leave(&mut *socket.lock(), &files);
        let is_signal = errno.raw() == libc::EINTR;
        let goes_on = || is_signal && (!patience.ends_with_signals() || restart::goes_on());
        if count < 0 && !goes_on() {
            return Err(errno);
        }
    }
}
