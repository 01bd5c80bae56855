//! Keeps the library's own descriptors out of the program's way.
//!
//! For the program there is nothing at them: it can neither close, nor ask, nor duplicate them, and
//! gets the descriptor if it wants it.
//!
//! They are close-on-exec, and as high as the program's limit allows, so that the lowest free
//! descriptor is what it would be without them.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{BorrowedFd, IntoRawFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use crate::anonymous_mappings::WipedPage;
use crate::borrowed_fd::{borrow, close_own};

/// The most there are: of light connections' channels each has one, and so has each thread that
/// sleeps.
const MOST: usize = 256;
/// How far below the limit they begin; and in light mode, but no more than a quarter of it.
const BELOW: u64 = 64;
const BELOW_LIGHT: u64 = 256;
const NONE: c_int = -1;

static OWN: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
/// One more than the index of the last one.
static COUNT: AtomicI32 = AtomicI32::new(0);
/// No lower descriptor ever was one.
static LOWEST: AtomicI32 = AtomicI32::new(c_int::MAX);

/// The place of the eventfd that wakes threads in epoll sets, as [`named`] reads it; 0: none.
pub(crate) static WAKER: AtomicU64 = AtomicU64::new(0);

/// There may be many.
static ARE_MANY: AtomicBool = AtomicBool::new(false);

/// What is in this place this process has put there: not 0. A child of `fork` finds it wiped.
static KEPT_HERE: WipedPage<[AtomicU32; MOST]> =
    WipedPage::new([const { AtomicU32::new(0) }; MOST]);

/// At the start, for a process that keeps descriptors for many things, and closes what a child
/// inherits of them. `false`: a child could not tell.
pub(crate) fn makes_room() -> bool {
    ARE_MANY.store(true, Ordering::Relaxed);
    KEPT_HERE.wipe_on_fork()
}

/// There is one at this descriptor.
#[inline]
pub(crate) fn has(fd: c_int) -> bool {
    fd >= LOWEST.load(Ordering::Relaxed) && fd != NONE && place_of(fd).is_some()
}

fn place_of(fd: c_int) -> Option<&'static AtomicI32> {
    OWN.iter().find(|one| one.load(Ordering::Relaxed) == fd)
}

/// Takes a duplicate of a descriptor for the library. Its place, or `None` if there is no room.
pub(crate) fn keep(fd: c_int) -> Option<usize> {
    let place = OWN.iter().position(|one| {
        one.compare_exchange(NONE, c_int::MIN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })?;
    let new = high(fd).unwrap_or(NONE);
    KEPT_HERE[place].store(1, Ordering::Relaxed);
    OWN[place].store(new, Ordering::Release);
    COUNT.fetch_max(place as c_int + 1, Ordering::AcqRel);
    (new != NONE).then_some(place)
}

/// The descriptor of what is in a place now, if there is anything.
#[inline]
pub(crate) fn fd(place: usize) -> Option<c_int> {
    let fd = OWN.get(place)?.load(Ordering::Acquire);
    (fd >= 0).then_some(fd)
}

/// What is in the place that a word names: one more than that; 0: none.
pub(crate) fn named(word: &AtomicU64) -> Option<BorrowedFd<'static>> {
    let fd = fd(word.load(Ordering::Acquire).checked_sub(1)? as usize)?;
    // Ours for as long as the word names it; otherwise a call with it fails.
    Some(borrow(fd))
}

/// A program is about to put something of its own at this descriptor.
pub(crate) fn give_way(fd: c_int) {
    let Some(place) = place_of(fd) else { return };
    // It is the program's even if ours has nowhere to go.
    place.store(high(fd).unwrap_or(NONE), Ordering::Release);
}

/// A duplicate at a high number.
fn high(fd: c_int) -> Option<c_int> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    let old = borrow(fd);
    let below = match ARE_MANY.load(Ordering::Relaxed) {
        true => (limit / 4).clamp(BELOW, BELOW_LIGHT),
        false => BELOW,
    };
    let least = c_int::try_from(limit.saturating_sub(below)).unwrap_or(0);
    let new = fcntl_dupfd_cloexec(old, least).ok().map(IntoRawFd::into_raw_fd)?;
    LOWEST.fetch_min(new, Ordering::AcqRel);
    Some(new)
}

/// Calls with each stretch of descriptors from `first` to `last` that has none of ours in it.
pub(crate) fn between(first: u32, last: u32, mut with: impl FnMut(u32, u32)) {
    let mut next = Some(first);
    while let Some(begin) = next.filter(|begin| *begin <= last) {
        let inside = |fd: &u32| (begin..=last).contains(fd);
        let all = OWN.iter().filter_map(|one| u32::try_from(one.load(Ordering::Relaxed)).ok());
        let ours = all.filter(inside).min();
        match ours {
            Some(ours) if ours > begin => with(begin, ours - 1),
            Some(_) => {}
            None => with(begin, last),
        }
        next = ours.and_then(|ours| ours.checked_add(1));
    }
}

/// One of ours is among them.
pub(crate) fn is_among(first: u32, last: u32) -> bool {
    COUNT.load(Ordering::Relaxed) != 0
        && OWN.iter().any(|one| {
            let fd = u32::try_from(one.load(Ordering::Relaxed));
            fd.is_ok_and(|fd| (first..=last).contains(&fd))
        })
}

/// Closes one of ours.
pub(crate) fn close(fd: c_int) {
    let Some(place) = place_of(fd) else { return };
    place.store(NONE, Ordering::Release);
    close_own(fd);
}

/// Closes what a child has copies of, and not what it has kept itself.
pub(crate) fn close_inherited() {
    WAKER.store(0, Ordering::Release);
    let all = OWN.iter().zip(&*KEPT_HERE);
    for (one, _) in all.filter(|(_, kept_here)| kept_here.load(Ordering::Relaxed) == 0) {
        let fd = one.swap(NONE, Ordering::AcqRel);
        if fd >= 0 {
            close_own(fd);
        }
    }
}
