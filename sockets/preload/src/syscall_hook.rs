//! Gives calls that a program makes by `syscall()` to the hooks of the same names.

use core::ffi::c_int;

use crate::descriptor_hooks::{
    close_range, is_own, makes_way, nothing_there, ov_accept, ov_accept4, ov_close, ov_connect,
    ov_dup, ov_dup2, ov_dup3, ov_epoll_ctl, ov_fcntl, ov_getpeername, ov_getsockname, ov_ioctl,
    ov_listen, ov_sendfile, ov_setsockopt, ov_shutdown,
};
use crate::errno::fails;
use crate::hook_macros::watched;
use crate::io_hooks::{
    ov_epoll_pwait, ov_epoll_pwait2, ov_epoll_wait, ov_getsockopt, ov_poll, ov_ppoll, ov_pselect,
    ov_read, ov_readv, ov_recvfrom, ov_recvmmsg, ov_recvmsg, ov_select, ov_sendmmsg, ov_sendmsg,
    ov_sendto, ov_write, ov_writev,
};
use crate::next_library;
use crate::user_memory::{UserPart, UserPtr, UserSystemCall};
use crate::{carry, light, syscall_effects};

functions! {
    ov_syscall(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> i64
        [given: UserSystemCall<'_> = (number, a, b, c, d, e, f)]
    {
        let first = a as c_int;
        let mut is_counted = false;
        match number {
            libc::SYS_close | libc::SYS_dup | libc::SYS_fcntl if is_own(first) => {
                return i64::from(nothing_there());
            }
            libc::SYS_dup2 | libc::SYS_dup3 if makes_way(first, b as c_int) => {
                return i64::from(nothing_there());
            }
            libc::SYS_io_uring_setup if light::is_on() => {
                return i64::from(fails(libc::ENOSYS));
            }
            libc::SYS_close_range => {
                return i64::from(close_range(a as u32, b as u32, c as c_int));
            }
            _ if carry::is_on() || light::is_on() => {
                if let Some(result) = make_by_name(given) {
                    return result;
                }
                is_counted = syscall_effects::leave(number, a);
            }
            _ => {}
        }
        let result = match syscall_effects::call(given) {
            Some(call) => watched(call, || next_library::syscall(given)),
            None => next_library::syscall(given),
        };
        if is_counted {
            carry::uncount();
        }
        result
    }
}

/// A time, or where the mask is, that cannot be read: the kernel says so, where functions of the C
/// library would read it themselves.
fn names_unreadable(given: UserSystemCall<'_>) -> bool {
    let [_, _, third, _, fifth, sixth] = given.arguments();
    // SAFETY: asked about, and not read.
    let is_readable = |address: usize| unsafe {
        UserPtr::given(given.during(), address as *const [u64; 2]).is_readable()
    };
    match given.number() {
        libc::SYS_ppoll => !is_readable(third),
        libc::SYS_select => !is_readable(fifth),
        libc::SYS_pselect6 => !is_readable(fifth) || !is_readable(sixth),
        _ => false,
    }
}

/// Calls by number that are made by their own names where sockets are carried; where connections
/// may be light, of which the kernel has nothing, all that can be about one.
fn make_by_name(given: UserSystemCall<'_>) -> Option<i64> {
    let [a, b, c, d, e, f] = given.arguments();
    let (first, flags) = (a as c_int, d as c_int);
    // SAFETY: the arguments are what the function of the same name takes.
    unsafe {
        Some(match given.number() {
            libc::SYS_close => i64::from(ov_close(first)),
            libc::SYS_dup => i64::from(ov_dup(first)),
            libc::SYS_dup2 => i64::from(ov_dup2(first, b as c_int)),
            libc::SYS_dup3 => i64::from(ov_dup3(first, b as c_int, c as c_int)),
            libc::SYS_fcntl => i64::from(ov_fcntl(first, b as c_int, c)),
            libc::SYS_ioctl => i64::from(ov_ioctl(first, b as u64, c)),
            libc::SYS_shutdown => i64::from(ov_shutdown(first, b as c_int)),
            libc::SYS_epoll_ctl => {
                let event = d as *mut libc::epoll_event;
                i64::from(ov_epoll_ctl(first, b as c_int, c as c_int, event))
            }
            libc::SYS_sendmsg => ov_sendmsg(first, b as *const libc::msghdr, c as c_int) as i64,
            libc::SYS_recvmsg => ov_recvmsg(first, b as *mut libc::msghdr, c as c_int) as i64,
            _ if !light::is_on() || names_unreadable(given) => return None,
            libc::SYS_read => ov_read(first, b as *mut u8, c) as i64,
            libc::SYS_write => ov_write(first, b as *const u8, c) as i64,
            libc::SYS_readv => ov_readv(first, b as *const UserPart<'_>, c as c_int) as i64,
            libc::SYS_writev => ov_writev(first, b as *const UserPart<'_>, c as c_int) as i64,
            libc::SYS_sendto => {
                ov_sendto(first, b as *const u8, c, flags, e as *const u8, f as u32) as i64
            }
            libc::SYS_recvfrom => {
                let address = e as *mut u8;
                ov_recvfrom(first, b as *mut u8, c, flags, address, f as *mut u32) as i64
            }
            libc::SYS_sendmmsg => {
                i64::from(ov_sendmmsg(first, b as *mut libc::mmsghdr, c as u32, flags))
            }
            libc::SYS_recvmmsg => {
                let limit = e as *mut libc::timespec;
                i64::from(ov_recvmmsg(first, b as *mut libc::mmsghdr, c as u32, flags, limit))
            }
            libc::SYS_connect => i64::from(ov_connect(first, b as *const u8, c as u32)),
            libc::SYS_accept => i64::from(ov_accept(first, b as *mut u8, c as *mut u32)),
            libc::SYS_accept4 => i64::from(ov_accept4(first, b as *mut u8, c as *mut u32, flags)),
            libc::SYS_listen => i64::from(ov_listen(first, b as c_int)),
            libc::SYS_setsockopt => {
                let value = d as *const u8;
                i64::from(ov_setsockopt(first, b as c_int, c as c_int, value, e as u32))
            }
            libc::SYS_getsockopt => {
                let (value, length) = (d as *mut u8, e as *mut u32);
                i64::from(ov_getsockopt(first, b as c_int, c as c_int, value, length))
            }
            libc::SYS_getsockname => i64::from(ov_getsockname(first, b as *mut u8, c as *mut u32)),
            libc::SYS_getpeername => i64::from(ov_getpeername(first, b as *mut u8, c as *mut u32)),
            libc::SYS_sendfile => ov_sendfile(first, b as c_int, c as *mut i64, d) as i64,
            libc::SYS_poll => i64::from(ov_poll(a as *mut libc::pollfd, b as u64, c as c_int)),
            libc::SYS_ppoll => {
                let (limit, mask) = (c as *const libc::timespec, d as *const libc::sigset_t);
                i64::from(ov_ppoll(a as *mut libc::pollfd, b as u64, limit, mask))
            }
            libc::SYS_select => {
                let [read, write, except] = [b, c, d].map(|set| set as *mut libc::fd_set);
                i64::from(ov_select(first, read, write, except, e as *mut libc::timeval))
            }
            libc::SYS_pselect6 => {
                let [read, write, except] = [b, c, d].map(|set| set as *mut libc::fd_set);
                let mask = (f as *const *const libc::sigset_t).as_ref();
                let mask = mask.copied().unwrap_or(core::ptr::null());
                let limit = e as *const libc::timespec;
                i64::from(ov_pselect(first, read, write, except, limit, mask))
            }
            libc::SYS_epoll_wait => {
                i64::from(ov_epoll_wait(first, b as *mut libc::epoll_event, c as c_int, flags))
            }
            libc::SYS_epoll_pwait => {
                let (events, mask) = (b as *mut libc::epoll_event, e as *const libc::sigset_t);
                i64::from(ov_epoll_pwait(first, events, c as c_int, flags, mask))
            }
            libc::SYS_epoll_pwait2 => {
                let (events, mask) = (b as *mut libc::epoll_event, e as *const libc::sigset_t);
                let limit = d as *const libc::timespec;
                i64::from(ov_epoll_pwait2(first, events, c as c_int, limit, mask))
            }
            _ => return None,
        })
    }
}
