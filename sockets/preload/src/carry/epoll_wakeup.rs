//! Wakes a thread that sleeps in an epoll set of the kernel's, so that it looks at members anew.
//!
//! A member that has bytes in its ring may join a set, or change there, while a thread sleeps in
//! it. The kernel sees no event then. So an eventfd of the library's own that is always readable
//! joins the set, too: the thread wakes, takes it out again, and looks through the members. The
//! program never sees its event.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::borrowed_fd::borrow;
use crate::descriptor_tables::DESCRIPTORS;
use crate::library_fds;
use crate::user_memory::UserSliceMut;

/// Number of sets that it may be in.
static IN_SETS: AtomicU64 = AtomicU64::new(0);

/// Its data in a set: no address of the program's.
fn data() -> u64 {
    (&raw const library_fds::WAKER).expose_provenance() as u64
}

fn made() -> Option<BorrowedFd<'static>> {
    if let Some(event) = library_fds::named(&library_fds::WAKER) {
        return Some(event);
    }
    let new = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let place = library_fds::keep(new.as_raw_fd())?;
    let (ok, err) = (Ordering::AcqRel, Ordering::Relaxed);
    if library_fds::WAKER.compare_exchange(0, place as u64 + 1, ok, err).is_err() {
        // Another thread has made one.
        library_fds::fd(place).into_iter().for_each(library_fds::close);
    }
    library_fds::named(&library_fds::WAKER)
}

/// Wakes a thread that sleeps in the set of this id. `false`: that is not possible.
pub(super) fn wake(set: u32) -> bool {
    let (Some(event), Some(set)) = (made(), DESCRIPTORS.fds_of(set).next()) else { return false };
    IN_SETS.fetch_add(1, Ordering::SeqCst);
    // One that cannot be taken out any more, since the program has put something else at the
    // descriptor it had, is told of once.
    let (how, data) = (EventFlags::IN | EventFlags::ONESHOT, EventData::new_u64(data()));
    let added = epoll::add(borrow(set), event, data, how);
    if added.is_err() {
        IN_SETS.fetch_sub(1, Ordering::SeqCst);
    }
    match added {
        Ok(()) => true,
        Err(Errno::EXIST) => epoll::modify(borrow(set), event, data, how).is_ok(),
        Err(_) => false,
    }
}

/// What a call in a set has told, without this event, which is out of the set then. Whether it was
/// there: the thread is to look at members anew.
#[inline]
pub(crate) fn without_waker(
    set: c_int,
    events: UserSliceMut<'_, libc::epoll_event>,
    told: c_int,
) -> (c_int, bool) {
    if told <= 0 || IN_SETS.load(Ordering::Relaxed) == 0 {
        return (told, false);
    }
    take_out(set, events, told).map_or((told, false), |left| (left, true))
}

/// Takes it out of a set, and out of the events that the kernel has told. How many are left;
/// `None`: it was not there.
fn take_out(set: c_int, events: UserSliceMut<'_, libc::epoll_event>, told: c_int) -> Option<c_int> {
    let count = usize::try_from(told).ok()?;
    let at = (0..count).find(|at| events.get(*at).is_some_and(|event| event.u64 == data()))?;
    for next in at + 1..count {
        if let Some(event) = events.get(next) {
            events.set(next - 1, event);
        }
    }
    let is_out = library_fds::named(&library_fds::WAKER)
        .is_some_and(|event| epoll::delete(borrow(set), event).is_ok());
    if is_out {
        IN_SETS.fetch_sub(1, Ordering::SeqCst);
    }
    Some(told - 1)
}
