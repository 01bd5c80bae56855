//! Prepares links for `fork`, `vfork` and `clone`, and cleans up in the child.
//!
//! A child of `fork` has the same sockets. Each that may be carried is counted
//! (`crate::fork_refcount`), and so are sets; all others are the kernel's from then on. Links end
//! then: a process that has the socket alone again gets another one ([`super::reattach`]).

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use omniverb_connection::descriptors::{Entry, Kind, Why};

use super::kernel_fallback::Sharing;
use super::{
    broker, broker_dispatch, connection_watch, ended_link_private_memory, forgotten_links,
    kernel_fallback, links, offer_sockets_to_broker, reattach, unread_links, writer_lock,
};
use crate::descriptor_tables::DESCRIPTORS;
use crate::fork_refcount::{self, Fork};
use crate::kernel_socket;
use crate::{fallback_ledger, library_fds, running_call_counts};

/// A `fork` that is about to be made.
pub(crate) struct Forking {
    fork: Fork,
    /// What is to be closed in the new process.
    own: [Option<c_int>; 2],
}

/// This process is about to be two, by a call of which is said what came of it ([`after_fork`]).
pub(crate) fn before_fork() -> Option<Forking> {
    if !links::is_here() {
        return None;
    }
    // A link that has come ends properly, so that the other end can forget it, too.
    broker_dispatch::poll();
    let fork = Fork::begin();
    let mut written = 0;
    for fd in 0..DESCRIPTORS.end() {
        let entry = DESCRIPTORS.look(fd);
        match entry.kind() {
            kind if kind.is_stream() || kind == Kind::Set => {
                if !may_be_counted(fd, entry) || !fork.count(fd, entry) {
                    keep(fd, &mut written);
                }
            }
            // It may be closing at this moment.
            _ => fork_refcount::mark_unknown_use(fd),
        }
    }
    // A thread that makes a link makes it first, and then looks whether its socket is counted.
    fence(Ordering::SeqCst);
    reattach::note_fork();
    kernel_fallback::share(Sharing::Counted);
    if !fork.is_same_process() {
        fork_refcount::mark_all_escaped();
    }
    Some(Forking { fork, own: [broker::fd(), connection_watch::fd()] })
}

/// It may be carried when this process has it alone again. Of a set: its members may.
fn may_be_counted(fd: c_int, entry: Entry) -> bool {
    if entry.kind() != Kind::Set {
        return offer_sockets_to_broker::may_be(fd, entry);
    }
    !entry.is_duplicated() && !entry.was_found() && entry.why() == Why::Free
}

/// It is the kernel's for good. The first ones are written down.
fn keep(fd: c_int, written: &mut usize) {
    if *written < fallback_ledger::AT_ONCE && DESCRIPTORS.look(fd).kind() != Kind::Set {
        fallback_ledger::keep(fd, Why::Shared);
        *written += 1;
    } else {
        DESCRIPTORS.keep(fd, Why::Shared);
        fork_refcount::mark_escaped(fd);
    }
}

/// What a child does with the descriptors of the library that it has of its parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnDescriptors {
    /// It closes them at once.
    Close,
    /// It closes them when it finds that it is a child.
    Keep,
}

/// It is made, or not: `child` is what the call has given. `own`: what
/// a child does with the library's own descriptors.
pub(crate) fn after_fork(forking: Option<Forking>, child: c_int, own: OwnDescriptors) {
    if !links::is_on() {
        return;
    }
    if child == 0 {
        _ = broker::is_copy();
        fallback_ledger::begin_anew();
        writer_lock::reset_in_child();
        ended_link_private_memory::begin_anew();
        forgotten_links::reset_in_child();
        unread_links::begin_anew();
        running_call_counts::begin_anew();
        // Duplicates of the parent's, of no use here.
        let forking = forking.as_ref().filter(|_| own == OwnDescriptors::Close);
        let own = forking.map(|forking| forking.own).into_iter().flatten();
        own.flatten().for_each(library_fds::close);
    }
    let Some(Forking { fork, .. }) = forking else { return };
    _ = fork_refcount::announce_fork();
    let is_one_process = fork.is_same_process();
    if child < 0 && is_one_process {
        fork.undo();
        return;
    }
    // A child's memory is no picture of one instant: other threads write while it is copied.
    if child == 0 || !fork.is_complete() {
        share_the_new(fork, child == 0);
    }
    if child == 0 {
        fork_refcount::mark_child();
    }
}

/// Descriptors that came since the fork was begun may be in both processes, uncounted. And a
/// child's sets are the kernel's: a process that makes a set may have it alone again, and then
/// knows its members.
#[cold]
fn share_the_new(fork: Fork, is_child: bool) {
    for fd in 0..DESCRIPTORS.end() {
        let entry = DESCRIPTORS.look(fd);
        let is_set = entry.kind() == Kind::Set;
        if !is_set && !entry.kind().is_stream() {
            continue;
        }
        let is_new = !fork.was_counted(fd, entry);
        if is_new || is_child && is_set {
            DESCRIPTORS.keep(fd, Why::Shared);
        }
        if is_new {
            fork_refcount::mark_escaped(fd);
        }
    }
    if !fork.is_same_process() {
        fork_refcount::mark_all_escaped();
    }
    if is_child {
        // The link is the parent's alone, which leaves it.
        kernel_fallback::forget_unshared();
    } else {
        kernel_fallback::share(Sharing::Counted);
    }
}

/// Before a call of which nothing more is seen: any process may have any socket.
pub(crate) fn before_unseen_fork() {
    if links::is_here() {
        _ = fork_refcount::announce_fork();
        none_of_these(|_| true);
        kernel_fallback::share(Sharing::ForGood);
    }
}

/// A process is about to be made that has this one's memory until it becomes another program, or
/// that the C library makes: which sockets it duplicates is not seen. So all count as duplicated.
pub(crate) fn before_vfork() {
    if links::is_here() {
        none_of_these(|_| true);
        kernel_fallback::share_all(|_| true);
    }
}

/// `system`, `popen`: the C library makes a process that executes a shell, and does nothing with
/// sockets before. So it gets those that an exec does not close.
pub(crate) fn before_spawn() {
    if links::is_here() {
        let has = |fd: c_int| !kernel_socket::is_close_on_exec(fd);
        none_of_these(has);
        kernel_fallback::share_matching(has);
    }
}

/// Sockets that there are now are never offered, if `which` says so: others have them, too. And
/// sets have no more members that are carried.
fn none_of_these(which: impl Fn(c_int) -> bool) {
    let mut written = 0;
    for fd in 0..DESCRIPTORS.end() {
        let entry = DESCRIPTORS.look(fd);
        let is_any = entry.kind().is_stream() || entry.kind() == Kind::Set;
        if !is_any {
            fork_refcount::mark_unknown_use(fd);
        } else if which(fd) {
            keep(fd, &mut written);
        }
    }
}

/// `clone`, with these flags.
pub(crate) fn before_clone(flags: c_int) {
    let has = |flag: c_int| flags & flag != 0;
    let is_thread = has(libc::CLONE_THREAD);
    let has_parts =
        has(libc::CLONE_FILES) != has(libc::CLONE_VM) && (is_thread || has(libc::CLONE_FILES));
    // It is no thread, but has whatever this process opens from now on.
    let has_later = has(libc::CLONE_FILES) && !is_thread && !has(libc::CLONE_VFORK);
    if has_parts || has_later {
        // Nothing is known of which process has which socket.
        super::stop();
    }
    if is_thread {
        return;
    }
    if flags & libc::CLONE_VM != 0 {
        before_vfork();
    } else {
        before_unseen_fork();
    }
}
