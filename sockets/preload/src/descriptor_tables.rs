//! Holds what this process knows of its descriptors and of members of epoll sets.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use omniverb_connection::descriptors::{DescriptorTable, Entry, Kind, Members};

use crate::table_memory::Pieces;
use crate::{descriptor_probe, vfork_check};

/// Pieces for a word of each descriptor that can be.
const DESCRIPTOR_PIECES: usize = 1 << 10;
/// Pieces for a node of each, and as many more.
const MEMBERS_PIECES: usize = 1 << 13;

/// What is open at each descriptor.
pub(crate) static DESCRIPTORS: DescriptorTable<Pieces<DESCRIPTOR_PIECES>> =
    DescriptorTable::new(Pieces::new());
/// Which of them are in which sets.
pub(crate) static MEMBERS: Members<Pieces<MEMBERS_PIECES>> = Members::new(Pieces::new());

/// What is open at a descriptor: as known, or else as the kernel says, which is known from then on.
pub(crate) fn look(fd: c_int) -> Entry {
    let known = DESCRIPTORS.look(fd);
    if known.kind() != Kind::Unknown || !vfork_check::is_this_process() {
        return known;
    }
    find(fd)
}

#[cold]
fn find(fd: c_int) -> Entry {
    let seen = DESCRIPTORS.watch(fd);
    if seen.kind() == Kind::Unknown
        && let Some(kind) = descriptor_probe::kind(fd)
    {
        DESCRIPTORS.guess(fd, seen, kind);
    }
    DESCRIPTORS.look(fd)
}

/// What was open at a descriptor, as forgotten before, is closed there now: it is in no set any
/// more, unless another descriptor is for it.
pub(crate) fn left(fd: c_int, was: Entry) {
    if !was.kind().is_stream() && was.kind() != Kind::Set {
        return;
    }
    if !was.is_duplicated() {
        MEMBERS.remove_all(fd, was.id());
    } else if !DESCRIPTORS.has_another(was.id(), fd) {
        // It may be in sets by descriptors that were closed before.
        (0..DESCRIPTORS.end()).for_each(|other| MEMBERS.remove_all(other, was.id()));
    }
}

/// A descriptor was closed, or given to something else, where no hook could see it before.
pub(crate) fn forget(fd: c_int) {
    left(fd, DESCRIPTORS.forget(fd));
}

/// The same for all from `first` to `last`, which are about to be closed.
pub(crate) fn forget_range(first: u32, last: u32) {
    between(first, last).for_each(forget);
}

/// Descriptors from `first` to `last` of which anything may be known.
pub(crate) fn between(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = DESCRIPTORS.end().unsigned_abs();
    (first..=last).take_while(move |fd| *fd < end).map(|fd| fd as c_int)
}

/// This process has an `io_uring`, by which anything may be done with any descriptor.
static HAS_RINGS: AtomicBool = AtomicBool::new(false);

/// It is about to get one.
pub(crate) fn has_rings_now() {
    HAS_RINGS.store(true, Ordering::Relaxed);
}

/// It has one.
pub(crate) fn has_rings() -> bool {
    HAS_RINGS.load(Ordering::Relaxed)
}
