//! The functions that stand in place of the C library's: each does the call, by the next library's
//! function, and sees what came of it.

use core::ffi::{c_int, c_void};

use omniverb_stream::descriptors::Kind;

use crate::call::{self, Call};
use crate::carry::parts::Parts;
use crate::slots::*;
use crate::{carry, numbered, own, place};

/// Where a call's one part is described.
const EMPTY: [libc::iovec; 1] = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }];

/// Does a call, and what it means for descriptors before and after it.
#[inline(always)]
fn watched<R: Copy + Into<i64>>(call: Call, make: impl FnOnce() -> R) -> R {
    let was = call.before();
    let result = make();
    call.after(was, result.into() as isize);
    result
}

/// For the program there is nothing at this number.
fn nothing_there() -> c_int {
    // SAFETY: libc returns a valid pointer to this thread's own variable.
    unsafe { *libc::__errno_location() = libc::EBADF };
    -1
}

/// A number of the library's own, in a process that knows it.
#[inline]
fn is_own(number: c_int) -> bool {
    own::has(number) && place::is_ours()
}

/// Functions of C: the safety of each is that of the function of this name.
macro_rules! functions {
    ($(
        $name:ident($($argument:ident: $kind:ty),*) -> $out:ty $body:block
    )*) => {
        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As of that function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $out $body
        )*
    };
}

functions! {
    ov_socket(family: c_int, of: c_int, protocol: c_int) -> c_int {
        let call = Call::Made(numbered::kind(family, of, protocol));
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_socket(family, of, protocol) })
    }

    ov_socketpair(family: c_int, of: c_int, protocol: c_int, pair: *mut c_int) -> c_int {
        // SAFETY: the program's arguments, as they are.
        watched(Call::Pair(pair), || unsafe { next_socketpair(family, of, protocol, pair) })
    }

    ov_listen(number: c_int, backlog: c_int) -> c_int {
        // SAFETY: the program's arguments, as they are.
        watched(Call::Listen(number), || unsafe { next_listen(number, backlog) })
    }

    ov_connect(number: c_int, address: *const c_void, length: u32) -> c_int {
        carry::leave(number);
        carry::may_sleep();
        // SAFETY: the program's arguments, as they are.
        watched(Call::Connect(number), || unsafe { next_connect(number, address, length) })
    }

    ov_accept(number: c_int, address: *mut c_void, length: *mut u32) -> c_int {
        carry::may_sleep();
        // SAFETY: the program's arguments, as they are.
        watched(Call::Accept(number), || unsafe { next_accept(number, address, length) })
    }

    ov_accept4(number: c_int, address: *mut c_void, length: *mut u32, flags: c_int) -> c_int {
        carry::may_sleep();
        let call = Call::Accept(number);
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_accept4(number, address, length, flags) })
    }

    ov_shutdown(number: c_int, how: c_int) -> c_int {
        carry::shut(number, how);
        // SAFETY: the program's arguments, as they are.
        watched(Call::Shutdown(number), || unsafe { next_shutdown(number, how) })
    }

    ov_setsockopt(
        number: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: u32
    ) -> c_int {
        if !call::is_harmless(level, name) {
            carry::leave(number);
        }
        let call = Call::Option { number, level, name };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_setsockopt(number, level, name, value, length) })
    }

    ov_read(number: c_int, bytes: *mut c_void, length: usize) -> isize {
        let mut place = EMPTY;
        // SAFETY: the program's arguments, as they are.
        carry::receive(number, || carry::one_part(bytes, length, &mut place), 0, || unsafe {
            next_read(number, bytes, length)
        })
    }

    ov_read_chk(number: c_int, bytes: *mut c_void, length: usize, room: usize) -> isize {
        if length > room {
            // SAFETY: the program's arguments, as they are: it is ended for them.
            return unsafe { next___read_chk(number, bytes, length, room) };
        }
        // SAFETY: as the caller says.
        unsafe { ov_read(number, bytes, length) }
    }

    ov_readv(number: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        // SAFETY: the program's arguments, as they are.
        carry::receive(number, || unsafe { Parts::of_count(parts, count) }, 0, || unsafe {
            next_readv(number, parts, count)
        })
    }

    ov_recv(number: c_int, bytes: *mut c_void, length: usize, flags: c_int) -> isize {
        let mut place = EMPTY;
        // SAFETY: the program's arguments, as they are.
        carry::receive(number, || carry::one_part(bytes, length, &mut place), flags, || unsafe {
            next_recv(number, bytes, length, flags)
        })
    }

    ov_recv_chk(
        number: c_int,
        bytes: *mut c_void,
        length: usize,
        room: usize,
        flags: c_int
    ) -> isize {
        if length > room {
            // SAFETY: the program's arguments, as they are: it is ended for them.
            return unsafe { next___recv_chk(number, bytes, length, room, flags) };
        }
        // SAFETY: as the caller says.
        unsafe { ov_recv(number, bytes, length, flags) }
    }

    ov_recvfrom(
        number: c_int,
        bytes: *mut c_void,
        length: usize,
        flags: c_int,
        address: *mut c_void,
        address_length: *mut u32
    ) -> isize {
        let mut place = EMPTY;
        let got = carry::receive(
            number,
            || carry::one_part(bytes, length, &mut place),
            flags,
            // SAFETY: the program's arguments, as they are.
            || unsafe { next_recvfrom(number, bytes, length, flags, address, address_length) },
        );
        // The kernel gives no address for a stream.
        if got >= 0 && !address.is_null() && !address_length.is_null() && carry::has(number) {
            // SAFETY: where the kernel would write it.
            unsafe { *address_length = 0 };
        }
        got
    }

    ov_recvfrom_chk(
        number: c_int,
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
                next___recvfrom_chk(number, bytes, length, room, flags, address, address_length)
            };
        }
        // SAFETY: as the caller says.
        unsafe { ov_recvfrom(number, bytes, length, flags, address, address_length) }
    }

    ov_recvmsg(number: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        // SAFETY: the program's message, which the kernel would read as well.
        let parts = || unsafe {
            if message.is_null() { None } else { Parts::of((*message).msg_iov, (*message).msg_iovlen) }
        };
        let got = carry::receive(number, parts, flags, || {
            let call = Call::Receive(message);
            // SAFETY: the program's arguments, as they are.
            watched(call, || unsafe { next_recvmsg(number, message, flags) } as i64) as isize
        });
        if got >= 0 && flags & !carry::PLAIN == 0 && carry::has(number) {
            // As the kernel says for a stream: no name, no control data.
            // SAFETY: where the kernel would write it.
            unsafe {
                (*message).msg_namelen = 0;
                (*message).msg_controllen = 0;
                (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            }
        }
        got
    }

    ov_recvmmsg(
        number: c_int,
        messages: *mut libc::mmsghdr,
        count: u32,
        flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int {
        carry::leave(number);
        carry::may_sleep();
        let call = Call::ReceiveMany(messages);
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_recvmmsg(number, messages, count, flags, timeout) })
    }

    ov_write(number: c_int, bytes: *const c_void, length: usize) -> isize {
        let mut place = EMPTY;
        // SAFETY: the program's arguments, as they are.
        carry::send(number, || carry::one_part(bytes, length, &mut place), 0, || unsafe {
            next_write(number, bytes, length)
        })
    }

    ov_writev(number: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        // SAFETY: the program's arguments, as they are.
        carry::send(number, || unsafe { Parts::of_count(parts, count) }, 0, || unsafe {
            next_writev(number, parts, count)
        })
    }

    ov_send(number: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize {
        let mut place = EMPTY;
        let parts = || carry::one_part(bytes, length, &mut place);
        let sent = carry::send(number, parts, flags, || {
            // SAFETY: the program's arguments, as they are.
            unsafe { next_send(number, bytes, length, flags) }
        });
        flagged(number, flags, sent)
    }

    ov_sendto(
        number: c_int,
        bytes: *const c_void,
        length: usize,
        flags: c_int,
        address: *const c_void,
        address_length: u32
    ) -> isize {
        let mut place = EMPTY;
        let parts = || {
            let is_plain = address.is_null();
            if is_plain { carry::one_part(bytes, length, &mut place) } else { None }
        };
        let sent = carry::send(number, parts, flags, || {
            // SAFETY: the program's arguments, as they are.
            unsafe { next_sendto(number, bytes, length, flags, address, address_length) }
        });
        flagged(number, flags, sent)
    }

    ov_sendmsg(number: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
        let call = Call::Send { number, message, flags };
        // SAFETY: the program's message, which the kernel would read as well.
        let parts = || unsafe {
            let is_plain = !message.is_null()
                && (*message).msg_name.is_null()
                && (*message).msg_controllen == 0;
            if is_plain { Parts::of((*message).msg_iov, (*message).msg_iovlen) } else { None }
        };
        // SAFETY: as above.
        unsafe { carry::pass(message) };
        carry::send(number, parts, flags, || {
            // SAFETY: the program's arguments, as they are.
            watched(call, || unsafe { next_sendmsg(number, message, flags) } as i64) as isize
        })
    }

    ov_sendmmsg(
        number: c_int,
        messages: *mut libc::mmsghdr,
        count: u32,
        flags: c_int
    ) -> c_int {
        carry::leave(number);
        if !messages.is_null() {
            for index in 0..count as usize {
                // SAFETY: the program's messages, which the kernel would read as well.
                unsafe { carry::pass(&raw const (*messages.add(index)).msg_hdr) };
            }
        }
        let call = Call::SendMany { number, messages, flags };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_sendmmsg(number, messages, count, flags) })
    }

    ov_getsockopt(
        number: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut u32
    ) -> c_int {
        let error = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => carry::take_error(number),
            _ => None,
        };
        // SAFETY: the program's arguments, as they are.
        let result = unsafe { next_getsockopt(number, level, name, value, length) };
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
        // SAFETY: the program's arguments, as they are.
        unsafe {
            carry::poll(all, count, timeout != 0, |waits| {
                next_poll(all, count, if waits { timeout } else { 0 })
            })
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
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the program's arguments, as they are.
        unsafe {
            let waits = timeout.is_null() || (*timeout).tv_sec != 0 || (*timeout).tv_nsec != 0;
            carry::poll(all, count, waits, |waits| {
                next_ppoll(all, count, if waits { timeout } else { &raw const zero }, mask)
            })
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
        // SAFETY: the program's arguments, as they are.
        unsafe {
            let waits = timeout.is_null() || (*timeout).tv_sec != 0 || (*timeout).tv_usec != 0;
            carry::select(end, [read, write], waits, |waits| {
                let mut zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
                let timeout = if waits { timeout } else { &raw mut zero };
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
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the program's arguments, as they are.
        unsafe {
            let waits = timeout.is_null() || (*timeout).tv_sec != 0 || (*timeout).tv_nsec != 0;
            carry::select(end, [read, write], waits, |waits| {
                let timeout = if waits { timeout } else { &raw const zero };
                next_pselect(end, read, write, except, timeout, mask)
            })
        }
    }

    ov_fork() -> c_int {
        let parents = carry::forks();
        // SAFETY: the program's call.
        let child = unsafe { next_fork() };
        if child == 0 {
            carry::forked(parents);
        }
        child
    }

    ov_raw_fork() -> c_int {
        let parents = carry::forks();
        // SAFETY: the program's call.
        let child = unsafe { next__Fork() };
        if child == 0 {
            carry::forked(parents);
        }
        child
    }

    ov_close(number: c_int) -> c_int {
        if is_own(number) {
            return nothing_there();
        }
        carry::close(number);
        // SAFETY: the program's arguments, as they are.
        watched(Call::Close(number), || unsafe { next_close(number) })
    }

    ov_close_range(first: u32, last: u32, flags: c_int) -> c_int {
        if flags & (libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC) as c_int == 0 {
            carry::close_range(first, last);
        } else if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
            carry::stop();
        }
        let call = Call::CloseRange { first, last, flags };
        if !own::is_among(first, last) || !place::is_ours() {
            // SAFETY: the program's arguments, as they are.
            return watched(call, || unsafe { next_close_range(first, last, flags) });
        }
        watched(call, || {
            let mut result = 0;
            own::between(first, last, |first, last| {
                // SAFETY: a part of what the program has closed.
                result |= unsafe { next_close_range(first, last, flags) };
            });
            result
        })
    }

    ov_closefrom(first: c_int) -> () {
        let begin = first.max(0).unsigned_abs();
        carry::close_range(begin, u32::MAX);
        let call = Call::CloseRange { first: begin, last: u32::MAX, flags: 0 };
        call.before();
        if !own::is_among(begin, u32::MAX) || !place::is_ours() {
            // SAFETY: the program's argument, as it is.
            return unsafe { next_closefrom(first) };
        }
        own::between(begin, u32::MAX, |first, last| {
            // SAFETY: a part of what the program has closed. Where the kernel has no such call,
            // what is ours goes with the rest.
            unsafe {
                if next_close_range(first, last, 0) != 0 {
                    next_closefrom(first as c_int);
                }
            }
        });
    }

    ov_dup(number: c_int) -> c_int {
        if is_own(number) {
            return nothing_there();
        }
        carry::duplicate(number, None);
        // SAFETY: the program's arguments, as they are.
        let new = watched(Call::Dup(number), || unsafe { next_dup(number) });
        carry::duplicate(number, Some(new));
        new
    }

    ov_dup2(from: c_int, to: c_int) -> c_int {
        if makes_way(from, to) {
            return nothing_there();
        }
        put(from, to, || {
            // SAFETY: the program's arguments, as they are.
            watched(Call::DupTo { from, to }, || unsafe { next_dup2(from, to) })
        })
    }

    ov_dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if makes_way(from, to) {
            return nothing_there();
        }
        put(from, to, || {
            // SAFETY: the program's arguments, as they are.
            watched(Call::DupTo { from, to }, || unsafe { next_dup3(from, to, flags) })
        })
    }

    ov_fcntl(number: c_int, command: c_int, argument: usize) -> c_int {
        if is_own(number) {
            return nothing_there();
        }
        let is_duplicate = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
        if is_duplicate {
            carry::duplicate(number, None);
        } else if call::is_about_signals(command, argument) {
            carry::leave(number);
        }
        let call = Call::Control { number, command, argument };
        // SAFETY: the program's arguments, as they are.
        let result = watched(call, || unsafe { next_fcntl(number, command, argument) });
        if is_duplicate {
            carry::duplicate(number, Some(result));
        } else if command == libc::F_SETFL {
            carry::has_changed(number);
        }
        result
    }

    ov_ioctl(number: c_int, request: u64, argument: usize) -> c_int {
        if call::SIGNAL_REQUESTS.contains(&request) {
            carry::leave(number);
        }
        let call = Call::Request { number, request };
        // SAFETY: the program's arguments, as they are.
        let result = watched(call, || unsafe { next_ioctl(number, request, argument) });
        match request {
            libc::FIONREAD if result == 0 => {
                let more = carry::queued(number) as c_int;
                if more > 0 {
                    // SAFETY: where the kernel has just written a number.
                    unsafe { *(argument as *mut c_int) += more };
                }
            }
            libc::FIONBIO => carry::has_changed(number),
            _ => {}
        }
        result
    }

    ov_epoll_create(size: c_int) -> c_int {
        // SAFETY: the program's arguments, as they are.
        watched(Call::Made(Kind::Set), || unsafe { next_epoll_create(size) })
    }

    ov_epoll_create1(flags: c_int) -> c_int {
        // SAFETY: the program's arguments, as they are.
        watched(Call::Made(Kind::Set), || unsafe { next_epoll_create1(flags) })
    }

    ov_epoll_ctl(
        set: c_int,
        operation: c_int,
        number: c_int,
        event: *mut libc::epoll_event
    ) -> c_int {
        if operation == libc::EPOLL_CTL_ADD {
            carry::joins_set(number);
        }
        let call = Call::Member { set, operation, number, event };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_epoll_ctl(set, operation, number, event) })
    }

    ov_syscall(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> i64 {
        let first = a as c_int;
        // The same calls, by their own names.
        // SAFETY: the program's arguments, as they are.
        unsafe {
            match number {
                libc::SYS_close => return i64::from(ov_close(first)),
                libc::SYS_close_range => {
                    return i64::from(ov_close_range(a as u32, b as u32, c as c_int));
                }
                libc::SYS_dup => return i64::from(ov_dup(first)),
                libc::SYS_dup2 => return i64::from(ov_dup2(first, b as c_int)),
                libc::SYS_dup3 => return i64::from(ov_dup3(first, b as c_int, c as c_int)),
                libc::SYS_fcntl => return i64::from(ov_fcntl(first, b as c_int, c)),
                libc::SYS_ioctl => return i64::from(ov_ioctl(first, b as u64, c)),
                libc::SYS_shutdown => return i64::from(ov_shutdown(first, b as c_int)),
                libc::SYS_sendmsg => {
                    return ov_sendmsg(first, b as *const libc::msghdr, c as c_int) as i64;
                }
                libc::SYS_recvmsg => {
                    return ov_recvmsg(first, b as *mut libc::msghdr, c as c_int) as i64;
                }
                _ => numbered::leave(number, [a, b, c]),
            }
        }
        // SAFETY: the program's arguments, as they are.
        let make = || unsafe { next_syscall(number, a, b, c, d, e, f) };
        match numbered::call(number, [a, b, c, d, e, f]) {
            Some(call) => watched(call, make),
            None => make(),
        }
    }
}

/// Puts a duplicate at a number, of which it is known what is closed there.
#[inline]
fn put(from: c_int, to: c_int, make: impl FnOnce() -> c_int) -> c_int {
    carry::duplicate(from, None);
    if from != to && carry::has(to) && is_open(from) {
        carry::close(to);
    }
    let result = make();
    carry::duplicate(from, Some(result));
    result
}

/// There is something at a number.
fn is_open(number: c_int) -> bool {
    // SAFETY: no memory is involved.
    unsafe { next_fcntl(number, libc::F_GETFD, 0) >= 0 }
}

/// What was sent with flags of which some are for the kernel alone.
#[inline(always)]
fn flagged(number: c_int, flags: c_int, sent: isize) -> isize {
    if flags & call::FLAGS != 0 {
        Call::Flags { number, flags }.after(omniverb_stream::descriptors::Entry::default(), sent);
    }
    sent
}

/// Before something is put at a number: what is ours there goes elsewhere. True if what is to be
/// put there is nothing for the program.
fn makes_way(from: c_int, to: c_int) -> bool {
    if is_own(from) {
        return true;
    }
    if is_own(to) {
        own::give_way(to);
    }
    false
}
