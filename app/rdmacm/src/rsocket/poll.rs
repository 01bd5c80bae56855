//! Waiting for several descriptors, sockets of ours among them.

use core::ffi::c_int;
use std::sync::Arc;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, pollfd};
use omniverb_sys::clock;
use omniverb_terms::Errno;

use super::socket::{Inner, Phase, Socket};
use super::stream::Link;
use super::table;
use super::wait::{LOOKS, enter, leave};
use crate::errno::last;

/// What is true of a socket, of what was asked for, and of what everybody is told.
fn events(inner: &mut Inner, asked: i16) -> i16 {
    inner.progress();
    let (input, output, other) = match &inner.phase {
        Phase::New | Phase::Connecting(_) | Phase::Accepting(_) => (false, false, 0),
        Phase::Listening => (inner.id.has_event(), false, 0),
        Phase::Failed => (true, true, POLLERR),
        Phase::Made(stream) => {
            let ends = match stream.link() {
                Link::Up => 0,
                // What came before the end can be read first.
                Link::Down if stream.unread() > 0 && asked & POLLIN != 0 => 0,
                Link::Down => POLLHUP,
                Link::Broken => POLLERR,
            };
            (stream.unread() > 0 || !stream.is_readable(), stream.can_send(), ends)
        }
    };
    let bit = |is: bool, bit: i16| if is { bit } else { 0 };
    (bit(input, POLLIN) | bit(output, POLLOUT)) & asked | other
}

/// Asks the kernel.
fn ask(files: &mut [pollfd], timeout: c_int) -> Result<c_int, Errno> {
    // SAFETY: so many entries.
    match unsafe { libc::poll(files.as_mut_ptr(), files.len() as libc::nfds_t, timeout) } {
        count @ 0.. => Ok(count),
        _ => Err(last()),
    }
}

/// What is waited for.
pub(crate) struct Waiting<'a> {
    files: &'a mut [pollfd],
    /// The socket of each, if it is one.
    sockets: Vec<Option<Arc<Socket>>>,
}

impl<'a> Waiting<'a> {
    pub(crate) fn of(files: &'a mut [pollfd]) -> Waiting<'a> {
        let sockets = files.iter().map(|file| table::find(file.fd)).collect();
        Waiting { files, sockets }
    }

    /// What is true now: how many of them have something to tell.
    fn look(&mut self) -> Result<c_int, Errno> {
        // The kernel's, as it sees them; it does not look at negative numbers.
        let mut others: Vec<pollfd> = self.files.to_vec();
        for (file, socket) in others.iter_mut().zip(&self.sockets) {
            file.fd = if socket.is_some() { -1 } else { file.fd };
        }
        if self.sockets.iter().any(Option::is_none) {
            ask(&mut others, 0)?;
        }
        for ((file, socket), other) in self.files.iter_mut().zip(&self.sockets).zip(&others) {
            file.revents = match socket {
                Some(socket) => events(&mut socket.lock(), file.events),
                None => other.revents,
            };
        }
        Ok(self.files.iter().filter(|file| file.revents != 0).count() as c_int)
    }

    /// Sleeps until something happens to one of them, or for so many milliseconds. It may be
    /// nothing that was asked for.
    pub(crate) fn sleep(&mut self, timeout: c_int) -> Result<(), Errno> {
        let mut entered: Vec<(&Socket, usize)> = Vec::new();
        let mut kernel: Vec<pollfd> = Vec::new();
        let mut ready = true;
        for (file, socket) in self.files.iter().zip(&self.sockets) {
            let Some(socket) = socket else {
                kernel.push(pollfd { revents: 0, ..*file });
                continue;
            };
            let mut inner = socket.lock();
            // Another thread may have taken notice of it meanwhile, for which nothing wakes us.
            if events(&mut inner, file.events) != 0 {
                ready = false;
                break;
            }
            match enter(&mut inner) {
                Ok(files) => {
                    entered.push((socket, kernel.len()));
                    kernel.extend(files);
                }
                // To be looked at once more; the others are left meanwhile.
                Err(_) => {
                    ready = false;
                    break;
                }
            }
        }
        let said = if ready { ask(&mut kernel, timeout) } else { Ok(0) };
        for (socket, at) in entered {
            let files = kernel.get(at..at + 2).unwrap_or_default();
            leave(&mut socket.lock(), files);
        }
        said.map(drop)
    }
}

/// Waits, as `poll` does.
///
/// # Errors
/// `EINTR`, and what the kernel says of its descriptors.
pub(crate) fn poll(files: &mut [pollfd], timeout: c_int) -> Result<c_int, Errno> {
    let mut waiting = Waiting::of(files);
    if waiting.sockets.iter().all(Option::is_none) {
        return ask(waiting.files, timeout);
    }
    let until = u64::try_from(timeout).ok().map(|left| clock::now() + left * 1_000_000);
    let mut looks = 0;
    loop {
        let count = waiting.look()?;
        let left = match until {
            None => -1,
            Some(until) => until.saturating_sub(clock::now()).div_ceil(1_000_000) as c_int,
        };
        if count > 0 || left == 0 {
            return Ok(count);
        }
        looks += 1;
        if looks > LOOKS {
            waiting.sleep(left)?;
        }
    }
}
