//! Waiting until something holds of a socket: looking for a while, then asleep on its descriptors.

use core::ffi::c_int;
use std::sync::MutexGuard;

use libc::{POLLIN, pollfd};
use omniverb_terms::Errno;

use super::gate::Enter;
use super::socket::{Inner, Phase, Socket};
use crate::errno::last;

/// How often to look before sleeping.
pub(crate) const LOOKS: u32 = 64;

/// Descriptors that tell when something happens to a socket: its channel, its completion queue.
pub(crate) fn files(inner: &Inner) -> [pollfd; 2] {
    let queue = match &inner.phase {
        Phase::Made(stream) => stream.queues().fd(),
        _ => -1,
    };
    [inner.id.fd(), queue].map(|fd| pollfd { fd, events: POLLIN, revents: 0 })
}

/// Gets ready to sleep on [`files`].
///
/// # Errors
/// `EAGAIN`: look once more, and try again.
pub(crate) fn enter(inner: &mut Inner) -> Result<[pollfd; 2], Errno> {
    let files = files(inner);
    match inner.gate.enter(files[1].fd >= 0) {
        Enter::Sleep => Ok(files),
        Enter::Again => {
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
            Err(Errno::EAGAIN)
        }
        Enter::Arm => {
            if let Phase::Made(stream) = &inner.phase {
                let _ = stream.queues().arm();
            }
            Err(Errno::EAGAIN)
        }
    }
}

/// Sleeps no more, with what the kernel said of the descriptors.
pub(crate) fn leave(inner: &mut Inner, files: &[pollfd]) {
    let saw = files.iter().any(|file| file.revents != 0);
    if inner.gate.leave(saw)
        && let Phase::Made(stream) = &inner.phase
        && is_readable(stream.queues().fd())
    {
        stream.queues().take_event();
        inner.gate.taken();
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
    /// So many seconds without news.
    Seconds(u32),
}

impl Patience {
    /// Of a call that waits, or does not.
    pub(crate) fn of(blocks: bool) -> Patience {
        if blocks { Patience::Endless } else { Patience::None }
    }
}

/// Waits until something holds; with the socket locked, then.
///
/// # Errors
/// `EAGAIN`: it does not hold, and there is no patience left. `EINTR`: a signal came.
pub(crate) fn until(
    socket: &Socket,
    mut patience: Patience,
    holds: impl Fn(&Inner) -> bool,
) -> Result<MutexGuard<'_, Inner>, Errno> {
    let mut looks = 0;
    loop {
        let mut inner = socket.lock();
        inner.progress();
        if holds(&inner) {
            return Ok(inner);
        }
        let timeout = match patience {
            Patience::None | Patience::Seconds(0) => return Err(Errno::EAGAIN),
            Patience::Endless => -1,
            Patience::Seconds(_) => 1000,
        };
        if looks < LOOKS {
            looks += 1;
            drop(inner);
            core::hint::spin_loop();
            continue;
        }
        let Ok(mut files) = enter(&mut inner) else { continue };
        drop(inner);
        // SAFETY: two entries.
        let count = unsafe { libc::poll(files.as_mut_ptr(), 2, timeout) };
        let errno = last();
        leave(&mut socket.lock(), &files);
        match count {
            0 => {
                if let Patience::Seconds(left) = &mut patience {
                    *left -= 1;
                }
            }
            1.. => {}
            _ => return Err(errno),
        }
    }
}
