//! Gives calls that a program makes by `syscall()` to the hooks of the same names.
//!
//! Programs close (libuv), send many messages (netty) and set up rings that way, and runtimes make
//! processes.

use core::ffi::c_int;

use omniverb_connection::descriptors::Why;

use crate::call_observers::{
    keep, ov_look_clone, ov_look_end, ov_look_exec, ov_look_splice, ov_look_unshare, ov_look_vfork,
};
use crate::descriptor_hooks::{
    ov_accept, ov_accept4, ov_close, ov_close_range, ov_connect, ov_dup, ov_dup2, ov_dup3,
    ov_epoll_create, ov_epoll_create1, ov_epoll_ctl, ov_fcntl, ov_getpeername, ov_getsockname,
    ov_ioctl, ov_listen, ov_sendfile, ov_setsockopt, ov_shutdown, ov_socket, ov_socketpair,
};
use crate::errno::fails;
use crate::io_hooks::{
    ov_epoll_pwait, ov_epoll_pwait2, ov_epoll_wait, ov_getsockopt, ov_poll, ov_ppoll, ov_pselect,
    ov_read, ov_readv, ov_recvfrom, ov_recvmmsg, ov_recvmsg, ov_select, ov_sendmmsg, ov_sendmsg,
    ov_sendto, ov_write, ov_writev,
};
use crate::next_library;
use crate::user_memory::{UserPtr, UserSystemCall};
use crate::{carry, descriptor_tables, fork_refcount, light};

/// Calls, and which hook makes each, with which of its arguments.
macro_rules! by_name {
    ([$($each:ident)*] $($number:ident => $hook:ident($($argument:ident),*),)*) => {
        /// A hook makes the call of this number.
        fn has_name(number: i64) -> bool {
            matches!(number, $(libc::$number)|*)
        }

        /// Makes a call by its name, if it has one.
        fn make_by_name(given: UserSystemCall<'_>) -> Option<i64> {
            let [$($each),*] = given.arguments();
            // SAFETY: the arguments are what the function of the same name takes.
            unsafe {
                Some(match given.number() {
                    $(libc::$number => $hook($($argument as _),*) as i64,)*
                    _ => return None,
                })
            }
        }
    };
}

by_name! {
    [a b c d e f]
    SYS_socket => ov_socket(a, b, c),
    SYS_socketpair => ov_socketpair(a, b, c, d),
    SYS_listen => ov_listen(a, b),
    SYS_connect => ov_connect(a, b, c),
    SYS_accept => ov_accept(a, b, c),
    SYS_accept4 => ov_accept4(a, b, c, d),
    SYS_shutdown => ov_shutdown(a, b),
    SYS_setsockopt => ov_setsockopt(a, b, c, d, e),
    SYS_getsockopt => ov_getsockopt(a, b, c, d, e),
    SYS_getsockname => ov_getsockname(a, b, c),
    SYS_getpeername => ov_getpeername(a, b, c),
    SYS_close => ov_close(a),
    SYS_close_range => ov_close_range(a, b, c),
    SYS_dup => ov_dup(a),
    SYS_dup2 => ov_dup2(a, b),
    SYS_dup3 => ov_dup3(a, b, c),
    SYS_fcntl => ov_fcntl(a, b, c),
    SYS_ioctl => ov_ioctl(a, b, c),
    SYS_read => ov_read(a, b, c),
    SYS_write => ov_write(a, b, c),
    SYS_readv => ov_readv(a, b, c),
    SYS_writev => ov_writev(a, b, c),
    SYS_sendto => ov_sendto(a, b, c, d, e, f),
    SYS_recvfrom => ov_recvfrom(a, b, c, d, e, f),
    SYS_sendmsg => ov_sendmsg(a, b, c),
    SYS_recvmsg => ov_recvmsg(a, b, c),
    SYS_sendmmsg => ov_sendmmsg(a, b, c, d),
    SYS_recvmmsg => ov_recvmmsg(a, b, c, d, e),
    SYS_sendfile => ov_sendfile(a, b, c, d),
    SYS_poll => ov_poll(a, b, c),
    SYS_ppoll => ov_ppoll(a, b, c, d),
    SYS_select => ov_select(a, b, c, d, e),
    SYS_pselect6 => pselect(a, b, c, d, e, f),
    SYS_epoll_create => ov_epoll_create(a),
    SYS_epoll_create1 => ov_epoll_create1(a),
    SYS_epoll_ctl => ov_epoll_ctl(a, b, c, d),
    SYS_epoll_wait => ov_epoll_wait(a, b, c, d),
    SYS_epoll_pwait => ov_epoll_pwait(a, b, c, d, e),
    SYS_epoll_pwait2 => ov_epoll_pwait2(a, b, c, d, e),
}

/// `pselect6`, whose last argument leads to the mask and its size.
///
/// # Safety
/// As of the call.
unsafe fn pselect(
    end: usize,
    read: usize,
    write: usize,
    except: usize,
    time: usize,
    mask: usize,
) -> c_int {
    let sets = [read, write, except].map(|set| set as *mut libc::fd_set);
    // SAFETY: as the caller says; that it can be read was asked.
    unsafe {
        let mask = (mask as *const *const libc::sigset_t).as_ref();
        let mask = mask.copied().unwrap_or(core::ptr::null());
        ov_pselect(end as c_int, sets[0], sets[1], sets[2], time as *const libc::timespec, mask)
    }
}

/// Whether a hook makes a call. What makes processes, or rings, is noted at once: that call must be
/// made from where the program made it.
fn is_watched(number: i64, first: usize, second: usize) -> bool {
    match number {
        libc::SYS_fork => carry::before_unseen_fork(),
        libc::SYS_vfork => ov_look_vfork(),
        libc::SYS_clone => ov_look_clone(core::ptr::null(), core::ptr::null(), first as c_int),
        libc::SYS_clone3 => {
            if let Some(flags) = clone3_flags(first, second) {
                ov_look_clone(core::ptr::null(), core::ptr::null(), flags);
            }
        }
        libc::SYS_execve | libc::SYS_execveat => ov_look_exec(),
        libc::SYS_exit_group => ov_look_end(),
        // Rings are refused, as container runtimes do: what they would do to a light connection is
        // not seen.
        libc::SYS_io_uring_setup if light::is_on() => return true,
        // A ring may have come from another process.
        libc::SYS_io_uring_setup | libc::SYS_io_uring_enter => {
            carry::leave_all();
            descriptor_tables::has_rings_now();
            fork_refcount::mark_all_escaped();
        }
        libc::SYS_seccomp => carry::stop(),
        libc::SYS_unshare => ov_look_unshare(first as c_int),
        // What has no offset is read and written, too.
        libc::SYS_preadv2 | libc::SYS_pwritev2 => keep(first as c_int, Why::Spliced),
        libc::SYS_splice => return true,
        _ => return has_name(number),
    }
    false
}

/// What `clone3` is asked for, as far as it is about what is shared.
fn clone3_flags(arguments: usize, bytes: usize) -> Option<c_int> {
    let is_there = arguments != 0 && bytes >= size_of::<u64>();
    // SAFETY: the kernel would read it as well.
    is_there.then(|| unsafe { (arguments as *const u64).read_unaligned() } as c_int)
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

/// `syscall`: 1 if it is a call that another function of ours makes.
#[unsafe(no_mangle)]
pub extern "C" fn ov_choose_syscall(fd: i64, first: usize, second: usize) -> c_int {
    c_int::from(is_watched(fd, first, second))
}

functions! {
    ov_syscall(given: system_call) -> i64 {
        match given.number() {
            libc::SYS_io_uring_setup => fails(libc::ENOSYS).into(),
            libc::SYS_splice => {
                let [from, _, to, ..] = given.arguments();
                ov_look_splice(from as c_int, core::ptr::null(), to as c_int);
                next_library::syscall(given)
            }
            _ if names_unreadable(given) => next_library::syscall(given),
            _ => make_by_name(given).unwrap_or_else(|| next_library::syscall(given)),
        }
    }
}
