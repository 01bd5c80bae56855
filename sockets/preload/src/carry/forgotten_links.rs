//! Remembers links that were forgotten while calls still used them ([`super::reattach`]).

use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_formats::Direction;

use super::links::{self, Flag, Link, Memory};

/// Links that were forgotten, by which calls may be under way still; 0: none. What finds no place
/// here is not forgotten.
static OLD: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// In a child: calls that were under way are not there.
pub(super) fn reset_in_child() {
    OLD.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Whether the other end has ended both directions, of one that this end has not left by itself:
/// then it is noted.
pub(super) fn note_if_ended(link: Link) {
    let is_stopped =
        |one: Option<Direction<Memory>>| one.is_some_and(|one| one.head().is_stopped());
    if !link.has(Flag::Abandoned) && is_stopped(link.outward()) && is_stopped(link.inward()) {
        link.set_flag(Flag::Abandoned);
        link.set_flag(Flag::Reattachable);
    }
}

/// Notes that a link is about to be forgotten, if there is room.
pub(super) fn remember(tag: u64) -> bool {
    let tag = tag.wrapping_add(1);
    OLD.iter().any(|word| {
        let was = word.load(Ordering::Acquire);
        let is_free = was == 0 || !links::is_held(was.wrapping_sub(1));
        is_free && word.compare_exchange(was, tag, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })
}

/// Some call is under way by a link that the socket had before: no new one is made.
pub(super) fn has_forgotten(link: Link) -> bool {
    held().any(|tag| tag != link.tag() && links::cookie_of(tag) == link.identity.cookie.get())
}

/// Some call is under way by a link that was forgotten.
pub(super) fn is_any_used() -> bool {
    held().next().is_some()
}

/// The same by one that the socket of this cookie had.
pub(super) fn is_used(cookie: u64) -> bool {
    held().any(|tag| links::cookie_of(tag) == cookie)
}

/// Tags of those that are still held.
fn held() -> impl Iterator<Item = u64> {
    let noted = OLD.iter().map(|word| word.load(Ordering::SeqCst)).filter(|tag| *tag != 0);
    noted.map(|tag| tag.wrapping_sub(1)).filter(|tag| links::is_held(*tag))
}
