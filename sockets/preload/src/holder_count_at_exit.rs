//! Decides when an ending process stops counting as a holder ([`crate::fork_refcount`]).
//!
//! A process that is not counted any more must not use a socket: another one may take itself for
//! the only holder then, and carry. So it is counted off for sure only when nothing of the program
//! runs from there on: no other thread, no handler of a signal, nothing of another library. In
//! doubt it is counted off all the same, so that its rows can be used again, but no other process
//! counts as alone then.

use core::ptr;

use rustix::fs::{PROC_SUPER_MAGIC, stat, statfs};

use crate::errno::keeping_errno;
use crate::process_count_slots::{self, Release};
use crate::{fork_refcount, running_call_counts};

/// How a process is about to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By `_exit`: this thread does nothing of the program any more.
    Now,
    /// By `exit`, behind what the program has asked for: destructors of other libraries come. Or by
    /// `quick_exit`, which calls what the program has asked for first.
    Later,
}

/// The process is about to end so.
pub(crate) fn ends(end: End) {
    if !process_count_slots::are_any() || !fork_refcount::is_counted_anywhere() {
        return;
    }
    match end {
        End::Now => {
            keep_signals();
            fork_refcount::release_all(if is_lone() {
                Release::Certain
            } else {
                Release::Possible
            });
        }
        End::Later => fork_refcount::release_all(Release::Possible),
    }
}

/// No handler comes any more. What a signal does to a process is done at its end, too.
fn keep_signals() {
    // SAFETY: a set of signals, which may be zero, of this thread only.
    keeping_errno(|| unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut())
    });
}

/// There is no other thread, however made, and no call is under way that a thread has left: the
/// kernel has a folder for each in this one.
fn is_lone() -> bool {
    let tasks = c"/proc/self/task";
    let is_proc = statfs(tasks).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC);
    is_proc && !running_call_counts::is_any() && stat(tasks).is_ok_and(|found| found.st_nlink == 3)
}
