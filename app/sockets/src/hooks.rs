//! The functions that stand in place of the C library's: each does the call, by the next library's
//! function, and sees what came of it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use omniverb_stream::descriptors::Kind;

use crate::call::{self, Call};
use crate::{numbered, own, place};

/// The next library's functions, from their slots (`next.rs`). They may be left by `longjmp`, or by
/// cancellation, which unwinds: there is nothing to be cleaned up, and as the library is built, to
/// abort, no frame of it has anything that unwinding would stop at. (With `C-unwind` it would
/// abort.)
macro_rules! next {
    ($($name:ident = $slot:ident($($argument:ident: $kind:ty),*) -> $out:ty;)*) => {
        unsafe extern "C" {
            $(safe static $slot: AtomicPtr<c_void>;)*
        }
        $(
            #[inline(always)]
            unsafe fn $name($($argument: $kind),*) -> $out {
                type Function = unsafe extern "C" fn($($kind),*) -> $out;
                let function = $slot.load(Ordering::Relaxed);
                // SAFETY: the slot holds a function of this name, whose arguments are these; one
                // that takes any number finds them where it looks for them.
                let function = unsafe { core::mem::transmute::<*mut c_void, Function>(function) };
                // SAFETY: the caller's arguments are those of the program.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

next! {
    next_socket = ov_next_socket(family: c_int, of: c_int, protocol: c_int) -> c_int;
    next_socketpair = ov_next_socketpair(
        family: c_int, of: c_int, protocol: c_int, pair: *mut c_int
    ) -> c_int;
    next_listen = ov_next_listen(number: c_int, backlog: c_int) -> c_int;
    next_connect = ov_next_connect(number: c_int, address: *const c_void, length: u32) -> c_int;
    next_accept = ov_next_accept(number: c_int, address: *mut c_void, length: *mut u32) -> c_int;
    next_accept4 = ov_next_accept4(
        number: c_int, address: *mut c_void, length: *mut u32, flags: c_int
    ) -> c_int;
    next_shutdown = ov_next_shutdown(number: c_int, how: c_int) -> c_int;
    next_setsockopt = ov_next_setsockopt(
        number: c_int, level: c_int, name: c_int, value: *const c_void, length: u32
    ) -> c_int;
    next_send = ov_next_send(
        number: c_int, bytes: *const c_void, length: usize, flags: c_int
    ) -> isize;
    next_sendto = ov_next_sendto(
        number: c_int, bytes: *const c_void, length: usize, flags: c_int,
        address: *const c_void, address_length: u32
    ) -> isize;
    next_sendmsg = ov_next_sendmsg(
        number: c_int, message: *const libc::msghdr, flags: c_int
    ) -> isize;
    next_sendmmsg = ov_next_sendmmsg(
        number: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int
    ) -> c_int;
    next_recvmsg = ov_next_recvmsg(
        number: c_int, message: *mut libc::msghdr, flags: c_int
    ) -> isize;
    next_recvmmsg = ov_next_recvmmsg(
        number: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int;
    next_close = ov_next_close(number: c_int) -> c_int;
    next_close_range = ov_next_close_range(first: u32, last: u32, flags: c_int) -> c_int;
    next_closefrom = ov_next_closefrom(first: c_int) -> ();
    next_dup = ov_next_dup(number: c_int) -> c_int;
    next_dup2 = ov_next_dup2(from: c_int, to: c_int) -> c_int;
    next_dup3 = ov_next_dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    next_fcntl = ov_next_fcntl(number: c_int, command: c_int, argument: usize) -> c_int;
    next_ioctl = ov_next_ioctl(number: c_int, request: u64, argument: usize) -> c_int;
    next_epoll_create = ov_next_epoll_create(size: c_int) -> c_int;
    next_epoll_create1 = ov_next_epoll_create1(flags: c_int) -> c_int;
    next_epoll_ctl = ov_next_epoll_ctl(
        set: c_int, operation: c_int, number: c_int, event: *mut libc::epoll_event
    ) -> c_int;
    next_syscall = ov_next_syscall(
        number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> i64;
}

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
        // SAFETY: the program's arguments, as they are.
        watched(Call::Connect(number), || unsafe { next_connect(number, address, length) })
    }

    ov_accept(number: c_int, address: *mut c_void, length: *mut u32) -> c_int {
        // SAFETY: the program's arguments, as they are.
        watched(Call::Accept(number), || unsafe { next_accept(number, address, length) })
    }

    ov_accept4(number: c_int, address: *mut c_void, length: *mut u32, flags: c_int) -> c_int {
        let call = Call::Accept(number);
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_accept4(number, address, length, flags) })
    }

    ov_shutdown(number: c_int, how: c_int) -> c_int {
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
        let call = Call::Option { number, level, name };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_setsockopt(number, level, name, value, length) })
    }

    ov_send(number: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize {
        // SAFETY: the program's arguments, as they are.
        let sent = unsafe { next_send(number, bytes, length, flags) };
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
        // SAFETY: the program's arguments, as they are.
        let sent = unsafe { next_sendto(number, bytes, length, flags, address, address_length) };
        flagged(number, flags, sent)
    }

    ov_sendmsg(number: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
        let call = Call::Send { number, message, flags };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_sendmsg(number, message, flags) } as i64) as isize
    }

    ov_sendmmsg(
        number: c_int,
        messages: *mut libc::mmsghdr,
        count: u32,
        flags: c_int
    ) -> c_int {
        let call = Call::SendMany { number, messages, flags };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_sendmmsg(number, messages, count, flags) })
    }

    ov_recvmsg(number: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        let call = Call::Receive(message);
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_recvmsg(number, message, flags) } as i64) as isize
    }

    ov_recvmmsg(
        number: c_int,
        messages: *mut libc::mmsghdr,
        count: u32,
        flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int {
        let call = Call::ReceiveMany(messages);
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_recvmmsg(number, messages, count, flags, timeout) })
    }

    ov_close(number: c_int) -> c_int {
        if is_own(number) {
            return nothing_there();
        }
        // SAFETY: the program's arguments, as they are.
        watched(Call::Close(number), || unsafe { next_close(number) })
    }

    ov_close_range(first: u32, last: u32, flags: c_int) -> c_int {
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
        // SAFETY: the program's arguments, as they are.
        watched(Call::Dup(number), || unsafe { next_dup(number) })
    }

    ov_dup2(from: c_int, to: c_int) -> c_int {
        if makes_way(from, to) {
            return nothing_there();
        }
        // SAFETY: the program's arguments, as they are.
        watched(Call::DupTo { from, to }, || unsafe { next_dup2(from, to) })
    }

    ov_dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if makes_way(from, to) {
            return nothing_there();
        }
        // SAFETY: the program's arguments, as they are.
        watched(Call::DupTo { from, to }, || unsafe { next_dup3(from, to, flags) })
    }

    ov_fcntl(number: c_int, command: c_int, argument: usize) -> c_int {
        if is_own(number) {
            return nothing_there();
        }
        let call = Call::Control { number, command, argument };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_fcntl(number, command, argument) })
    }

    ov_ioctl(number: c_int, request: u64, argument: usize) -> c_int {
        let call = Call::Request { number, request };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_ioctl(number, request, argument) })
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
        let call = Call::Member { set, operation, number, event };
        // SAFETY: the program's arguments, as they are.
        watched(call, || unsafe { next_epoll_ctl(set, operation, number, event) })
    }

    ov_syscall(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> i64 {
        let first = a as c_int;
        match number {
            libc::SYS_close | libc::SYS_dup | libc::SYS_fcntl if is_own(first) => {
                return i64::from(nothing_there());
            }
            libc::SYS_dup2 | libc::SYS_dup3 if makes_way(first, b as c_int) => {
                return i64::from(nothing_there());
            }
            // SAFETY: the same call, by its own name.
            libc::SYS_close_range => unsafe {
                return i64::from(ov_close_range(a as u32, b as u32, c as c_int));
            },
            _ => {}
        }
        // SAFETY: the program's arguments, as they are.
        let make = || unsafe { next_syscall(number, a, b, c, d, e, f) };
        match numbered::call(number, [a, b, c, d, e, f]) {
            Some(call) => watched(call, make),
            None => make(),
        }
    }
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
