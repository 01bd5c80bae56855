//! Keeps the links of this process, and which descriptor has which.
//!
//! A link is a slot of words that is made when its socket is offered, and used again when it has no
//! holder any more: a descriptor that is for it, or a call that is under way. A call that is left
//! by `longjmp` or cancellation never lets go: then its memory stays, and nothing else. A short
//! call uses a link without holding it ([`super::try_guard`]), which is checked when the last
//! holder is gone.
//!
//! A thread that goes through many links only to see which need work does so at a glance
//! ([`Link::glance`]), without holding each. So something is always mapped where a link's memory
//! once was: zeros when it ends, and then the next link of this slot.

use core::ffi::{c_int, c_void};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use omniverb_connection::descriptors::{PIECE, Room};
use omniverb_formats::broker_message::Side;
use omniverb_formats::link_layout::RING;
use omniverb_formats::private_link_slot::{BYTES, ENDS, LEFT, LINKS as MOST, LinkSlot};
pub(super) use omniverb_formats::private_link_slot::{Flag, MAYBE_READY};
use omniverb_formats::{Direction, link_layout, try_guard};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::sched_yield;

use super::link_bitmap::{self, LinkBitmap};
use super::{admission, ended_links, epoll_maybe_ready, unread_links};
use crate::shared_memory;
use crate::table_memory::Pieces;
use crate::vfork_check;

/// The memory of a link.
pub(super) type Memory = shared_memory::Memory<{ link_layout::BYTES }>;

/// How often it is looked whether short calls are over, and how many of these times without giving
/// the processor away.
const TRIES: u32 = 200;
const TRIES_AWAKE: u32 = 100;

/// Sockets are carried at all.
static IS_ON: AtomicBool = AtomicBool::new(false);

const WORDS: usize = BYTES / size_of::<u64>();
const IN_PIECE: usize = PIECE / WORDS;
const _: () = assert!(PIECE.is_multiple_of(WORDS));

static SLOTS: Pieces<{ MOST / IN_PIECE }> = Pieces::new();
/// One more than the highest slot ever used.
static END: AtomicU32 = AtomicU32::new(0);
/// No slot before this one is free, as far as is known: so new links have few slots.
static FREE: AtomicU32 = AtomicU32::new(0);
/// For each descriptor: one more than its slot, or 0.
static SLOT_OF_FD: Pieces<{ 1 << 10 }> = Pieces::new();
/// How often a descriptor was given one.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// Links without holders whose memory and slots short calls still use, if there are any.
static LEFT_SLOTS: [AtomicU64; link_bitmap::WORDS] =
    [const { AtomicU64::new(0) }; link_bitmap::WORDS];
static ARE_LEFT: AtomicBool = AtomicBool::new(false);

fn left() -> LinkBitmap {
    LinkBitmap::new(&LEFT_SLOTS)
}

/// Links that had memory and have ended, and bytes that were put into their rings.
static CARRIED: AtomicU64 = AtomicU64::new(0);
static PUT: AtomicU64 = AtomicU64::new(0);

/// One of them: its slot.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    slot: &'static LinkSlot,
    index: u32,
}

impl Deref for Link {
    type Target = LinkSlot;

    #[inline(always)]
    fn deref(&self) -> &LinkSlot {
        self.slot
    }
}

impl Link {
    /// The slot of an index. The caller must hold the link already, or have its lock.
    #[inline(always)]
    pub(super) fn at(index: u32) -> Option<Link> {
        let (piece, at) = (index as usize / IN_PIECE, index as usize % IN_PIECE);
        let slots = match SLOTS.piece(piece) {
            Some(slots) => slots,
            None => SLOTS.make(piece)?,
        };
        let words: &[AtomicU64; WORDS] = &slots.as_chunks().0[at];
        // SAFETY: a slot is so many atomic words, and begins at a multiple of its size in a page.
        let slot = unsafe { &*core::ptr::from_ref(words).cast::<LinkSlot>() };
        Some(Link { slot, index })
    }

    pub(super) fn index(self) -> u32 {
        self.index
    }

    /// Its fields, for as long as there are links.
    #[inline(always)]
    pub(super) fn slot(self) -> &'static LinkSlot {
        self.slot
    }

    /// Bytes that may be in the ring: should they be taken back the kernel has to have room for
    /// them, with what it needs to keep them.
    #[inline(always)]
    pub(super) fn room(self) -> usize {
        RING.min(self.sender.room.get() as usize / 2)
    }

    /// Its memory, if it has come.
    #[inline(always)]
    pub(super) fn memory(self) -> Option<Memory> {
        match self.identity.memory.get() {
            0 => None,
            base => Some(Memory::new(base as usize)),
        }
    }

    /// Bytes that go out.
    #[inline(always)]
    pub(super) fn outward(self) -> Option<Direction<Memory>> {
        Some(Direction::new(self.memory()?, self.identity.side.get() as usize))
    }

    /// Bytes that come in.
    #[inline(always)]
    pub(super) fn inward(self) -> Option<Direction<Memory>> {
        Some(Direction::new(self.memory()?, 1 - self.identity.side.get() as usize))
    }

    /// The word that changes with all that comes; `None`: it has no memory. For a caller that holds
    /// it, or only looks: it may be another link's by now.
    #[inline(always)]
    pub(super) fn glance(self) -> Option<u64> {
        let found = self.glance.head_at.get();
        if found == 0 {
            return None;
        }
        let memory = Memory::new(found as usize & !1);
        Some(link_layout::head(&memory, found as usize & 1).load(Ordering::Acquire))
    }

    /// Attaches its memory. A thread that sees the memory sees all that was said of it before.
    pub(super) fn attach_memory(self, base: *mut c_void, side: Side) {
        self.identity.side.set(side.number() as u64);
        self.place.home.set(base as u64);
        self.glance.quiet.set(MAYBE_READY);
        self.glance.head_at.set(base as u64 | side.other().number() as u64);
        self.identity.memory.store(base as u64, Ordering::SeqCst);
    }

    /// It may have something to report in its set, if it is in one. All threads that look
    /// afterwards see that.
    pub(super) fn mark_maybe_ready(self) {
        if let Some(maybe_ready) = epoll_maybe_ready::of(self.glance.set.get()) {
            self.glance.quiet.swap(MAYBE_READY, Ordering::SeqCst);
            maybe_ready.put(self.index);
            fence(Ordering::SeqCst);
        }
    }

    /// A thread that waits in its set looks at it closely at once.
    pub(super) fn reset_look_delay(self) {
        if self.member.looks.get() != 0 {
            self.member.looks.set(0);
            self.member.later.set(0);
        }
    }

    /// It is in no set any more.
    pub(super) fn leave_set(self) {
        if let Some(maybe_ready) = epoll_maybe_ready::of(self.glance.set.get()) {
            maybe_ready.take(self.index);
            self.glance.set.set(0);
        }
    }

    /// There is an error that is to be told, once.
    pub(super) fn set_error(self, error: c_int) {
        self.glance.error.set(error as u64);
        self.mark_maybe_ready();
    }

    /// Where its memory is to be mapped; null: wherever the kernel likes.
    pub(super) fn home(self) -> *mut c_void {
        self.place.home.get() as *mut c_void
    }

    /// Says something of this side.
    pub(super) fn say(self, what: u64) {
        if let Some(memory) = self.memory() {
            let side = self.identity.side.get() as usize;
            link_layout::said(&memory, side).fetch_or(what, Ordering::AcqRel);
        }
    }

    /// What the other side has said.
    pub(super) fn peer_said(self) -> u64 {
        let side = 1 - self.identity.side.get() as usize;
        self.memory().map_or(0, |memory| link_layout::said(&memory, side).load(Ordering::Acquire))
    }

    /// What the broker is told to call it by.
    pub(super) fn tag(self) -> u64 {
        u64::from(self.index) | self.identity.generation.get() << 32
    }

    /// The link of a tag, if that is still its.
    pub(super) fn of_tag(tag: u64) -> Option<Link> {
        let index = tag as u32;
        if index >= end() {
            return None;
        }
        let link = hold(index)?;
        if link.tag() == tag {
            return Some(link);
        }
        link.release();
        None
    }

    /// The slot that a tag names, or once named.
    fn was_of_tag(tag: u64) -> Option<Link> {
        let index = tag as u32;
        if index < end() { Link::at(index) } else { None }
    }

    /// Holds it, if it has a holder.
    #[inline(always)]
    fn hold(self) -> bool {
        let more = |holders: u64| (1..ENDS).contains(&holders).then_some(holders + 1);
        // In one order with a thread that takes a descriptor's link away, and then looks for its
        // holders.
        self.identity.holders.fetch_update(Ordering::SeqCst, Ordering::Acquire, more).is_ok()
    }

    /// It is held by others than the caller and descriptors: a call is under way.
    pub(super) fn is_in_use(self) -> bool {
        let holders = self.identity.holders.load(Ordering::SeqCst);
        holders > 1 + self.identity.fd_count.get() || self.is_in_short_call()
    }

    fn short_call_owners(self) -> [u64; 2] {
        try_guard::owners(self.locks())
    }

    /// A call is under way that has it in hand without holding it ([`super::try_guard`]).
    fn is_in_short_call(self) -> bool {
        self.short_call_owners() != [0; 2]
    }

    /// Waits until such calls are over, which is soon. No more come: no descriptor is for this link
    /// any more. `false`: this thread is in the middle of one, or they take too long.
    fn wait_for_short_calls(self) -> bool {
        for tried in 0..TRIES {
            let owners = self.short_call_owners();
            if owners == [0; 2] {
                return true;
            }
            if owners.contains(&vfork_check::this_thread()) {
                return false;
            }
            if tried < TRIES_AWAKE { core::hint::spin_loop() } else { sched_yield() }
        }
        false
    }

    /// Holds it no more.
    #[inline(always)]
    pub(super) fn release(self) {
        let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
        // It is not given out again before its end has come.
        let less = |holders: u64| Some(if holders == 1 { ENDS } else { holders.wrapping_sub(1) });
        if self.identity.holders.fetch_update(ok, err, less) == Ok(1) {
            self.end();
        }
    }

    /// Bytes that this side has ever put into the ring.
    fn has_put(self) -> u64 {
        self.outward().map_or(0, |direction| direction.head().position())
    }

    /// Bytes that it has carried both ways, as it says.
    pub(super) fn has_carried(self) -> u64 {
        let had = self.inward().map_or(0, |direction| direction.place().position());
        self.has_put().wrapping_add(had)
    }

    /// It is counted whether it was worth what it has cost, at its end.
    pub(super) fn record_worth(self) {
        // Otherwise it had no time to carry anything.
        if !self.has(Flag::Shared) && !self.has(Flag::Reattachable) {
            admission::ended(self.has_carried());
        }
    }

    /// Nothing holds it, nor can, before its slot is used anew.
    #[cold]
    fn end(self) {
        if self.sender.dirty.get() != 0 || unread_links::all().has(self.index) {
            unread_links::take(self.index, &self.sender.dirty);
        }
        self.record_worth();
        if self.identity.memory.get() != 0 {
            ended_links::put(self.identity.name.get());
            CARRIED.fetch_add(1, Ordering::Relaxed);
            PUT.fetch_add(self.has_put(), Ordering::Relaxed);
        }
        if self.wait_for_short_calls() {
            self.free();
        } else {
            self.identity.holders.store(LEFT, Ordering::Release);
            left().put(self.index);
            ARE_LEFT.store(true, Ordering::Release);
        }
    }

    /// Unmaps its memory and frees its slot.
    fn free(self) {
        let base = self.identity.memory.get();
        if base != 0 {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the link's own mapping, which no thread uses any more, but for those that
            // look at it at a glance.
            let zeros = unsafe {
                mmap_anonymous(base as *mut c_void, link_layout::BYTES, ProtFlags::READ, flags)
            };
            if zeros.is_err() {
                // What is there now is unknown: it is not used any more.
                self.glance.head_at.set(0);
                self.place.home.set(0);
            }
            self.identity.memory.set(0);
        }
        self.identity.holders.set(0);
        FREE.fetch_min(self.index, Ordering::AcqRel);
    }
}

/// From now on.
pub(super) fn turn_on() {
    IS_ON.store(true, Ordering::Release);
}

/// Nothing more is carried in this process.
pub(super) fn turn_off() {
    IS_ON.store(false, Ordering::Release);
}

/// Sockets may be carried in this process.
#[inline(always)]
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Sockets may be carried, and this is the process that has their state, not a child of it.
#[inline(always)]
pub(super) fn is_here() -> bool {
    is_on() && vfork_check::is_this_process()
}

#[inline(always)]
fn word_of(fd: c_int) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    SLOT_OF_FD.piece(fd / PIECE)?.get(fd % PIECE)
}

/// Whether a descriptor has one.
#[inline]
pub(super) fn has(fd: c_int) -> bool {
    is_on() && word_of(fd).is_some_and(|word| word.load(Ordering::Acquire) != 0)
}

/// The link of a descriptor, held until it is let go.
#[inline(always)]
pub(super) fn enter(fd: c_int) -> Option<Link> {
    let (link, is_its) = find(fd)?;
    if !link.hold() {
        return None;
    }
    if is_its() {
        return Some(link);
    }
    link.release();
    None
}

/// The link of a descriptor, not held so far, and what says whether it still is that: to be asked
/// once the caller has made sure that it stays.
#[inline(always)]
pub(super) fn find(fd: c_int) -> Option<(Link, impl FnOnce() -> bool)> {
    if !is_on() {
        return None;
    }
    let word = word_of(fd)?;
    let found = word.load(Ordering::Acquire);
    if found == 0 || !vfork_check::is_this_process() {
        return None;
    }
    let link = Link::at((found - 1) as u32)?;
    Some((link, move || word.load(Ordering::SeqCst) == found))
}

/// Frees those that are held no more, as far as that can be now.
pub(super) fn free_left() {
    if !ARE_LEFT.load(Ordering::Relaxed) || !ARE_LEFT.swap(false, Ordering::AcqRel) {
        return;
    }
    left().each(0, end(), |index| {
        let Some(link) = Link::at(index) else { return true };
        let (holders, ok, err) = (&link.identity.holders, Ordering::AcqRel, Ordering::Relaxed);
        if holders.compare_exchange(LEFT, ENDS, ok, err).is_err() {
            return true;
        }
        if link.is_in_short_call() {
            holders.store(LEFT, Ordering::Release);
            ARE_LEFT.store(true, Ordering::Release);
        } else {
            left().take(index);
            link.free();
        }
        true
    });
}

/// A free slot, held twice: for the descriptor, and for the caller that makes the link.
fn claim() -> Option<Link> {
    free_left();
    let first = FREE.load(Ordering::Acquire);
    // What is known of free ones is old where several threads make some at a time.
    (first..MOST as u32).chain(0..first).filter_map(Link::at).find(|link| {
        let holders = &link.identity.holders;
        let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
        // A lock that is taken for good (in the middle of a call, of a thread that a child of
        // `fork` does not have) would be in its way.
        let is_ours = holders.load(Ordering::Relaxed) == 0
            && !link.is_in_short_call()
            && holders.compare_exchange(0, 2, ok, err).is_ok();
        if is_ours {
            _ = FREE.compare_exchange(first, link.index + 1, ok, err);
        }
        is_ours
    })
}

/// A new one for a descriptor that has none.
pub(super) fn make(fd: c_int) -> Option<Link> {
    let at = usize::try_from(fd).ok()?;
    let piece = SLOT_OF_FD.make(at / PIECE)?;
    let link = claim()?;
    END.fetch_max(link.index + 1, Ordering::AcqRel);
    link.leave_set();
    link.identity.generation.set(link.identity.generation.get().wrapping_add(1) & 0x7fff_ffff);
    link.reset();
    link.identity.fd_count.set(1);
    let word = &piece[at % PIECE];
    GIVEN.fetch_add(1, Ordering::SeqCst);
    let ours = u64::from(link.index) + 1;
    if word.compare_exchange(0, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        return Some(link);
    }
    link.identity.fd_count.set(0);
    link.release();
    link.release();
    None
}

/// A descriptor is for something else, or nothing, from now on: its link, held, and whether no
/// other descriptor is for it.
pub(super) fn take(fd: c_int) -> Option<(Link, bool)> {
    let found = word_of(fd)?.swap(0, Ordering::SeqCst);
    let link = Link::at(u32::try_from(found.checked_sub(1)?).ok()?)?;
    let is_last = link.identity.fd_count.fetch_sub(1, Ordering::AcqRel) == 1;
    Some((link, is_last))
}

/// The descriptor is for something else, or nothing, and no hook saw that: if it is still said to
/// be for this link, it is no more. `false`: another thread has given it up, and perhaps given it
/// to another socket.
pub(super) fn forget(fd: c_int, link: Link) -> bool {
    let Some(word) = word_of(fd) else { return false };
    let ours = u64::from(link.index) + 1;
    // The slot is not used anew as long as the caller holds it: so this is the same link.
    let is_ours = word.compare_exchange(ours, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if is_ours {
        link.identity.fd_count.fetch_sub(1, Ordering::AcqRel);
        link.release();
    }
    is_ours
}

/// A descriptor is for this link.
pub(super) fn is_of(fd: c_int, link: Link) -> bool {
    let ours = u64::from(link.index) + 1;
    word_of(fd).is_some_and(|word| word.load(Ordering::Acquire) == ours)
}

/// One more than the highest index that a link ever had.
pub(super) fn end() -> u32 {
    END.load(Ordering::Acquire)
}

/// The link of an index, held, if there is one.
#[inline]
pub(super) fn hold(index: u32) -> Option<Link> {
    let link = Link::at(index)?;
    link.hold().then_some(())?;
    if link.identity.fd_count.get() > 0 {
        return Some(link);
    }
    link.release();
    None
}

/// A descriptor that is for a link, held.
pub(super) fn fd_of(link: Link) -> Option<c_int> {
    let first = link.member.fd.get() as c_int;
    if is_of(first, link) {
        return Some(first);
    }
    // It has duplicates, and was offered by one that is no more.
    (0..crate::descriptor_tables::DESCRIPTORS.end()).find(|fd| is_of(*fd, link))
}

/// The link of a tag is held, by a descriptor or a call.
pub(super) fn is_held(tag: u64) -> bool {
    Link::was_of_tag(tag).is_some_and(|link| {
        let holders = link.identity.holders.load(Ordering::SeqCst);
        (1..ENDS).contains(&holders) && link.tag() == tag
    })
}

/// The cookie of its socket.
pub(super) fn cookie_of(tag: u64) -> u64 {
    Link::was_of_tag(tag).map_or(0, |link| link.identity.cookie.get())
}

/// How many there were with memory, and how many bytes were put into their rings: for reports.
pub(super) fn count() -> (u64, u64) {
    let (mut links, mut bytes) = (CARRIED.load(Ordering::Relaxed), PUT.load(Ordering::Relaxed));
    for link in (0..end()).filter_map(Link::at) {
        if link.hold() {
            links += u64::from(link.memory().is_some());
            bytes = bytes.wrapping_add(link.has_put());
            link.release();
        }
    }
    (links, bytes)
}

/// Another descriptor is for the same.
pub(super) fn copy(from: c_int, to: c_int) {
    let Some(link) = enter(from) else { return };
    let piece = usize::try_from(to).ok().and_then(|to| SLOT_OF_FD.make(to / PIECE));
    if let Some(piece) = piece {
        GIVEN.fetch_add(1, Ordering::SeqCst);
        // The hold of this call becomes the descriptor's.
        link.identity.fd_count.fetch_add(1, Ordering::AcqRel);
        let was = piece[to as usize % PIECE].swap(u64::from(link.index) + 1, Ordering::AcqRel);
        debug_assert!(was == 0);
    } else {
        link.release();
    }
}

/// Calls with each descriptor that has one, and that.
pub(super) fn each(mut with: impl FnMut(c_int, Link)) {
    let given = GIVEN.load(Ordering::SeqCst);
    let mut left =
        (0..end()).filter_map(Link::at).map(|link| link.identity.fd_count.get()).sum::<u64>();
    let end = crate::descriptor_tables::DESCRIPTORS.end();
    for fd in 0..end {
        // Otherwise what was counted may be others than those that are found.
        if left == 0 && GIVEN.load(Ordering::SeqCst) == given {
            return;
        }
        if let Some(link) = enter(fd) {
            left = left.saturating_sub(1);
            with(fd, link);
            link.release();
        }
    }
}
