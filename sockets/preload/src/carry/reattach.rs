//! Forgets ended links of connections that go on, and offers their sockets again.
//!
//! A process that forks stops both directions, the other end's, too. When both rings are empty then
//! nothing will ever come by that link: whatever is sent since goes through the kernel, and each
//! end may forget the link by itself. Each offers its socket anew: the process that has forked when
//! no other one has it any more. What a new link carries comes behind all that the kernel was given
//! before, as with a first one. A link that carries too little ends in the same way
//! ([`super::suspend_idle_links`]).

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use omniverb_connection::backoff::{Backoff, Outcome};
use omniverb_formats::Direction;

use super::admission::WORTH;
use super::epoll_membership::EpollSlot;
use super::links::{self, Flag, Link, Memory};
use super::{forgotten_links, offer_sockets_to_broker, published_bytes, unread_bytes};
use crate::descriptor_tables::DESCRIPTORS;
use crate::fork_refcount;
use crate::tsc_clock;

/// How long ago the last fork has to be: a process that forks all the time does not offer all its
/// sockets between two forks.
const FORKED: u64 = tsc_clock::SECOND >> 2;
/// When this process was made, or has made another one.
static LAST: AtomicU64 = AtomicU64::new(0);

/// By the last bits of a descriptor: the id of the socket that this is about, and how often in a
/// row it was offered anew for little, or was suspended; and when that was last ([`Backoff`]). The
/// other end says when a link is over, and may say so for ever; it may write how much was carried
/// as well, so each has to wait a while.
static RENEWED: [[AtomicU64; 2]; 1 << 10] = [const { [const { AtomicU64::new(0) }; 2] }; 1 << 10];

fn words(fd: c_int) -> &'static [AtomicU64; 2] {
    &RENEWED[fd as usize % RENEWED.len()]
}

fn backoff(fd: c_int) -> Backoff {
    let [times, last] = words(fd).each_ref().map(|word| word.load(Ordering::Relaxed));
    if times >> 32 != u64::from(DESCRIPTORS.look(fd).id()) {
        // Another socket's.
        return Backoff::default();
    }
    Backoff { times: u64::from(times as u32), last }
}

/// Nothing was offered anew at a descriptor of late.
pub(super) fn is_first(fd: c_int) -> bool {
    backoff(fd).is_forgotten(tsc_clock::now(), FORKED)
}

/// What is at a descriptor is offered anew, or rests, after it has carried so many bytes.
pub(super) fn record_end(fd: c_int, bytes: u64, now: u64) {
    let outcome = if bytes >= WORTH { Outcome::Succeeded } else { Outcome::Failed };
    let next = backoff(fd).next(now, FORKED, outcome);
    let [times, last] = words(fd);
    let id = u64::from(DESCRIPTORS.look(fd).id());
    times.store(id << 32 | next.times, Ordering::Relaxed);
    last.store(next.last, Ordering::Relaxed);
}

/// A process is being made.
pub(super) fn note_fork() {
    LAST.store(tsc_clock::now(), Ordering::Relaxed);
}

/// What becomes of a link that may come again.
pub(super) enum LinkFate {
    /// Something may come by it still.
    Active,
    /// Nothing does: its socket is the kernel's until the link is forgotten.
    Suspended,
    /// It is forgotten.
    Forgotten,
}

/// What becomes of it now. For a caller that holds it.
#[cold]
pub(super) fn fate(link: Link, fd: c_int) -> LinkFate {
    if !is_over(link) {
        LinkFate::Active
    } else if try_forget(link, fd) {
        LinkFate::Forgotten
    } else {
        LinkFate::Suspended
    }
}

/// It is forgotten, if its socket may be offered now.
fn try_forget(link: Link, fd: c_int) -> bool {
    // Without memory there was none: it is not the other end that has ended it.
    let (has_memory, now) = (link.identity.memory.get() != 0, tsc_clock::now());
    if has_memory && !backoff(fd).is_due(now, FORKED) {
        return false;
    }
    // A call under way may still have to send by it, and nothing could be offered before that is
    // over; a thread that sleeps in its set has not looked for another one.
    if link.is_in_use() || EpollSlot::with(link).is_some_and(EpollSlot::has_sleepers) {
        return false;
    }
    let entry = DESCRIPTORS.look(fd);
    let is_free = offer_sockets_to_broker::may_be(fd, entry)
        && (!entry.is_shared()
            || fork_refcount::is_sole_holder(fd, entry, Some(link.identity.cookie.get()))
                && tsc_clock::is_over(LAST.load(Ordering::Relaxed), FORKED));
    if !is_free || !forgotten_links::remember(link.tag()) {
        return false;
    }
    if !published_bytes::is_same_socket(link, fd) {
        // Another socket came here unseen.
        link.leave_set();
        return links::forget(fd, link);
    }
    if has_memory && !link.has(Flag::Suspended) {
        record_end(fd, link.has_carried(), now);
    }
    fence(Ordering::SeqCst);
    link.leave_set();
    links::forget(fd, link)
}

/// The kernel has its socket for the time being, and no other process has it.
pub(super) fn is_suspended(link: Link) -> bool {
    link.has(Flag::Reattachable) && !link.has(Flag::Shared) && is_over(link)
}

/// Nothing comes by it any more, either way, and nothing is to be told of it.
fn is_over(link: Link) -> bool {
    let harmless = Flag::NeverPolls as u64
        | Flag::Shared as u64
        | Flag::NonBlocking as u64
        | Flag::BrokerClosed as u64
        | Flag::Abandoned as u64
        | Flag::Reattachable as u64
        | Flag::CrossNamespace as u64
        | Flag::Suspended as u64
        | Flag::Watched as u64
        | Flag::Detached as u64;
    let is_open = link.glance.error.get() != 0 || link.receiver.shown.get() != 0;
    if link.identity.flags.get() & !harmless != 0 || is_open {
        return false;
    }
    match (link.outward(), link.inward()) {
        (Some(outward), Some(inward)) => is_done(&outward) && (is_done(&inward) || has_come(link)),
        // It has never come, and if it does it is sent back.
        _ => true,
    }
}

/// What the other end was to send by the kernel has come, though private memory does not say so.
#[cold]
fn has_come(link: Link) -> bool {
    let Some(inward) = link.inward().filter(|inward| inward.place().is_taken()) else {
        return false;
    };
    let Ok(left) = inward.head().since(inward.place()) else { return false };
    link.has(Flag::Detached)
        && links::fd_of(link).is_some_and(|fd| {
            unread_bytes::has_arrived(fd, inward.fence().wrapping_add(left as u64))
        })
}

fn is_done(direction: &Direction<Memory>) -> bool {
    let (head, place) = (direction.head(), direction.place());
    head.is_stopped() && !place.is_taken() && place.position() == head.position()
}
