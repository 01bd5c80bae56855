//! Waits in `poll`, `select` and their kind for sockets of which some are carried.
//!
//! The kernel is asked what the program asks it; what it cannot see is added: bytes in a ring, and
//! an error that is ours to tell. Before the kernel sleeps no ring is polled any more, so
//! that bytes that come wake.

use core::cell::RefCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;

use super::epoll::MOVES;
use super::kernel_check;
use super::links::{self, Flag, Link, Word};
use super::offers::{self, Found};
use super::reader_polling::Unread;
use super::timeouts::{KernelPoll, Timeout};
use super::{
    broker_dispatch, epoll, kernel_socket, reader_polling, receive_queue, unread, wake_latency,
};
use crate::clock;
use crate::{memory_owner, unlinked_calls};

/// Descriptors of a call that are looked through.
const MOST: usize = 1024;
/// What says that there are bytes.
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Calls with the link of each that has one.
fn each(all: &mut [libc::pollfd], mut with: impl FnMut(&mut libc::pollfd, Link)) {
    for one in all {
        if let Some(link) = links::enter(one.fd) {
            if link.get(Word::Memory) != 0 && !link.has(Flag::Broken) {
                with(one, link);
            }
            link.release();
        }
    }
}

/// Links of which this call has said that it sleeps. They are held until it wakes: their
/// descriptors may be for others by then.
struct Asleep {
    /// By their indices.
    links: [MaybeUninit<u32>; MOST],
    count: usize,
}

impl Asleep {
    /// For each descriptor that has a link, with memory or not.
    fn fall(&mut self, fds: impl Iterator<Item = c_int>) {
        for link in fds.filter_map(links::enter) {
            match self.links.get_mut(self.count) {
                Some(place) => {
                    reader_polling::begin_sleep(link);
                    place.write(link.index());
                    self.count += 1;
                }
                None => link.release(),
            }
        }
    }

    /// Of no link so far.
    fn new() -> Self {
        Self { links: [const { MaybeUninit::uninit() }; MOST], count: 0 }
    }

    fn wake(&mut self) {
        for index in &self.links[..self.count] {
            // SAFETY: so many were written.
            let index = unsafe { index.assume_init() };
            if let Some(link) = Link::at(index) {
                reader_polling::end_sleep(link);
                link.release();
            }
        }
        self.count = 0;
    }
}

/// What is counted of a call that is about sockets without links: the first by its descriptor, so
/// that others get links meanwhile; if there are more nobody does.
struct Counted {
    first: Option<c_int>,
    more: u32,
}

impl Counted {
    /// The call is over.
    fn end(self) {
        self.first.into_iter().for_each(unlinked_calls::uncount_one);
        (0..self.more).for_each(|_| unlinked_calls::uncount());
    }
}

/// Offers sockets that were not, and counts a call that is about those without links.
fn offer_all(fds: impl Iterator<Item = c_int>) -> Counted {
    let mut counted = Counted { first: None, more: 0 };
    for fd in fds {
        match offers::enter(fd) {
            Found::Carried(link) | Found::Offered(link) => link.release(),
            Found::Counted if counted.first.is_none() => counted.first = Some(fd),
            Found::Counted => {
                unlinked_calls::count();
                unlinked_calls::uncount_one(fd);
                counted.more += 1;
            }
            Found::Other => {}
        }
    }
    counted
}

/// A socket that has something that the kernel does not see.
fn has_more(one: &libc::pollfd, link: Link) -> bool {
    one.events & READABLE != 0 && receive_queue::is_readable(link, one.fd)
        || link.get(Word::Error) != 0
}

fn any_has_more(all: &mut [libc::pollfd]) -> bool {
    let mut found = false;
    each(all, |one, link| found |= has_more(one, link));
    found
}

/// Adds to what the kernel has said what it does not see.
fn add(all: &mut [libc::pollfd], result: c_int) -> c_int {
    if result < 0 {
        return result;
    }
    let mut count = result;
    each(all, |one, link| {
        let ending = libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP;
        if one.revents & ending != 0 && unread::has_unread(link) {
            // Has it ended, and how?
            _ = kernel_check::check_now(link, one.fd);
        }
        let before = one.revents;
        if one.events & READABLE != 0 && receive_queue::is_readable(link, one.fd) {
            one.revents |= one.events & READABLE;
            receive_queue::note_shown(link);
        }
        if link.get(Word::Error) != 0 {
            one.revents |= libc::POLLERR;
        }
        if before == 0 && one.revents != 0 {
            count += 1;
        }
    });
    count
}

/// `poll`. `native` does what the program has called, or the same without waiting.
///
/// # Safety
/// So many structures are there.
pub(super) unsafe fn poll(
    all: *mut libc::pollfd,
    count: u64,
    wait: Timeout,
    native: impl Fn(KernelPoll) -> c_int,
) -> c_int {
    broker_dispatch::poll();
    unread::reclaim_abandoned();
    if count == 0 {
        // A way to sleep.
        unread::flush_all();
        return native(KernelPoll::Blocking);
    }
    let is_list = !all.is_null() && all.is_aligned() && count <= MOST as u64;
    // SAFETY: as the caller says.
    let all = is_list.then(|| unsafe { core::slice::from_raw_parts_mut(all, count as usize) });
    let Some(all) = all else { return unknown(|| native(KernelPoll::Blocking)) };
    epoll::leave_all_to_kernel(all.iter().map(|one| one.fd));
    let Timeout::AtMost(most) = wait else { return ask_once(all, &native) };
    let counted = offer_all(all.iter().map(|one| one.fd));
    let result = if all.iter().any(|one| links::has(one.fd)) {
        wait_for_any(all, most, &native)
    } else {
        unread::flush_all();
        native(KernelPoll::Blocking)
    };
    counted.end();
    result
}

/// A call for more than are looked through, or for we do not know which.
fn unknown(native: impl Fn() -> c_int) -> c_int {
    if !memory_owner::is_this_process() {
        return native();
    }
    unlinked_calls::count();
    super::leave_all();
    let result = native();
    unlinked_calls::uncount();
    result
}

/// Asks. What was there when that began, and goes another way at this moment, is told of.
fn ask_once(all: &mut [libc::pollfd], native: &impl Fn(KernelPoll) -> c_int) -> c_int {
    let began = clock::now();
    for _ in 0..MOVES {
        let before = marks(all);
        let is_there = any_has_more(all);
        let result =
            native(if is_there { KernelPoll::SignalsBlocked } else { KernelPoll::NonBlocking });
        let result = add(all, result);
        let mut is_passing = false;
        if result == 0 {
            each(all, |_, link| is_passing |= receive_queue::wait_until_passed(link, began));
        }
        if result != 0 || !is_passing && marks(all) == before {
            return result;
        }
    }
    0
}

/// Changes when bytes that were in a ring are not there any more.
fn marks(all: &mut [libc::pollfd]) -> u64 {
    let mut sum = 0_u64;
    each(all, |_, link| sum = sum.wrapping_add(receive_queue::mark(link)));
    sum
}

/// Waits for some that have links.
fn wait_for_any(
    all: &mut [libc::pollfd],
    most: u64,
    native: &impl Fn(KernelPoll) -> c_int,
) -> c_int {
    if any_has_more(all) {
        let result = native(KernelPoll::SignalsBlocked);
        let result = add(all, result);
        if result != 0 {
            return result;
        }
    }
    if looks(all) {
        let result = look_for_a_moment(all, most, native);
        if result != 0 {
            return result;
        }
    } else if any_is_polling(all) {
        // If there is something by the kernel they need not be sent away.
        let result = native(KernelPoll::NonBlocking);
        let result = add(all, result);
        if result != 0 {
            return result;
        }
    }
    let mut asleep = Asleep::new();
    asleep.fall(all.iter().map(|one| one.fd));
    let mut result = 0;
    if any_has_more(all) {
        result = native(KernelPoll::SignalsBlocked);
        result = add(all, result);
    }
    // What there was another thread may have had: a call that waits does not end for nothing.
    if result == 0 {
        unread::flush_all();
        let was_short;
        (result, was_short) = wake_latency::timed_sleep(|| native(KernelPoll::Blocking));
        if result > 0 && was_short {
            // Looking would have found it.
            each(all, |_, link| link.set(Word::Skip, 0));
        }
        kernel_socket::keeping_errno(broker_dispatch::poll_after_sleep);
        result = add(all, result);
    }
    asleep.wake();
    result
}

/// Whether it is worth looking for a moment: for any of them.
fn looks(all: &mut [libc::pollfd]) -> bool {
    let mut found = false;
    each(all, |one, link| {
        found |= one.events & READABLE != 0 && reader_polling::is_worth_looking(link);
    });
    found
}

/// Some ring is polled.
fn any_is_polling(all: &mut [libc::pollfd]) -> bool {
    let mut found = false;
    each(all, |_, link| found |= reader_polling::is_polling(link));
    found
}

/// Looks for a moment, polling all rings. What there is to tell; 0: nothing.
fn look_for_a_moment(
    all: &mut [libc::pollfd],
    most: u64,
    native: &impl Fn(KernelPoll) -> c_int,
) -> c_int {
    let mut is_any_polling = false;
    each(all, |one, link| {
        is_any_polling |= one.events & READABLE != 0 && reader_polling::start_polling_link(link);
    });
    if !is_any_polling {
        return 0;
    }
    let all = RefCell::new(all);
    let has_more = || any_has_more(&mut all.borrow_mut());
    let ask = || {
        let result =
            native(if has_more() { KernelPoll::SignalsBlocked } else { KernelPoll::NonBlocking });
        add(&mut all.borrow_mut(), result)
    };
    let (result, how) = reader_polling::look_for_a_moment(most, has_more, ask, Unread::default);
    each(&mut all.borrow_mut(), |_, link| reader_polling::record_poll(link, how));
    result
}

/// The sets of a `select`.
pub(super) struct Sets {
    pub(super) end: c_int,
    pub(super) read: *mut libc::fd_set,
    pub(super) write: *mut libc::fd_set,
    pub(super) except: *mut libc::fd_set,
}

/// The descriptors of a set, as many as it has for sure.
const SET: c_int = libc::FD_SETSIZE as c_int;

impl Sets {
    fn has(set: *mut libc::fd_set, fd: c_int) -> bool {
        // SAFETY: the program's set, in which every such descriptor has its place.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    }

    /// Adds a descriptor to a set, if it was asked for there. Whether it is new.
    fn add(set: *mut libc::fd_set, asked: &libc::fd_set, fd: c_int) -> bool {
        // SAFETY: as above.
        let is_new =
            !set.is_null() && unsafe { libc::FD_ISSET(fd, asked) && !libc::FD_ISSET(fd, set) };
        if is_new {
            // SAFETY: as above.
            unsafe { libc::FD_SET(fd, set) };
        }
        is_new
    }

    /// Bytes that such a set has for sure: a program may have made it of so many words.
    fn bytes(&self) -> usize {
        self.end.max(0).unsigned_abs().div_ceil(u64::BITS) as usize * size_of::<u64>()
    }

    fn copy(&self, set: *const libc::fd_set) -> libc::fd_set {
        // SAFETY: integers, which may be zero.
        let mut copy: libc::fd_set = unsafe { core::mem::zeroed() };
        if !set.is_null() {
            let to = (&raw mut copy).cast::<u8>();
            // SAFETY: so many bytes are there, and no more than a whole set has.
            unsafe { core::ptr::copy(set.cast::<u8>(), to, self.bytes()) };
        }
        copy
    }

    fn restore(&self, set: *mut libc::fd_set, copy: &libc::fd_set) {
        if !set.is_null() {
            let from = core::ptr::from_ref(copy).cast::<u8>();
            // SAFETY: as above.
            unsafe { core::ptr::copy(from, set.cast::<u8>(), self.bytes()) };
        }
    }

    /// Calls with each descriptor that was asked for and has a link.
    fn each(&self, read: &libc::fd_set, write: &libc::fd_set, mut with: impl FnMut(c_int, Link)) {
        for fd in 0..self.end {
            // SAFETY: the sets have places for all such descriptors.
            let is_asked = unsafe { libc::FD_ISSET(fd, read) || libc::FD_ISSET(fd, write) };
            if is_asked && let Some(link) = links::enter(fd) {
                if link.get(Word::Memory) != 0 && !link.has(Flag::Broken) {
                    with(fd, link);
                }
                link.release();
            }
        }
    }
}

/// `select`. `native` does what the program has called, or the same without waiting.
pub(super) fn select(sets: &Sets, wait: Timeout, native: impl Fn(KernelPoll) -> c_int) -> c_int {
    broker_dispatch::poll();
    unread::reclaim_abandoned();
    if sets.end > SET {
        // A set of another size.
        return unknown(|| native(KernelPoll::Blocking));
    }
    let (read, write) = (sets.copy(sets.read), sets.copy(sets.write));
    let except = sets.copy(sets.except);
    let asked = || {
        // SAFETY: the sets have places for all such descriptors.
        (0..sets.end).filter(|fd| unsafe {
            libc::FD_ISSET(*fd, &raw const read) || libc::FD_ISSET(*fd, &raw const write)
        })
    };
    epoll::leave_all_to_kernel(asked());
    let has_more = |fd: c_int, link: Link| {
        // SAFETY: the set has a place for the descriptor.
        let is_read = unsafe { libc::FD_ISSET(fd, &raw const read) };
        is_read && receive_queue::is_readable(link, fd) || link.get(Word::Error) != 0
    };
    let mut found = false;
    let counted = (wait != Timeout::Zero).then(|| offer_all(asked()));
    if let Timeout::AtMost(most) = wait {
        let ask = || {
            let mut is_there = false;
            sets.each(&read, &write, |fd, link| is_there |= has_more(fd, link));
            let result =
                native(if is_there { KernelPoll::SignalsBlocked } else { KernelPoll::NonBlocking });
            let result = complete(sets, &read, &write, result);
            if result == 0 {
                sets.restore(sets.read, &read);
                sets.restore(sets.write, &write);
                sets.restore(sets.except, &except);
            }
            result
        };
        let result = look_at_sets(sets, [&read, &write], most, &has_more, &ask);
        if result != 0 {
            counted.into_iter().for_each(Counted::end);
            return result;
        }
    }
    let mut asleep = Asleep::new();
    if wait != Timeout::Zero {
        asleep.fall(asked());
    }
    sets.each(&read, &write, |fd, link| found |= has_more(fd, link));
    if wait != Timeout::Zero && !found {
        unread::flush_all();
    }
    if wait != Timeout::Zero {
        let (result, was_short) = wake_latency::timed_sleep(|| {
            native(if found { KernelPoll::SignalsBlocked } else { KernelPoll::Blocking })
        });
        if result > 0 && was_short {
            sets.each(&read, &write, |_, link| link.set(Word::Skip, 0));
        }
        asleep.wake();
        counted.into_iter().for_each(Counted::end);
        kernel_socket::keeping_errno(broker_dispatch::poll_after_sleep);
        return complete(sets, &read, &write, result);
    }
    let marks = || {
        let mut sum = 0_u64;
        sets.each(&read, &write, |_, link| sum = sum.wrapping_add(receive_queue::mark(link)));
        sum
    };
    let began = clock::now();
    for _ in 0..MOVES {
        let before = marks();
        let mut is_there = false;
        sets.each(&read, &write, |fd, link| is_there |= has_more(fd, link));
        let result =
            native(if is_there { KernelPoll::SignalsBlocked } else { KernelPoll::NonBlocking });
        let result = complete(sets, &read, &write, result);
        let mut is_passing = false;
        if result == 0 {
            sets.each(&read, &write, |_, link| {
                is_passing |= receive_queue::wait_until_passed(link, began)
            });
        }
        if result != 0 || !is_passing && marks() == before {
            return result;
        }
        // What was there goes another way at this moment: it is to be told of.
        sets.restore(sets.read, &read);
        sets.restore(sets.write, &write);
        sets.restore(sets.except, &except);
    }
    let result = native(KernelPoll::NonBlocking);
    complete(sets, &read, &write, result)
}

/// The same for the sets of `select`. If there is nothing they are as they were.
fn look_at_sets(
    sets: &Sets,
    [read, write]: [&libc::fd_set; 2],
    most: u64,
    has_more: &impl Fn(c_int, Link) -> bool,
    ask: &impl Fn() -> c_int,
) -> c_int {
    // SAFETY: the set has a place for each descriptor that is asked for.
    let is_read = |fd: c_int| unsafe { libc::FD_ISSET(fd, read) };
    let (mut is_any_polling, mut is_worth_looking) = (false, false);
    sets.each(read, write, |fd, link| {
        is_any_polling |= reader_polling::is_polling(link);
        is_worth_looking |= is_read(fd) && reader_polling::is_worth_looking(link);
    });
    if is_worth_looking {
        is_any_polling = false;
        sets.each(read, write, |fd, link| {
            is_any_polling |= is_read(fd) && reader_polling::start_polling_link(link);
        });
    }
    if !is_any_polling {
        return 0;
    }
    if !is_worth_looking {
        // If there is something by the kernel they need not be sent away.
        return ask();
    }
    let any_has_more = || {
        let mut found = false;
        sets.each(read, write, |fd, link| found |= has_more(fd, link));
        found
    };
    let (result, how) = reader_polling::look_for_a_moment(most, any_has_more, ask, Unread::default);
    sets.each(read, write, |_, link| reader_polling::record_poll(link, how));
    result
}

/// Adds to what the kernel has said what it does not see.
fn complete(sets: &Sets, read: &libc::fd_set, write: &libc::fd_set, result: c_int) -> c_int {
    if result < 0 {
        return result;
    }
    let mut count = result;
    sets.each(read, write, |fd, link| {
        if Sets::has(sets.read, fd) && unread::has_unread(link) {
            _ = kernel_check::check_now(link, fd);
        }
        let has_error = link.get(Word::Error) != 0;
        if has_error || receive_queue::is_readable(link, fd) {
            count += c_int::from(Sets::add(sets.read, read, fd));
            receive_queue::note_shown(link);
        }
        if has_error {
            count += c_int::from(Sets::add(sets.write, write, fd));
        }
    });
    count
}
