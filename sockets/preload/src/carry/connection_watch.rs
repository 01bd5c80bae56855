//! Asks the kernel by one call what happened to the connections of all links.
//!
//! A socket that is one of many has its turn seldom: to be asked about it each time
//! ([`super::kernel_socket_check`]) costs three system calls a message, more than natively. So the
//! sockets of links are in a set of epoll of the library's own, which tells at once, once, of each
//! connection that ends. As long as that is asked every [`tsc_clock::MOMENT`] while bytes go
//! through rings, what was seen of a socket itself is believed for longer.
//!
//! Nothing rests on it alone: each socket is looked at after [`KNOWN`] at the latest, so what is
//! told to a thread that is stopped just then is late, not lost.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::ended_links;
use super::links::{Flag, Link};
use crate::anonymous_mappings::{WipedPage, Zeros};
use crate::borrowed_fd::borrow;
use crate::library_fds;
use crate::tsc_clock;

/// How long what was seen of a socket is believed while nothing is told of it.
pub(super) const KNOWN: u64 = tsc_clock::SECOND >> 6;
/// Events that are taken at a time.
const AT_ONCE: usize = 16;

/// What a child of `fork` finds wiped: it has its parent's set, in which nothing is its own.
struct State {
    /// One more than its place among our own descriptors; 0: there is none.
    set: AtomicU64,
    /// When it was asked last.
    asked: AtomicU64,
    /// Some thread asks at this moment.
    busy: AtomicU64,
    /// It is known that there can be none.
    refused: AtomicU64,
}

// SAFETY: words.
unsafe impl Zeros for State {}

static STATE: WipedPage<State> = WipedPage::new(State {
    set: AtomicU64::new(0),
    asked: AtomicU64::new(0),
    busy: AtomicU64::new(0),
    refused: AtomicU64::new(0),
});

/// At the start. Without a page that is wiped there is none.
pub(super) fn begin() {
    if !STATE.wipe_on_fork() {
        STATE.refused.store(1, Ordering::Relaxed);
    }
}

fn set() -> Option<BorrowedFd<'static>> {
    library_fds::named(&STATE.set)
}

/// Its descriptor: a child has a duplicate, of no use to it.
pub(super) fn fd() -> Option<c_int> {
    set().map(|set| set.as_raw_fd())
}

/// One thread asks, alone, until this is dropped. Others go without.
struct Exclusive;

impl Exclusive {
    fn try_be() -> Option<Self> {
        (STATE.busy.swap(1, Ordering::AcqRel) == 0).then_some(Self)
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        STATE.busy.store(0, Ordering::Release);
    }
}

/// The set, made if there is none.
fn made() -> Option<BorrowedFd<'static>> {
    if let Some(set) = set() {
        return Some(set);
    }
    if STATE.refused.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let kept =
        epoll::create(CreateFlags::CLOEXEC).ok().and_then(|set| library_fds::keep(set.as_raw_fd()));
    let Some(place) = kept else {
        // There may be no more descriptors: it is not tried again for each link.
        STATE.refused.store(1, Ordering::Relaxed);
        return None;
    };
    let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
    if STATE.set.compare_exchange(0, place as u64 + 1, ok, err).is_err() {
        // Another thread has made one.
        library_fds::fd(place).into_iter().for_each(library_fds::close);
    }
    set()
}

/// The broker's socket in the set: no tag of a link.
const BROKER: u64 = u64::MAX;
/// Some link is only for as long as there is a broker.
static ARE_ACROSS: AtomicBool = AtomicBool::new(false);

/// The end of the broker is watched, too: nothing else shows it to a thread that only receives.
pub(super) fn put_broker(socket: BorrowedFd<'_>) {
    if let Some(set) = made() {
        let data = EventData::new_u64(BROKER);
        _ = epoll::add(set, socket, data, EventFlags::RDHUP | EventFlags::ET);
    }
}

/// A link has come that ends with the broker.
pub(super) fn are_across() {
    ARE_ACROSS.store(true, Ordering::Relaxed);
}

/// After a sleep: asks, if there are such links and no other thread did of late.
pub(super) fn hears() {
    if ARE_ACROSS.load(Ordering::Relaxed) && !is_asked(tsc_clock::now()) {
        ask();
    }
}

/// The socket of a link that has memory is watched from now on, if that can be.
pub(super) fn put(link: Link, fd: c_int) {
    let Some(set) = made() else { return };
    let socket = borrow(fd);
    let data = EventData::new_u64(link.tag());
    let events = EventFlags::RDHUP | EventFlags::ET;
    let added = match epoll::add(set, socket, data, events) {
        // It had another link before.
        Err(Errno::EXIST) => epoll::modify(set, socket, data, events),
        added => added,
    };
    if added.is_ok() {
        link.set_flag(Flag::Watched);
    }
}

/// Nothing was told of the socket of this link since it was looked at, not long ago, or in the last
/// moment.
#[inline(always)]
pub(super) fn is_calm(link: Link, now: u64) -> bool {
    link.has(Flag::Watched) && (is_asked(now) || ask()) && is_known(link, now)
}

/// The same, as far as is known without asking.
#[inline(always)]
pub(super) fn was_calm(link: Link, now: u64) -> bool {
    link.has(Flag::Watched) && is_asked(now) && is_known(link, now)
}

fn is_asked(now: u64) -> bool {
    now.wrapping_sub(STATE.asked.load(Ordering::Acquire)) < tsc_clock::MOMENT
}

fn is_known(link: Link, now: u64) -> bool {
    now.wrapping_sub(link.glance.looked.get()) < KNOWN
}

/// Asks. `false`: another thread does, or there is nothing to ask.
#[cold]
fn ask() -> bool {
    let Some(set) = set() else { return false };
    let Some(_alone) = Exclusive::try_be() else { return false };
    let began = tsc_clock::now();
    let mut events = [MaybeUninit::<Event>::uninit(); AT_ONCE];
    let Ok((told, rest)) = epoll::wait(set, &mut events, Some(&Timespec::default())) else {
        return false;
    };
    for event in told {
        if event.data.u64() == BROKER {
            ended_links::check_broker();
            continue;
        }
        if let Some(link) = Link::of_tag(event.data.u64()) {
            // It is looked at now.
            link.glance.looked.set(0);
            link.release();
        }
    }
    // There may be more.
    let is_all = !rest.is_empty();
    if is_all {
        STATE.asked.store(began, Ordering::Release);
    }
    is_all
}
