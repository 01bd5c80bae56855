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

use omniverb_connection::backoff::LookOutcome;
use omniverb_connection::descriptors::{Kind, Member, Why};
use omniverb_connection::readiness::Timeout;
use omniverb_connection::readiness::epoll_interest::{EDGE, FLAGS};
use rustix::event::PollFlags;

use super::epoll_events_in_rings::{
    ENDING, OURS, READABLE, RingEvents, fd_of, has_bytes, newest, news,
};
use super::epoll_membership::{self, EpollSlot, NotJoinable, Sleepers, may_be_member};
use super::kernel_socket_check::{self, Checked};
use super::links::{self, Flag, Link};
use super::reader_polling::Unread;
use super::{
    broker_dispatch, ended_link_private_memory, epoll_polling_flags, kernel_fallback,
    published_bytes, reader_polling, unread_bytes, wake_latency,
};
use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::kernel_socket;
use crate::tsc_clock;
use crate::user_memory::{UserPtr, UserSliceMut};
use crate::{fallback_ledger, fork_refcount, running_call_counts};

/// Where a call tells events.
type Events<'e> = UserSliceMut<'e, libc::epoll_event>;

const MILLISECOND: u64 = 1_000_000;
/// How long a thread sleeps at first while other, running readers still have bytes of it to read,
/// in nanoseconds. They mostly have them by then, and taking back what is in many rings costs both
/// ends more than that ([`published_bytes::flush_unless_polled`]). The least that `epoll_wait`
/// knows.
const SHORT: u64 = MILLISECOND;

/// Before `EPOLL_CTL_ADD` or `EPOLL_CTL_MOD`.
pub(super) fn joins(set: c_int, fd: c_int, event: UserPtr<'_, libc::epoll_event>) {
    let entry = descriptor_tables::look(fd);
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
        let set = descriptor_tables::look(set).id();
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
    let set = descriptor_tables::look(set).id();
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
            if epoll_membership::membership(fd, DESCRIPTORS.look(fd).id()) != Ok(None) {
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
        let (is_in, may) = (epoll_membership::put(link, &member, sleepers), may_be_member(&member));
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
    let entry = descriptor_tables::look(set);
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
        direction.head().is_stopped() && unread_bytes::unread_bytes(link) == 0
    };
    link.has(Flag::Reattachable) && link.inward().is_none_or(is_done)
}

/// An epoll set that has carried members, or may get some, for one call that waits there.
///
/// Until a member is carried, and while a thread sleeps, the set is the kernel's as it is. The
/// kernel is asked by a function that each step is given; it says what `epoll_wait` does.
pub(crate) struct CarriedSet<'e> {
    id: u32,
    events: Events<'e>,
    timeout: Timeout,
    /// When it began.
    began: u64,
    /// Those that are carried, if there were any so far.
    carried: Option<CarriedMembers<'e>>,
    is_armed: bool,
    has_looked: bool,
    has_slept: bool,
}

impl<'e> CarriedSet<'e> {
    /// `None`: sockets are not carried here.
    #[inline]
    pub(crate) fn of(set: c_int, events: Events<'e>, timeout: Timeout) -> Option<Self> {
        if !links::is_here() {
            return None;
        }
        broker_dispatch::poll();
        published_bytes::reclaim_abandoned();
        Some(Self {
            id: set_id(set),
            events,
            timeout,
            began: tsc_clock::now(),
            carried: None,
            is_armed: false,
            has_looked: false,
            has_slept: false,
        })
    }

    /// Some members are carried.
    pub(crate) fn has_members(&self) -> bool {
        self.carried.is_some()
    }

    /// Some ring has something to tell.
    pub(crate) fn is_ready(&mut self) -> bool {
        if self.carried.is_none()
            && let Some(slot) = EpollSlot::of(self.id)
        {
            let carried = CarriedMembers { slot, events: self.events, found: Cell::new(None) };
            if self.is_armed {
                carried.stop_polling();
            } else if self.timeout != Timeout::Zero {
                epoll_polling_flags::resume_polling(slot, READABLE);
            }
            self.carried = Some(carried);
        }
        self.carried.as_ref().is_some_and(CarriedMembers::has_news)
    }

    /// What there is now, of the kernel's and of the rings, as they were looked at just now.
    pub(crate) fn ask(&self, kernel: impl Fn(Events<'e>) -> c_int) -> c_int {
        if let Some(carried) = &self.carried {
            return carried.ask(kernel);
        }
        if self.timeout == Timeout::Zero {
            published_bytes::flush_all();
        }
        kernel(self.events)
    }

    /// Looks for a moment, once in a call, if that is worth while. What there is to tell; 0:
    /// nothing.
    pub(crate) fn look(&mut self, kernel: impl Fn(Events<'e>) -> c_int) -> c_int {
        let Some(carried) = &self.carried else { return 0 };
        if core::mem::replace(&mut self.has_looked, true) {
            return 0;
        }
        if carried.slot.looks().is_due() {
            carried.look_for_a_moment(self.timeout, kernel)
        } else {
            carried.ask_first(kernel)
        }
    }

    /// The call is about to sleep: no member is polled any more, and no link joins the set that
    /// would not wake it.
    pub(crate) fn arm(&mut self) {
        running_call_counts::falls_asleep(self.id);
        self.is_armed = true;
        if let Some(carried) = &self.carried {
            carried.stop_polling();
        }
    }

    /// Sleeps by this call, for so long at most. What that has told; and what is left of the time
    /// if the call is to sleep on.
    pub(crate) fn sleep(
        &mut self,
        limit: Timeout,
        call: impl FnOnce(Timeout) -> c_int,
    ) -> (c_int, Option<Timeout>) {
        let Some(carried) = &self.carried else {
            // No member is carried, and none will be before this is over, or it is woken to look.
            published_bytes::flush_all();
            return (call(limit), None);
        };
        let is_first = !core::mem::replace(&mut self.has_slept, true);
        let mut rest = None;
        let (told, was_short) = wake_latency::timed_sleep(|| {
            let is_read_yet = published_bytes::flush_unless_polled();
            if is_read_yet && is_first {
                rest = Some(limit.after(SHORT));
                return call(limit.at_most(SHORT));
            }
            if is_read_yet {
                published_bytes::flush_all();
            }
            call(limit)
        });
        if told > 0 && was_short {
            // Looking would have found it.
            carried.slot.looks().record(LookOutcome::Missed);
        }
        self.disarm();
        if let Some(carried) = &self.carried {
            carried.settle(told.max(0) as usize);
            carried.complete(told.max(0) as usize);
        }
        (told, rest)
    }

    /// It sleeps no more.
    pub(crate) fn disarm(&mut self) {
        if core::mem::take(&mut self.is_armed) {
            running_call_counts::wakes(self.id);
            if self.carried.is_some() {
                kernel_socket::keeping_errno(broker_dispatch::poll_after_sleep);
            }
        }
    }

    /// Changes when bytes that were in a ring are not there any more.
    pub(crate) fn mark(&self) -> u64 {
        self.carried.as_ref().map_or(0, CarriedMembers::mark)
    }

    /// What was there when the call began goes another way at this moment.
    pub(crate) fn is_passing(&self) -> bool {
        self.carried.as_ref().is_some_and(|carried| carried.is_passing(self.began))
    }
}

/// The id of what is a set.
fn set_id(set: c_int) -> u32 {
    let entry = DESCRIPTORS.look(set);
    if entry.kind() == Kind::Set { entry.id() } else { 0 }
}

/// Waits in a set without a place for events, by this call: the set is the kernel's.
#[cold]
pub(crate) fn wait_without_places(set: c_int, native: impl FnOnce() -> c_int) -> c_int {
    if !links::is_here() {
        return native();
    }
    let id = set_id(set);
    running_call_counts::falls_asleep(id);
    if EpollSlot::of(id).is_some() {
        leave_to_kernel(set);
    }
    published_bytes::flush_all();
    let told = native();
    running_call_counts::wakes(id);
    told
}

/// Carried members, and where events are told.
struct CarriedMembers<'e> {
    slot: EpollSlot,
    events: Events<'e>,
    /// What was found when rings were looked at last.
    found: Cell<Option<RingEvents>>,
}

impl<'e> CarriedMembers<'e> {
    fn get(&self, at: usize) -> libc::epoll_event {
        self.events.get(at).unwrap_or(libc::epoll_event { events: 0, u64: 0 })
    }

    fn set(&self, at: usize, events: u32, data: u64) {
        self.events.set(at, libc::epoll_event { events, u64: data });
    }

    /// Whether some ring has something to tell. [`Self::ask`] goes by what was seen then.
    fn has_news(&self) -> bool {
        let found = RingEvents::of(self.slot);
        self.found.set(Some(found));
        found.count > 0
    }

    fn stop_polling(&self) {
        epoll_polling_flags::stop_polling(self.slot);
        ended_link_private_memory::settle();
    }

    fn ask(&self, kernel: impl Fn(Events<'e>) -> c_int) -> c_int {
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
            let (now, places) = (tsc_clock::now(), self.events.len() - kept);
            let told = kernel(self.events.first(places));
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
        epoll_polling_flags::retire_idle(self.slot);
        if count == 0 && kept > 0 {
            // What places were kept for another thread has told of.
            let told = kernel(self.events);
            self.settle(told.max(0) as usize);
            return told;
        }
        self.complete(by_kernel);
        count as c_int
    }

    fn is_passing(&self, began: u64) -> bool {
        let mut is_passing = false;
        self.slot.each_held(unread_bytes::is_reclaimed, |link| {
            is_passing |= unread_bytes::wait_until_passed(link, began);
            true
        });
        is_passing
    }

    fn mark(&self) -> u64 {
        let mut all = 0_u64;
        self.slot.each_maybe_ready(|link| {
            all = all.wrapping_add(unread_bytes::mark(link));
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
        if matches!(kernel_socket_check::check_unless_watched(link, fd), Checked::OtherSocket) {
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
        let is_all = events & !OURS == 0 && kernel_socket_check::is_recent(link, tsc_clock::now());
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
            if readable == 0 || unread_bytes::unread_bytes(link) == 0 {
                return true;
            }
            let lacks = |event: libc::epoll_event| {
                let (bits, its) = (event.events, event.u64);
                its == data && bits & readable == 0
            };
            if let Some(at) = (0..told).find(|at| lacks(self.get(*at)))
                && unread_bytes::is_readable(link, fd_of(link))
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
            published_bytes::each_with_bytes(
                |link| self.slot.has(link) && ends(link.member.data.get()),
                |link| _ = kernel_socket_check::check_now(link, fd_of(link)),
            );
        }
    }

    /// Looks for a moment, polling all members. What there is to tell; 0: nothing.
    fn look_for_a_moment(&self, wait: Timeout, kernel: impl Fn(Events<'e>) -> c_int) -> c_int {
        if !epoll_polling_flags::start_polling(self.slot, READABLE) {
            return self.ask_first(kernel);
        }
        let (most, is_there) = (wait.polling_ticks(tsc_clock::SECOND), || self.has_news());
        let (told, how) = reader_polling::look_for_a_moment(
            most,
            is_there,
            || self.ask(&kernel),
            || self.unread(),
        );
        self.slot.looks().record(how);
        told
    }

    /// Bytes sent that readers, which poll, have not read yet.
    fn unread(&self) -> Unread {
        let mut all = Unread::default();
        published_bytes::each_with_bytes(
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
    fn ask_first(&self, kernel: impl Fn(Events<'e>) -> c_int) -> c_int {
        let mut is_any_polling = false;
        self.slot.each_maybe_ready(|link| {
            let asks = link.glance.events.get() as u32 & libc::EPOLLOUT as u32 != 0;
            is_any_polling = asks && reader_polling::is_polling(link);
            !is_any_polling
        });
        if is_any_polling { self.ask(kernel) } else { 0 }
    }
}

/// What the kernel shows of a member.
fn kernels(link: Link, events: u32) -> u32 {
    let wanted = PollFlags::from_bits_retain((events & !FLAGS) as u16);
    u32::from(kernel_socket::events(fd_of(link), wanted, 0).bits())
}
