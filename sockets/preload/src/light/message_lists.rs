//! Implements calls with lists of parts or of messages (`sendmmsg`, `readv`) for light connections.
//!
//! What the kernel says of a list before it looks at the connection is said here as well; several
//! messages go one after another.

use core::ffi::c_int;

use omniverb_connection::readiness::Deadline;

use super::descriptors::Token;
use super::sleepers::now;
use super::waiting::is_over;
use super::{msg_trunc, token_of};
use crate::clock;
use crate::errno::{errno, fails, keeping_errno, set_errno};
use crate::iovecs::IOV_MAX;

/// Messages of one call, at most (sendmmsg(2)).
const MESSAGES: u32 = 1024;
/// `MSG_WAITFORONE`, which is for the call and not for each message.
const WAIT_FOR_ONE: c_int = libc::MSG_WAITFORONE;

/// What a call says that a list of parts is for (`too_many`: if there are more than there may be);
/// `Ok`: how many bytes they have.
///
/// # Safety
/// So many are there.
unsafe fn check(all: *const libc::iovec, count: usize, too_many: c_int) -> Result<usize, c_int> {
    if count > IOV_MAX {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(0);
    }
    if all.is_null() {
        return Err(libc::EFAULT);
    }
    let mut total = 0_usize;
    let mut is_there = true;
    for index in 0..count {
        // SAFETY: as the caller says.
        let part = unsafe { all.add(index).read_unaligned() };
        if isize::try_from(part.iov_len).is_err() {
            return Err(libc::EINVAL);
        }
        total = total.saturating_add(part.iov_len);
        is_there &= !part.iov_base.is_null() || part.iov_len == 0;
    }
    if is_there { Ok(total) } else { Err(libc::EFAULT) }
}

/// `readv` and `writev`: what they say at once of a light connection. An empty list is nothing, as
/// for a file.
///
/// # Safety
/// As of the functions.
pub(crate) unsafe fn vector(fd: c_int, parts: *const libc::iovec, count: c_int) -> Option<isize> {
    token_of(fd)?;
    let Ok(count) = usize::try_from(count) else { return Some(fails(libc::EINVAL) as isize) };
    // SAFETY: as the caller says.
    match unsafe { check(parts, count, libc::EINVAL) } {
        Ok(0) => Some(0),
        Ok(_) => None,
        Err(error) => Some(fails(error) as isize),
    }
}

/// `sendmsg` and `recvmsg`: the same.
///
/// # Safety
/// As of the functions.
pub(crate) unsafe fn message(fd: c_int, message: *const libc::msghdr) -> Option<isize> {
    token_of(fd)?;
    if message.is_null() {
        return Some(fails(libc::EFAULT) as isize);
    }
    // SAFETY: as the caller says.
    let (all, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    // SAFETY: as the caller says.
    match unsafe { check(all, count, libc::EMSGSIZE) } {
        Err(libc::EFAULT) if !all.is_null() => None,
        Err(error) => Some(fails(error) as isize),
        Ok(_) => None,
    }
}

/// `recv` and `recvmsg` with `MSG_TRUNC`, of so many bytes: `None` if it is none, or not by a light
/// connection.
pub(crate) fn truncated(fd: c_int, flags: c_int, length: usize) -> Option<isize> {
    let is_asked =
        flags & libc::MSG_TRUNC != 0 && flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
    let token: Token = if is_asked { token_of(fd) } else { None }?;
    Some(msg_trunc::discard(token, length, flags))
}

/// The bytes of a message's parts.
///
/// # Safety
/// It is there, with its parts.
pub(crate) unsafe fn length(message: *const libc::msghdr) -> usize {
    // SAFETY: as the caller says.
    unsafe {
        let count = if (*message).msg_iov.is_null() { 0 } else { (*message).msg_iovlen };
        let parts = (0..count.min(IOV_MAX)).map(|index| (*(*message).msg_iov.add(index)).iov_len);
        parts.fold(0_usize, usize::saturating_add)
    }
}

/// `sendmmsg` by a light connection; `each` sends one. `None`: it is none.
///
/// # Safety
/// So many messages are there.
pub(crate) unsafe fn send_many(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: u32,
    each: impl Fn(*mut libc::msghdr) -> isize,
) -> Option<c_int> {
    token_of(fd)?;
    Some(several(messages, count, each, |_| true))
}

/// `recvmmsg` by a light connection; `each` receives one, with flags. `None`: it is none.
///
/// # Safety
/// So many messages are there; the limit is there, or null.
pub(crate) unsafe fn receive_many(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    (count, flags): (u32, c_int),
    timeout: *mut libc::timespec,
    each: impl Fn(*mut libc::msghdr, c_int) -> isize,
) -> Option<c_int> {
    token_of(fd)?;
    // SAFETY: as the caller says.
    let Some(asked) = (unsafe { clock::timeout_of(timeout) }) else {
        return Some(fails(libc::EINVAL));
    };
    let waits = asked.deadline(now());
    let more = core::cell::Cell::new(flags & !WAIT_FOR_ONE);
    let one = |message: *mut libc::msghdr| {
        let got = each(message, more.get());
        if flags & WAIT_FOR_ONE != 0 {
            more.set(more.get() | libc::MSG_DONTWAIT);
        }
        got
    };
    let got = several(messages, count, one, |_| timeout.is_null() || !is_over(waits));
    if let Deadline::Until(Some(until)) = waits {
        let left = until.saturating_sub(now());
        // SAFETY: as the caller says; the kernel says there what is left.
        unsafe {
            (*timeout).tv_sec = (left / 1_000_000_000) as i64;
            (*timeout).tv_nsec = (left % 1_000_000_000) as i64;
        }
    }
    Some(got)
}

/// One after another, until one fails: how many did not; an error behind others is the next call's.
fn several(
    messages: *mut libc::mmsghdr,
    count: u32,
    each: impl Fn(*mut libc::msghdr) -> isize,
    goes_on: impl Fn(usize) -> bool,
) -> c_int {
    let mut done = 0;
    let before = errno();
    while done < count.min(MESSAGES) as usize {
        if messages.is_null() {
            return fails(libc::EFAULT);
        }
        // SAFETY: the program's messages, which the kernel would read as well.
        let one = unsafe { messages.add(done) };
        // SAFETY: as above.
        let moved = each(unsafe { &raw mut (*one).msg_hdr });
        let Ok(moved) = u32::try_from(moved) else {
            if done == 0 {
                return -1;
            }
            set_errno(before);
            break;
        };
        // SAFETY: as above.
        unsafe { (*one).msg_len = moved };
        done += 1;
        if !goes_on(done) {
            break;
        }
    }
    keeping_errno(|| done as c_int)
}
