//! Puts threads to sleep until something comes for a light connection, and wakes them.
//!
//! Each has an `eventfd` of its own, by which threads of this process wake it. The doorbells of
//! other processes are in one set of the kernel's, in which all sleepers wait besides: a thread
//! that is woken by that takes out what has come, for all, and wakes the others. So no doorbell is
//! heard by one thread and meant for another that sleeps on.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::doorbell;
use super::lane_assignment::WaitTarget;
use super::mmap_buffers::CHANNELS;
use super::state::{State, with};
use crate::library_fds;
use crate::next_library;
use crate::ppoll_beyond_rlimit;
use crate::tsc_clock;
use crate::user_memory::{UserPtr, UserSliceMut};

/// Threads that sleep at a time and have a descriptor. Others look once in a millisecond.
const MOST: usize = 64;
/// Entries of a list that a sleeper needs for itself, at its end.
pub(crate) const DOORBELLS: usize = 2;
/// What rings in the set that is no channel.
const BROKER: u64 = u64::MAX;
const NANOSECONDS: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// What is said where there is no descriptor.
const NONE: i32 = -1;
/// A slot that is free, and one whose thread sleeps.
const FREE: u32 = 0;
const TAKEN: u32 = 1;

struct Slot {
    is_taken: AtomicU32,
    bell: AtomicI32,
}

static SLOTS: [Slot; MOST] =
    [const { Slot { is_taken: AtomicU32::new(FREE), bell: AtomicI32::new(NONE) } }; MOST];
/// How many are taken.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// The set of what others ring: its place among our own descriptors.
static BELLS: AtomicI32 = AtomicI32::new(NONE);

fn borrow(place: i32) -> Option<BorrowedFd<'static>> {
    doorbell::at(usize::try_from(place).ok()?)
}

/// In a child of `fork`, which has none of these.
pub(super) fn begin_anew() {
    for slot in &SLOTS {
        slot.bell.store(NONE, Ordering::Relaxed);
        slot.is_taken.store(FREE, Ordering::Relaxed);
    }
    COUNT.store(0, Ordering::Relaxed);
    BELLS.store(NONE, Ordering::Relaxed);
}

/// The set of this process's doorbells, for a caller with the lock.
fn bells() -> Option<BorrowedFd<'static>> {
    if BELLS.load(Ordering::Acquire) == NONE {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        BELLS.store(library_fds::keep(set.as_raw_fd())? as i32, Ordering::Release);
    }
    borrow(BELLS.load(Ordering::Acquire))
}

/// From now on a channel's bell is heard.
pub(super) fn hears(index: usize, bell: BorrowedFd<'_>) -> bool {
    let data = epoll::EventData::new_u64(index as u64);
    bells().is_some_and(|bells| epoll::add(bells, bell, data, epoll::EventFlags::IN).is_ok())
}

/// It is not any more.
pub(super) fn hears_no_more(bell: BorrowedFd<'_>) {
    if let Some(bells) = borrow(BELLS.load(Ordering::Acquire)) {
        _ = epoll::delete(bells, bell);
    }
}

/// Adds the broker's socket, once: a child that was not seen may have a duplicate of one that is at
/// its end, which would be reported for ever.
pub(super) fn hears_broker(socket: BorrowedFd<'_>) {
    let data = epoll::EventData::new_u64(BROKER);
    let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
    if let Some(bells) = bells()
        && epoll::add(bells, socket, data, once).is_err()
    {
        _ = epoll::modify(bells, socket, data, once);
    }
}

/// What has rung: calls with each channel's place, and with `None` for the broker.
pub(super) fn rung(mut with: impl FnMut(Option<usize>)) {
    let Some(bells) = borrow(BELLS.load(Ordering::Acquire)) else { return };
    let mut space = [MaybeUninit::<epoll::Event>::uninit(); CHANNELS];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let Ok((all, _)) = epoll::wait(bells, &mut space[..], Some(&zero)) else { return };
    for one in all {
        let data = one.data.u64();
        with((data != BROKER).then_some(data as usize % CHANNELS));
    }
}

/// Threads of this process sleep.
pub(super) fn are_any() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}

/// Wakes all that sleep.
pub(super) fn wake() {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return;
    }
    for slot in SLOTS.iter().filter(|slot| slot.is_taken.load(Ordering::SeqCst) == TAKEN) {
        if let Some(bell) = borrow(slot.bell.load(Ordering::Acquire)) {
            _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }
}

/// A thread that is about to sleep.
pub(crate) struct Sleeper {
    slot: Option<&'static Slot>,
}

/// Enters a sleeper, and what it waits for; the caller looks once more before it sleeps.
pub(super) fn enter(awaits: WaitTarget<'_>) -> Sleeper {
    let is_free = |slot: &&Slot| {
        let taken =
            slot.is_taken.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::Relaxed);
        taken.is_ok()
    };
    let slot = SLOTS.iter().find(is_free);
    COUNT.fetch_add(1, Ordering::SeqCst);
    if let Some(slot) = slot
        && slot.bell.load(Ordering::Relaxed) == NONE
        && let Ok(bell) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        && let Some(place) = library_fds::keep(bell.as_fd().as_raw_fd())
    {
        slot.bell.store(place as i32, Ordering::Release);
    }
    with(|state| {
        // So that there is something to sleep in.
        _ = bells();
        state.say_asleep();
        state.awaits(awaits);
    });
    Sleeper { slot }
}

impl State {
    fn say_asleep(&mut self) {
        self.channels.iter().flatten().for_each(super::channel::Channel::sleeps);
    }
}

impl Sleeper {
    /// Sleeps until one of these is ready, or something has come; the last two are for this.
    /// `until`: of the monotonic clock. What the kernel says.
    pub(super) fn sleep(
        &self,
        all: &mut [libc::pollfd],
        until: Option<u64>,
        mask: UserPtr<'_, libc::sigset_t>,
    ) -> c_int {
        let own_bell = self.slot.and_then(|slot| borrow(slot.bell.load(Ordering::Acquire)));
        let set = borrow(BELLS.load(Ordering::Acquire));
        let mut left = until.map(|until| until.saturating_sub(tsc_clock::nanoseconds()));
        if own_bell.is_none() || set.is_none() {
            left = Some(left.unwrap_or(MILLISECOND).min(MILLISECOND));
        }
        let places = all.len() - DOORBELLS;
        for (place, bell) in all[places..].iter_mut().zip([own_bell, set]) {
            let fd = bell.map_or(-1, |bell| bell.as_raw_fd());
            *place = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        }
        let limit = left.map(|left| libc::timespec {
            tv_sec: (left / NANOSECONDS) as i64,
            tv_nsec: (left % NANOSECONDS) as i64,
        });
        let limit = limit.as_ref().map_or(UserPtr::NULL, UserPtr::of);
        let found = next_library::ppoll(UserSliceMut::of(all), limit, mask);
        if found >= 0 || !ppoll_beyond_rlimit::is_too_long(all.len()) {
            return found;
        }
        let pause = left.unwrap_or(MILLISECOND).min(MILLISECOND);
        let pause = libc::timespec { tv_sec: 0, tv_nsec: pause as i64 };
        ppoll_beyond_rlimit::poll_in_parts(&mut all[..places], &pause, mask)
    }

    /// It is awake.
    pub(crate) fn leave(self) {
        if let Some(slot) = self.slot {
            if let Some(bell) = borrow(slot.bell.load(Ordering::Acquire)) {
                let mut word = [0; 8];
                _ = rustix::io::read(bell, &mut word);
            }
            slot.is_taken.store(FREE, Ordering::SeqCst);
        }
        COUNT.fetch_sub(1, Ordering::SeqCst);
        with(|state| {
            state.hear();
            // A thread that has begun to sleep says for what when it has the lock.
            match are_any() {
                false => state.awaits_nothing(),
                true => state.say_asleep(),
            }
            state.progress();
        });
    }
}
