//! Keeps the state of an epoll set that has carried members.
//!
//! **Which members may be ready.** Of many members few do something at a time. A member *may be
//! ready* if this end polls its ring, or the peer has put bytes there that were not read, or there
//! is an error to be told. Only those have events, and only those are looked at by calls that wait.
//! A member may be ready from when it joins, or gets its memory. The attempt to start polling marks
//! it, and while a thread takes the mark away no thread can start to poll
//! (`epoll_polling_flags.rs`). So a thread that goes to sleep finds all polled members among those
//! that may be ready. (Bytes that the peer wanted to reclaim, and the kernel had no room for, may
//! be in a ring besides: the program is told of the kernel's bytes before them, and starts polling
//! by receiving these.)

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use omniverb_formats::private_link_slot::SetSlot;

use super::epoll_maybe_ready::{self, SETS};
use super::epoll_membership::is_open;
use super::link_bitmap::LinkBitmap;
use super::links::{self, Link, MAYBE_READY};
use super::unread_bytes;
use crate::running_call_counts;
use crate::spin_history::LookHistory;
use crate::tsc_clock;

/// So many members that are maybe ready are worth to be looked at for the sake of one of them.
pub(super) const CROWD: u64 = 1 << 10;

/// Instead of an id: a thread is making the slot.
const BUSY: u64 = 1 << 63;

/// One more than the last slot that was ever used.
static USED: AtomicU64 = AtomicU64::new(0);

/// The slot of a set.
#[derive(Clone, Copy)]
pub(super) struct EpollSlot {
    slot: &'static SetSlot,
    index: usize,
}

impl Deref for EpollSlot {
    type Target = SetSlot;

    #[inline(always)]
    fn deref(&self) -> &SetSlot {
        self.slot
    }
}

impl EpollSlot {
    fn at(index: usize) -> Option<EpollSlot> {
        epoll_maybe_ready::slot(index).map(|slot| EpollSlot { slot, index })
    }

    fn used() -> impl Iterator<Item = EpollSlot> {
        (0..USED.load(Ordering::Acquire) as usize).filter_map(EpollSlot::at)
    }

    /// The slot of a set that has one.
    #[inline]
    pub(super) fn of(set: u32) -> Option<EpollSlot> {
        if set == 0 {
            return None;
        }
        EpollSlot::used().find(|slot| slot.set() == set)
    }

    /// The slot that a link is in.
    #[inline]
    pub(super) fn with(link: Link) -> Option<EpollSlot> {
        EpollSlot::at((link.glance.set.get() as usize).checked_sub(1)?)
    }

    pub(super) fn is(self, other: EpollSlot) -> bool {
        self.index == other.index
    }

    /// The slot of a set, which gets one if there is room.
    pub(super) fn claim(set: u32) -> Option<EpollSlot> {
        if let Some(slot) = EpollSlot::of(set) {
            return Some(slot);
        }
        let slot = (0..SETS).find_map(|index| {
            let slot = EpollSlot { slot: epoll_maybe_ready::make(index)?, index };
            slot.win(set).then_some(slot)
        })?;
        USED.fetch_max(slot.index as u64 + 1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        // Another thread may have made one at the same time, of which only one may be there.
        let is_only = EpollSlot::used().all(|other| {
            other.index == slot.index || other.waits.id.load(Ordering::Acquire) != u64::from(set)
        });
        if !is_only {
            slot.waits.id.store(0, Ordering::Release);
        }
        is_only.then_some(slot)
    }

    /// It is free, or of a set that was closed, and this set's now.
    fn win(self, set: u32) -> bool {
        let word = &self.waits.id;
        let was = word.load(Ordering::Acquire);
        let is_free = was == 0 || was != BUSY && !is_open(was as u32);
        let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
        if !is_free || word.compare_exchange(was, BUSY, ok, err).is_err() {
            return false;
        }
        self.maybe_ready().clear();
        for link in (0..links::end()).filter_map(Link::at) {
            // It may be in another one by now.
            _ = link.glance.set.compare_exchange(self.name(), 0, ok, err);
        }
        self.waits.ready_count.set(0);
        self.asked(0);
        word.store(u64::from(set), Ordering::Release);
        true
    }

    /// The id of its set.
    pub(super) fn set(self) -> u32 {
        self.waits.id.load(Ordering::Acquire) as u32
    }

    /// What the words of its links call it.
    pub(super) fn name(self) -> u64 {
        self.index as u64 + 1
    }

    /// Those that are maybe ready.
    pub(super) fn maybe_ready(self) -> LinkBitmap {
        epoll_maybe_ready::bits(self.slot)
    }

    /// Calls with each member that is maybe ready, until that says that it is enough. It is not
    /// held, and may be another link by now ([`Link::glance`]).
    #[inline]
    pub(super) fn each_maybe_ready(self, mut with: impl FnMut(Link) -> bool) {
        let first = self.waits.first.get() as u32;
        self.maybe_ready().each(first, links::end(), |index| match Link::at(index) {
            Some(link) if self.has(link) => with(link),
            _ => true,
        });
    }

    /// The same, held, and with those of which `which` says so at a glance.
    pub(super) fn each_held(
        self,
        mut which: impl FnMut(Link) -> bool,
        mut with: impl FnMut(Link) -> bool,
    ) {
        self.each_maybe_ready(|link| !which(link) || self.holding(link, &mut with).unwrap_or(true));
    }

    /// Calls with a link, held, if it is a member still.
    pub(super) fn holding<R>(self, link: Link, with: impl FnOnce(Link) -> R) -> Option<R> {
        let link = links::hold(link.index())?;
        let result = self.has(link).then(|| with(link));
        link.release();
        result
    }

    /// It is a member.
    pub(super) fn has(self, link: Link) -> bool {
        link.glance.set.get() == self.name()
    }

    /// Calls with all members, held, maybe ready or not, of which `which` says so at a glance.
    pub(super) fn each_of_all(self, which: impl Fn(Link) -> bool, mut with: impl FnMut(Link)) {
        for link in (0..links::end()).filter_map(Link::at) {
            if self.has(link) && which(link) {
                self.holding(link, &mut with);
            }
        }
    }

    /// As many members are maybe ready as may be, and this one is not.
    pub(super) fn is_crowded(self, link: Link) -> bool {
        self.waits.ready_count.get() >= CROWD
            && !self.maybe_ready().has(link.index())
            && unread_bytes::unread_bytes(link) == 0
    }

    /// A link becomes a member, or is to be polled again.
    pub(super) fn comes(self, link: Link) {
        link.member.since.set(self.news.told.get());
        link.glance.idle.set(0);
        link.glance.is_polled.set(0);
    }

    /// What the ring of a member that is held has to tell: nothing for the time being, as was found
    /// when the other end's word was this. If nothing else changes it need not be looked at.
    pub(super) fn is_quiet(self, link: Link, word: u64, (events, told): (u64, u64)) {
        link.glance.quiet.swap(word, Ordering::SeqCst);
        // A thread that changes it does that first, and then what is set here.
        if link.glance.events.get() != events || link.member.told.get() != told {
            link.glance.quiet.swap(MAYBE_READY, Ordering::SeqCst);
        }
    }

    /// A member has something, and is told of.
    pub(super) fn tells(self, link: Link) {
        link.member.since.set(self.counts(1));
        link.glance.idle.set(0);
        link.reset_look_delay();
    }

    /// So many members were told of. How many these were in all.
    pub(super) fn counts(self, told: u64) -> u64 {
        // Roughly, where threads are many.
        let told = self.news.told.get().wrapping_add(told);
        self.news.told.set(told);
        told
    }

    /// The next call begins with this member, of which there was no room to tell.
    pub(super) fn begins_with(self, link: Link) {
        self.waits.first.set(u64::from(link.index()));
    }

    /// Which call it is.
    pub(super) fn turn(self) -> u64 {
        self.waits.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// A thread sleeps in the set, or is about to.
    #[inline]
    pub(super) fn has_sleepers(self) -> bool {
        running_call_counts::is_slept_in(self.set())
    }

    /// The kernel was asked not long ago, and has told all.
    pub(super) fn was_asked(self) -> bool {
        !tsc_clock::is_over(self.waits.asked.get(), tsc_clock::MOMENT)
    }

    /// It was asked then; 0: and may have more.
    pub(super) fn asked(self, then: u64) {
        self.waits.asked.set(then);
    }

    /// How looks went by calls that wait in it.
    pub(super) fn looks(self) -> LookHistory<'static> {
        LookHistory { vain: &self.slot.waits.vain, skip: &self.slot.waits.skip }
    }
}
