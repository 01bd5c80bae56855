//! Says what calls that a program makes by `syscall()` do to descriptors and connections.
//!
//! Programs close (libuv), send many messages (netty) and set up rings that way, and runtimes make
//! processes.

use core::ffi::c_int;

use omniverb_connection::descriptors::Kind;

use crate::call_effects::Call;
use crate::process_exit::End;
use crate::user_memory::{UserMessage, UserMessages, UserPtr, UserSystemCall};
use crate::{carry, descriptor_tables, fork_refcount, light, transports_lifecycle, vfork_check};

/// Whether a call changes what is known. What makes processes, or rings, is noted at once: that
/// call must be made from where the program made it.
pub(crate) fn is_watched(number: i64, first: usize, second: usize) -> bool {
    match number {
        libc::SYS_fork => carry::before_unseen_fork(),
        libc::SYS_vfork => carry::before_vfork(),
        libc::SYS_clone => carry::before_clone(first as c_int),
        libc::SYS_clone3 => _ = clone3_flags(first, second).map(carry::before_clone),
        libc::SYS_execve | libc::SYS_execveat => carry::before_exec(),
        libc::SYS_exit_group => transports_lifecycle::finish(End::Now),
        // Rings are refused, as container runtimes do: what they would do to a light connection is
        // not seen.
        libc::SYS_io_uring_setup if light::is_on() => return true,
        libc::SYS_io_uring_setup => carry::leave_all(),
        libc::SYS_unshare | libc::SYS_seccomp => carry::stop(),
        _ => {}
    }
    match number {
        libc::SYS_vfork => vfork_check::begin_vfork(),
        libc::SYS_clone => vfork_check::note_clone(first as c_int),
        libc::SYS_clone3 if let Some(flags) = clone3_flags(first, second) => {
            vfork_check::note_clone(flags);
        }
        libc::SYS_unshare if first as c_int & libc::CLONE_FILES != 0 => {
            vfork_check::mark_fd_tables_apart()
        }
        libc::SYS_io_uring_setup => {
            descriptor_tables::has_rings_now();
            fork_refcount::mark_all_escaped();
        }
        _ => return changes(number) || is_about_descriptors(number),
    }
    false
}

/// What `clone3` is asked for, as far as it is about what is shared.
fn clone3_flags(arguments: usize, bytes: usize) -> Option<c_int> {
    let is_there = arguments != 0 && bytes >= size_of::<u64>();
    // SAFETY: the kernel would read it as well.
    is_there.then(|| unsafe { (arguments as *const u64).read_unaligned() } as c_int)
}

/// Calls that a light connection, or a set with such members, may be given by number.
const OF_LIGHT: [i64; 14] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
];

/// Bytes of sockets, of which some may be carried, are moved, or waited for.
fn changes(number: i64) -> bool {
    let is_one = MOVES.contains(&number) || WAITS.contains(&number) || IN_SETS.contains(&number);
    carry::is_on() && is_one || light::is_on() && (is_one || OF_LIGHT.contains(&number))
}

/// By their first argument.
const MOVES: [i64; 12] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_setsockopt,
    libc::SYS_connect,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
];
/// For many, or within the kernel.
const WAITS: [i64; 7] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_io_uring_enter,
];
/// In the set that is their first argument.
const IN_SETS: [i64; 3] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];

/// Before a call of this number: sockets that it is about are the kernel's from now on. Whether
/// none get links until it is over, which is to be said then ([`carry::uncount`]).
pub(crate) fn leave(number: i64, first: usize) -> bool {
    if IN_SETS.contains(&number) {
        carry::leave_set_to_kernel(first as c_int);
        carry::may_sleep();
        return false;
    }
    let (moves, waits) = (MOVES.contains(&number), WAITS.contains(&number));
    let is_counted = (moves || waits) && carry::count();
    if moves {
        carry::leave(first as c_int);
    } else if waits {
        carry::leave_all();
    }
    is_counted
}

/// A call of this number does something to descriptors.
fn is_about_descriptors(number: i64) -> bool {
    call(UserSystemCall::of_number(number)).is_some()
}

/// What a call does to descriptors, if anything.
pub(crate) fn call(given: UserSystemCall<'_>) -> Option<Call<'_>> {
    let ([first, second, third, fourth, ..], during) = (given.arguments(), given.during());
    let int = |argument: usize| argument as c_int;
    // SAFETY: those that the call of this number has are. Others are not looked at.
    let (pair, message, messages, event) = unsafe {
        (
            UserPtr::given(during, fourth as *const [c_int; 2]),
            UserMessage::given(during, second as *const libc::msghdr),
            UserMessages::given(during, second as *mut libc::mmsghdr, third as u32),
            UserPtr::given(during, fourth as *const libc::epoll_event),
        )
    };
    Some(match given.number() {
        libc::SYS_close => Call::Close(int(first)),
        libc::SYS_close_range => {
            Call::CloseRange { first: first as u32, last: second as u32, flags: int(third) }
        }
        libc::SYS_dup => Call::Dup(int(first)),
        libc::SYS_dup2 | libc::SYS_dup3 => Call::DupTo { from: int(first), to: int(second) },
        libc::SYS_fcntl => Call::Control { fd: int(first), command: int(second), argument: third },
        libc::SYS_ioctl => Call::Request { fd: int(first), request: second as u64 },
        libc::SYS_socket => Call::Made(kind(int(first), int(second), int(third))),
        libc::SYS_socketpair => Call::Pair(pair),
        libc::SYS_listen => Call::Listen(int(first)),
        libc::SYS_connect => Call::Connect(int(first)),
        libc::SYS_accept | libc::SYS_accept4 => Call::Accept(int(first)),
        libc::SYS_shutdown => Call::Shutdown(int(first)),
        libc::SYS_setsockopt => {
            Call::Option { fd: int(first), level: int(second), name: int(third) }
        }
        libc::SYS_sendto => Call::Flags { fd: int(first), flags: int(fourth) },
        libc::SYS_sendmsg => Call::Send { fd: int(first), message, flags: int(third) },
        libc::SYS_sendmmsg => Call::SendMany { fd: int(first), messages, flags: int(fourth) },
        libc::SYS_recvmsg => Call::Receive(message),
        libc::SYS_recvmmsg => Call::ReceiveMany(messages),
        libc::SYS_epoll_create | libc::SYS_epoll_create1 => Call::Made(Kind::Set),
        libc::SYS_epoll_ctl => {
            Call::Member { set: int(first), operation: int(second), fd: int(third), event }
        }
        _ => return None,
    })
}

/// What `socket` makes of its arguments.
pub(crate) fn kind(family: c_int, of: c_int, protocol: c_int) -> Kind {
    let is_stream = matches!(family, libc::AF_INET | libc::AF_INET6)
        && of & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM
        && matches!(protocol, libc::IPPROTO_IP | libc::IPPROTO_TCP);
    if is_stream { Kind::Fresh } else { Kind::Other }
}
