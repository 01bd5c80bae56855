//! Replaces the C library's functions that move bytes or wait for them.

use core::cell::Cell;
use core::ffi::c_int;

use omniverb_connection::descriptors::Kind;
use omniverb_connection::readiness::Timeout;

use crate::carry;
use crate::descriptor_changes_by_calls::{self, Call};
use crate::descriptor_tables;
use crate::errno::fails;
use crate::fork_refcount;
use crate::hook_macros::watched;
use crate::iovecs::{IOV_MAX, Parts};
use crate::light::{self, message_lists};
use crate::next_library;
use crate::readiness::select::select;
use crate::readiness::{self, epoll};
use crate::transport_choice;
use crate::tsc_clock;
use crate::user_memory::{
    Length, UserBuffer, UserMessage, UserMessageMut, UserPart, UserPtr, UserSlice, UserSliceMut,
};

/// The kernel looks at no more messages of one call (sendmmsg(2)).
const MESSAGES: usize = 1024;

functions! {
    ov_read(fd: int, bytes: room) -> isize {
        read(fd, bytes)
    }

    ov_read_chk(fd: int, bytes: room, room: usize) -> isize {
        // The program is ended for that.
        if bytes.len() > room { next_library::read_chk(fd, bytes, room) } else { read(fd, bytes) }
    }

    ov_readv(fd: int, parts: parts) -> isize {
        if !parts.is_readable(IOV_MAX) {
            return unreadable(fd, || next_library::readv(fd, parts));
        }
        if let Some(said) = message_lists::vector(fd, parts) {
            return said;
        }
        transport_choice::receive(fd, || Parts::of(parts), 0, || next_library::readv(fd, parts))
    }

    ov_recv(fd: int, bytes: room, flags: int) -> isize {
        recv(fd, bytes, flags)
    }

    ov_recv_chk(fd: int, bytes: room, room: usize, flags: int) -> isize {
        // As above.
        if bytes.len() > room {
            next_library::recv_chk(fd, bytes, room, flags)
        } else {
            recv(fd, bytes, flags)
        }
    }

    ov_recvfrom(fd: int, bytes: room, flags: int, from: buffer) -> isize {
        recvfrom(fd, bytes, flags, from)
    }

    ov_recvfrom_chk(fd: int, bytes: room, room: usize, flags: int, from: buffer) -> isize {
        // As above.
        if bytes.len() > room {
            next_library::recvfrom_chk(fd, bytes, room, flags, from)
        } else {
            recvfrom(fd, bytes, flags, from)
        }
    }

    ov_recvmsg(fd: int, message: message_mut, flags: int) -> isize {
        recvmsg(fd, message, flags)
    }

    ov_recvmmsg(fd: int, messages: messages, flags: int, timeout: time_mut) -> c_int {
        if !messages.is_readable(MESSAGES) {
            return unreadable(fd, || next_library::recvmmsg(fd, messages, flags, timeout) as isize)
                as c_int;
        }
        let each = |message: UserMessageMut<'_>, flags| recvmsg(fd, message, flags);
        if let Some(got) = message_lists::receive_many(fd, messages, flags, timeout, each) {
            return got;
        }
        fork_refcount::may_outlive_close(fd);
        carry::leave(fd);
        carry::may_sleep();
        let call = Call::ReceiveMany(messages);
        watched(call, || next_library::recvmmsg(fd, messages, flags, timeout))
    }

    ov_write(fd: int, bytes: bytes) -> isize {
        if let Some(sent) = send_whole(fd, bytes, 0) {
            return sent;
        }
        let parts = [UserPart::of(bytes)];
        transport_choice::send(fd, || Parts::new(&parts), 0, || next_library::write(fd, bytes))
    }

    ov_writev(fd: int, parts: parts) -> isize {
        if !parts.is_readable(IOV_MAX) {
            return unreadable(fd, || next_library::writev(fd, parts));
        }
        if let Some(said) = message_lists::vector(fd, parts) {
            return said;
        }
        transport_choice::send(fd, || Parts::of(parts), 0, || next_library::writev(fd, parts))
    }

    ov_send(fd: int, bytes: bytes, flags: int) -> isize {
        if let Some(sent) = send_whole(fd, bytes, flags) {
            return sent;
        }
        let parts = [UserPart::of(bytes)];
        let parts = || Parts::new(&parts);
        let sent =
            transport_choice::send(fd, parts, flags, || next_library::send(fd, bytes, flags));
        flagged(fd, flags, sent)
    }

    ov_sendto(fd: int, bytes: bytes, flags: int, to: value) -> isize {
        if to.is_null()
            && let Some(sent) = send_whole(fd, bytes, flags)
        {
            return sent;
        }
        let parts = [UserPart::of(bytes)];
        let is_plain = to.is_null() || is_no_matter(to.len() as u32);
        let parts = || if is_plain { Parts::new(&parts) } else { None };
        let sent = transport_choice::send(fd, parts, flags, || {
            next_library::sendto(fd, bytes, flags, to)
        });
        flagged(fd, flags, sent)
    }

    ov_sendmsg(fd: int, message: message, flags: int) -> isize {
        sendmsg(fd, message, flags)
    }

    ov_sendmmsg(fd: int, messages: messages, flags: int) -> c_int {
        if !messages.is_readable(MESSAGES) {
            return unreadable(fd, || next_library::sendmmsg(fd, messages, flags) as isize) as c_int;
        }
        let each = |message: UserMessageMut<'_>| sendmsg(fd, message.as_const(), flags);
        if let Some(sent) = message_lists::send_many(fd, messages, each) {
            return sent;
        }
        carry::leave_if_flagged(fd, flags);
        fork_refcount::may_outlive_close(fd);
        carry::stop_sending(fd);
        if !messages.is_null() && carry::may_pass(fd) {
            (0..messages.len().min(MESSAGES))
                .for_each(|index| carry::pass(messages.get(index).as_const()));
        }
        let call = Call::SendMany { fd, messages, flags };
        watched(call, || next_library::sendmmsg(fd, messages, flags))
    }

    ov_getsockopt(fd: int, level: int, name: int, value: buffer) -> c_int {
        if let Some(at) = light::token_of(fd) {
            return light::get(at, (level, name), value);
        }
        let error = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => carry::take_error(fd),
            _ => None,
        };
        let result = next_library::getsockopt(fd, level, name, value);
        if let Some(error) = error
            && result == 0
        {
            value.put(&error.to_ne_bytes());
        }
        result
    }

    ov_poll(all: pollfds, timeout: int) -> c_int {
        poll(all, timeout)
    }

    ov_poll_chk(all: pollfds, timeout: int, room: usize) -> c_int {
        // The program is ended for that.
        match is_longer(all, room) {
            true => next_library::poll_chk(all, timeout, room),
            false => poll(all, timeout),
        }
    }

    ov_ppoll(all: pollfds, timeout: time, mask: mask) -> c_int {
        ppoll(all, timeout, mask)
    }

    ov_ppoll_chk(all: pollfds, timeout: time, mask: mask, room: usize) -> c_int {
        // As above.
        if is_longer(all, room) {
            next_library::ppoll_chk(all, timeout, mask, room)
        } else {
            ppoll(all, timeout, mask)
        }
    }

    ov_select(sets: sets, timeout: timeval) -> c_int {
        let wait = || tsc_clock::timeout_of_timeval(timeout.as_const());
        select(sets, wait, Some(timeout), UserPtr::NULL, || next_library::select(sets, timeout))
    }

    ov_pselect(sets: sets, timeout: time, mask: mask) -> c_int {
        let wait = || tsc_clock::timeout_of(timeout);
        select(sets, wait, None, mask, || next_library::pselect(sets, timeout, mask))
    }

    ov_epoll_wait(set: int, events: events, timeout: int) -> c_int {
        let how = (Some(Timeout::of_milliseconds(timeout)), UserPtr::NULL);
        epoll::wait(set, events, how, |events, limit| {
            next_library::epoll_wait(set, events, limit.map_or(timeout, Timeout::milliseconds))
        })
    }

    ov_epoll_pwait(set: int, events: events, timeout: int, mask: mask) -> c_int {
        let how = (Some(Timeout::of_milliseconds(timeout)), mask);
        epoll::wait(set, events, how, |events, limit| {
            let timeout = limit.map_or(timeout, Timeout::milliseconds);
            next_library::epoll_pwait(set, events, timeout, mask)
        })
    }

    ov_epoll_pwait2(set: int, events: events, timeout: time, mask: mask) -> c_int {
        wait_for_time(set, events, timeout, mask, |events, time| {
            next_library::epoll_pwait2(set, events, time, mask)
        })
    }
}

/// `epoll_pwait2`. `native` makes the call, for a part of the array perhaps, and another time.
#[inline(always)]
pub(crate) fn wait_for_time<'a>(
    set: c_int,
    events: UserSliceMut<'a, libc::epoll_event>,
    timeout: UserPtr<'a, libc::timespec>,
    mask: UserPtr<'a, libc::sigset_t>,
    native: impl Fn(UserSliceMut<'_, libc::epoll_event>, UserPtr<'_, libc::timespec>) -> c_int,
) -> c_int {
    // What is no set is refused, whatever the limit says, which may be no address.
    let is_set = descriptor_tables::look(set).kind() == Kind::Set;
    let how = (if is_set { tsc_clock::timeout_of(timeout) } else { None }, mask);
    epoll::wait(set, events, how, |events, limit| {
        let left = limit.and_then(Timeout::time);
        let left = left.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
        let time = match limit {
            // What is no time is as the program has said it.
            None => timeout,
            Some(_) => left.as_ref().map_or(UserPtr::NULL, UserPtr::of),
        };
        native(events, time)
    })
}

#[inline(always)]
fn read(fd: c_int, bytes: UserSliceMut<'_, u8>) -> isize {
    if let Some(got) = receive_whole(fd, bytes, 0) {
        return got;
    }
    if bytes.len() == 0 && light::token_of(fd).is_some() {
        // As of files, and not as `recv` does.
        return 0;
    }
    let parts = [UserPart::of(bytes.as_const())];
    transport_choice::receive(fd, || Parts::new(&parts), 0, || next_library::read(fd, bytes))
}

#[inline(always)]
fn recv(fd: c_int, bytes: UserSliceMut<'_, u8>, flags: c_int) -> isize {
    if let Some(got) = receive_whole(fd, bytes, flags) {
        return got;
    }
    if let Some(got) = message_lists::truncated(fd, flags, bytes.len()) {
        return got;
    }
    let parts = [UserPart::of(room_for(fd, bytes, flags))];
    transport_choice::receive(
        fd,
        || Parts::new(&parts),
        flags,
        || next_library::recv(fd, bytes, flags),
    )
}

#[inline(always)]
fn recvfrom(fd: c_int, bytes: UserSliceMut<'_, u8>, flags: c_int, from: UserBuffer<'_>) -> isize {
    if !from.has_place()
        && let Some(got) = receive_whole(fd, bytes, flags)
    {
        return got;
    }
    let parts = [UserPart::of(room_for(fd, bytes, flags))];
    let is_kernels = Cell::new(false);
    let got = message_lists::truncated(fd, flags, bytes.len()).unwrap_or_else(|| {
        transport_choice::receive(
            fd,
            || Parts::new(&parts),
            flags,
            || {
                let got = next_library::recvfrom(fd, bytes, flags, from);
                is_kernels.set(got >= 0);
                got
            },
        )
    });
    // The kernel gives no address for a stream; nor do we for what did not come by this call.
    if got >= 0 && !is_kernels.get() {
        from.give(&[], Length::Whole);
    }
    got
}

fn recvmsg(fd: c_int, message: UserMessageMut<'_>, flags: c_int) -> isize {
    let asked = message.as_const();
    if !asked.is_readable(IOV_MAX) {
        return unreadable(fd, || next_library::recvmsg(fd, message, flags));
    }
    if let Some(said) = message_lists::message(fd, asked) {
        return said;
    }
    let parts = || Parts::of(asked.parts()).map(|all| all.and_control(asked.control_length()));
    let is_kernels = Cell::new(false);
    let length =
        if flags & libc::MSG_TRUNC != 0 { message_lists::length(asked.parts()) } else { 0 };
    let native = || {
        let call = Call::Receive(asked);
        let got = watched(call, || next_library::recvmsg(fd, message, flags) as i64);
        is_kernels.set(got >= 0);
        got as isize
    };
    let got = message_lists::truncated(fd, flags, length)
        .unwrap_or_else(|| transport_choice::receive(fd, parts, flags, native));
    // What the kernel has said of bytes that came by it stays as it is.
    if got >= 0 && !is_kernels.get() {
        message.finish_stream(flags, carry::left_behind(fd));
    }
    got
}

fn sendmsg(fd: c_int, message: UserMessage<'_>, flags: c_int) -> isize {
    if !message.is_readable(IOV_MAX) {
        return unreadable(fd, || next_library::sendmsg(fd, message, flags));
    }
    if let Some(said) = message_lists::message(fd, message) {
        return said;
    }
    let call = Call::Send { fd, message, flags };
    let parts = || {
        let is_plain =
            message.name_length().is_none_or(is_no_matter) && message.control_length() == 0;
        if is_plain { Parts::of(message.parts()) } else { None }
    };
    if carry::may_pass(fd) {
        carry::pass(message);
    }
    transport_choice::send(fd, parts, flags, || {
        watched(call, || next_library::sendmsg(fd, message, flags) as i64) as isize
    })
}

#[inline(always)]
fn poll(all: UserSliceMut<'_, libc::pollfd>, timeout: c_int) -> c_int {
    let wait = || Some(Timeout::of_milliseconds(timeout));
    readiness::poll::poll(all, wait, UserPtr::NULL, || next_library::poll(all, timeout))
}

#[inline(always)]
fn ppoll(
    all: UserSliceMut<'_, libc::pollfd>,
    timeout: UserPtr<'_, libc::timespec>,
    mask: UserPtr<'_, libc::sigset_t>,
) -> c_int {
    let wait = || tsc_clock::timeout_of(timeout);
    readiness::poll::poll(all, wait, mask, || next_library::ppoll(all, timeout, mask))
}

/// A call of a message or list that cannot be read: the kernel says so, or we of what it does not
/// have.
#[cold]
fn unreadable(fd: c_int, native: impl FnOnce() -> isize) -> isize {
    if light::token_of(fd).is_some() { fails(libc::EFAULT) as isize } else { native() }
}

/// A list is longer than the object that it is in.
fn is_longer(all: UserSliceMut<'_, libc::pollfd>, room: usize) -> bool {
    all.len().saturating_mul(size_of::<libc::pollfd>()) > room
}

/// Where a call wants bytes: nowhere, if they are only counted (`MSG_TRUNC`), and then null is as
/// good as anything else.
fn room_for<'a>(fd: c_int, bytes: UserSliceMut<'a, u8>, flags: c_int) -> UserSlice<'a, u8> {
    let is_counted = bytes.is_null() && flags & libc::MSG_TRUNC != 0;
    let is_nowhere = is_counted && light::token_of(fd).is_none();
    // SAFETY: what is only counted is written nowhere.
    if is_nowhere { unsafe { bytes.nowhere() } } else { bytes.as_const() }
}

/// The kernel does not look at an address of this length where a stream of TCP is connected.
fn is_no_matter(address_length: u32) -> bool {
    address_length as usize <= size_of::<libc::sockaddr_storage>()
}

/// A call of one piece that has nothing to think of, by a light connection or a link.
///
/// A descriptor has one transport, so the order changes no result. Light is first since its lanes
/// are to cost least (docs/decisions/0060). What each call owes carried sockets it does not do: if
/// a carried socket has unread bytes the call goes by [`transport_choice`].
#[inline(always)]
fn send_whole(fd: c_int, bytes: UserSlice<'_, u8>, flags: c_int) -> Option<isize> {
    let piece = bytes.memory()?;
    match light::fast_path::send(fd, piece, flags, carry::has_unread) {
        None => carry::fast_path::send(fd, piece, flags),
        sent => sent,
    }
}

/// The same for one that receives.
#[inline(always)]
fn receive_whole(fd: c_int, bytes: UserSliceMut<'_, u8>, flags: c_int) -> Option<isize> {
    let piece = bytes.as_const().memory()?;
    match light::fast_path::receive(fd, piece, flags, carry::has_unread) {
        None => carry::fast_path::receive(fd, piece, flags),
        got => got,
    }
}

/// What was sent with flags of which some are for the kernel alone.
#[inline(always)]
fn flagged(fd: c_int, flags: c_int, sent: isize) -> isize {
    if flags & descriptor_changes_by_calls::FLAGS != 0 {
        Call::Flags { fd, flags }.after(descriptor_changes_by_calls::PriorState::default(), sent);
    }
    sent
}
