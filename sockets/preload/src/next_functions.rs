//! Declares the next library's functions, to which hooks pass calls.
#![allow(non_snake_case)]

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next library's functions, from their slots (`symbol_lookup.rs`). They may be left by
/// `longjmp`, or by cancellation, which unwinds: there is nothing to be cleaned up, and as the
/// library is built, to abort, no frame of it has anything that unwinding would stop at. (With
/// `C-unwind` it would abort.)
macro_rules! next {
    ($($name:ident = $slot:ident($($argument:ident: $kind:ty),*) -> $out:ty;)*) => {
        unsafe extern "C" {
            $(safe static $slot: AtomicPtr<c_void>;)*
        }
        $(
            #[inline(always)]
            pub(crate) unsafe fn $name($($argument: $kind),*) -> $out {
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
    next_read = ov_next_read(fd: c_int, bytes: *mut c_void, length: usize) -> isize;
    next___read_chk = ov_next___read_chk(
        fd: c_int, bytes: *mut c_void, length: usize, room: usize
    ) -> isize;
    next_readv = ov_next_readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize;
    next_recv = ov_next_recv(
        fd: c_int, bytes: *mut c_void, length: usize, flags: c_int
    ) -> isize;
    next___recv_chk = ov_next___recv_chk(
        fd: c_int, bytes: *mut c_void, length: usize, room: usize, flags: c_int
    ) -> isize;
    next_recvfrom = ov_next_recvfrom(
        fd: c_int, bytes: *mut c_void, length: usize, flags: c_int,
        address: *mut c_void, address_length: *mut u32
    ) -> isize;
    next___recvfrom_chk = ov_next___recvfrom_chk(
        fd: c_int, bytes: *mut c_void, length: usize, room: usize, flags: c_int,
        address: *mut c_void, address_length: *mut u32
    ) -> isize;
    next_write = ov_next_write(fd: c_int, bytes: *const c_void, length: usize) -> isize;
    next_writev = ov_next_writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize;
    next_getsockopt = ov_next_getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut u32
    ) -> c_int;
    next_poll = ov_next_poll(all: *mut libc::pollfd, count: u64, timeout: c_int) -> c_int;
    next___poll_chk = ov_next___poll_chk(
        all: *mut libc::pollfd, count: u64, timeout: c_int, room: usize
    ) -> c_int;
    next_ppoll = ov_next_ppoll(
        all: *mut libc::pollfd, count: u64, timeout: *const libc::timespec,
        mask: *const libc::sigset_t
    ) -> c_int;
    next___ppoll_chk = ov_next___ppoll_chk(
        all: *mut libc::pollfd, count: u64, timeout: *const libc::timespec,
        mask: *const libc::sigset_t, room: usize
    ) -> c_int;
    next_select = ov_next_select(
        end: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set,
        timeout: *mut libc::timeval
    ) -> c_int;
    next_pselect = ov_next_pselect(
        end: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set,
        timeout: *const libc::timespec, mask: *const libc::sigset_t
    ) -> c_int;
    next_sendfile = ov_next_sendfile(
        to: c_int, from: c_int, offset: *mut i64, count: usize
    ) -> isize;
    next_getsockname = ov_next_getsockname(
        fd: c_int, address: *mut c_void, length: *mut u32
    ) -> c_int;
    next_getpeername = ov_next_getpeername(
        fd: c_int, address: *mut c_void, length: *mut u32
    ) -> c_int;
    next_fork = ov_next_fork() -> c_int;
    next__Fork = ov_next__Fork() -> c_int;
    next_socket = ov_next_socket(family: c_int, of: c_int, protocol: c_int) -> c_int;
    next_socketpair = ov_next_socketpair(
        family: c_int, of: c_int, protocol: c_int, pair: *mut c_int
    ) -> c_int;
    next_listen = ov_next_listen(fd: c_int, backlog: c_int) -> c_int;
    next_connect = ov_next_connect(fd: c_int, address: *const c_void, length: u32) -> c_int;
    next_accept = ov_next_accept(fd: c_int, address: *mut c_void, length: *mut u32) -> c_int;
    next_accept4 = ov_next_accept4(
        fd: c_int, address: *mut c_void, length: *mut u32, flags: c_int
    ) -> c_int;
    next_shutdown = ov_next_shutdown(fd: c_int, how: c_int) -> c_int;
    next_setsockopt = ov_next_setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32
    ) -> c_int;
    next_send = ov_next_send(
        fd: c_int, bytes: *const c_void, length: usize, flags: c_int
    ) -> isize;
    next_sendto = ov_next_sendto(
        fd: c_int, bytes: *const c_void, length: usize, flags: c_int,
        address: *const c_void, address_length: u32
    ) -> isize;
    next_sendmsg = ov_next_sendmsg(
        fd: c_int, message: *const libc::msghdr, flags: c_int
    ) -> isize;
    next_sendmmsg = ov_next_sendmmsg(
        fd: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int
    ) -> c_int;
    next_recvmsg = ov_next_recvmsg(
        fd: c_int, message: *mut libc::msghdr, flags: c_int
    ) -> isize;
    next_recvmmsg = ov_next_recvmmsg(
        fd: c_int, messages: *mut libc::mmsghdr, count: u32, flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int;
    next_close = ov_next_close(fd: c_int) -> c_int;
    next_close_range = ov_next_close_range(first: u32, last: u32, flags: c_int) -> c_int;
    next_closefrom = ov_next_closefrom(first: c_int) -> ();
    next_dup = ov_next_dup(fd: c_int) -> c_int;
    next_dup2 = ov_next_dup2(from: c_int, to: c_int) -> c_int;
    next_dup3 = ov_next_dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    next_fcntl = ov_next_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    next_ioctl = ov_next_ioctl(fd: c_int, request: u64, argument: usize) -> c_int;
    next_epoll_create = ov_next_epoll_create(size: c_int) -> c_int;
    next_epoll_create1 = ov_next_epoll_create1(flags: c_int) -> c_int;
    next_epoll_ctl = ov_next_epoll_ctl(
        set: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event
    ) -> c_int;
    next_epoll_wait = ov_next_epoll_wait(
        set: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int
    ) -> c_int;
    next_epoll_pwait = ov_next_epoll_pwait(
        set: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int,
        mask: *const libc::sigset_t
    ) -> c_int;
    next_epoll_pwait2 = ov_next_epoll_pwait2(
        set: c_int, events: *mut libc::epoll_event, most: c_int, timeout: *const libc::timespec,
        mask: *const libc::sigset_t
    ) -> c_int;
    next_syscall = ov_next_syscall(
        number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> i64;
}
