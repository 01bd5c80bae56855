//! Waits in epoll sets that have carried members.
//!
//! The set is the kernel's, and so are all events that the kernel sees. What it cannot see is
//! added: bytes in the ring of a member. Those wake no thread: before a call sleeps in the kernel
//! no member is polled any more, so that further bytes come by the kernel. A member that has to be
//! left alone while a thread sleeps in its set is the kernel's from then on.
//!
//! An edge is news: bytes that were published since the member was last reported, or changed. One
//! event is reported of a member, so what the kernel and the ring say is put together.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use omniverb_connection::descriptors::{Kind, Member, Why};
use omniverb_connection::readiness::Timeout;
use omniverb_connection::readiness::interest::{EDGE, FLAGS};
use rustix::event::PollFlags;

use super::kernel_check::{self, Checked};
use super::links::{self, Flag, Link};
use super::members::{self, EpollSlot, NotJoinable, PollOutcome, Sleepers, may_be_member};
use super::reader_polling::Unread;
use super::ring_events::{ENDING, OURS, READABLE, RingEvents, fd_of, has_bytes, newest, news};
use super::{
    broker_dispatch, detach, epoll_wakeup, kernel_fallback, kernel_socket, member_polling,
    reader_polling, receive_queue, unread, wake_latency,
};
use crate::clock;
use crate::table::{self, DESCRIPTORS};
use crate::user_memory::{UserPtr, UserSliceMut};
use crate::{fallback_ledger, fork_refcount, unlinked_calls};

/// How often a call that does not wait looks again for what has gone another way meanwhile.
pub(crate) const MOVES: u32 = 8;
const MILLISECOND: u64 = 1_000_000;
/// How long a thread sleeps at first while other, running readers still have bytes of it to read,
/// in nanoseconds. They mostly have them by then, and taking back what is in many rings costs both
/// ends more than that ([`unread::flush_unless_polled`]). The least that `epoll_wait` knows.
const SHORT: u64 = MILLISECOND;

/// Before `EPOLL_CTL_ADD` or `EPOLL_CTL_MOD`.
pub(super) fn joins(set: c_int, fd: c_int, event: UserPtr<'_, libc::epoll_event>) {
    let entry = table::look(fd);
    if entry.kind() == Kind::Set {
        // The outer set sees what the kernel sees.
        leave_to_kernel(fd);
    }
    if !entry.kind().is_stream() {
        return;
    }
    let is_free = !entry.is_duplicated() && entry.why() == Why::Free;
    let event = if is_free { event.read() } else { None };
    let may = event.is_some_and(|event| {
        let (set, events) = (set, event.events);
        let set = table::look(set).id();
        match may_be_member(&Member { set, fd, id: entry.id(), events, data: 0 }) {
            Ok(()) => true,
            // It may be carried later, if it is not now.
            Err(NotJoinable::ForNow) => links::enter(fd).is_none_or(|link| {
                let is_over = nothing_comes(link);
                link.release();
                is_over
            }),
            Err(NotJoinable::Forever) => false,
        }
    });
    if !may {
        fallback_ledger::keep(fd, Why::Member);
        kernel_fallback::leave_fd(fd);
    }
}

/// After a change of a set's members.
pub(super) fn changed(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: UserPtr<'_, libc::epoll_event>,
) {
    let set = table::look(set).id();
    if let Some(slot) = EpollSlot::of(set) {
        slot.asked(0);
    }
    // A thread that makes a link makes it first, and then looks in which sets its socket is.
    fence(Ordering::SeqCst);
    let Some(link) = links::enter(fd) else { return };
    if operation == libc::EPOLL_CTL_DEL {
        if EpollSlot::of(set).is_some_and(|slot| slot.has(link)) {
            link.leave_set();
            fence(Ordering::SeqCst);
            // Another thread may have put it there again meanwhile.
            if members::membership(fd, DESCRIPTORS.look(fd).id()) != Ok(None) {
                kernel_fallback::leave(link, fd);
            }
        }
    } else if DESCRIPTORS.look(fd).why() == Why::Free
        && let Some(event) = event.read()
    {
        let id = DESCRIPTORS.look(fd).id();
        let member = Member { set, fd, id, events: event.events, data: event.u64 };
        link.member.fd.set(fd as u64);
        // What wakes sleepers is for this process only.
        let is_own = may_be_member(&member).is_ok();
        let sleepers = if is_own { Sleepers::Wake } else { Sleepers::Stay };
        let (is_in, may) = (members::put(link, &member, sleepers), may_be_member(&member));
        if nothing_comes(link) && may != Err(NotJoinable::Forever) {
            if may.is_err() {
                link.leave_set();
            }
        } else if !is_in || may.is_err() {
            fallback_ledger::keep(fd, Why::Member);
            link.leave_set();
            kernel_fallback::leave(link, fd);
        }
    } else {
        // What it was there with is no more: from now on the kernel tells of it.
        link.leave_set();
    }
    link.release();
}

/// The set is seen otherwise than by `epoll_wait` of this process: its members are the kernel's.
#[cold]
pub(super) fn leave_to_kernel(set: c_int) {
    let entry = table::look(set);
    if entry.kind() != Kind::Set {
        return;
    }
    DESCRIPTORS.keep(set, Why::Shared);
    fork_refcount::mark_escaped(set);
    fence(Ordering::SeqCst);
    if let Some(slot) = EpollSlot::of(entry.id()) {
        slot.each_of_all(|_| true, |link| kernel_fallback::leave(link, fd_of(link)));
    }
}

/// The same for each of these that is a set.
#[inline]
pub(super) fn leave_all_to_kernel(fds: impl Iterator<Item = c_int>) {
    for fd in fds {
        if DESCRIPTORS.look(fd).kind() == Kind::Set {
            leave_to_kernel(fd);
        }
    }
}

/// The ring has nothing to say of it, now or ever: what it was is over.
fn nothing_comes(link: Link) -> bool {
    let is_done = |direction: omniverb_formats::Direction<_>| {
        direction.head().is_stopped() && receive_queue::unread_bytes(link) == 0
    };
    link.has(Flag::Reattachable) && link.inward().is_none_or(is_done)
}

/// Where events are told, and the kernel's call for a part of it.
struct Call<'e, 'a, N> {
    set: u32,
    slot: EpollSlot,
    events: UserSliceMut<'e, libc::epoll_event>,
    native: &'a N,
    /// What was found last, and was not told.
    found: Cell<Option<RingEvents>>,
    /// A thread that slept was woken to look at members anew.
    is_nudged: &'a Cell<bool>,
}

impl<'e, N: Fn(UserSliceMut<'e, libc::epoll_event>, Timeout) -> c_int> Call<'e, '_, N> {
    fn get(&self, at: usize) -> libc::epoll_event {
        self.events.get(at).unwrap_or(libc::epoll_event { events: 0, u64: 0 })
    }

    fn set(&self, at: usize, events: u32, data: u64) {
        self.events.set(at, libc::epoll_event { events, u64: data });
    }

    /// Whether some ring has something to tell. [`Self::ask`] goes by what was seen then.
    fn has_news(&self) -> bool {
        let found = RingEvents::of(self.slot);
        let has = found.count > 0;
        self.found.set(has.then_some(found));
        has
    }

    /// What there is now, of the kernel's and of the rings.
    fn ask(&self) -> c_int {
        let found = self.found.take().unwrap_or_else(|| RingEvents::of(self.slot));
        let (waiting, is_ours) = (found.count, found.is_ours);
        let turn = self.slot.turn() as usize;
        // The kernel must not take all places each time.
        let kept = match self.events.len() {
            1 => waiting.min(turn & 1),
            most => waiting.min(most / 2),
        };
        let mut by_kernel = 0;
        // What the kernel has said a moment ago is true still.
        if kept < self.events.len() && !(is_ours && kept > 0 && self.slot.was_asked()) {
            let (now, places) = (clock::now(), self.events.len() - kept);
            let told = (self.native)(self.events.first(places), Timeout::Zero);
            if told < 0 {
                return told;
            }
            by_kernel = told as usize;
            self.slot.asked(if by_kernel < places { now } else { 0 });
        }
        self.settle(by_kernel);
        let mut count = by_kernel;
        let mut left = None;
        found.each(self.slot, |link| {
            if count == self.events.len() {
                left.get_or_insert(link);
            }
            count += self.tell(link, by_kernel, count);
        });
        if let Some(link) = left {
            self.slot.begins_with(link);
        }
        if by_kernel > 0 {
            self.slot.counts(by_kernel as u64);
        }
        member_polling::retire_idle(self.slot);
        if count == 0 && kept > 0 {
            // What places were kept for another thread has told of.
            let told = (self.native)(self.events, Timeout::Zero);
            self.settle(told.max(0) as usize);
            return told;
        }
        self.complete(by_kernel);
        count as c_int
    }

    /// The same for a call that does not wait: what was there when it began, and goes another way
    /// at this moment, is told of.
    fn ask_once(&self) -> c_int {
        let began = clock::now();
        for _ in 0..MOVES {
            let before = self.marks();
            let told = self.ask();
            if told != 0 {
                return told;
            }
            let mut is_passing = false;
            self.slot.each_held(receive_queue::is_reclaimed, |link| {
                is_passing |= receive_queue::wait_until_passed(link, began);
                true
            });
            if !is_passing && self.marks() == before {
                break;
            }
        }
        0
    }

    /// Changes when bytes that were in a ring are not there any more.
    fn marks(&self) -> u64 {
        let mut all = 0_u64;
        self.slot.each_maybe_ready(|link| {
            all = all.wrapping_add(receive_queue::mark(link));
            true
        });
        all
    }

    /// Tells what the ring has to say of a member, behind the `count` events that there are, of
    /// which the kernel has told the first. How many more there are.
    fn tell(&self, link: Link, by_kernel: usize, count: usize) -> usize {
        let (newest, told) = (newest(link), link.member.told.get());
        if news(link) == 0 {
            return 0;
        }
        let fd = fd_of(link);
        if matches!(kernel_check::check_unless_watched(link, fd), Checked::OtherSocket) {
            // It was closed unseen.
            links::forget(fd, link);
            link.leave_set();
            return 0;
        }
        // It may be over: then there is no more than what was seen before.
        broker_dispatch::poll();
        let bits = news(link);
        if bits == 0 {
            return 0;
        }
        let (data, events) = (link.member.data.get(), link.glance.events.get() as u32);
        let is_edge = events & EDGE != 0;
        let same = (0..by_kernel).find(|at| self.get(*at).u64 == data);
        // What an edge tells is all that is so; and behind an error there may be bytes.
        let is_all = events & !OURS == 0 && kernel_check::is_recent(link, clock::now());
        let is_error = bits & !READABLE != 0;
        let kernels = match same.is_some() || is_error || is_edge && !is_all {
            true => kernels(link, events),
            false => 0,
        };
        // Others may have the same data. Otherwise it is what another thread has dealt with since.
        let same = same.filter(|_| kernels != 0 || !self.has_another(link));
        if same.is_none() && count == self.events.len() {
            return 0;
        }
        if is_edge && bits & READABLE != 0 {
            let word = &link.member.told;
            let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
            // One of the waiting threads is told.
            if word.compare_exchange(told, newest, ok, err).is_err() {
                return 0;
            }
        }
        if bits & READABLE != 0 {
            link.receiver.shown.set(newest);
        }
        self.slot.tells(link);
        match same {
            Some(at) => self.set(at, self.get(at).events | bits, data),
            None => self.set(count, bits | kernels, data),
        }
        usize::from(same.is_none())
    }

    /// Another member has the same data.
    fn has_another(&self, link: Link) -> bool {
        let mut found = false;
        let is_same = |other: Link| {
            other.member.data.get() == link.member.data.get() && other.index() != link.index()
        };
        self.slot.each_of_all(is_same, |_| found = true);
        found
    }

    /// An event tells all that is so, not only what is new. So those of the kernel's also tell of
    /// bytes in the ring, of which was told before.
    fn complete(&self, told: usize) {
        if told == 0 {
            return;
        }
        self.slot.each_held(has_bytes, |link| {
            let (data, events) = (link.member.data.get(), link.glance.events.get() as u32);
            let readable = events & READABLE;
            if readable == 0 || receive_queue::unread_bytes(link) == 0 {
                return true;
            }
            let lacks = |event: libc::epoll_event| {
                let (bits, its) = (event.events, event.u64);
                its == data && bits & readable == 0
            };
            if let Some(at) = (0..told).find(|at| lacks(self.get(*at)))
                && receive_queue::is_readable(link, fd_of(link))
                && kernels(link, events) & self.get(at).events != 0
            {
                link.receiver.shown.set(newest(link));
                self.set(at, self.get(at).events | readable, data);
            }
            true
        });
    }

    /// Where the kernel has told of a member that its connection ends it may be a reset that only
    /// we know of.
    fn settle(&self, told: usize) {
        let ends = |data: u64| {
            let ends = |event: libc::epoll_event| event.events & ENDING != 0 && event.u64 == data;
            (0..told).any(|at| ends(self.get(at)))
        };
        if (0..told).any(|at| self.get(at).events & ENDING != 0) {
            unread::each_with_bytes(
                |link| self.slot.has(link) && ends(link.member.data.get()),
                |link| _ = kernel_check::check_now(link, fd_of(link)),
            );
        }
    }

    /// Looks for a moment, polling all members. What there is to tell; 0: nothing.
    fn look_for_a_moment(&self, wait: Timeout) -> c_int {
        if !member_polling::start_polling(self.slot, READABLE) {
            return self.ask_first();
        }
        let (most, is_there) = (wait.polling_ticks(clock::SECOND), || self.has_news());
        let (told, how) =
            reader_polling::look_for_a_moment(most, is_there, || self.ask(), || self.unread());
        self.slot.looked(how);
        told
    }

    /// Bytes sent that readers, which poll, have not read yet.
    fn unread(&self) -> Unread {
        let mut all = Unread::default();
        unread::each_with_bytes(
            |link| self.slot.has(link),
            |link| {
                if let Some(outward) = link.outward() {
                    all.place = all.place.wrapping_add(outward.place().position());
                    all.links += u64::from(outward.is_polling());
                }
            },
        );
        all
    }

    /// If the kernel may have events no member need be suspended: a program that asks for room to
    /// send is answered at once, and looks for an answer soon. For other events that is not worth a
    /// call.
    fn ask_first(&self) -> c_int {
        let mut is_any_polling = false;
        self.slot.each_maybe_ready(|link| {
            let asks = link.glance.events.get() as u32 & libc::EPOLLOUT as u32 != 0;
            is_any_polling = asks && reader_polling::is_polling(link);
            !is_any_polling
        });
        if is_any_polling { self.ask() } else { 0 }
    }

    /// Waits in the kernel; again, if it was woken only to look.
    fn sleep(&self, mut limit: Timeout) -> c_int {
        let mut is_first = true;
        loop {
            let began = clock::milliseconds();
            self.is_nudged.set(false);
            let told = self.sleep_once(limit, is_first);
            if told != 0 || !self.is_nudged.get() {
                return told;
            }
            (limit, is_first) = (without(limit, began), false);
        }
    }

    /// Waits in the kernel, while no member is polled.
    fn sleep_once(&self, limit: Timeout, is_first: bool) -> c_int {
        unlinked_calls::falls_asleep(self.set);
        member_polling::stop_polling(self.slot);
        detach::settle();
        let mut told = if self.has_news() { self.ask() } else { 0 };
        // What there was another thread may have been told: a call that waits does not end for
        // nothing.
        if told == 0 {
            let sleep = |limit| (self.native)(self.events, limit);
            let was_short;
            (told, was_short) = wake_latency::timed_sleep(|| {
                let mut limit = limit;
                if unread::flush_unless_polled() {
                    if is_first {
                        let told = sleep(limit.at_most(SHORT));
                        if told != 0 || self.is_nudged.get() {
                            return told;
                        }
                        limit = limit.after(SHORT);
                    }
                    unread::flush_all();
                }
                sleep(limit)
            });
            if told > 0 && was_short {
                // Looking would have found it.
                self.slot.looked(PollOutcome::Missed);
            }
        }
        unlinked_calls::wakes(self.set);
        kernel_socket::keeping_errno(broker_dispatch::poll_after_sleep);
        self.settle(told.max(0) as usize);
        self.complete(told.max(0) as usize);
        told
    }
}

/// What is left of a time of which some is gone, since then in milliseconds.
fn without(limit: Timeout, began: u64) -> Timeout {
    limit.after(clock::milliseconds().saturating_sub(began).saturating_mul(MILLISECOND))
}

/// What the kernel shows of a member.
fn kernels(link: Link, events: u32) -> u32 {
    let wanted = PollFlags::from_bits_retain((events & !FLAGS) as u16);
    u32::from(kernel_socket::events(fd_of(link), wanted, 0).bits())
}

/// Counts a thread that waits in a set without a slot, so that no link joins the set that would not
/// wake it. Returns the slot instead, if the set has got one at this moment.
fn slot_or_sleep(set: u32, wait: Timeout) -> Option<EpollSlot> {
    if wait == Timeout::Zero {
        return None;
    }
    unlinked_calls::falls_asleep(set);
    let slot = EpollSlot::of(set);
    if slot.is_some() {
        unlinked_calls::wakes(set);
    }
    slot
}

/// `epoll_wait` and the like. `native` does what the program has called, for a part of the array
/// perhaps, or the same without waiting.
pub(super) fn wait<'a>(
    set: c_int,
    events: UserSliceMut<'a, libc::epoll_event>,
    wait: Timeout,
    native: impl Fn(UserSliceMut<'a, libc::epoll_event>, Timeout) -> c_int,
) -> c_int {
    broker_dispatch::poll();
    unread::reclaim_abandoned();
    let is_nudged = Cell::new(false);
    let native = |events: UserSliceMut<'a, libc::epoll_event>, limit| {
        let told = native(events, limit);
        if told <= 0 || !epoll_wakeup::is_any() {
            return told;
        }
        let left = epoll_wakeup::take_out(set, events, told);
        is_nudged.set(is_nudged.get() | left.is_some());
        left.unwrap_or(told)
    };
    let entry = DESCRIPTORS.look(set);
    let id = if entry.kind() == Kind::Set { entry.id() } else { 0 };
    let mut limit = wait;
    let slot = loop {
        if let Some(slot) = EpollSlot::of(id).or_else(|| slot_or_sleep(id, wait)) {
            break slot;
        }
        // No member is carried, and none will be before this is over, or it is nudged.
        unread::flush_all();
        let began = clock::milliseconds();
        let told = native(events, limit);
        if wait != Timeout::Zero {
            unlinked_calls::wakes(id);
        }
        if told != 0 || !is_nudged.take() {
            return told;
        }
        limit = without(limit, began);
    };
    if events.is_null() || events.len() == 0 {
        leave_to_kernel(set);
        unread::flush_all();
        return native(events, limit);
    }
    let (native, found, is_nudged) = (&native, Cell::new(None), &is_nudged);
    let call = Call { set: id, slot, events, native, found, is_nudged };
    if wait == Timeout::Zero {
        return call.ask_once();
    }
    member_polling::resume_polling(slot, READABLE);
    if call.has_news() {
        let told = call.ask();
        if told != 0 {
            return told;
        }
    }
    let told =
        if slot.is_worth_looking() { call.look_for_a_moment(wait) } else { call.ask_first() };
    if told != 0 {
        return told;
    }
    call.sleep(limit)
}
