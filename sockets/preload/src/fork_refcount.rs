//! Counts the processes that share a socket by `fork`, to know which sockets this one has alone.
//!
//! In: forks, before and behind them; closes; all that may pass a socket on out of sight. Out:
//! whether no other process has a socket, for sure. The counts are in memory that the processes
//! share (`omniverb_connection::processes_per_socket`), and this process keeps for each descriptor
//! which slot is its socket's there ([`count_slots`](crate::process_count_slots)).
//!
//! A fork is counted before it is made, and checked behind it: descriptors that came meanwhile, by
//! other threads or by handlers of signals, were not counted, and may be shared with any process.
//!
//! # Order
//! Each of these is two threads that write one word and read the other's, with a fence between (or
//! by operations that are all sequentially consistent): so one of the two sees the other at least.
//!
//! * *Counts* (the slot), looks whether the entry says that there is an uncounted holder, or is
//!   forgotten / *says so in the entry* ([`mark_untracked`], `forget`), looks for the slot.
//! * *Counts*, then looks for links / *makes a link*, then looks whether it is counted
//!   ([`is_sole_holder`]).
//! * *Begins a fork* ([`fork_count`]), looks through the entries / *writes an entry*, then looks
//!   whether a fork was begun since before its call.
//! * *Says that a call is under way* (`crate::unlinked_calls`, or holds the link), makes it /
//!   *closes the descriptor* by the kernel, then looks whether any is. The kernel puts the two in
//!   order.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use omniverb_connection::descriptors::{Entry, Kind, Why};
use rustix::net::sockopt;
use rustix::process::getpid;

use crate::borrowed_fd::borrow;
use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::process_count_slots::{self, CountSlot, Release, process_counts};
use crate::{running_call_counts, vfork_check};

/// In the name of what is no socket.
const SET: u64 = 1 << 63;

/// Forks of this process, and of those that it is a copy of.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// How often it was a new one: another thread of control may come out of any call as a copy.
static COPIES: AtomicU64 = AtomicU64::new(0);

/// From here on it is not known what is shared, and what calls are under way.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Nothing is carried any more in this process, nor counted.
pub(crate) fn stop() {
    IS_OVER.store(true, Ordering::SeqCst);
    mark_all_escaped();
}

pub(crate) fn is_over() -> bool {
    IS_OVER.load(Ordering::SeqCst)
}

/// How often a fork was begun, or came to its end. If it is the same before a call and behind it,
/// what the call has made is shared with no child.
pub(crate) fn fork_count() -> u64 {
    FORKS.load(Ordering::SeqCst)
}

/// Announces a fork, or its end. A thread that writes an entry sees that, or is seen by the one
/// that looks through the entries now. Returns a name for the fork.
pub(crate) fn announce_fork() -> u64 {
    let name = FORKS.fetch_add(1, Ordering::SeqCst) + 1;
    fence(Ordering::SeqCst);
    name
}

/// A fork that is being made.
#[derive(Clone, Copy)]
pub(crate) struct Fork {
    name: u64,
    given: u32,
    copies: u64,
}

impl Fork {
    /// Before the sockets are looked through.
    pub(crate) fn begin() -> Fork {
        let copies = COPIES.load(Ordering::SeqCst);
        let name = announce_fork();
        Fork { name, given: DESCRIPTORS.given(), copies }
    }

    /// Counts the process that is about to have the socket of a descriptor. `false` if that cannot
    /// be.
    pub(crate) fn count(self, fd: c_int, entry: Entry) -> bool {
        let is_there = entry.id() != 0 && process_count_slots::is_made();
        let Some(slot) = is_there.then(|| CountSlot::make(fd)).flatten() else { return false };
        // Who looks whether it is alone, after it has said that it offers, sees this.
        let is_first = DESCRIPTORS.share(fd, entry.id());
        let binding = slot.binding();
        let is_counted = if binding.id() == entry.id() {
            // Without a slot of the family's somebody else is at it at this moment, and will see
            // that it is kept.
            process_counts().increment(binding.name)
        } else {
            // What this process was counted for once, and is no more, it is not counted for anew:
            // others may have it.
            slot.release(binding, Release::Possible);
            let claim = || process_counts().allocate(name(fd, entry)?, 2);
            is_first && slot.bind(entry.id(), self.name, claim)
        };
        if !is_counted {
            return false;
        }
        slot.set_fork(self.name);
        fence(Ordering::SeqCst);
        let now = DESCRIPTORS.look(fd);
        if now.id() != entry.id() {
            // It is being closed, by a thread that may have found no slot yet.
            slot.release(slot.binding(), Release::Possible);
            return false;
        }
        // The last three are said of everything, which is looked through then.
        let is_known = now.why() == Why::Free && !now.is_duplicated() && !now.is_loose();
        let is_sure =
            !is_over() && !descriptor_tables::has_rings() && !vfork_check::are_fd_tables_apart();
        if !is_known || !is_sure {
            slot.mark_escaped();
        }
        true
    }

    /// It was counted by this fork, as what it is now.
    pub(crate) fn was_counted(self, fd: c_int, entry: Entry) -> bool {
        CountSlot::of(fd)
            .is_some_and(|slot| slot.fork() == self.name && slot.binding().id() == entry.id())
    }

    /// Everything that there is was looked at, by this process.
    pub(crate) fn is_complete(self) -> bool {
        self.is_same_process() && DESCRIPTORS.given() == self.given
    }

    /// This process is the one that has begun: it was not made in the middle, by a handler.
    pub(crate) fn is_same_process(self) -> bool {
        COPIES.load(Ordering::SeqCst) == self.copies
    }

    /// It has failed: there is no child.
    pub(crate) fn undo(self) {
        each(|slot| {
            // Read in this order: what is bound since has another fork's name.
            let binding = slot.binding();
            if slot.fork() == self.name {
                slot.set_fork(0);
                process_counts().decrement(binding.name);
            }
        });
    }
}

/// In a child.
pub(crate) fn mark_child() {
    COPIES.fetch_add(1, Ordering::SeqCst);
}

/// The name of a socket, or a set, among the processes that share it.
fn name(fd: c_int, entry: Entry) -> Option<u64> {
    if entry.kind() == Kind::Set {
        let process = getpid().as_raw_nonzero().get().unsigned_abs();
        return Some(SET | u64::from(process) << 32 | u64::from(entry.id()));
    }
    sockopt::socket_cookie(borrow(fd)).ok()
}

fn each(mut with: impl FnMut(CountSlot)) {
    if process_count_slots::are_any() {
        (0..DESCRIPTORS.end()).filter_map(CountSlot::of).for_each(|slot| {
            if slot.binding().is_any() {
                with(slot);
            }
        });
    }
}

/// No other process has the socket, by what is counted; if the `cookie` is known, for sure.
pub(crate) fn is_sole_holder(fd: c_int, entry: Entry, cookie: Option<u64>) -> bool {
    CountSlot::of(fd).is_some_and(|slot| {
        let binding = slot.binding();
        binding.id() == entry.id()
            && cookie.is_none_or(|cookie| cookie == binding.name.cookie)
            && process_counts().is_exclusive(binding.name)
    })
}

/// The same of one that was never shared by `fork`, too.
pub(crate) fn is_unshared(fd: c_int, entry: Entry, cookie: Option<u64>) -> bool {
    !entry.is_shared() || is_sole_holder(fd, entry, cookie)
}

/// A process may have it, or do something with it, that is not counted. The caller notes that in
/// the entry before: a thread that is about to count sees it there if there is no slot yet.
pub(crate) fn mark_escaped(fd: c_int) {
    fence(Ordering::SeqCst);
    if let Some(slot) = CountSlot::of(fd) {
        slot.mark_escaped();
    }
}

/// The same for all.
pub(crate) fn mark_all_escaped() {
    // The reason is written before: a thread that counts at this moment sees it, or is seen.
    fence(Ordering::SeqCst);
    if vfork_check::is_this_process() {
        each(CountSlot::mark_escaped);
    }
}

/// A process that is not counted is about to have what is open at a descriptor: by another
/// descriptor of this process, or elsewhere. A fork that is under way sees that, too.
pub(crate) fn mark_untracked(fd: c_int) {
    DESCRIPTORS.loosen(fd);
    mark_escaped(fd);
}

/// A call is about to begin that continues with what is open at a descriptor when that is closed,
/// and whose end is not seen.
pub(crate) fn may_outlive_close(fd: c_int) {
    if !vfork_check::is_this_process() {
        return;
    }
    if !DESCRIPTORS.look(fd).kind().is_stream() {
        return mark_unknown_use(fd);
    }
    DESCRIPTORS.loosen(fd);
    fence(Ordering::SeqCst);
    // A sole holder's socket is closed by no other process, and is shared by a fork, which sees
    // this.
    if !is_sole_holder(fd, DESCRIPTORS.look(fd), None) {
        mark_escaped(fd);
    }
}

/// A call is about to begin with a descriptor of which nothing is known: it may be closing, and the
/// call be the kernel's before that.
#[inline(always)]
pub(crate) fn mark_unknown_use(fd: c_int) {
    if process_count_slots::are_any() {
        mark_closing_use(fd);
    }
}

#[cold]
fn mark_closing_use(fd: c_int) {
    if let Some(slot) = CountSlot::of(fd) {
        let binding = slot.binding();
        if binding.is_any() && binding.id() != DESCRIPTORS.look(fd).id() {
            process_counts().mark_unknown(binding.name);
        }
    }
}

/// A descriptor was closed, or given to something else. A call under way in the kernel may still
/// have the socket.
pub(crate) fn release_closed(fd: c_int) {
    let Some(slot) = CountSlot::of(fd) else { return };
    let binding = slot.binding();
    if !binding.is_any() || binding.id() == DESCRIPTORS.look(fd).id() {
        return;
    }
    let is_used = match binding.name.cookie & SET {
        0 => running_call_counts::is_any_of(fd),
        _ => running_call_counts::is_slept_in(binding.id()),
    };
    // Otherwise it is not known what calls are under way.
    let is_used = is_used || is_over();
    slot.release(binding, if is_used { Release::Possible } else { Release::Certain });
}

/// The same for all from `first` to `last`.
pub(crate) fn release_closed_range(first: u32, last: u32) {
    if process_count_slots::are_any() {
        descriptor_tables::between(first, last).for_each(release_closed);
    }
}

/// This process is counted for something.
pub(crate) fn is_counted_anywhere() -> bool {
    let mut found = false;
    each(|_| found = true);
    found
}

/// This process is counted for nothing any more: it is about to end, or to be another program,
/// which does not count.
pub(crate) fn release_all(release: Release) {
    each(|slot| slot.release(slot.binding(), release));
}
