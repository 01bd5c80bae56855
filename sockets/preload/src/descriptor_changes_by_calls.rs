//! Records in the tables what a call does to descriptors.
//!
//! In: a call and its arguments, then what it returned. Out: the tables as they are then. Each
//! hook, and the one for `syscall()`, does [`Call::before`], the call, [`Call::after`].

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use omniverb_connection::descriptors::{Entry, Kind, Why};

use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::errno::errno;
use crate::user_memory::{UserMessage, UserMessages, UserPtr};
use crate::{
    descriptor_probe, epoll_members, fallback_ledger, fork_refcount, running_call_counts,
    scm_rights, vfork_check,
};

/// A call that changes what is known.
#[derive(Clone, Copy)]
pub(crate) enum Call<'a> {
    /// Returns a new descriptor.
    Made(Kind),
    /// Writes two new ones.
    Pair(UserPtr<'a, [c_int; 2]>),
    Listen(c_int),
    Connect(c_int),
    Accept(c_int),
    Shutdown(c_int),
    Option {
        fd: c_int,
        level: c_int,
        name: c_int,
    },
    /// A message with flags.
    Flags {
        fd: c_int,
        flags: c_int,
    },
    /// The same, with descriptors in it perhaps.
    Send {
        fd: c_int,
        message: UserMessage<'a>,
        flags: c_int,
    },
    SendMany {
        fd: c_int,
        messages: UserMessages<'a>,
        flags: c_int,
    },
    Receive(UserMessage<'a>),
    ReceiveMany(UserMessages<'a>),
    Close(c_int),
    CloseRange {
        first: u32,
        last: u32,
        flags: c_int,
    },
    Dup(c_int),
    DupTo {
        from: c_int,
        to: c_int,
    },
    Control {
        fd: c_int,
        command: c_int,
        argument: usize,
    },
    Request {
        fd: c_int,
        request: u64,
    },
    /// `epoll_ctl`.
    Member {
        set: c_int,
        operation: c_int,
        fd: c_int,
        event: UserPtr<'a, libc::epoll_event>,
    },
}

/// `F_SETSIG` and `F_SETOWN_EX`, which the crate of libc lacks.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
/// `FIOSETOWN`, `SIOCSPGRP`, `FIOASYNC`: signals.
pub(crate) const SIGNAL_REQUESTS: [u64; 3] = [0x8901, 0x8902, 0x5452];

/// Options that change what bytes mean, or where they go.
const OPTIONS: [(c_int, c_int); 13] = [
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, TCP_AO_ADD_KEY),
    (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE),
    (libc::IPPROTO_TCP, libc::TCP_INQ),
];
const TCP_AO_ADD_KEY: c_int = 38;

/// Options of which it is known that they have nothing to do with the way of bytes.
const HARMLESS: [(c_int, &[c_int]); 4] = [
    (
        libc::SOL_SOCKET,
        &[
            libc::SO_KEEPALIVE,
            libc::SO_LINGER,
            libc::SO_RCVTIMEO,
            libc::SO_SNDTIMEO,
            libc::SO_REUSEADDR,
            libc::SO_REUSEPORT,
            libc::SO_PRIORITY,
            libc::SO_DEBUG,
            libc::SO_BROADCAST,
            libc::SO_INCOMING_CPU,
        ],
    ),
    (
        libc::IPPROTO_TCP,
        &[
            libc::TCP_NODELAY,
            libc::TCP_CORK,
            libc::TCP_QUICKACK,
            libc::TCP_KEEPIDLE,
            libc::TCP_KEEPINTVL,
            libc::TCP_KEEPCNT,
            libc::TCP_USER_TIMEOUT,
            libc::TCP_CONGESTION,
            libc::TCP_LINGER2,
        ],
    ),
    (libc::IPPROTO_IP, &[libc::IP_TOS, libc::IP_TTL]),
    (libc::IPPROTO_IPV6, &[libc::IPV6_TCLASS, libc::IPV6_V6ONLY]),
];

/// An option changes nothing about bytes.
pub(crate) fn is_harmless(level: c_int, name: c_int) -> bool {
    HARMLESS.iter().any(|(of, names)| *of == level && names.contains(&name))
}

/// An option changes what is received, or what is said of it: also of bytes that have come. (How
/// many are left, which `TCP_INQ` has said, is known.)
pub(crate) fn changes_receiving(level: c_int, name: c_int) -> bool {
    OPTIONS.contains(&(level, name)) && (level, name) != (libc::IPPROTO_TCP, libc::TCP_INQ)
}

/// A command has a signal tell of a descriptor.
pub(crate) fn is_about_signals(command: c_int, argument: usize) -> bool {
    match command {
        libc::F_SETFL => argument as c_int & libc::O_ASYNC != 0,
        libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => true,
        _ => false,
    }
}

/// Flags of messages that only the kernel can honour. (`MSG_MORE` and the like are only about
/// when.)
pub(crate) const FLAGS: c_int =
    libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN | libc::MSG_ERRQUEUE;

/// What was known before a call.
#[derive(Clone, Copy, Default)]
pub(crate) struct PriorState {
    entry: Entry,
    /// How many forks were begun ([`fork_refcount::fork_count`]).
    forks: u64,
}

impl Call<'_> {
    /// Before the call. What it returns is for [`Self::after`].
    pub(crate) fn before(self) -> PriorState {
        if !vfork_check::is_this_process() {
            return PriorState::default();
        }
        let forks = fork_refcount::fork_count();
        if let Some(fd) = self.uses() {
            descriptor_tables::look(fd);
            running_call_counts::count_one(fd);
        }
        if let Some(from) = self.duplicates() {
            // One process is counted once.
            fork_refcount::mark_untracked(from);
        }
        PriorState { entry: self.changes(), forks }
    }

    /// The descriptor of which it makes a duplicate.
    fn duplicates(self) -> Option<c_int> {
        match self {
            Self::DupTo { from, to } if from != to => Some(from),
            Self::Dup(from)
            | Self::Control { fd: from, command: libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, .. } => {
                Some(from)
            }
            _ => None,
        }
    }

    /// The descriptor whose file it uses, even if the descriptor is closed meanwhile: the process
    /// then does not count as one that has closed it.
    fn uses(self) -> Option<c_int> {
        match self {
            Self::Shutdown(fd) => Some(fd),
            _ => self.duplicates(),
        }
    }

    /// What is known of descriptors is as it will be, where that must be before.
    fn changes(self) -> Entry {
        match self {
            // Another thread may be given the descriptor as soon as it is closed.
            Self::Close(fd) => DESCRIPTORS.forget(fd),
            Self::DupTo { from, to } if from != to => DESCRIPTORS.forget(to),
            Self::CloseRange { first, last, flags } => {
                if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
                    vfork_check::mark_fd_tables_apart();
                } else if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
                    descriptor_tables::forget_range(first, last);
                }
                Entry::default()
            }
            Self::Accept(fd) => descriptor_tables::look(fd),
            _ => Entry::default(),
        }
    }

    /// After it. `errno` is what it is then.
    pub(crate) fn after(self, was: PriorState, result: isize) {
        if !vfork_check::is_this_process() {
            return;
        }
        if result >= 0 {
            self.done(was, result as c_int)
        } else {
            self.failed(was)
        }
        if let Some(from) = self.duplicates().filter(|_| result >= 0) {
            // It may be for something else than before, of which the duplicate is.
            fork_refcount::mark_untracked(from);
        }
        if let Some(fd) = self.uses() {
            running_call_counts::uncount_one(fd);
        }
    }

    fn done(self, PriorState { entry: was, forks }: PriorState, result: c_int) {
        match self {
            Self::Made(kind) => {
                DESCRIPTORS.put(result, kind);
                shared_since(result, forks);
            }
            Self::Pair(fds) => {
                let fds = fds.read().into_iter().flatten();
                fds.for_each(|fd| DESCRIPTORS.put(fd, Kind::Other));
            }
            Self::Listen(fd) => turn(fd, Kind::Listening),
            Self::Connect(fd) => turn(fd, Kind::Connected),
            Self::Accept(_) if was.kind() == Kind::Listening => {
                DESCRIPTORS.put(result, Kind::Accepted);
                // It has its options of the one that listens.
                if was.why() == Why::Option {
                    fallback_ledger::keep(result, was.why());
                }
                shared_since(result, forks);
            }
            Self::Accept(_) => descriptor_tables::forget(result),
            // A listener that is shut down listens no more, mostly, by none of its descriptors.
            Self::Shutdown(fd) if DESCRIPTORS.look(fd).kind() == Kind::Listening => {
                match descriptor_probe::kind(fd) {
                    Some(kind) => turn(fd, kind),
                    None => descriptor_tables::forget(fd),
                }
            }
            Self::Option { fd, level, name } if OPTIONS.contains(&(level, name)) => {
                fallback_ledger::keep(fd, Why::Option);
            }
            Self::Flags { fd, flags } => odd(fd, flags),
            Self::Send { fd, message, flags } => {
                odd(fd, flags);
                scm_rights::sent(message);
            }
            Self::SendMany { fd, messages, flags } => {
                odd(fd, flags);
                scm_rights::sent_many(messages, result);
            }
            Self::Receive(message) => scm_rights::received(message),
            Self::ReceiveMany(messages) => scm_rights::received_many(messages, result),
            Self::Close(fd) => {
                descriptor_tables::left(fd, was);
                fork_refcount::release_closed(fd);
            }
            Self::CloseRange { first, last, flags: 0 } => {
                fork_refcount::release_closed_range(first, last)
            }
            Self::Dup(from) => DESCRIPTORS.copy(from, result),
            Self::DupTo { from, to } if from != to => {
                descriptor_tables::left(to, was);
                DESCRIPTORS.copy(from, to);
                fork_refcount::release_closed(to);
            }
            Self::Control { fd, command, argument } => {
                control(fd, command, argument, result);
            }
            Self::Request { fd, request } if SIGNAL_REQUESTS.contains(&request) => {
                fallback_ledger::keep(fd, Why::Signals);
            }
            Self::Member { set, operation, fd, event } => {
                epoll_members::control(set, operation, fd, event);
            }
            _ => {}
        }
    }

    fn failed(self, PriorState { entry: was, forks }: PriorState) {
        match self {
            // It is still what it was.
            Self::DupTo { from, to } if from != to => {
                DESCRIPTORS.restore(to, was);
                shared_since(to, forks);
            }
            // It goes on by itself, or another thread waits for it.
            Self::Connect(fd) if is_under_way() => turn(fd, Kind::Connecting),
            // `close` has closed, whatever it says, if there was anything.
            Self::Close(fd) => {
                descriptor_tables::left(fd, was);
                fork_refcount::release_closed(fd);
            }
            _ => {}
        }
    }
}

/// What a call has made, or left, has its descriptor now. A fork that was begun since before the
/// call may not have seen it there, and the new process has it: also if this is that process, which
/// came out of the call as a copy.
fn shared_since(fd: c_int, forks: u64) {
    fence(Ordering::SeqCst);
    if fork_refcount::fork_count() != forks {
        fallback_ledger::keep(fd, Why::Shared);
    }
}

fn turn(fd: c_int, kind: Kind) {
    if descriptor_tables::look(fd).kind().is_stream() {
        DESCRIPTORS.turn(fd, kind);
    }
}

fn odd(fd: c_int, flags: c_int) {
    if flags & FLAGS != 0 && descriptor_tables::look(fd).kind().is_stream() {
        fallback_ledger::keep(fd, Why::Flag);
    }
}

fn control(fd: c_int, command: c_int, argument: usize, result: c_int) {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => DESCRIPTORS.copy(fd, result),
        libc::F_SETFL if argument as c_int & libc::O_ASYNC == 0 => {}
        libc::F_SETFL | libc::F_SETOWN | F_SETSIG | F_SETOWN_EX
            if descriptor_tables::look(fd).kind().is_stream() =>
        {
            fallback_ledger::keep(fd, Why::Signals);
        }
        _ => {}
    }
}

fn is_under_way() -> bool {
    matches!(errno(), libc::EINPROGRESS | libc::EINTR)
}
