//! `epoll`, for sets of which some members are carried.
//!
//! The set is the kernel's, and so is everything that it tells. What it cannot see is added: bytes
//! in the ring of a member. Nobody is woken for those: before the kernel sleeps no member welcomes
//! them any more, so that what comes then comes by the kernel. A member that has to be left alone
//! while somebody sleeps in its set is the kernel's from then on.
//!
//! An edge is news: bytes that were published since the member was last told of, or changed. One
//! event is told of a member, so what the kernel and the ring have to say is put together.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use omniverb_stream::descriptors::{Kind, Member, Why};
use rustix::event::PollFlags;

use super::links::{self, Link, Note, Word};
use super::members::{self, Looked, NOT_OURS, Row, may_be_member};
use super::{broker, clock, inward, leaving, look, outward, shadow};
use crate::table::{self, NUMBERS};

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
/// Bits that are no events.
const PRIVATE: u32 = EDGE | NOT_OURS;
const ENDING: u32 = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;

/// Whether a call waits until something is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It does, perhaps for a time only.
    Until,
    /// It asks, and returns.
    Never,
}

/// Before `EPOLL_CTL_ADD` or `EPOLL_CTL_MOD`.
///
/// # Safety
/// The event is there, or null.
pub(super) unsafe fn joins(set: c_int, number: c_int, event: *const libc::epoll_event) {
    let entry = table::look(number);
    if entry.kind() == Kind::Set {
        // The outer set sees what the kernel sees.
        is_seen(number);
    }
    if !entry.kind().is_stream() {
        return;
    }
    let is_free = !entry.is_duplicated() && entry.why() == Why::Free;
    let may = !event.is_null() && is_free && {
        // SAFETY: as the caller says; a reader of C may have left it anywhere.
        let events = unsafe { event.read_unaligned() }.events;
        let set = table::look(set).id();
        may_be_member(&Member { set, number, id: entry.id(), events, data: 0 })
    };
    if !may {
        NUMBERS.keep(number, Why::Member);
        leaving::leave_number(number);
    }
}

/// After a change of a set's members.
///
/// # Safety
/// The event is there, if the operation needs one.
pub(super) unsafe fn changed(
    set: c_int,
    operation: c_int,
    number: c_int,
    event: *const libc::epoll_event,
) {
    let set = table::look(set).id();
    // Who makes a link makes it first, and looks then in which sets its socket is.
    fence(Ordering::SeqCst);
    let Some(link) = links::enter(number) else { return };
    if operation == libc::EPOLL_CTL_DEL {
        if Row::of(set).is_some_and(|row| Row::with(link).is_some_and(|its| its.is(row))) {
            members::take_out(link);
        }
    } else if NUMBERS.look(number).why() == Why::Free {
        // SAFETY: as the caller says.
        let event = unsafe { event.read_unaligned() };
        let id = NUMBERS.look(number).id();
        let member = Member { set, number, id, events: event.events, data: event.u64 };
        link.set(Word::Number, number as u64);
        if !members::put(link, &member) || !may_be_member(&member) {
            NUMBERS.keep(number, Why::Member);
            leaving::leave(link, number);
        }
    }
    link.let_go();
}

/// Somebody sees a set otherwise than by `epoll_wait` of this process: its members are the
/// kernel's.
#[cold]
pub(super) fn is_seen(set: c_int) {
    let entry = table::look(set);
    if entry.kind() != Kind::Set {
        return;
    }
    NUMBERS.keep(set, Why::Shared);
    fence(Ordering::SeqCst);
    if let Some(row) = Row::of(entry.id()) {
        row.each(|link| {
            leaving::leave(link, number_of(link));
            true
        });
    }
}

/// The same for each of these that is a set.
#[inline]
pub(super) fn are_seen(numbers: impl Iterator<Item = c_int>) {
    for number in numbers {
        if NUMBERS.look(number).kind() == Kind::Set {
            is_seen(number);
        }
    }
}

fn number_of(link: Link) -> c_int {
    link.get(Word::Number) as c_int
}

/// What the ring has to say of a member.
fn news(link: Link) -> u32 {
    if link.get(Word::Memory) == 0 || link.has(Note::Broken) {
        return 0;
    }
    let events = link.get(Word::Events) as u32;
    let error = if link.get(Word::Error) == 0 { 0 } else { libc::EPOLLERR as u32 };
    let is_wanted = events & READABLE != 0 && inward::waiting(link) > 0;
    let is_news = is_wanted && (events & EDGE == 0 || link.get(Word::Told) != newest(link));
    // Where the kernel has bytes that come first it has told of those, but not of this news.
    let is_there = |link| {
        let is_edge = events & EDGE != 0;
        inward::is_readable(link, number_of(link)) || is_edge && kernels(link, READABLE) != 0
    };
    let bytes = is_news && is_there(link);
    error | if bytes { events & READABLE } else { 0 }
}

/// One more than how far the other end has written.
fn newest(link: Link) -> u64 {
    link.inward().map_or(0, |direction| direction.head().position() + 1)
}

fn any_has_news(row: Row) -> bool {
    let mut found = false;
    row.each(|link| {
        found = news(link) != 0;
        !found
    });
    found
}

/// Where events are told, and the kernel's call for a part of it.
struct Call<'a, N> {
    row: Row,
    events: *mut libc::epoll_event,
    most: usize,
    native: &'a N,
}

impl<N: Fn(*mut libc::epoll_event, c_int, bool) -> c_int> Call<'_, N> {
    fn get(&self, at: usize) -> libc::epoll_event {
        // SAFETY: one of the program's array that was written, wherever C has put it.
        unsafe { self.events.add(at).read_unaligned() }
    }

    fn set(&self, at: usize, events: u32, data: u64) {
        // SAFETY: the program's array has that many.
        unsafe { self.events.add(at).write_unaligned(libc::epoll_event { events, u64: data }) }
    }

    /// What there is now, of the kernel's and of the rings.
    fn ask(&self) -> c_int {
        let mut waiting = 0;
        self.row.each(|link| {
            waiting += usize::from(news(link) != 0);
            true
        });
        let turn = self.row.turn() as usize;
        // The kernel must not take all places each time.
        let kept = match self.most {
            1 => waiting.min(turn & 1),
            most => waiting.min(most / 2),
        };
        let mut by_kernel = 0;
        if kept < self.most {
            let told = (self.native)(self.events, (self.most - kept) as c_int, false);
            if told < 0 {
                return told;
            }
            by_kernel = told as usize;
        }
        self.settle(by_kernel);
        let mut count = by_kernel;
        self.row.each(|link| {
            count += self.tell(link, by_kernel, count);
            true
        });
        count as c_int
    }

    /// Tells what the ring has to say of a member, behind the `count` events that there are, of
    /// which the kernel has told the first. How many more there are.
    fn tell(&self, link: Link, by_kernel: usize, count: usize) -> usize {
        let (newest, told) = (newest(link), link.get(Word::Told));
        let bits = news(link);
        if bits == 0 {
            return 0;
        }
        let (data, events) = (link.get(Word::Data), link.get(Word::Events) as u32);
        let is_edge = events & EDGE != 0;
        let same = (0..by_kernel).find(|at| self.get(*at).u64 == data);
        // What an edge tells is all that is so.
        let kernels = match same.is_some() || is_edge {
            true => kernels(link, events),
            false => 0,
        };
        // Others may have the same data.
        let same = same.filter(|_| kernels != 0);
        if same.is_none() && count == self.most {
            return 0;
        }
        if is_edge && bits & READABLE != 0 {
            let word = link.word(Word::Told);
            let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
            // One of those who wait is told.
            if word.compare_exchange(told, newest, ok, err).is_err() {
                return 0;
            }
        }
        match same {
            Some(at) => self.set(at, self.get(at).events | bits, data),
            None => self.set(count, bits | kernels, data),
        }
        usize::from(same.is_none())
    }

    /// Where the kernel has told of a member that its connection ends it may be a reset that only
    /// we know of.
    fn settle(&self, told: usize) {
        for event in (0..told).map(|at| self.get(at)) {
            if event.events & ENDING == 0 {
                continue;
            }
            let data = event.u64;
            self.row.each(|link| {
                if link.get(Word::Data) == data && outward::has_bytes(link) {
                    _ = look::look_now(link, number_of(link));
                }
                true
            });
        }
    }

    /// Looks for a moment, with all members welcome. What there is to tell; 0: nothing.
    fn look_for_a_moment(&self) -> c_int {
        let mut is_any_welcome = false;
        self.row.each(|link| {
            if link.get(Word::Events) as u32 & READABLE != 0
                && let Some(direction) = link.inward()
            {
                is_any_welcome |= inward::welcome(link, &direction);
            }
            true
        });
        if !is_any_welcome {
            return 0;
        }
        let (began, mut asked) = (clock::now(), clock::now());
        loop {
            if any_has_news(self.row) || clock::is_over(asked, clock::MOMENT) {
                asked = clock::now();
                let told = self.ask();
                if told != 0 {
                    // Who had to give the processor away for long had better slept: the kernel
                    // would have woken him.
                    let is_late = clock::is_over(began, inward::LOOKING);
                    self.row.looked(if is_late { Looked::InVain } else { Looked::Well });
                    return told;
                }
            }
            if clock::is_over(began, inward::LOOKING) {
                self.row.looked(Looked::InVain);
                return 0;
            }
            rustix::thread::sched_yield();
        }
    }

    /// Waits in the kernel, while no member is welcome.
    fn sleep(&self) -> c_int {
        self.row.falls_asleep();
        self.row.each(|link| {
            if let Some(direction) = link.inward()
                && direction.place().is_welcome()
            {
                direction.say_no_more();
            }
            true
        });
        let mut told = if any_has_news(self.row) { self.ask() } else { 0 };
        // What there was another thread may have been told: a call that waits does not end for
        // nothing.
        if told == 0 {
            outward::flush_all();
            let began = clock::now();
            told = (self.native)(self.events, self.most as c_int, true);
            if told > 0 && !clock::is_over(began, inward::LOOKING) {
                // Looking would have found it.
                self.row.looked(Looked::Well);
            }
        }
        self.row.wakes();
        self.settle(told.max(0) as usize);
        told
    }
}

/// What the kernel shows of a member.
fn kernels(link: Link, events: u32) -> u32 {
    let wanted = PollFlags::from_bits_retain((events & !PRIVATE) as u16);
    u32::from(shadow::events(number_of(link), wanted, 0).bits())
}

/// `epoll_wait` and the like. `native` does what the program has called, for a part of the array
/// perhaps, or the same without waiting.
pub(super) fn wait(
    set: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    wait: Wait,
    native: impl Fn(*mut libc::epoll_event, c_int, bool) -> c_int,
) -> c_int {
    broker::look();
    let row = if members::is_none_there() { None } else { Row::of(NUMBERS.look(set).id()) };
    let Some(row) = row.filter(|_| !events.is_null() && most > 0) else {
        outward::flush_all();
        return native(events, most, true);
    };
    let call = Call { row, events, most: most as usize, native: &native };
    if wait == Wait::Never || any_has_news(row) {
        let told = call.ask();
        if told != 0 || wait == Wait::Never {
            return told;
        }
    }
    if row.is_worth_looking() {
        let told = call.look_for_a_moment();
        if told != 0 {
            return told;
        }
    }
    call.sleep()
}
