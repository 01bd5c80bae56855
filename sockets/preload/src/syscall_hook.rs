//! Gives calls that a program makes by `syscall()` to the hooks of the same names.
//!
//! Programs close (libuv), send many messages (netty) and set up rings that way, and runtimes make
//! processes. Some do so since `syscall()` is no cancellation point, and no hook is one then.

use core::ffi::c_int;

use crate::call_observers::{
    ov_look_clone, ov_look_end, ov_look_exec, ov_look_splice, ov_look_unshare, ov_look_vector,
    ov_look_vfork,
};
use crate::descriptor_hooks::{
    ov_accept, ov_accept4, ov_close, ov_close_range, ov_connect, ov_dup, ov_dup2, ov_dup3,
    ov_epoll_create, ov_epoll_create1, ov_epoll_ctl, ov_fcntl, ov_getpeername, ov_getsockname,
    ov_ioctl, ov_listen, ov_sendfile, ov_setsockopt, ov_shutdown, ov_socket, ov_socketpair,
};
use crate::errno::fails;
use crate::io_hooks::{
    ov_epoll_pwait, ov_epoll_wait, ov_getsockopt, ov_poll, ov_read, ov_readv, ov_recvfrom,
    ov_recvmmsg, ov_recvmsg, ov_select, ov_sendmmsg, ov_sendmsg, ov_sendto, ov_write, ov_writev,
    wait_for_time,
};
use crate::next_library;
use crate::readiness::poll::poll;
use crate::readiness::select::select;
use crate::user_memory::{UserFdSets, UserPtr, UserSliceMut, UserSystemCall};
use crate::{carry, descriptor_tables, fork_refcount, light, tsc_clock};

/// Calls, and which hook makes each, with which of its arguments.
macro_rules! by_name {
    ([$($each:ident)*] $($number:ident => $hook:ident($($argument:ident),*),)*) => {
        /// A hook makes the call of this number.
        fn has_name(number: i64) -> bool {
            matches!(number, $(libc::$number)|*)
                || matches!(number, libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait2)
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
    SYS_select => ov_select(a, b, c, d, e),
    SYS_epoll_create => ov_epoll_create(a),
    SYS_epoll_create1 => ov_epoll_create1(a),
    SYS_epoll_ctl => ov_epoll_ctl(a, b, c, d),
    SYS_epoll_wait => ov_epoll_wait(a, b, c, d),
    SYS_epoll_pwait => ov_epoll_pwait(a, b, c, d, e),
}

/// Calls that change nothing that is known of descriptors: they are the kernel's alone where no
/// socket can be carried or light.
fn only_moves_or_waits(number: i64) -> bool {
    let moves = is_plain_move(number);
    let waits = matches!(
        number,
        libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
    );
    let asks =
        matches!(number, libc::SYS_getsockopt | libc::SYS_getsockname | libc::SYS_getpeername);
    moves || waits || asks
}

/// Calls that move bytes by their first argument, and nothing else.
fn is_plain_move(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_recvfrom
            | libc::SYS_sendto
    )
}

/// A descriptor of something else than a stream of TCP.
fn is_kernels(fd: c_int) -> bool {
    light::token_of(fd).is_none() && !descriptor_tables::look(fd).kind().is_stream()
}

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_ENABLE` and `PTHREAD_CANCEL_DISABLE`, which the crate of libc lacks.
const CANCEL_ENABLE: c_int = 0;
const CANCEL_DISABLE: c_int = 1;

/// Does what `syscall()` would: the calling thread is not cancelled within.
fn uncancelled<R>(act: impl FnOnce() -> R) -> R {
    let (mut before, mut ours) = (CANCEL_DISABLE, CANCEL_DISABLE);
    let is_set = pthread_setcancelstate(CANCEL_DISABLE, &mut before) == 0;
    let result = act();
    if is_set && before == CANCEL_ENABLE {
        pthread_setcancelstate(before, &mut ours);
    }
    result
}

/// `ppoll`, `pselect6` and `epoll_pwait2`. What the kernel is asked for the program it is asked by
/// number: the C library's functions do not pass on the time that is left and the mask's size, and
/// older ones have no `epoll_pwait2`.
fn wait(given: UserSystemCall<'_>) -> c_int {
    let ([a, b, c, d, e, f], during) = (given.arguments(), given.during());
    let native = || next_library::syscall(given) as c_int;
    // SAFETY: the arguments are what the call of this number takes.
    unsafe {
        match given.number() {
            libc::SYS_ppoll => {
                let all = UserSliceMut::given(during, a as *mut libc::pollfd, b as u64);
                let time = UserPtr::given(during, c as *const libc::timespec);
                let mask = UserPtr::given(during, d as *const libc::sigset_t);
                poll(all, || tsc_clock::timeout_of(time), mask, native)
            }
            libc::SYS_pselect6 => {
                let [read, write, except] = [b, c, d].map(|set| set as *mut libc::fd_set);
                let sets = UserFdSets::given(during, a as c_int, read, write, except);
                let time = UserPtr::given(during, e as *const libc::timespec);
                let mask = mask_and_size(given, f).map_or(0, |[mask, _]| mask);
                let mask = UserPtr::given(during, mask as *const libc::sigset_t);
                select(sets, || tsc_clock::timeout_of(time), None, mask, native)
            }
            _ => {
                let events = UserSliceMut::given(during, b as *mut libc::epoll_event, c as c_int);
                let time = UserPtr::given(during, d as *const libc::timespec);
                let mask = UserPtr::given(during, e as *const libc::sigset_t);
                wait_for_time(a as c_int, events, time, mask, |events, time| {
                    let (at, count) = (events.as_ptr() as usize, events.len());
                    let time = time.as_ptr() as usize;
                    // Both are there for the call.
                    let call =
                        UserSystemCall::given(during, given.number(), a, at, count, time, e, f);
                    next_library::syscall(call) as c_int
                })
            }
        }
    }
}

/// What the last argument of `pselect6` leads to, if it can be read.
fn mask_and_size(given: UserSystemCall<'_>, address: usize) -> Option<[usize; 2]> {
    // SAFETY: as the call has it, and asked about.
    let words = unsafe { UserPtr::given(given.during(), address as *const [usize; 2]) };
    if words.is_readable() { words.read() } else { None }
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
        libc::SYS_io_uring_setup => gets_ring(),
        // A ring may have come from another process.
        libc::SYS_io_uring_enter if !descriptor_tables::has_rings() => gets_ring(),
        libc::SYS_seccomp => carry::stop(),
        libc::SYS_unshare => ov_look_unshare(first as c_int),
        libc::SYS_preadv2 | libc::SYS_pwritev2 => ov_look_vector(first as c_int),
        libc::SYS_splice => return true,
        _ if only_moves_or_waits(number) => return carry::is_on() || light::is_on(),
        _ => return has_name(number),
    }
    false
}

/// From now on anything may be done with any descriptor. That is said first: a socket that is
/// offered meanwhile is left, or is not offered.
fn gets_ring() {
    descriptor_tables::has_rings_now();
    carry::leave_all();
    fork_refcount::mark_all_escaped();
}

/// What `clone3` is asked for, as far as it is about what is shared.
fn clone3_flags(arguments: usize, bytes: usize) -> Option<c_int> {
    let is_there = arguments != 0 && bytes >= size_of::<u64>();
    // SAFETY: the kernel would read it as well.
    is_there.then(|| unsafe { (arguments as *const u64).read_unaligned() } as c_int)
}

/// Bytes of a mask of signals, as the kernel has it.
const MASK: usize = 8;

/// A time, or where the mask is, that cannot be read, or a mask of another size: the kernel says
/// so, where functions of the C library would read it themselves, or are given no size.
fn is_refused(given: UserSystemCall<'_>) -> bool {
    let [_, _, third, fourth, fifth, sixth] = given.arguments();
    // SAFETY: asked about, and not read.
    let is_readable = |address: usize| unsafe {
        UserPtr::given(given.during(), address as *const [u64; 2]).is_readable()
    };
    let is_other = |mask: usize, size: usize| mask != 0 && size != MASK;
    match given.number() {
        libc::SYS_ppoll => !is_readable(third) || is_other(fourth, fifth),
        libc::SYS_select => !is_readable(fifth),
        libc::SYS_pselect6 => {
            let words = mask_and_size(given, sixth);
            !is_readable(fifth)
                || sixth != 0 && words.is_none_or(|[mask, size]| is_other(mask, size))
        }
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => is_other(fifth, sixth),
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
            _ if is_refused(given) => next_library::syscall(given),
            number if is_plain_move(number) && is_kernels(given.a() as c_int) => {
                carry::may_wait(given.a() as c_int);
                next_library::syscall(given)
            }
            libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait2 => {
                uncancelled(|| wait(given)).into()
            }
            _ => uncancelled(|| make_by_name(given))
                .unwrap_or_else(|| next_library::syscall(given)),
        }
    }
}
