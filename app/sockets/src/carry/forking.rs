//! Processes that are made of this one.
//!
//! A child of `fork` has the same sockets. Each that may be carried is counted (`crate::sole`); all
//! others are the kernel's from then on, and so are those that have a link already.

use core::ffi::c_int;

use omniverb_stream::descriptors::{Entry, Kind, Why};

use super::{broker, leaving, links, members, offering};
use crate::sole::{self, Fork};
use crate::table::{self, NUMBERS};
use crate::{ledger, place};

/// A `fork` that is about to be made.
pub(crate) struct Forking {
    fork: Fork,
    /// What is to be closed in the new process.
    socket: Option<c_int>,
}

/// This process is about to be two, by a call of which is said what came of it ([`forked`]).
pub(crate) fn forks() -> Option<Forking> {
    if !links::is_on() || !place::is_ours() {
        return None;
    }
    let fork = Fork::begin();
    let mut written = 0;
    for number in 0..NUMBERS.end() {
        let entry = NUMBERS.look(number);
        match entry.kind() {
            Kind::Set => NUMBERS.keep(number, Why::Shared),
            kind if kind.is_stream() => {
                if !may_be_counted(number, entry) || !fork.count(number, entry) {
                    keep(number, &mut written);
                }
            }
            // It may be closing at this moment.
            _ => sole::spread(number),
        }
    }
    leaving::share();
    if !fork.is_one_process() {
        sole::spread_all();
    }
    Some(Forking { fork, socket: broker::number() })
}

fn may_be_counted(number: c_int, entry: Entry) -> bool {
    offering::may_be(number, entry) && !links::has(number)
}

/// It is the kernel's for good. The first ones are written down.
fn keep(number: c_int, written: &mut usize) {
    if *written < ledger::AT_ONCE {
        ledger::keep(number, Why::Shared);
        *written += 1;
    } else {
        sole::spread(number);
        NUMBERS.keep(number, Why::Shared);
    }
}

/// It is made, or not: `child` is what the call has given.
pub(crate) fn forked(forking: Option<Forking>, child: c_int) {
    if !links::is_on() {
        return;
    }
    if child == 0 {
        _ = broker::is_copy();
        ledger::begin_anew();
        leaving::begin_anew();
        members::begin_anew();
        offering::begin_anew();
        broker::leave_to_parent(forking.as_ref().and_then(|forking| forking.socket));
    }
    let Some(Forking { fork, .. }) = forking else { return };
    let is_one_process = fork.is_one_process();
    if child < 0 && is_one_process {
        fork.undo();
        return;
    }
    if !fork.is_whole() {
        share_the_new(fork, child == 0);
    }
    if child == 0 {
        sole::is_copy();
    }
}

/// What has come since the fork was begun both may have, and nobody has counted them.
#[cold]
fn share_the_new(fork: Fork, is_child: bool) {
    for number in 0..NUMBERS.end() {
        let entry = NUMBERS.look(number);
        let is_new = entry.kind() == Kind::Set || entry.kind().is_stream();
        if is_new && !fork.has(number, entry) {
            sole::spread(number);
            NUMBERS.keep(number, Why::Shared);
        }
    }
    if !fork.is_one_process() {
        sole::spread_all();
    }
    if is_child {
        // The link is the parent's alone, who leaves it.
        leaving::forget_unshared();
    } else {
        leaving::share();
    }
}

/// The same by a call of which nothing is said then: everybody may have everything.
pub(crate) fn forks_unseen() {
    if links::is_on() && place::is_ours() {
        none_of_these();
        leaving::share();
    }
}

/// A process is about to be made that has this one's memory until it becomes another program, or
/// that the C library makes: nobody sees which sockets it duplicates meanwhile. So it has them all.
pub(crate) fn lends() {
    if links::is_on() && place::is_ours() {
        none_of_these();
        leaving::hand_all_over(|_| true);
    }
}

/// Sockets that there are now are never offered: others have them, too. And sets have no more
/// members that are carried.
fn none_of_these() {
    sole::spread_all();
    let mut written = 0;
    for number in 0..NUMBERS.end() {
        let kind = table::NUMBERS.look(number).kind();
        if kind.is_stream() {
            keep(number, &mut written);
        } else if kind == Kind::Set {
            NUMBERS.keep(number, Why::Shared);
        }
    }
}

/// `clone`, with these flags.
pub(crate) fn clones(flags: c_int) {
    if flags & libc::CLONE_THREAD != 0 {
        return;
    }
    if flags & libc::CLONE_VM != 0 {
        lends();
    } else {
        forks_unseen();
    }
}
