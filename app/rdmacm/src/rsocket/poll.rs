//! Waiting for several descriptors, sockets of ours among them.

use core::ffi::c_int;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, pollfd};
use omniverb_sys::clock;
use omniverb_terms::Errno;

use super::datagram;
use super::fd_table::{self, Entry};
use super::readiness_wait::{FILES, LOOKS, WaitableSocket, WaitableState, enter, leave};
use super::stream_connection::ConnectionState;
use super::stream_socket::{Inner, Phase};
use crate::errno::last;

/// The events of a socket: those asked for, and those that are always reported.
fn events(inner: &mut Inner, asked: i16) -> i16 {
    inner.progress();
    let (input, output, other) = match &inner.phase {
        Phase::New | Phase::Connecting(_) | Phase::Accepting(_) => (false, false, 0),
        Phase::Listening => (inner.id.has_event(), false, 0),
        Phase::Failed => (true, true, POLLERR),
        Phase::Made(stream) => {
            let ends = match stream.link() {
                ConnectionState::Up => 0,
                // What came before the end can be read first.
                ConnectionState::Down if stream.unread() > 0 && asked & POLLIN != 0 => 0,
                ConnectionState::Down => POLLHUP,
                ConnectionState::Broken => POLLERR,
            };
            (stream.unread() > 0 || !stream.is_readable(), stream.can_send(), ends)
        }
    };
    bits(input, output) & asked | other
}

fn bits(input: bool, output: bool) -> i16 {
    let bit = |is: bool, bit: i16| if is { bit } else { 0 };
    bit(input, POLLIN) | bit(output, POLLOUT)
}

/// The same of a datagram socket.
fn of_datagrams(inner: &mut datagram::datagram_socket::Inner, asked: i16) -> i16 {
    inner.progress();
    bits(inner.has_arrived(), inner.can_send()) & asked
}

impl Entry {
    /// What is true of it now, of what was asked for.
    fn events(&self, asked: i16) -> i16 {
        match self {
            Entry::Stream(socket) => events(&mut socket.lock(), asked),
            Entry::Datagrams(socket) => of_datagrams(&mut socket.lock(), asked),
        }
    }

    /// Gets ready to sleep. `None`: look once more.
    fn enter(&self, asked: i16) -> Option<[pollfd; FILES]> {
        type Files = Option<[pollfd; FILES]>;
        // Another thread may have taken notice of it meanwhile, for which nothing wakes us.
        fn ready<I: WaitableState>(inner: &mut I, events: impl Fn(&mut I) -> i16) -> Files {
            if events(inner) == 0 { enter(inner).ok() } else { None }
        }
        match self {
            Entry::Stream(socket) => ready(&mut *socket.lock(), |i| events(i, asked)),
            Entry::Datagrams(socket) => ready(&mut *socket.lock(), |i| of_datagrams(i, asked)),
        }
    }

    /// Sleeps no more.
    fn leave(&self, files: &[pollfd]) {
        match self {
            Entry::Stream(socket) => leave(&mut *socket.lock(), files),
            Entry::Datagrams(socket) => leave(&mut *socket.lock(), files),
        }
    }
}

/// Asks the kernel.
fn ask(files: &mut [pollfd], timeout: c_int) -> Result<c_int, Errno> {
    // SAFETY: so many entries.
    match unsafe { libc::poll(files.as_mut_ptr(), files.len() as libc::nfds_t, timeout) } {
        count @ 0.. => Ok(count),
        _ => Err(last()),
    }
}

/// What a program waits for of one descriptor.
pub(crate) struct PollSet<'a> {
    files: &'a mut [pollfd],
    /// The socket of each, if it is one.
    sockets: Vec<Option<Entry>>,
}

impl<'a> PollSet<'a> {
    pub(crate) fn of(files: &'a mut [pollfd]) -> PollSet<'a> {
        let sockets = files.iter().map(|file| fd_table::find(file.fd)).collect();
        PollSet { files, sockets }
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
                Some(socket) => socket.events(file.events),
                None => other.revents,
            };
        }
        Ok(self.files.iter().filter(|file| file.revents != 0).count() as c_int)
    }

    /// Sleeps until something happens to one of them, or for so many milliseconds. It may be
    /// nothing that was asked for.
    pub(crate) fn sleep(&mut self, timeout: c_int) -> Result<(), Errno> {
        let mut entered: Vec<(&Entry, usize)> = Vec::new();
        let mut kernel: Vec<pollfd> = Vec::new();
        let mut ready = true;
        for (file, socket) in self.files.iter().zip(&self.sockets) {
            let Some(socket) = socket else {
                kernel.push(pollfd { revents: 0, ..*file });
                continue;
            };
            let Some(files) = socket.enter(file.events) else {
                // To be looked at once more; the others are left meanwhile.
                ready = false;
                break;
            };
            entered.push((socket, kernel.len()));
            kernel.extend(files);
        }
        let said = if ready { ask(&mut kernel, timeout) } else { Ok(0) };
        for (socket, at) in entered {
            socket.leave(kernel.get(at..at + FILES).unwrap_or_default());
        }
        said.map(drop)
    }
}

/// Until when to wait.
pub(crate) struct Deadline(Option<u64>);

impl Deadline {
    /// In so many milliseconds; a negative number is never.
    pub(crate) fn of(timeout: c_int) -> Deadline {
        Deadline(u64::try_from(timeout).ok().map(|left| clock::now() + left * 1_000_000))
    }

    /// Milliseconds that are left; -1: without end.
    pub(crate) fn left(&self) -> c_int {
        let left = |until: u64| until.saturating_sub(clock::now()).div_ceil(1_000_000);
        self.0.map_or(-1, |until| c_int::try_from(left(until)).unwrap_or(c_int::MAX))
    }
}

/// Waits, as `poll` does.
///
/// # Errors
/// `EINTR`, and what the kernel says of its descriptors.
pub(crate) fn poll(files: &mut [pollfd], timeout: c_int) -> Result<c_int, Errno> {
    let mut waiting = PollSet::of(files);
    if waiting.sockets.iter().all(Option::is_none) {
        return ask(waiting.files, timeout);
    }
    let deadline = Deadline::of(timeout);
    let mut looks = 0;
    loop {
        let count = waiting.look()?;
        let left = deadline.left();
        if count > 0 || left == 0 {
            return Ok(count);
        }
        looks += 1;
        if looks > LOOKS {
            waiting.sleep(left)?;
        }
    }
}
