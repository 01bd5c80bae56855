//! Implements calls with lists of parts or of messages (`sendmmsg`, `readv`) for light connections.
//!
//! What the kernel says of a list before it looks at the connection is said here as well; several
//! messages go one after another.

use core::ffi::c_int;

use omniverb_connection::readiness::Deadline;

use super::descriptors::Token;
use super::waiting::is_over;
use super::{msg_trunc, token_of};
use crate::errno::{errno, fails, keeping_errno, set_errno};
use crate::iovecs::IOV_MAX;
use crate::tsc_clock;
use crate::user_memory::{
    UserMessage, UserMessageMut, UserMessages, UserPart, UserPtrMut, UserSlice,
};

/// Messages of one call, at most (sendmmsg(2)).
const MESSAGES: usize = 1024;
/// `MSG_WAITFORONE`, which is for the call and not for each message.
const WAIT_FOR_ONE: c_int = libc::MSG_WAITFORONE;

/// What a call says that a list of parts is for (`too_many`: if there are more than there may be);
/// `Ok`: how many bytes they have.
fn check(all: UserSlice<'_, UserPart<'_>>, too_many: c_int) -> Result<usize, c_int> {
    if all.len() > IOV_MAX {
        return Err(too_many);
    }
    let mut total = 0_usize;
    let mut is_there = true;
    for index in 0..all.len() {
        let part = all.get(index).ok_or(libc::EFAULT)?;
        if isize::try_from(part.len()).is_err() {
            return Err(libc::EINVAL);
        }
        total = total.saturating_add(part.len());
        is_there &= part.is_there();
    }
    if is_there { Ok(total) } else { Err(libc::EFAULT) }
}

/// `readv` and `writev`: what they say at once of a light connection. An empty list is nothing, as
/// for a file.
pub(crate) fn vector(fd: c_int, parts: UserSlice<'_, UserPart<'_>>) -> Option<isize> {
    token_of(fd)?;
    match check(parts, libc::EINVAL) {
        Ok(0) => Some(0),
        Ok(_) => None,
        Err(error) => Some(fails(error) as isize),
    }
}

/// `sendmsg` and `recvmsg`: the same.
pub(crate) fn message(fd: c_int, message: UserMessage<'_>) -> Option<isize> {
    token_of(fd)?;
    if message.is_null() {
        return Some(fails(libc::EFAULT) as isize);
    }
    let parts = message.parts();
    match check(parts, libc::EMSGSIZE) {
        Err(libc::EFAULT) if !parts.is_null() => None,
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
pub(crate) fn length(parts: UserSlice<'_, UserPart<'_>>) -> usize {
    let parts = (0..parts.len().min(IOV_MAX)).filter_map(|index| parts.get(index));
    parts.map(|part| part.len()).fold(0_usize, usize::saturating_add)
}

/// `sendmmsg` by a light connection; `each` sends one. `None`: it is none.
pub(crate) fn send_many(
    fd: c_int,
    messages: UserMessages<'_>,
    each: impl Fn(UserMessageMut<'_>) -> isize,
) -> Option<c_int> {
    token_of(fd)?;
    Some(several(messages, each, |_| true))
}

/// `recvmmsg` by a light connection; `each` receives one, with flags. `None`: it is none.
pub(crate) fn receive_many(
    fd: c_int,
    messages: UserMessages<'_>,
    flags: c_int,
    timeout: UserPtrMut<'_, libc::timespec>,
    each: impl Fn(UserMessageMut<'_>, c_int) -> isize,
) -> Option<c_int> {
    token_of(fd)?;
    let Some(asked) = tsc_clock::timeout_of(timeout.as_const()) else {
        let is_time = timeout.as_const().is_readable();
        return Some(fails(if is_time { libc::EINVAL } else { libc::EFAULT }));
    };
    let waits = asked.deadline(tsc_clock::nanoseconds());
    let more = core::cell::Cell::new(flags & !WAIT_FOR_ONE);
    let one = |message: UserMessageMut<'_>| {
        let got = each(message, more.get());
        if flags & WAIT_FOR_ONE != 0 {
            more.set(more.get() | libc::MSG_DONTWAIT);
        }
        got
    };
    let got = several(messages, one, |_| timeout.is_null() || !is_over(waits));
    if let Deadline::Until(Some(until)) = waits {
        let left = until.saturating_sub(tsc_clock::nanoseconds());
        // The kernel says there what is left.
        timeout.write(libc::timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        });
    }
    Some(got)
}

/// One after another, until one fails: how many did not; an error behind others is the next call's.
fn several(
    messages: UserMessages<'_>,
    each: impl Fn(UserMessageMut<'_>) -> isize,
    goes_on: impl Fn(usize) -> bool,
) -> c_int {
    let mut done = 0;
    let before = errno();
    while done < messages.len().min(MESSAGES) {
        if messages.is_null() {
            return fails(libc::EFAULT);
        }
        let Ok(moved) = u32::try_from(each(messages.get(done))) else {
            if done == 0 {
                return -1;
            }
            set_errno(before);
            break;
        };
        messages.set_length(done, moved);
        done += 1;
        if !goes_on(done) {
            break;
        }
    }
    keeping_errno(|| done as c_int)
}
