//! Queries and sets sockets of the kernel's, and sends by them.
//!
//! Nothing in here sets `errno`.

use core::ffi::c_int;
use core::time::Duration;
use std::io::IoSlice;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sockopt};

use crate::borrowed_fd::borrow;
use crate::next_library;
use crate::user_memory::{UserBuffer, UserRequest, UserSlice};

/// Offsets in `struct tcp_info`. (Of a listening socket `tcpi_sacked` is its backlog.)
const SACKED: usize = 28;
const RECEIVED: usize = 128;
const NOT_SENT: usize = 144;
const SENT: usize = 200;
const SENT_AGAIN: usize = 208;
const INFORMATION: usize = 216;
/// States of TCP.
const ESTABLISHED: u8 = 1;
/// TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING. The other end has ended.
const ENDED: [u8; 5] = [6, 7, 8, 9, 11];

pub(crate) use crate::errno::{errno, keeping_errno, set_errno};

/// What `TCP_INFO` says.
pub(crate) struct Information([u8; 256]);

impl Information {
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        let mut bytes = [0; 256];
        let mut length = 0;
        let to = UserBuffer::of(&mut bytes, &mut length);
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let got = keeping_errno(|| next_library::getsockopt(fd, level, name, to));
        (got == 0 && length as usize >= INFORMATION).then_some(Self(bytes))
    }

    fn long(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[at..at + 8]);
        u64::from_ne_bytes(word)
    }

    fn short(&self, at: usize) -> u64 {
        self.long(at) & 0xffff_ffff
    }

    /// The other end has ended: it sends no more.
    pub(crate) fn has_ended(&self) -> bool {
        ENDED.contains(&self.0[0])
    }

    /// An end sends no more: the states behind ESTABLISHED, but for CLOSE and LISTEN.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.0[0], 4..=6 | 8 | 9 | 11)
    }

    /// Both ends may send.
    pub(crate) fn is_established(&self) -> bool {
        self.0[0] == ESTABLISHED
    }

    /// Of a listening socket: how many connections may wait to be accepted.
    pub(crate) fn backlog(&self) -> u32 {
        self.short(SACKED) as u32
    }

    /// Bytes that this end has given to the kernel, ever.
    pub(crate) fn given(&self) -> u64 {
        (self.long(SENT) - self.long(SENT_AGAIN)).wrapping_add(self.short(NOT_SENT))
    }

    /// Bytes that have come. The kernel counts the end as one.
    pub(crate) fn received(&self) -> u64 {
        self.long(RECEIVED).saturating_sub(u64::from(self.has_ended()))
    }
}

/// A number that `ioctl` gives.
fn count(fd: c_int, request: u64) -> Option<usize> {
    let mut value: c_int = 0;
    let request = UserRequest::for_number(request, &mut value);
    let got = keeping_errno(|| next_library::ioctl(fd, request));
    usize::try_from(value).ok().filter(|_| got == 0)
}

/// Bytes that have come and were not received.
pub(crate) fn queued(fd: c_int) -> Option<usize> {
    count(fd, libc::FIONREAD)
}

/// `SO_MEMINFO` of asm-generic/socket.h, and the words of linux/sock_diag.h that it gives.
const SO_MEMINFO: c_int = 55;
const SEND_BUFFER: usize = 3;
const SEND_QUEUED: usize = 5;
const MEMORY_WORDS: usize = 9;

/// Bytes that the kernel has room for, what it needs to keep them included.
pub(crate) fn room(fd: c_int) -> usize {
    let (mut words, mut length) = ([[0; size_of::<u32>()]; MEMORY_WORDS], 0);
    let to = UserBuffer::of(words.as_flattened_mut(), &mut length);
    let got = keeping_errno(|| next_library::getsockopt(fd, libc::SOL_SOCKET, SO_MEMINFO, to));
    let is_told = got == 0 && length as usize > SEND_QUEUED * size_of::<u32>();
    let [buffer, queued] = [SEND_BUFFER, SEND_QUEUED].map(|at| u32::from_ne_bytes(words[at]));
    let room = buffer.saturating_sub(queued);
    if is_told { room as usize } else { 0 }
}

/// What has come is acknowledged now, and soon after it is received from now on. Natively that goes
/// along with what is sent, for which the kernel waits some 40 ms; and so does the other end's,
/// with the next small message, unless it has `TCP_NODELAY`.
pub(crate) fn acknowledge(fd: c_int) {
    let yes: c_int = 1;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_QUICKACK);
    keeping_errno(|| next_library::setsockopt(fd, level, name, UserSlice::of(&yes.to_ne_bytes())));
}

/// It is one of those that descriptors travel by.
pub(crate) fn is_unix(fd: c_int) -> bool {
    sockopt::socket_domain(borrow(fd)) == Ok(rustix::net::AddressFamily::UNIX)
}

/// How long a call may wait to send, or to receive, in milliseconds, rounded up; `None`: for ever.
pub(crate) fn limit(fd: c_int, of: sockopt::Timeout) -> Option<u32> {
    let time = sockopt::socket_timeout(borrow(fd), of).ok().flatten()?;
    Some(u32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u32::MAX).max(1))
}

/// Resets the connection at once, for all holders of its socket.
pub(crate) fn reset(fd: c_int) {
    _ = rustix::net::connect_unspec(borrow(fd));
}

/// Names the socket.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    sockopt::socket_cookie(borrow(fd)).ok()
}

/// How much the kernel keeps of what is sent.
pub(crate) fn send_buffer(fd: c_int) -> usize {
    sockopt::socket_send_buffer_size(borrow(fd)).unwrap_or(0)
}

/// `SO_RCVLOWAT`.
pub(crate) fn low_water(fd: c_int) -> c_int {
    let (mut value, mut length) = ([0; size_of::<c_int>()], 0);
    let to = UserBuffer::of(&mut value, &mut length);
    keeping_errno(|| next_library::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, to));
    c_int::from_ne_bytes(value)
}

/// `SO_ERROR`, which is taken by asking.
pub(crate) fn take_error(fd: c_int) -> c_int {
    match sockopt::socket_error(borrow(fd)) {
        Ok(Err(error)) => error.raw_os_error(),
        _ => 0,
    }
}

/// It is one of IPv6 to which nothing of IPv4 comes.
pub(crate) fn is_six_only(fd: c_int) -> bool {
    sockopt::ipv6_v6only(borrow(fd)) == Ok(true)
}

/// It does not wait.
pub(crate) fn is_non_blocking(fd: c_int) -> bool {
    let flags = rustix::fs::fcntl_getfl(borrow(fd));
    flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// It is closed by `exec`.
pub(crate) fn is_close_on_exec(fd: c_int) -> bool {
    let flags = rustix::io::fcntl_getfd(borrow(fd));
    flags.is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC))
}

/// What `poll` shows of it, waiting for `wanted` for so many milliseconds.
pub(crate) fn events(fd: c_int, wanted: PollFlags, milliseconds: u32) -> PollFlags {
    let file = borrow(fd);
    let mut one = [PollFd::from_borrowed_fd(file, wanted)];
    let nanoseconds = i64::from(milliseconds % 1000) * 1_000_000;
    let limit = Timespec { tv_sec: i64::from(milliseconds / 1000), tv_nsec: nanoseconds };
    match rustix::event::poll(&mut one, Some(&limit)) {
        Ok(_) => one[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

/// Everything that can be asked for.
pub(crate) const ALL: PollFlags =
    PollFlags::IN.union(PollFlags::OUT).union(PollFlags::PRI).union(PollFlags::RDHUP);

/// Sends without waiting, and without a signal.
pub(crate) fn send(fd: c_int, pieces: [IoSlice<'_>; 2]) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(borrow(fd), &pieces, &mut SendAncillaryBuffer::default(), flags)
}

/// Ends the connection as the last `close` would, which is about to follow, even if there are
/// duplicates: with a reset where there are unread bytes, or `SO_LINGER` says so.
pub(crate) fn end_now(fd: c_int) {
    let file = borrow(fd);
    let resets = matches!(sockopt::socket_linger(file), Ok(Some(Duration::ZERO)));
    if resets || queued(fd).is_some_and(|bytes| bytes > 0) {
        _ = rustix::net::connect_unspec(file);
    } else {
        _ = rustix::net::shutdown(file, rustix::net::Shutdown::Both);
    }
}

/// A set does not tell of what is open at a descriptor any more, if it did.
pub(crate) fn leave_set(set: c_int, fd: c_int) {
    _ = rustix::event::epoll::delete(borrow(set), borrow(fd));
}

/// The next `close` resets the connection.
pub(crate) fn close_will_reset(fd: c_int) {
    // A `linger`: on, and for no time.
    let linger = [1, 0].map(c_int::to_ne_bytes);
    let linger = UserSlice::of(linger.as_flattened());
    keeping_errno(|| next_library::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger));
}
