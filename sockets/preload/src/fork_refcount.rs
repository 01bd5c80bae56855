//! Counts the processes that share a socket by `fork`, to know which this one has alone.
//!
//! In: forks, before and behind them; closes; whatever may give a socket to somebody unseen. Out:
//! whether nobody else has a socket, for sure. How many have one is counted in memory that the
//! processes share (`omniverb_connection::process_counts`), and this process keeps for each
//! descriptor which slot is its socket's there ([`count_slots`](crate::count_slots)).
//!
//! A fork is counted before it is made, and looked at again behind it: what has come meanwhile, by
//! other threads or by handlers of signals, was not counted, and is shared with nobody knows whom.
//!
//! # Order
//! Each of these is two threads that write one word and read the other's, with a fence between (or
//! by operations that are all sequentially consistent): so one of the two sees the other at least.
//!
//! * *Counts* (the slot), looks whether the entry says that somebody has it uncounted, or is
//!   forgotten / *says so in the entry* ([`slips`], `forget`), looks for the slot.
//! * *Counts*, then looks for links / *makes a link*, then looks whether it is counted ([`has`]).
//! * *Begins a fork* ([`forks`]), looks through the entries / *writes an entry*, then looks whether
//!   a fork was begun since before its call.
//! * *Says that a call is under way* (`crate::unlinked_calls`, or holds the link), makes it /
//!   *closes the descriptor* by the kernel, then looks whether any is. The kernel puts the two in
//!   order.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::os::fd::BorrowedFd;

use omniverb_connection::descriptors::{Entry, Kind, Why};
use rustix::net::sockopt;
use rustix::process::getpid;

use crate::count_slots::{self, CountSlot, Gone, process_counts};
use crate::table::{self, DESCRIPTORS};
use crate::{memory_owner, unlinked_calls};

/// In the name of what is no socket.
const SET: u64 = 1 << 63;

/// Forks of this process, and of those that it is a copy of.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// How often it was a new one: another thread of control may come out of any call as a copy.
static COPIES: AtomicU64 = AtomicU64::new(0);

/// From here on nobody says what is shared, and what calls are under way.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Nothing is carried any more in this process, nor counted.
pub(crate) fn stops() {
    IS_OVER.store(true, Ordering::SeqCst);
    spread_all();
}

pub(crate) fn is_over() -> bool {
    IS_OVER.load(Ordering::SeqCst)
}

/// How often a fork was begun, or came to its end: what is found the same before a call and behind
/// what it has made is shared with nobody.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::SeqCst)
}

/// One is begun, or comes to its end: who writes an entry sees that, or is seen by who looks
/// through them now. A name for it.
pub(crate) fn tells_of_fork() -> u64 {
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
        let name = tells_of_fork();
        Fork { name, given: DESCRIPTORS.given(), copies }
    }

    /// Counts who is about to have the socket of a descriptor. `false` if that cannot be.
    pub(crate) fn count(self, fd: c_int, entry: Entry) -> bool {
        let is_there = entry.id() != 0 && count_slots::is_made();
        let Some(slot) = is_there.then(|| CountSlot::make(fd)).flatten() else { return false };
        // Who looks whether it is alone, after it has said that it offers, sees this.
        let is_first = DESCRIPTORS.share(fd, entry.id());
        let tie = slot.tie();
        let is_counted = if tie.id() == entry.id() {
            // Without a slot of the family's somebody else is at it at this moment, and will see
            // that it is kept.
            process_counts().increment(tie.name)
        } else {
            // What this process was counted for once, and is no more, it is not counted for anew:
            // others may have it.
            slot.retire(tie, Gone::Perhaps);
            let claim = || process_counts().allocate(name(fd, entry)?, 2);
            is_first && slot.ties(entry.id(), self.name, claim)
        };
        if !is_counted {
            return false;
        }
        slot.set_fork(self.name);
        fence(Ordering::SeqCst);
        let now = DESCRIPTORS.look(fd);
        if now.id() != entry.id() {
            // It is being closed, by a thread that may have found no slot yet.
            slot.retire(slot.tie(), Gone::Perhaps);
            return false;
        }
        // The last three are said of everything, which is looked through then.
        let is_known = now.why() == Why::Free && !now.is_duplicated() && !now.is_loose();
        let is_sure = !is_over() && !table::has_rings() && !memory_owner::is_apart();
        if !is_known || !is_sure {
            slot.spread();
        }
        true
    }

    /// It was counted by this fork, as what it is now.
    pub(crate) fn has(self, fd: c_int, entry: Entry) -> bool {
        CountSlot::of(fd)
            .is_some_and(|slot| slot.fork() == self.name && slot.tie().id() == entry.id())
    }

    /// Everything that there is was looked at, by this process.
    pub(crate) fn is_whole(self) -> bool {
        self.is_one_process() && DESCRIPTORS.given() == self.given
    }

    /// This process is the one that has begun: it was not made in the middle, by a handler.
    pub(crate) fn is_one_process(self) -> bool {
        COPIES.load(Ordering::SeqCst) == self.copies
    }

    /// It has failed: nobody has got anything.
    pub(crate) fn undo(self) {
        each(|slot| {
            // Read in this order: what is tied since has another fork's name.
            let tie = slot.tie();
            if slot.fork() == self.name {
                slot.set_fork(0);
                process_counts().decrement(tie.name);
            }
        });
    }
}

/// In a child.
pub(crate) fn is_copy() {
    COPIES.fetch_add(1, Ordering::SeqCst);
}

/// What names a socket, or a set, for those who share it.
fn name(fd: c_int, entry: Entry) -> Option<u64> {
    if entry.kind() == Kind::Set {
        let process = getpid().as_raw_nonzero().get().unsigned_abs();
        return Some(SET | u64::from(process) << 32 | u64::from(entry.id()));
    }
    // SAFETY: the program's socket, for this call, which fails if there is none.
    let file = unsafe { BorrowedFd::borrow_raw(fd.max(0)) };
    sockopt::socket_cookie(file).ok()
}

fn each(mut with: impl FnMut(CountSlot)) {
    if count_slots::are_any() {
        (0..DESCRIPTORS.end()).filter_map(CountSlot::of).for_each(|slot| {
            if slot.tie().is_any() {
                with(slot);
            }
        });
    }
}

/// Nobody else has the socket, by what is counted; if the `cookie` is known, for sure.
pub(crate) fn has(fd: c_int, entry: Entry, cookie: Option<u64>) -> bool {
    CountSlot::of(fd).is_some_and(|slot| {
        let tie = slot.tie();
        tie.id() == entry.id()
            && cookie.is_none_or(|cookie| cookie == tie.name.cookie)
            && process_counts().is_exclusive(tie.name)
    })
}

/// The same of one that was never shared by `fork`, too.
pub(crate) fn is_alone(fd: c_int, entry: Entry, cookie: Option<u64>) -> bool {
    !entry.is_shared() || has(fd, entry, cookie)
}

/// Somebody may have it, or do something with it, of whom nobody knows. Whoever notes that in the
/// entry does so before: who is about to count sees it there if there is no slot yet.
pub(crate) fn spread(fd: c_int) {
    fence(Ordering::SeqCst);
    if let Some(slot) = CountSlot::of(fd) {
        slot.spread();
    }
}

/// The same for all.
pub(crate) fn spread_all() {
    // Whatever it is said for is written before: who counts at this moment sees that, or is seen.
    fence(Ordering::SeqCst);
    if memory_owner::is_ours() {
        each(CountSlot::spread);
    }
}

/// Somebody who is not counted is about to have what is open at a descriptor: by another descriptor
/// of this process, or elsewhere. A fork that is under way sees that, too.
pub(crate) fn slips(fd: c_int) {
    DESCRIPTORS.loosen(fd);
    spread(fd);
}

/// A call is about to begin that goes on with what is open at a descriptor when that is closed, and
/// of which nobody says when it is over.
pub(crate) fn outlasts(fd: c_int) {
    if !memory_owner::is_ours() {
        return;
    }
    if !DESCRIPTORS.look(fd).kind().is_stream() {
        return uses_unknown(fd);
    }
    DESCRIPTORS.loosen(fd);
    fence(Ordering::SeqCst);
    // Who is alone is closed by nobody else, and shares it by a fork, which sees this.
    if !has(fd, DESCRIPTORS.look(fd), None) {
        spread(fd);
    }
}

/// A call is about to begin with a descriptor of which nothing is known: it may be closing, and the
/// call be the kernel's before that.
#[inline(always)]
pub(crate) fn uses_unknown(fd: c_int) {
    if count_slots::are_any() {
        uses_closing(fd);
    }
}

#[cold]
fn uses_closing(fd: c_int) {
    if let Some(slot) = CountSlot::of(fd) {
        let tie = slot.tie();
        if tie.is_any() && tie.id() != DESCRIPTORS.look(fd).id() {
            process_counts().mark_unknown(tie.name);
        }
    }
}

/// A descriptor was closed, or given to something else. Who is in a call of the kernel's may have
/// the socket still.
pub(crate) fn closed(fd: c_int) {
    let Some(slot) = CountSlot::of(fd) else { return };
    let tie = slot.tie();
    if !tie.is_any() || tie.id() == DESCRIPTORS.look(fd).id() {
        return;
    }
    let is_used = match tie.name.cookie & SET {
        0 => unlinked_calls::is_any_of(fd),
        _ => unlinked_calls::is_slept_in(tie.id()),
    };
    // Otherwise nobody says what calls are under way.
    let is_used = is_used || is_over();
    slot.retire(tie, if is_used { Gone::Perhaps } else { Gone::Surely });
}

/// The same for all from `first` to `last`.
pub(crate) fn closed_range(first: u32, last: u32) {
    if count_slots::are_any() {
        table::between(first, last).for_each(closed);
    }
}

/// This process is counted for something.
pub(crate) fn is_counted() -> bool {
    let mut found = false;
    each(|_| found = true);
    found
}

/// This process is counted for nothing any more: it is about to end, or to be another program, in
/// which nobody counts.
pub(crate) fn retires(gone: Gone) {
    each(|slot| slot.retire(slot.tie(), gone));
}
