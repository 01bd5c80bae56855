//! Finds events of an epoll set's members in their rings.

use core::ffi::c_int;

use omniverb_connection::readiness::epoll_interest::{EDGE, FLAGS};

use super::epoll_slot::EpollSlot;
use super::links::{Flag, Link};
use super::unread_bytes;
use crate::tsc_clock;

pub(super) const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Of these what the ring says, and whether the connection ends ([`super::connection_watch`]), is
/// all.
pub(super) const OURS: u32 = READABLE | FLAGS | ENDING;
pub(super) const ENDING: u32 = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;

/// So many looks in vain at a member, one after another, are made without a pause; and the longest
/// one, in powers of two of a moment.
const LOOKS: u64 = 16;
const PAUSE_MAX: u64 = 6;
/// Members that have news are kept in mind, so many of them.
const KEPT: usize = 12;

/// Those that had news when they were looked at, all at once.
#[derive(Clone, Copy)]
pub(super) struct RingEvents {
    /// How many these are.
    pub(super) count: usize,
    /// What the ring says of them, and whether their connections end, is all that is asked for.
    pub(super) is_ours: bool,
    kept: [u32; KEPT],
}

impl RingEvents {
    /// What there is in a set now.
    pub(super) fn of(slot: EpollSlot) -> Self {
        let mut news = Self { count: 0, is_ours: true, kept: [0; KEPT] };
        each_with_news(slot, |link| {
            if let Some(place) = news.kept.get_mut(news.count) {
                *place = link.index();
            }
            news.count += 1;
            news.is_ours &= link.glance.events.get() as u32 & !OURS == 0;
            true
        });
        news
    }

    /// Calls with each of them, held; with those that have come since, too, if they are many.
    pub(super) fn each(&self, slot: EpollSlot, mut with: impl FnMut(Link)) {
        match self.kept.get(..self.count) {
            Some(kept) => {
                for link in kept.iter().filter_map(|index| Link::at(*index)) {
                    slot.holding(link, &mut with);
                }
            }
            None => each_with_news(slot, |link| {
                with(link);
                true
            }),
        }
    }
}

/// The descriptor that a member is in its set by.
pub(super) fn fd_of(link: Link) -> c_int {
    link.member.fd.get() as c_int
}

/// What the ring has to say of a member.
pub(super) fn news(link: Link) -> u32 {
    if link.identity.memory.get() == 0 || link.has(Flag::Broken) {
        return 0;
    }
    let events = link.glance.events.get() as u32;
    let error = if link.glance.error.get() == 0 { 0 } else { libc::EPOLLERR as u32 };
    let is_wanted = events & READABLE != 0 && unread_bytes::unread_bytes(link) > 0;
    // Of bytes of the kernel's that come first that has told, but not of this news.
    let bytes = is_wanted
        && if events & EDGE == 0 {
            unread_bytes::is_readable(link, fd_of(link))
        } else {
            link.member.told.get() != newest(link)
        };
    error | if bytes { events & READABLE } else { 0 }
}

/// One more than how far the other end has written.
pub(super) fn newest(link: Link) -> u64 {
    link.inward().map_or(0, |direction| direction.head().position() + 1)
}

/// A member may have news, as far as a glance tells.
#[inline(always)]
fn may_have_news(link: Link) -> bool {
    let is_quiet = |word| word == link.glance.quiet.get() || is_later(link);
    link.glance().is_some_and(|word| !is_quiet(word) || link.glance.error.get() != 0)
}

/// It is too soon to look at it closely once more.
fn is_later(link: Link) -> bool {
    let later = link.member.later.get();
    later != 0 && (later.wrapping_sub(tsc_clock::now()) as i64) > 0
}

/// It had nothing, and it cannot be told when it will: most likely when the program receives
/// something by it. Each such look may cost two calls of the kernel's, and the other end might want
/// just that.
fn is_looked_at_in_vain(link: Link) {
    let looks = link.member.looks.get() + 1;
    link.member.looks.set(looks);
    if looks > LOOKS {
        let pause = tsc_clock::MOMENT << (looks / LOOKS).min(PAUSE_MAX);
        link.member.later.set(tsc_clock::now().wrapping_add(pause).max(1));
    }
}

/// Whether a member that is held has news. If there will be none before something changes it need
/// not be looked at until then.
fn has_news(slot: EpollSlot, link: Link) -> bool {
    let (word, events, told) = (link.glance(), link.glance.events.get(), link.member.told.get());
    if news(link) != 0 {
        return true;
    }
    let Some((word, direction)) = word.zip(link.inward()) else { return false };
    let (is_read, flags) = (unread_bytes::is_all_read(&direction), events as u32);
    let is_told = flags & EDGE != 0 && told == (word & !(1 << 63)) + 1;
    if link.has(Flag::Broken) || flags & READABLE == 0 || is_read || is_told {
        slot.is_quiet(link, word, (events, told));
    } else {
        is_looked_at_in_vain(link);
    }
    false
}

/// Calls with each member that has news, until that says that it is enough.
#[inline]
fn each_with_news(slot: EpollSlot, mut with: impl FnMut(Link) -> bool) {
    slot.each_held(may_have_news, |link| !has_news(slot, link) || with(link));
}

/// A member has bytes in its ring, as far as a glance tells.
pub(super) fn has_bytes(link: Link) -> bool {
    link.inward().is_some_and(|direction| !unread_bytes::is_all_read(&direction))
}
