//! Replaces the C library's functions that move bytes or wait for them.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr;

use libc::timespec;
use omniverb_connection::descriptors::Kind;
use omniverb_connection::readiness::Timeout;
use omniverb_ring::UserMemory;

use crate::call_effects::{self, Call};
use crate::carry;
use crate::clock::timeout_of;
use crate::control_messages;
use crate::dispatch;
use crate::fork_refcount;
use crate::hook_macros::watched;
use crate::iovecs::{Parts, one_part};
use crate::light::{self, message_lists};
use crate::next_functions::*;
use crate::readiness::epoll;
use crate::readiness::poll::poll;
use crate::readiness::select::{Sets, select};
use crate::table;

/// The kernel looks at no more messages of one call (sendmmsg(2)).
const MESSAGES: u32 = 1024;

/// Where a call's one part is described.
const EMPTY: [libc::iovec; 1] = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }];

functions! {
    ov_read(fd: c_int, bytes: *mut c_void, length: usize) -> isize {
        if let Some(got) = receive_whole(fd, bytes, length, 0) {
            return got;
        }
        if length == 0 && light::token_of(fd).is_some() {
            // As of files, and not as `recv` does.
            return 0;
        }
        let mut place = EMPTY;
        // SAFETY: the program's arguments, as they are.
        dispatch::receive(fd, || one_part(bytes, length, &mut place), 0, || unsafe {
            next_read(fd, bytes, length)
        })
    }

    ov_read_chk(fd: c_int, bytes: *mut c_void, length: usize, room: usize) -> isize {
        if length > room {
            // SAFETY: the program's arguments, as they are: it is ended for them.
            return unsafe { next___read_chk(fd, bytes, length, room) };
        }
        // SAFETY: as the caller says.
        unsafe { ov_read(fd, bytes, length) }
    }

    ov_readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        // SAFETY: the program's arguments, as they are.
        if let Some(said) = unsafe { message_lists::vector(fd, parts, count) } {
            return said;
        }
        // SAFETY: the program's arguments, as they are.
        dispatch::receive(fd, || unsafe { Parts::of_count(parts, count) }, 0, || unsafe {
            next_readv(fd, parts, count)
        })
    }

    ov_recv(fd: c_int, bytes: *mut c_void, length: usize, flags: c_int) -> isize {
        if let Some(got) = receive_whole(fd, bytes, length, flags) {
            return got;
        }
        if let Some(got) = message_lists::truncated(fd, flags, length) {
            return got;
        }
        let (mut place, to) = (EMPTY, room_for(fd, bytes, flags));
        // SAFETY: the program's arguments, as they are.
        dispatch::receive(fd, || one_part(to, length, &mut place), flags, || unsafe {
            next_recv(fd, bytes, length, flags)
        })
    }

    ov_recv_chk(
        fd: c_int,
        bytes: *mut c_void,
        length: usize,
        room: usize,
        flags: c_int
    ) -> isize {
        if length > room {
            // SAFETY: the program's arguments, as they are: it is ended for them.
            return unsafe { next___recv_chk(fd, bytes, length, room, flags) };
        }
        // SAFETY: as the caller says.
        unsafe { ov_recv(fd, bytes, length, flags) }
    }

    ov_recvfrom(
        fd: c_int,
        bytes: *mut c_void,
        length: usize,
        flags: c_int,
        address: *mut c_void,
        address_length: *mut u32
    ) -> isize {
        if address.is_null()
            && let Some(got) = receive_whole(fd, bytes, length, flags)
        {
            return got;
        }
        let (mut place, to) = (EMPTY, room_for(fd, bytes, flags));
        let is_kernels = Cell::new(false);
        let got = message_lists::truncated(fd, flags, length).unwrap_or_else(|| {
            let parts = || one_part(to, length, &mut place);
            dispatch::receive(fd, parts, flags, || {
                // SAFETY: the program's arguments, as they are.
                let got =
                    unsafe { next_recvfrom(fd, bytes, length, flags, address, address_length) };
                is_kernels.set(got >= 0);
                got
            })
        });
        // The kernel gives no address for a stream; nor do we for what did not come by this call.
        let is_ours = got >= 0 && !is_kernels.get();
        if is_ours && !address.is_null() && !address_length.is_null() {
            // SAFETY: where the kernel would write it.
            unsafe { *address_length = 0 };
        }
        got
    }

    ov_recvfrom_chk(
        fd: c_int,
        bytes: *mut c_void,
        length: usize,
        room: usize,
        flags: c_int,
        address: *mut c_void,
        address_length: *mut u32
    ) -> isize {
        if length > room {
            // SAFETY: the program's arguments, as they are: it is ended for them.
            return unsafe {
                next___recvfrom_chk(fd, bytes, length, room, flags, address, address_length)
            };
        }
        // SAFETY: as the caller says.
        unsafe { ov_recvfrom(fd, bytes, length, flags, address, address_length) }
    }

    ov_recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        // SAFETY: the program's arguments, as they are.
        if let Some(said) = unsafe { message_lists::message(fd, message) } {
            return said;
        }
        // SAFETY: the program's message, which the kernel would read as well.
        let parts = || unsafe {
            let is_one = !message.is_null();
            let all =
                if is_one { Parts::of((*message).msg_iov, (*message).msg_iovlen) } else { None };
            all.map(|all| all.and_control((*message).msg_controllen))
        };
        let is_kernels = Cell::new(false);
        let is_truncated = flags & libc::MSG_TRUNC != 0 && !message.is_null();
        // SAFETY: it is there, as the kernel would find it.
        let length = if is_truncated { unsafe { message_lists::length(message) } } else { 0 };
        let native = || {
            let call = Call::Receive(message);
            // SAFETY: the program's arguments, as they are.
            let got = watched(call, || unsafe { next_recvmsg(fd, message, flags) } as i64);
            is_kernels.set(got >= 0);
            got as isize
        };
        let got = message_lists::truncated(fd, flags, length)
            .unwrap_or_else(|| dispatch::receive(fd, parts, flags, native));
        // What the kernel has said of bytes that came by it stays as it is.
        if got >= 0 && !is_kernels.get() {
            // As the kernel says for a stream: no name, no control data.
            // SAFETY: where the kernel would write it.
            unsafe {
                (*message).msg_namelen = 0;
                let room = core::mem::take(&mut (*message).msg_controllen);
                (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
                if let Some(left) = carry::left_behind(fd) {
                    control_messages::says_left(&mut *message, room, left);
                }
            }
        }
        got
    }

    ov_recvmmsg(
        fd: c_int,
        messages: *mut libc::mmsghdr,
        count: u32,
        flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int {
        // SAFETY: the program's arguments, as they are.
        let light = unsafe {
            let each = |message, flags| ov_recvmsg(fd, message, flags);
            message_lists::receive_many(fd, messages, (count, flags), timeout, each)
        };
        if let Some(got) = light {
            return got;
        }
        fork_refcount::may_outlive_close(fd);
        carry::leave(fd);
        carry::may_sleep();
        let call = Call::ReceiveMany(messages);
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_recvmmsg(fd, messages, count, flags, timeout) })
    }

    ov_write(fd: c_int, bytes: *const c_void, length: usize) -> isize {
        if let Some(sent) = send_whole(fd, bytes, length, 0) {
            return sent;
        }
        let mut place = EMPTY;
        // SAFETY: the program's arguments, as they are.
        dispatch::send(fd, || one_part(bytes, length, &mut place), 0, || unsafe {
            next_write(fd, bytes, length)
        })
    }

    ov_writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        // SAFETY: the program's arguments, as they are.
        if let Some(said) = unsafe { message_lists::vector(fd, parts, count) } {
            return said;
        }
        // SAFETY: the program's arguments, as they are.
        dispatch::send(fd, || unsafe { Parts::of_count(parts, count) }, 0, || unsafe {
            next_writev(fd, parts, count)
        })
    }

    ov_send(fd: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize {
        if let Some(sent) = send_whole(fd, bytes, length, flags) {
            return sent;
        }
        let mut place = EMPTY;
        let parts = || one_part(bytes, length, &mut place);
        let sent = dispatch::send(fd, parts, flags, || {
            // SAFETY: the program's arguments, as they are.
            unsafe { next_send(fd, bytes, length, flags) }
        });
        flagged(fd, flags, sent)
    }

    ov_sendto(
        fd: c_int,
        bytes: *const c_void,
        length: usize,
        flags: c_int,
        address: *const c_void,
        address_length: u32
    ) -> isize {
        if address.is_null()
            && let Some(sent) = send_whole(fd, bytes, length, flags)
        {
            return sent;
        }
        let mut place = EMPTY;
        let parts = || {
            let is_plain = address.is_null() || is_no_matter(address_length);
            if is_plain { one_part(bytes, length, &mut place) } else { None }
        };
        let sent = dispatch::send(fd, parts, flags, || {
            // SAFETY: the program's arguments, as they are.
            unsafe { next_sendto(fd, bytes, length, flags, address, address_length) }
        });
        flagged(fd, flags, sent)
    }

    ov_sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
        // SAFETY: the program's arguments, as they are.
        if let Some(said) = unsafe { message_lists::message(fd, message) } {
            return said;
        }
        let call = Call::Send { fd, message, flags };
        // SAFETY: the program's message, which the kernel would read as well.
        let parts = || unsafe {
            let is_plain = !message.is_null()
                && ((*message).msg_name.is_null() || is_no_matter((*message).msg_namelen))
                && (*message).msg_controllen == 0;
            if is_plain { Parts::of((*message).msg_iov, (*message).msg_iovlen) } else { None }
        };
        if carry::may_pass(fd) {
            // SAFETY: as above.
            unsafe { carry::pass(message) };
        }
        dispatch::send(fd, parts, flags, || {
            // SAFETY: the program's arguments, as they are.
            watched(call, || unsafe { next_sendmsg(fd, message, flags) } as i64) as isize
        })
    }

    ov_sendmmsg(
        fd: c_int,
        messages: *mut libc::mmsghdr,
        count: u32,
        flags: c_int
    ) -> c_int {
        // SAFETY: the program's arguments, as they are.
        let light = unsafe {
            let each = |message: *mut libc::msghdr| ov_sendmsg(fd, message, flags);
            message_lists::send_many(fd, messages, count, each)
        };
        if let Some(sent) = light {
            return sent;
        }
        carry::leave_if_flagged(fd, flags);
        fork_refcount::may_outlive_close(fd);
        carry::stop_sending(fd);
        if !messages.is_null() && carry::may_pass(fd) {
            for index in 0..count.min(MESSAGES) as usize {
                // SAFETY: the program's messages, which the kernel would read as well.
                unsafe { carry::pass(&raw const (*messages.add(index)).msg_hdr) };
            }
        }
        let call = Call::SendMany { fd, messages, flags };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_sendmmsg(fd, messages, count, flags) })
    }

    ov_getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut u32
    ) -> c_int {
        if let Some(at) = light::token_of(fd) {
            // SAFETY: the program's arguments, as they are.
            return unsafe { light::get(at, (level, name), value, length) };
        }
        let error = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => carry::take_error(fd),
            _ => None,
        };
        // SAFETY: the program's arguments, as they are.
        let result = unsafe { next_getsockopt(fd, level, name, value, length) };
        if let Some(error) = error
            && result == 0
        {
            // SAFETY: the kernel has just written so many bytes there.
            unsafe {
                let bytes = (*length as usize).min(size_of::<c_int>());
                core::ptr::copy(error.to_ne_bytes().as_ptr(), value.cast::<u8>(), bytes);
            }
        }
        result
    }

    ov_poll(all: *mut libc::pollfd, count: u64, timeout: c_int) -> c_int {
        let wait = || Some(Timeout::of_milliseconds(timeout));
        // SAFETY: the program's arguments, as they are.
        unsafe {
            poll((all, count), wait, ptr::null(), || next_poll(all, count, timeout))
        }
    }

    ov_poll_chk(all: *mut libc::pollfd, count: u64, timeout: c_int, room: usize) -> c_int {
        if (count as usize).saturating_mul(size_of::<libc::pollfd>()) > room {
            // SAFETY: the program's arguments, as they are: it is ended for them.
            return unsafe { next___poll_chk(all, count, timeout, room) };
        }
        // SAFETY: as the caller says.
        unsafe { ov_poll(all, count, timeout) }
    }

    ov_ppoll(
        all: *mut libc::pollfd,
        count: u64,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t
    ) -> c_int {
        // SAFETY: the program's arguments, as they are.
        unsafe {
            let wait = || timeout_of(timeout);
            poll((all, count), wait, mask, || next_ppoll(all, count, timeout, mask))
        }
    }

    ov_ppoll_chk(
        all: *mut libc::pollfd,
        count: u64,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
        room: usize
    ) -> c_int {
        if (count as usize).saturating_mul(size_of::<libc::pollfd>()) > room {
            // SAFETY: the program's arguments, as they are: it is ended for them.
            return unsafe { next___ppoll_chk(all, count, timeout, mask, room) };
        }
        // SAFETY: as the caller says.
        unsafe { ov_ppoll(all, count, timeout, mask) }
    }

    ov_select(
        end: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *mut libc::timeval
    ) -> c_int {
        let sets = Sets { end, sets: [read, write, except] };
        // SAFETY: the program's arguments, as they are.
        unsafe {
            let wait = || match timeout.as_ref() {
                None => Some(Timeout::Forever),
                Some(asked) => Timeout::of_microseconds(asked.tv_sec, asked.tv_usec),
            };
            select(sets, wait, Some(timeout), ptr::null(), || {
                next_select(end, read, write, except, timeout)
            })
        }
    }

    ov_pselect(
        end: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t
    ) -> c_int {
        let sets = Sets { end, sets: [read, write, except] };
        // SAFETY: the program's arguments, as they are.
        unsafe {
            select(sets, || timeout_of(timeout), None, mask, || {
                next_pselect(end, read, write, except, timeout, mask)
            })
        }
    }

    ov_epoll_wait(
        set: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: c_int
    ) -> c_int {
        let how = (Some(Timeout::of_milliseconds(timeout)), ptr::null());
        epoll::wait(set, events, most, how, |events, most, limit| {
            let timeout = limit.map_or(timeout, Timeout::milliseconds);
            // SAFETY: the program's arguments, or a part of its array.
            unsafe { next_epoll_wait(set, events, most, timeout) }
        })
    }

    ov_epoll_pwait(
        set: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: c_int,
        mask: *const libc::sigset_t
    ) -> c_int {
        let how = (Some(Timeout::of_milliseconds(timeout)), mask);
        epoll::wait(set, events, most, how, |events, most, limit| {
            let timeout = limit.map_or(timeout, Timeout::milliseconds);
            // SAFETY: as above.
            unsafe { next_epoll_pwait(set, events, most, timeout, mask) }
        })
    }

    ov_epoll_pwait2(
        set: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t
    ) -> c_int {
        // What is no set is refused, whatever the limit says, which may be no address.
        let is_set = table::look(set).kind() == Kind::Set;
        // SAFETY: the program's limit, which the kernel would read as well.
        let limit = if is_set { unsafe { timeout_of(timeout) } } else { None };
        epoll::wait(set, events, most, (limit, mask), |events, most, limit| {
            let left = limit.and_then(Timeout::time);
            let left = left.map(|(tv_sec, tv_nsec)| timespec { tv_sec, tv_nsec });
            let time = match limit {
                // What is no time is as the program has said it.
                None => timeout,
                Some(_) => left.as_ref().map_or(ptr::null(), ptr::from_ref),
            };
            // SAFETY: as above.
            unsafe { next_epoll_pwait2(set, events, most, time, mask) }
        })
    }
}

/// Where a call wants bytes: nowhere, if they are only counted (`MSG_TRUNC`), and then null is as
/// good as anything else.
fn room_for(fd: c_int, bytes: *mut c_void, flags: c_int) -> *mut c_void {
    let is_counted = bytes.is_null() && flags & libc::MSG_TRUNC != 0;
    let is_nowhere = is_counted && light::token_of(fd).is_none();
    if is_nowhere { core::ptr::dangling_mut() } else { bytes }
}

/// The kernel does not look at an address of this length where a stream of TCP is connected.
fn is_no_matter(address_length: u32) -> bool {
    address_length as usize <= size_of::<libc::sockaddr_storage>()
}

/// The one piece of a call, if it has any bytes.
#[inline(always)]
fn piece(bytes: *const c_void, length: usize) -> Option<UserMemory> {
    let is_some = !bytes.is_null() && length > 0 && isize::try_from(length).is_ok();
    // SAFETY: the program's own memory, as it said.
    is_some.then(|| unsafe { UserMemory::new(bytes.expose_provenance(), length) })
}

/// A call of one piece that has nothing to think of, by a light connection or a link.
#[inline(always)]
fn send_whole(fd: c_int, bytes: *const c_void, length: usize, flags: c_int) -> Option<isize> {
    let piece = piece(bytes, length)?;
    match light::fast_path::send(fd, piece, flags, carry::has_unread) {
        None => carry::fast_path::send(fd, piece, flags),
        sent => sent,
    }
}

/// The same for one that receives.
#[inline(always)]
fn receive_whole(fd: c_int, bytes: *mut c_void, length: usize, flags: c_int) -> Option<isize> {
    let piece = piece(bytes, length)?;
    match light::fast_path::receive(fd, piece, flags, carry::has_unread) {
        None => carry::fast_path::receive(fd, piece, flags),
        got => got,
    }
}

/// What was sent with flags of which some are for the kernel alone.
#[inline(always)]
fn flagged(fd: c_int, flags: c_int, sent: isize) -> isize {
    if flags & call_effects::FLAGS != 0 {
        Call::Flags { fd, flags }.after(call_effects::Was::default(), sent);
    }
    sent
}
