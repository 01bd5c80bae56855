//! Sends and receives like [`crate::seqpacket`], with a deadline.
//!
//! In: a time of [`crate::clock`]. Out: `ETIMEDOUT` when it has passed. A process that is stopped
//! has sockets that work, and hangs a peer that waits for it; so does one whose backlog is full.

use crate::eventfd::timespec;
use crate::{clock, seqpacket};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// An asked process has mostly answered within this time. For as long it is cheaper to look, and to
/// yield the processor in between, than to sleep and be woken.
const LOOK_TIME_NS: u64 = 30_000;

/// How often room for descriptors is looked for, in nanoseconds.
const ROOM_LOOK_NS: u64 = 1_000_000;

/// The shortest time the kernel can be told: none at all means for ever.
const INSTANT: Duration = Duration::from_millis(1);

fn left(deadline: u64) -> io::Result<Duration> {
    match deadline.saturating_sub(clock::now()) {
        0 => Err(Errno::TIMEDOUT.into()),
        left => Ok(Duration::from_nanos(left)),
    }
}

/// Connects to the socket at `path`.
///
/// # Errors
/// `ETIMEDOUT`, and as [`seqpacket::connect`].
pub fn connect(path: &Path, deadline: u64) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let file = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        // What bounds sending bounds waiting for room in the backlog.
        set_socket_timeout(&file, Timeout::Send, Some(left(deadline)?.max(INSTANT)))?;
        match connect_to(&file, &address) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            other => {
                other?;
                set_socket_timeout(&file, Timeout::Send, None)?;
                return Ok(file);
            }
        }
    }
}

/// Waits until one of `flags` holds.
fn ready(file: BorrowedFd<'_>, flags: PollFlags, deadline: u64) -> io::Result<()> {
    let patience = timespec(left(deadline)?);
    match poll(&mut [PollFd::from_borrowed_fd(file, flags)], Some(&patience)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends one message.
///
/// # Errors
/// `ETIMEDOUT`, and as [`seqpacket::send`].
pub fn send(
    file: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    deadline: u64,
) -> io::Result<()> {
    loop {
        match seqpacket::try_send(file, bytes, descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready(file, PollFlags::OUT, deadline)?;
            }
            other => return other,
        }
    }
}

/// Receives one message and its descriptors; `(0, [])` when the other end is closed. May change
/// the time limit that the socket has for receiving, which costs less than waiting in `poll` first.
/// For room for descriptors it waits, too.
///
/// # Errors
/// `ETIMEDOUT`, and as [`seqpacket::receive_kept`].
pub fn receive(
    file: BorrowedFd<'_>,
    buffer: &mut [u8],
    deadline: u64,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let sleep_at = clock::now() + LOOK_TIME_NS;
    while clock::now() < sleep_at.min(deadline) {
        match seqpacket::receive_kept_once(file, buffer, seqpacket::BlockingMode::NonBlocking) {
            Err(Errno::AGAIN | Errno::MFILE) => rustix::thread::sched_yield(),
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
    loop {
        set_socket_timeout(file, Timeout::Recv, Some(left(deadline)?.max(INSTANT)))?;
        match seqpacket::receive_kept_once(file, buffer, seqpacket::BlockingMode::Blocking) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Others may close some.
            Err(Errno::MFILE) if clock::now() < deadline => {
                ready(file, PollFlags::empty(), deadline.min(clock::now() + ROOM_LOOK_NS))?;
            }
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn soon() -> u64 {
        clock::now() + 30_000_000
    }

    #[test]
    fn waits_have_their_limit() {
        let late = |error: &io::Error| error.raw_os_error() == Some(libc::ETIMEDOUT);
        let (one, other) = seqpacket::pair().unwrap();
        assert!(late(&receive(other.as_fd(), &mut [0; 8], soon()).unwrap_err()));
        send(one.as_fd(), b"hello", &[], soon()).unwrap();
        assert_eq!(receive(other.as_fd(), &mut [0; 8], soon()).unwrap().0, 5);
        let full = (0..100_000).find_map(|_| send(one.as_fd(), &[0; 512], &[], soon()).err());
        assert!(late(&full.unwrap()));
        drop(other);
        let closed = receive(one.as_fd(), &mut [0; 8], soon());
        assert!(!matches!(closed, Err(error) if late(&error)));
    }

    #[test]
    fn a_connect_to_a_full_backlog_ends_at_its_deadline() {
        let folder = std::env::temp_dir().join(format!("omniverb-limited-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let listener = seqpacket::listen(&path, 0o600).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let clients: Vec<_> = (0..8).map(|_| connect(&path, soon())).collect();
        assert!(clients.first().is_some_and(Result::is_ok));
        let last = clients.last().and_then(|last| last.as_ref().err());
        assert_eq!(last.and_then(io::Error::raw_os_error), Some(libc::ETIMEDOUT));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
