//! Page adoption: moves pages of the running program onto a memfd at the same virtual address, so
//! that they can be shared with another process, and back.
//!
//! In: the address range of a memory region. Out: a memfd that holds the region's whole pages and
//! nothing else, sealed as the peers' rights demand. The program goes on using its pages at the
//! same addresses throughout and loses no store of any thread; see [`Strategy`] for how.
//!
//! This code runs inside other people's processes: it makes raw system calls, logs nothing, starts
//! no thread, keeps `errno` and the signal mask, and allocates nothing while pages are in motion.
//!
//! # What the program can notice
//!
//! * `fork()`: the child gets private copies (`fork` module). They are in place when our hook has
//!   run in the child, which is before all hooks that were registered later; a library
//!   calls [`install_fork_hooks`] when it is loaded, to be early. A process made by a raw `clone`
//!   system call behind libc's back finds adopted pages unmapped rather than shared.
//! * `vfork()`, `posix_spawn()`, `exec()`: nothing; the memory goes with the old program.
//! * Core dumps show adopted pages if the dump filter includes shared anonymous memory (the
//!   default does). Pages with flags given by `madvise()` or `mlock()` are not adopted; those
//!   given while they are adopted are lost at their release, guard pages excepted.
//! * `munmap()`, `mremap()`, `mprotect()` and shrinking the heap work on adopted pages. Pages that
//!   moved are found at their new address when they are released, and what lives at the old
//!   address by then is left alone.
//! * Growing adopted pages by `mremap()` fails with `EFAULT`, which `realloc()` takes for "copy
//!   them": the file is no larger than the region. A region of a single page can be grown, and
//!   what is behind the page is SIGBUS.
//! * `MADV_DONTNEED` does not zero adopted pages.
//! * A futex that is shared between processes (not `FUTEX_PRIVATE_FLAG`) inside the pages would
//!   miss a wake-up that crosses the move.
//!
//! Kernel stores that do not go through the page tables (AIO, io_uring, devices) would hit the old
//! pages. A program that uses such interfaces at the time is refused
//! ([`AdoptError::KernelStores`]); one that begins to use them on adopted pages must not have them
//! in flight when pages are released (at deregistration, and when rights or links of peers end).
//! Buffers that io_uring has registered since then stay where they are
//! ([`AdoptError::Registered`]), and what it receives by the page tables is not lost.

mod address_space_sharers;
mod adopted_regions;
mod blocked_signals;
mod error;
mod fork;
mod io_uring_buffers;
mod kernel_page_users;
mod movable_range;
mod move_lock;
mod page_filler;
mod pinning_devices;
mod proc_task_files;
mod process_identity;
mod process_shares_memory;
mod reserved_pages_for_release;
mod strategy;
mod stretch_move;
mod userfaultfd_abi;

pub use error::AdoptError;
pub use fork::install as install_fork_hooks;
pub use movable_range::kernel_may_store;
pub use omniverb_sys::Access;
pub use strategy::Strategy;

use adopted_regions::{ReadBackSource, Region, RegionPart};
use blocked_signals::BlockedSignals;
use core::ops::ControlFlow;
use core::ptr::NonNull;
use move_lock::MOVES;
use omniverb_sys::extent::Kind;
use omniverb_sys::{Extent, available_memory, clock, memfd, proc_maps};
use page_filler::PageFiller;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use rustix::time::Timespec;
use strategy::{PageMover, RetryState};
use stretch_move::{
    MoveDirection, PAGE_BYTES, STRETCH_BYTES_MAX, STRETCH_BYTES_MAX_BEFORE_FORK, STRETCH_BYTES_MIN,
    Stretch, StretchMove,
};

/// Name of the memfds; shows in `/proc/PID/maps`.
const FILE_NAME: &str = "omniverb-mr";

const STANDARD_ERROR: RawFd = 2;

/// A release that finds the other threads busy goes on trying for this long: unlike an adoption it
/// should not be given up lightly.
const RELEASE_TIME_MAX_NS: u64 = 1_000_000_000;
/// So often a release looks for pages anew whose mappings changed meanwhile, before it pauses: a
/// thread that changes them all the time is stopped each time, and gets on between.
const CHANGES_MAX: usize = 32;
const RELEASE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The whole pages of one memory region, living on a memfd at their old addresses.
///
/// Dropping it releases the pages; where that fails they stay on the memfd for the life of the
/// process.
#[derive(Debug)]
pub struct AdoptedPages {
    region: NonNull<Region>,
    /// The region is gone; only dropping is left.
    released: bool,
}

// SAFETY: the region is immutable but for its list link, which only the holder of MOVES touches.
#[expect(unsafe_code)]
// UNSAFETY: the pointer keeps the compiler from seeing it.
unsafe impl Send for AdoptedPages {}
// SAFETY: as above.
#[expect(unsafe_code)]
// UNSAFETY: as above.
unsafe impl Sync for AdoptedPages {}

/// A release that failed; the pages are still adopted.
#[derive(Debug, thiserror::Error)]
#[error("cannot release adopted pages: {error}")]
pub struct ReleaseError {
    /// To try again with.
    pub pages: AdoptedPages,
    /// What was in the way.
    pub error: AdoptError,
}

/// Moves the pages that lie wholly inside `address .. address + length` onto a memfd.
///
/// `peers`: what a holder of the memfd may map it for. If that is [`Access::ReadOnly`] it is sealed
/// so that no new writable mapping can be made, not even after reopening it.
///
/// # Errors
/// [`AdoptError`]; the pages are where they were.
pub fn adopt(address: usize, length: usize, peers: Access) -> Result<AdoptedPages, AdoptError> {
    adopt_with(address, length, peers, &Strategy::EXACT)
}

/// As [`adopt`], with only these strategies, tried in this order. For tests and measurements.
///
/// # Errors
/// As [`adopt`].
pub fn adopt_with(
    address: usize,
    length: usize,
    peers: Access,
    strategies: &[Strategy],
) -> Result<AdoptedPages, AdoptError> {
    let (start, end) = whole_pages(address, length)?;
    let bytes = (end - start) as u64;
    let file = memfd::create_sealable(FILE_NAME, bytes).map_err(system)?;
    adopt_onto(Extent::new(file, 0, bytes), start, peers, strategies)
}

fn whole_pages(address: usize, length: usize) -> Result<(usize, usize), AdoptError> {
    let end = address.checked_add(length).ok_or(AdoptError::NoWholePage)? & !(PAGE_BYTES - 1);
    let start = address.checked_next_multiple_of(PAGE_BYTES).ok_or(AdoptError::NoWholePage)?;
    if start >= end { Err(AdoptError::NoWholePage) } else { Ok((start, end)) }
}

fn system(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// As [`adopt_with`], onto an extent of as many pages that another process made: it is empty and
/// its file sealed against resizing, and, if peers may not write, not finally. The file is sealed
/// for good here. In a virtual machine it may be a piece of a device of memory instead, and outside
/// one a piece of such memory that is shared with it: a holder of that can write to it, so it is
/// never for peers that may not.
///
/// # Errors
/// As [`adopt`]; [`AdoptError::Stuck`] if some pages are on the extent, and stay there.
pub fn adopt_onto(
    extent: Extent<OwnedFd>,
    start: usize,
    peers: Access,
    strategies: &[Strategy],
) -> Result<AdoptedPages, AdoptError> {
    let length = extent.verify().map_err(|_| AdoptError::System(Errno::INVAL))?;
    let end = start.checked_add(length).filter(|_| start.is_multiple_of(PAGE_BYTES));
    let end = end.ok_or(AdoptError::NoWholePage)?;
    let kind = extent.kind().map_err(system)?;
    if (kind, peers) == (Kind::Device, Access::ReadOnly) {
        return Err(AdoptError::NotPermitted);
    }
    // What holds zeros stays a hole of the file. In a part of a larger file others may have written
    // to what was free.
    if kind == Kind::File && extent.offset != 0 {
        extent.empty().map_err(system)?;
    }
    let Extent { mut file, offset, .. } = extent;
    if kind == Kind::File && !memfd::is_permitted(offset.saturating_add(length as u64)) {
        return Err(AdoptError::NotPermitted);
    }
    if omniverb_sys::clock::page_bytes() != PAGE_BYTES {
        return Err(AdoptError::NotPermitted);
    }
    let calm = BlockedSignals::new();
    let step = step_of(length, STRETCH_BYTES_MAX);
    fork::install();
    if file.as_raw_fd() <= STANDARD_ERROR {
        // A program that closed its standard streams must not print into its own memory.
        file = rustix::io::fcntl_dupfd_cloexec(&file, STANDARD_ERROR + 1)?;
    }

    let lock = MOVES.guard();
    movable_range::check(start, end)?;
    process_identity::prepare()?;
    reserved_pages_for_release::prepare()?;
    strategy::prepare()?;
    strategy::keep();
    let region = Region::new((start, length), (file, offset), kind)?.link();
    let moved = move_out(region, strategies, step).and_then(|()| {
        let file = region_of(region).file();
        match kind {
            Kind::File => Ok(memfd::finish(file, peers).map_err(system)?),
            Kind::Device => Ok(()),
        }
    });
    let outcome = match moved {
        Ok(()) => Ok(region),
        Err(error) => Err((
            move_back(region, (strategies, step), RetryState::Left)
                .map(|()| Region::unlink(region)),
            error,
        )),
    };
    drop(lock);
    drop(calm);
    match outcome {
        Ok(region) => Ok(AdoptedPages { region, released: false }),
        Err((Ok(_freed), error)) => Err(error),
        Err((Err(_), _)) => Err(AdoptError::Stuck),
    }
}

#[expect(unsafe_code)]
// UNSAFETY: dereferences a region on the list.
fn region_of<'a>(region: NonNull<Region>) -> &'a Region {
    // SAFETY: callers own the region's entry on the list; only they unlink it.
    unsafe { region.as_ref() }
}

/// Bytes of a region of such a length that are moved at once, which exist twice meanwhile. Reads
/// files, and allocates: not with [`MOVES`].
fn step_of(length: usize, most: usize) -> usize {
    match length <= STRETCH_BYTES_MIN {
        true => STRETCH_BYTES_MIN,
        false => step_within(available_memory::bytes(), most),
    }
}

/// A quarter of the memory that is left, so that what the program itself needs at that moment has
/// room, too.
fn step_within(room: u64, most: usize) -> usize {
    let quarter = usize::try_from(room / 4).unwrap_or(usize::MAX);
    quarter.clamp(STRETCH_BYTES_MIN, most) & !(PAGE_BYTES - 1)
}

fn move_out(
    region: NonNull<Region>,
    strategies: &[Strategy],
    step: usize,
) -> Result<(), AdoptError> {
    let region = region_of(region);
    let pagemap = stretch_move::open_pagemap();
    let mut mover = PageMover::optional(strategies);
    let mut done = 0;
    while done < region.length {
        let stretch = Stretch {
            region,
            offset: region.offset + done as u64,
            address: region.start + done,
            length: step.min(region.length - done),
        };
        let direction = MoveDirection::Out { pagemap: pagemap.as_ref().map(AsFd::as_fd) };
        mover.perform(&StretchMove { stretch, direction }).map_err(|error| match error {
            // A guard page, or one whose contents the machine has lost.
            AdoptError::System(Errno::FAULT) => AdoptError::NotAnonymous,
            error => error,
        })?;
        done += stretch.length;
    }
    Ok(())
}

/// A place where the program has part of a region mapped.
struct MappedPart {
    part: RegionPart,
    protection: MprotectFlags,
    source: ReadBackSource,
}

impl MappedPart {
    /// Takes in what follows on it, in memory and in the file, and is alike.
    fn extend(&mut self, next: &MappedPart) -> bool {
        let follows = next.part.address == self.part.address + self.part.length
            && next.part.offset == self.part.offset + self.part.length as u64
            && (next.protection, next.source) == (self.protection, self.source);
        if follows {
            self.part.length += next.part.length;
        }
        follows
    }
}

fn find_place(region: &Region) -> Result<Option<MappedPart>, AdoptError> {
    let mut found: Option<MappedPart> = None;
    proc_maps::for_each(|mapping| {
        let (protection, source) = (stretch_move::protection_of(mapping), region.source(mapping));
        let place = region.part_in(mapping).map(|part| MappedPart { part, protection, source });
        let Some(before) = &mut found else {
            found = place;
            return ControlFlow::Continue(());
        };
        match place.is_some_and(|place| before.extend(&place)) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    Ok(found)
}

/// Moves everything that is still mapped of the region's file, wherever that is by now.
fn move_back(
    region: NonNull<Region>,
    (strategies, step): (&[Strategy], usize),
    patience: RetryState,
) -> Result<(), AdoptError> {
    let region = region_of(region);
    let mut mover = PageMover::mandatory(strategies, patience);
    let mut changes = 0;
    while let Some(place) = find_place(region)? {
        match move_place(region, &mut mover, &place, step) {
            // What was found there is there no more, or not in one piece: it is looked for again.
            Err(AdoptError::Changed) if changes < CHANGES_MAX => changes += 1,
            Err(AdoptError::Changed) => return Err(AdoptError::Busy),
            outcome => outcome?,
        }
    }
    region.empty(region.offset, region.length);
    Ok(())
}

/// In steps: behind each the file is emptied, so that there is little that exists twice. From the
/// end to the beginning: to find the end of what the file holds the kernel goes through all that is
/// there, which is no more than a step if what follows has been emptied.
fn move_place(
    region: &Region,
    mover: &mut PageMover<'_>,
    place: &MappedPart,
    step: usize,
) -> Result<(), AdoptError> {
    let RegionPart { address, length, offset } = place.part;
    if io_uring_buffers::within(address, address + length) {
        return Err(AdoptError::Registered);
    }
    let pagemap = stretch_move::open_pagemap();
    let filler = if length < STRETCH_BYTES_MIN { None } else { PageFiller::open() };
    let mut left = length;
    while left > 0 {
        let (staging, staged) = reserved_pages_for_release::pages(step.min(left))?;
        let begin = left - staged;
        let stretch = Stretch {
            region,
            offset: offset + begin as u64,
            address: address + begin,
            length: staged,
        };
        let direction = MoveDirection::Back {
            staging,
            pagemap: pagemap.as_ref().map(AsFd::as_fd),
            source: place.source,
            filler: filler.as_ref(),
        };
        match mover.perform(&StretchMove { stretch, direction }) {
            Ok(()) => reserved_pages_for_release::moved(staged),
            Err(error) => {
                reserved_pages_for_release::empty();
                // The process may have as many mappings as it is allowed.
                if matches!(error, AdoptError::Busy | AdoptError::Changed)
                    || !reserved_pages_for_release::give_up_spare()
                {
                    return Err(error);
                }
                continue;
            }
        }
        if !is_mapped(region, (stretch.offset, staged))? {
            region.empty(stretch.offset, staged);
        }
        left = begin;
    }
    Ok(())
}

/// Whether bytes of a region's file are mapped: a process that is its own peer has them in another
/// place, which gets the same contents.
fn is_mapped(region: &Region, (offset, length): (u64, usize)) -> Result<bool, Errno> {
    let mut found = false;
    proc_maps::for_each(|mapping| {
        found = region.part_in(mapping).is_some_and(|part| {
            part.offset < offset + length as u64 && offset < part.offset + part.length as u64
        });
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

impl AdoptedPages {
    fn region(&self) -> &Region {
        region_of(self.region)
    }

    /// The file that the adopted pages are in; a memfd is sealed for handing out.
    #[must_use]
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.region().file()
    }

    /// From this address on the caller has the file mapped for itself, where no forked child
    /// inherits it; 0: nowhere any more, which is to be said before the pages are released.
    pub fn set_own_mapping(&self, start: usize) {
        self.region().own_mapping.store(start, core::sync::atomic::Ordering::Relaxed);
    }

    /// Address of the first adopted page.
    #[must_use]
    pub fn page_start(&self) -> usize {
        self.region().start
    }

    /// Bytes adopted: a multiple of the page size.
    #[must_use]
    pub fn page_length(&self) -> usize {
        self.region().length
    }

    /// Whether io_uring has buffers registered where they were adopted, so that a release would
    /// fail ([`AdoptError::Registered`]); also where that is not told.
    #[must_use]
    pub fn have_ring_buffers(&self) -> bool {
        let start = self.page_start();
        io_uring_buffers::within(start, start + self.page_length())
    }

    /// Moves the contents back to private pages. Afterwards mappings of the memfd, in any process,
    /// reach nothing of this process.
    ///
    /// # Errors
    /// [`ReleaseError`] hands the pages back, still adopted.
    pub fn release(self) -> Result<(), ReleaseError> {
        self.release_with(&Strategy::ALL)
    }

    /// As [`AdoptedPages::release`], with only these strategies, tried in this order.
    ///
    /// # Errors
    /// As [`AdoptedPages::release`].
    pub fn release_with(self, strategies: &[Strategy]) -> Result<(), ReleaseError> {
        self.release_in_steps(strategies, STRETCH_BYTES_MAX)
    }

    /// As [`AdoptedPages::release`], in longer steps, since a fork follows.
    ///
    /// # Errors
    /// As [`AdoptedPages::release`].
    pub fn release_before_fork(self) -> Result<(), ReleaseError> {
        self.release_in_steps(&Strategy::ALL, STRETCH_BYTES_MAX_BEFORE_FORK)
    }

    fn release_in_steps(
        mut self,
        strategies: &[Strategy],
        step: usize,
    ) -> Result<(), ReleaseError> {
        match self.withdraw(strategies, step) {
            Ok(()) => Ok(()),
            Err(error) => Err(ReleaseError { pages: self, error }),
        }
    }

    fn withdraw(&mut self, strategies: &[Strategy], step: usize) -> Result<(), AdoptError> {
        let _calm = BlockedSignals::new();
        let step = step_of(self.page_length(), step);
        let lock = MOVES.guard();
        let begun = clock::now();
        let tried_for = || clock::now().saturating_sub(begun);
        let mut outcome = move_back(self.region, (strategies, step), RetryState::Left);
        while outcome == Err(AdoptError::Busy) && tried_for() < RELEASE_TIME_MAX_NS {
            let _ = rustix::thread::nanosleep(&RELEASE_PAUSE);
            let patience = match tried_for() > RELEASE_TIME_MAX_NS / 2 {
                true => RetryState::Over,
                false => RetryState::Left,
            };
            outcome = move_back(self.region, (strategies, step), patience);
        }
        outcome?;
        let freed = Region::unlink(self.region);
        self.released = true;
        drop(lock);
        drop(freed);
        Ok(())
    }
}

impl Drop for AdoptedPages {
    fn drop(&mut self) {
        if !self.released {
            let _ = self.withdraw(&Strategy::ALL, STRETCH_BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_moved_at_once_where_little_memory_is_left() {
        let step_within = |room| super::step_within(room, STRETCH_BYTES_MAX);
        assert_eq!(step_within(u64::MAX), STRETCH_BYTES_MAX);
        assert_eq!(step_within(8 << 20), 2 << 20);
        assert_eq!(step_within((8 << 20) - 1), (2 << 20) - PAGE_BYTES);
        assert_eq!(step_within(0), STRETCH_BYTES_MIN);
    }
}
