//! Adds links to epoll sets and removes them.
//!
//! A set with such members has a slot. What a member was put there with is in its link's words, and
//! a link is in one set at most. A thread that sleeps in a set has not looked for members that join
//! later: `epoll_ctl` wakes it ([`super::epoll_wakeup`]); a member that gets its link there is the
//! kernel's. So sleepers of all sets are counted, whether those have a slot by then or not.
//!
//! A set is named by its id, which no other one gets ([`crate::descriptor_tables`]). So a slot is
//! of no use any more when no descriptor has that id.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use omniverb_connection::backoff::LookOutcome;
use omniverb_connection::descriptors::{Kind, Member, Why};
use omniverb_connection::readiness::Interest;

use omniverb_formats::Direction;

pub(super) use super::epoll_slot::EpollSlot;
use super::links::{Link, Memory};
use super::{epoll_wakeup, unread_bytes};
use crate::descriptor_tables::{DESCRIPTORS, MEMBERS};
use crate::fork_refcount;

/// How often a link is put where its socket is, which others change at the same time.
const TRIES: u32 = 8;

/// Polling would have been worth it for a thread that waits in the set that a link is in.
pub(super) fn looks_again(link: Link) {
    if let Some(slot) = EpollSlot::with(link) {
        slot.looks().record(LookOutcome::Missed);
    }
}

/// Some descriptor is for the set of this id.
pub(super) fn is_open(set: u32) -> bool {
    DESCRIPTORS.fds_of(set).next().is_some()
}

/// What becomes of threads that sleep in a set that a member joins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleepers {
    /// They are woken to look at it, if need be.
    Wake,
    /// They sleep on, and the member cannot join.
    Stay,
}

/// A link is in a set, with these events; or it was, and they have changed. `false`: it is in none.
pub(super) fn put(link: Link, member: &Member, sleepers: Sleepers) -> bool {
    let Some(slot) = EpollSlot::claim(member.set) else { return false };
    let mine = slot.name();
    let word = &link.glance.set;
    if let Some(other) = EpollSlot::with(link)
        && !other.is(slot)
    {
        if is_open(other.set()) {
            return false;
        }
        link.leave_set();
    }
    link.member.data.set(member.data);
    link.glance.events.set(u64::from(member.events));
    // What there is now is news.
    link.member.told.set(0);
    slot.comes(link);
    let found = word.compare_exchange(0, mine, Ordering::SeqCst, Ordering::Acquire);
    if found.is_err_and(|now| now != mine) {
        return false;
    }
    fence(Ordering::SeqCst);
    // If its memory is still to come it is maybe ready from then on ([`Link::has_come`]).
    if link.identity.memory.load(Ordering::SeqCst) != 0 {
        link.mark_maybe_ready();
    }
    // A sleeper has not looked for it, or not for these events.
    let may_wake = sleepers == Sleepers::Wake;
    if slot.has_sleepers() && !(may_wake && (has_nothing(link) || epoll_wakeup::wake(member.set))) {
        link.leave_set();
        return false;
    }
    true
}

/// There is nothing in the ring, and nothing comes there while a thread sleeps in the set.
fn has_nothing(link: Link) -> bool {
    let is_empty =
        |inward: Direction<Memory>| !inward.may_be_polling() && unread_bytes::is_all_read(&inward);
    link.glance.error.get() == 0 && link.inward().is_none_or(is_empty)
}

/// A link is in the set that its socket is in, as the table says, and alone there as far as others
/// that wait are concerned. `false`: it cannot be carried where it is.
pub(super) fn join(link: Link, fd: c_int, id: u32) -> bool {
    // What is read may be old by the time it is written: so it is read again until it does not
    // change. A thread that changes the table does that first, and then looks for the link.
    let mut found = membership(fd, id);
    for _ in 0..TRIES {
        match found {
            Err(_) => return false,
            Ok(None) => link.leave_set(),
            Ok(Some(member)) if !put(link, &member, Sleepers::Stay) => return false,
            Ok(Some(_)) => {}
        }
        fence(Ordering::SeqCst);
        let now = membership(fd, id);
        if now == found {
            return true;
        }
        found = now;
    }
    false
}

/// Why what is open at a descriptor cannot be carried while it is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotJoinable {
    /// Others have the set, too, for the time being.
    ForNow,
    /// It never can be.
    Forever,
}

/// Whether what is open at a descriptor may be carried while it is a member: alone in one set,
/// which only this process has, and in nothing else that waits.
pub(super) fn may_be_member(member: &Member) -> Result<(), NotJoinable> {
    let fd = DESCRIPTORS.fds_of(member.set).next();
    let set = fd.map(|fd| (fd, DESCRIPTORS.look(fd)));
    let is_known = set.is_some_and(|(_, set)| {
        set.kind() == Kind::Set && !set.was_found() && set.why() == Why::Free
    });
    let mut is_alone = true;
    MEMBERS.of_fd(member.fd, member.id, |other| {
        is_alone &= other.set == member.set || !is_open(other.set);
    });
    if !is_known || !is_alone || !Interest(member.events).is_level_or_edge() {
        return Err(NotJoinable::Forever);
    }
    let is_ours = set.is_some_and(|(fd, set)| fork_refcount::is_unshared(fd, set, None));
    if is_ours { Ok(()) } else { Err(NotJoinable::ForNow) }
}

/// The set that what is open at a descriptor is in; `Err` if it cannot be carried there.
pub(super) fn membership(fd: c_int, id: u32) -> Result<Option<Member>, NotJoinable> {
    let mut found = None;
    MEMBERS.of_fd(fd, id, |member| {
        if is_open(member.set) {
            found = Some(member);
        }
    });
    match found {
        Some(member) => may_be_member(&member).map(|()| found),
        None => Ok(None),
    }
}
