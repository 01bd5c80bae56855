//! Waiting until something holds of a socket: looking for a while, then asleep on its descriptors.

use core::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::MutexGuard;

use libc::{POLLIN, pollfd};
use omniverb_sys::clock;
use omniverb_sys::seqpacket::BlockingMode;
use omniverb_terms::Errno;

use super::eintr_restart;
use super::queue_pair::Queues;
use super::waiter_election::{SleepOn, SleepStep, WaiterElection, WakeReason};
use crate::errno::last;

/// How often to look before sleeping.
pub(crate) const LOOKS: u32 = 64;

/// Descriptors that a socket sleeps on.
pub(crate) const FILES: usize = 3;

/// The locked part of a socket, which changes while a thread sleeps.
pub(crate) trait WaitableState {
    /// Takes notice of what has happened.
    fn progress(&mut self);
    /// The descriptor of what is not data.
    fn fd(&self) -> RawFd;
    /// The queues, when there are some.
    fn queues(&self) -> Option<&Queues>;
    fn gate(&mut self) -> &mut WaiterElection;
    /// The descriptor that tells a sleeper without queues that there are some now; -1: none.
    fn news(&self) -> RawFd {
        -1
    }
    /// There may be more than was taken notice of: no thread is to sleep.
    fn has_more(&self) -> bool {
        false
    }
    /// Whether news are for all sleepers, not for the first ones only.
    fn is_for_all(&self) -> bool {
        true
    }
}

/// A socket of either kind, for whose news a call of the program waits.
pub(crate) trait WaitableSocket {
    type Inner: WaitableState;
    fn lock(&self) -> MutexGuard<'_, Self::Inner>;
}

/// Gets ready to sleep: on the descriptors that tell when something happens.
///
/// # Errors
/// `EAGAIN`: look once more, and try again.
pub(crate) fn enter(inner: &mut impl WaitableState) -> Result<[pollfd; FILES], Errno> {
    if inner.has_more() {
        return Err(Errno::EAGAIN);
    }
    let queue = inner.queues().map(Queues::fd);
    let on = if queue.is_some() { SleepOn::Queue } else { SleepOn::Others };
    match inner.gate().enter(on) {
        SleepStep::Sleep => {
            let news = if queue.is_some() { -1 } else { inner.news() };
            let files = [inner.fd(), queue.unwrap_or(-1), news];
            Ok(files.map(|fd| pollfd { fd, events: POLLIN, revents: 0 }))
        }
        SleepStep::Again => {
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
            Err(Errno::EAGAIN)
        }
        SleepStep::Arm => {
            let _ = inner.queues().map(Queues::arm);
            Err(Errno::EAGAIN)
        }
    }
}

/// Sleeps no more, with what the kernel said of the descriptors.
pub(crate) fn leave(inner: &mut impl WaitableState, files: &[pollfd]) {
    // Of the news only those are told that sleep without queues.
    let told = files.iter().take(FILES - 1).any(|file| file.revents != 0);
    let saw = if told && inner.is_for_all() { WakeReason::News } else { WakeReason::Nothing };
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
pub(crate) enum WaitLimit {
    None,
    Endless,
    /// Until then, in nanoseconds of [`clock::now`], and signals do not end it.
    Until(u64),
    /// Until then, and each signal ends it, as each ends calls that have `SO_RCVTIMEO`.
    Limited(u64),
}

impl WaitLimit {
    /// Of a call that waits, or does not.
    pub(crate) fn of(mode: BlockingMode) -> WaitLimit {
        match mode {
            BlockingMode::Blocking => WaitLimit::Endless,
            BlockingMode::NonBlocking => WaitLimit::None,
        }
    }

    /// The same, but no longer than so many nanoseconds if there are some.
    pub(crate) fn limited(mode: BlockingMode, limit: Option<u64>) -> WaitLimit {
        match (mode, limit) {
            (BlockingMode::Blocking, Some(limit)) => {
                WaitLimit::Limited(clock::now().saturating_add(limit))
            }
            _ => WaitLimit::of(mode),
        }
    }

    /// For so many seconds, whatever happens meanwhile.
    pub(crate) fn seconds(seconds: u32) -> WaitLimit {
        WaitLimit::Until(clock::now() + u64::from(seconds) * 1_000_000_000)
    }

    /// What `poll` is to be told; nothing if there is none left.
    fn timeout(self) -> Option<c_int> {
        match self {
            WaitLimit::None => None,
            WaitLimit::Endless => Some(-1),
            WaitLimit::Until(end) | WaitLimit::Limited(end) => {
                let left = end.saturating_sub(clock::now()).div_ceil(1_000_000);
                (left > 0).then(|| c_int::try_from(left).unwrap_or(c_int::MAX))
            }
        }
    }

    /// After a signal.
    fn goes_on(self) -> bool {
        match self {
            WaitLimit::Until(_) => true,
            WaitLimit::Limited(_) => false,
            WaitLimit::None | WaitLimit::Endless => eintr_restart::goes_on(),
        }
    }
}

/// Waits until something holds; with the socket locked, then.
///
/// # Errors
/// `EAGAIN`: it does not hold, and there is no patience left. `EINTR`: a signal came whose handler
/// has no `SA_RESTART`; none ends waiting [until](Patience::Until) some time, and each ends waiting
/// that is [limited](Patience::Limited).
pub(crate) fn until<S: WaitableSocket>(
    socket: &S,
    patience: WaitLimit,
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
        // SAFETY: so many entries.
        let count = unsafe { libc::poll(files.as_mut_ptr(), FILES as libc::nfds_t, timeout) };
        let errno = last();
        leave(&mut *socket.lock(), &files);
        if count < 0 && !(errno.raw() == libc::EINTR && patience.goes_on()) {
            return Err(errno);
        }
    }
}
