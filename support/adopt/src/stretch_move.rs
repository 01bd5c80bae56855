//! Moves one stretch of pages: copies it, then replaces it by one system call.
//!
//! A [`StretchMove`] says *what* is moved; the strategies make sure that *no thread stores into the
//! old pages between the two steps*. Nothing here allocates or takes a lock: the steps run while
//! other threads of the program stand still with any lock in their hands.
#![expect(unsafe_code)]
// UNSAFETY: replaces mappings of the running program; the reasons why that is right are the
// purpose of this crate and stand at each block.

use crate::adopted_regions::{ReadBackSource, Region};
use crate::io_uring_buffers;
use crate::kernel_page_users::pinned_pages;
use crate::movable_range;
use crate::page_filler::PageFiller;
use core::ops::ControlFlow;
use core::slice;
use omniverb_sys::extent::Kind;
use omniverb_sys::proc_maps;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous,
    mprotect, mremap_fixed, munmap,
};

pub(crate) const PAGE_BYTES: usize = 4096;

/// Budget: longest stretch moved at once. It bounds how long other threads wait (about two
/// milliseconds) and how much memory exists twice.
pub(crate) const STRETCH_BYTES_MAX: usize = 4 << 20;
/// Budget: the same before a fork, which itself holds up other threads for longer. The fewer steps
/// the fewer stops of threads, each of which takes a fraction of a millisecond.
pub(crate) const STRETCH_BYTES_MAX_BEFORE_FORK: usize = 16 << 20;
/// Shortest stretch moved at once where there is more, however little memory is left: for each
/// the threads are stopped once.
pub(crate) const STRETCH_BYTES_MIN: usize = 128 << 10;

/// Pages of the program at `address` and where they are, or will be, in the region's file.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub region: &'a Region,
    pub offset: u64,
    pub address: usize,
    pub length: usize,
}

/// Which way a stretch moves.
#[derive(Clone, Copy)]
pub(crate) enum MoveDirection<'a> {
    /// From private pages to the file.
    Out {
        /// Tells which pages were ever touched.
        pagemap: Option<BorrowedFd<'a>>,
    },
    /// From the file to private pages.
    Back {
        /// Where the private pages are being prepared: same length as the stretch.
        staging: usize,
        /// Tells which pages the program made guard pages.
        pagemap: Option<BorrowedFd<'a>>,
        /// Where the contents are read.
        source: ReadBackSource,
        /// Fills pages quicker than they are read.
        filler: Option<&'a PageFiller>,
    },
}

#[derive(Clone, Copy)]
pub(crate) struct StretchMove<'a> {
    pub stretch: Stretch<'a>,
    pub direction: MoveDirection<'a>,
}

impl StretchMove<'_> {
    /// Copies the contents to where they will live. Until [`StretchMove::replace`] no thread may
    /// store into the pages.
    pub(crate) fn copy(&self) -> Result<(), Errno> {
        match self.direction {
            MoveDirection::Out { pagemap } => match self.stretch.region.kind {
                Kind::File => copy_out(self.stretch, pagemap),
                Kind::Device => copy_onto_device(self.stretch),
            },
            MoveDirection::Back { staging, source, pagemap, filler } => {
                copy_back(self.stretch, staging, source, filler)?;
                pagemap.map_or(Ok(()), |pagemap| guard_alike(self.stretch, pagemap, staging))
            }
        }
    }

    /// Puts the copy in the place of the original, atomically for every thread: both calls change
    /// the mapping under the kernel's own lock. `protection`: what [`StretchMove::protection`]
    /// found, under the same conditions.
    pub(crate) fn replace(&self, protection: MprotectFlags) -> Result<(), Errno> {
        match self.direction {
            MoveDirection::Out { .. } => map_file(self.stretch),
            MoveDirection::Back { staging, .. } => {
                let Stretch { address, length, .. } = self.stretch;
                // SAFETY: the staging pages are ours; what they replace was found to be our own
                // file's pages, whose contents they hold.
                unsafe {
                    let from = core::ptr::with_exposed_provenance_mut(staging);
                    let to = core::ptr::with_exposed_provenance_mut(address);
                    if protection != MprotectFlags::READ | MprotectFlags::WRITE {
                        mprotect(from, length, protection)?;
                    }
                    mremap_fixed(from, length, length, MremapFlags::MAYMOVE, to)?;
                }
                Ok(())
            }
        }
    }

    /// The protection that the program's pages have now. `None`: they are not of the kind that is
    /// to be replaced any more, or not all have the same protection.
    pub(crate) fn protection(&self) -> Result<Option<MprotectFlags>, Errno> {
        let Stretch { region, offset, address, length } = self.stretch;
        let mut covered_to = address;
        let mut found = None;
        proc_maps::for_each(|mapping| {
            if mapping.start > covered_to || covered_to >= address + length {
                return ControlFlow::Break(());
            }
            if mapping.end > covered_to {
                let fits = match self.direction {
                    MoveDirection::Out { .. } => movable_range::is_plain(mapping),
                    MoveDirection::Back { .. } => {
                        let into = covered_to - mapping.start;
                        let expected = offset + (covered_to - address) as u64;
                        region.part_in(mapping).is_some()
                            && mapping.offset + into as u64 == expected
                    }
                };
                let protection = protection_of(mapping);
                if !fits || *found.get_or_insert(protection) != protection {
                    return ControlFlow::Break(());
                }
                covered_to = mapping.end;
            }
            ControlFlow::Continue(())
        })?;
        Ok(found.filter(|_| covered_to >= address + length))
    }

    /// As [`StretchMove::protection`], while no thread can change anything: looks at the flags,
    /// too.
    pub(crate) fn protection_still(&self) -> Result<Option<MprotectFlags>, Errno> {
        let Stretch { address, length, .. } = self.stretch;
        let is_plain = match self.direction {
            MoveDirection::Out { .. } => {
                movable_range::has_plain_flags_still(address, address + length)?
            }
            MoveDirection::Back { .. } => true,
        };
        if is_plain { self.protection() } else { Ok(None) }
    }

    /// True if io_uring may have got hold of the pages since it was looked for: a buffer that was
    /// registered in them keeps the old ones. Asked when no thread can register one.
    /// `processes`: those in this memory, each with one of its threads.
    pub(crate) fn is_pinned(&self, processes: impl IntoIterator<Item = (i32, i32)>) -> bool {
        let Stretch { address, length, .. } = self.stretch;
        let mut processes = processes.into_iter();
        pinned_pages()
            && match self.direction {
                // An adoption has found that there is no ring.
                MoveDirection::Out { .. } => true,
                MoveDirection::Back { .. } => processes.any(|process| {
                    io_uring_buffers::of_process(process, address, address + length)
                }),
            }
    }

    /// True if the calling thread runs on these pages, or has its `errno` there: it must not be the
    /// one that copies them.
    pub(crate) fn is_under_caller(&self) -> bool {
        /// Frames of our callers, whose variables are changed.
        const ABOVE: usize = 64 << 10;
        /// Frames of what is called.
        const BELOW: usize = 64 << 10;
        let local = 0u8;
        let stack = (&raw const local).addr();
        // SAFETY: only the address is used.
        let errno = unsafe { libc::__errno_location() }.addr();
        let (start, end) = (self.stretch.address, self.stretch.address + self.stretch.length);
        (start < stack.saturating_add(ABOVE) && stack.saturating_sub(BELOW) < end)
            || (start..end).contains(&errno)
    }
}

/// Maps the file's pages over the program's. Forked children do not inherit the mapping: the fork
/// hooks give them a private copy, and a child made behind their back must not share.
fn map_file(stretch: Stretch<'_>) -> Result<(), Errno> {
    let Stretch { region, offset, address, length } = stretch;
    let at = core::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the pages being replaced are private anonymous pages whose contents the file holds.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        mmap(at, length, protection, MapFlags::SHARED | MapFlags::FIXED, region.file(), offset)?;
        // Cannot fail for a mapping just made; if it did, forked children would merely see a
        // mapping that the hooks replace.
        let _ = madvise(at, length, Advice::LinuxDontFork);
        // The file ends with the region. Where the last page is a mapping of its own the whole
        // cannot be grown beyond that: growing more than one mapping is EFAULT. Advice about
        // reading ahead, of which there is nothing for a memory file, keeps it apart.
        let last = length - PAGE_BYTES;
        if offset + length as u64 == region.offset + region.length as u64 {
            let _ = madvise(at.wrapping_byte_add(last), PAGE_BYTES, Advice::Random);
        }
    }
    Ok(())
}

fn page_is_zero(page: &[u8]) -> bool {
    // A first look at 64 bytes settles nearly all pages that hold something.
    let (head, tail) = page.split_at(64);
    head.iter().all(|&byte| byte == 0) && {
        // SAFETY: every bit pattern is a u64.
        let (before, words, after) = unsafe { tail.align_to::<u64>() };
        before.iter().chain(after).all(|&byte| byte == 0)
            && words.chunks(32).all(|chunk| chunk.iter().fold(0, |sum, word| sum | word) == 0)
    }
}

/// What the kernel says of a page of the program's, in `/proc/self/pagemap`.
#[derive(Clone, Copy)]
struct PagemapEntry(u64);

impl PagemapEntry {
    const BYTES: usize = 8;
    /// Entries read at once.
    const COUNT: usize = 512;

    /// There is a page, or something in the place of one.
    fn is_touched(self) -> bool {
        self.0 & (0b11 << 62) != 0
    }

    /// There is a page, which can be read without a fault that cannot be served.
    fn is_present(self) -> bool {
        self.0 & (1 << 63) != 0
    }

    /// It is a guard page (`MADV_GUARD_INSTALL`), as kernels from 6.15 on tell: a thread that
    /// touches it gets SIGSEGV.
    fn is_guard(self) -> bool {
        self.0 & (1 << 58) != 0
    }
}

/// Calls `visit` for each page of a stretch, with its number; `None`: nothing is known of it.
fn for_each_entry(
    stretch: Stretch<'_>,
    pagemap: Option<BorrowedFd<'_>>,
    mut visit: impl FnMut(usize, Option<PagemapEntry>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let pages = stretch.length / PAGE_BYTES;
    let mut entries = [0u8; PagemapEntry::COUNT * PagemapEntry::BYTES];
    let mut page = 0;
    while page < pages {
        let count = (pages - page).min(PagemapEntry::COUNT);
        let known = pagemap.is_some_and(|pagemap| {
            let wanted = &mut entries[..count * PagemapEntry::BYTES];
            let bytes = wanted.len();
            let at = (stretch.address / PAGE_BYTES + page) * PagemapEntry::BYTES;
            pread(pagemap, wanted, at as u64) == Ok(bytes)
        });
        for (index, entry) in
            entries.as_chunks::<{ PagemapEntry::BYTES }>().0[..count].iter().enumerate()
        {
            visit(page + index, known.then(|| PagemapEntry(u64::from_ne_bytes(*entry))))?;
        }
        page += count;
    }
    Ok(())
}

/// Writes the stretch into the file. Pages that were never touched, or hold only zeros, stay holes
/// there, so that a huge sparse region costs what it uses. A guard page is `EFAULT`: it stays one,
/// and where it is. No page is touched here of which it is not known that it can be.
fn copy_out(stretch: Stretch<'_>, pagemap: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut run: Option<usize> = None;
    for_each_entry(stretch, pagemap, |page, entry| {
        if entry.is_some_and(PagemapEntry::is_guard) {
            return Err(Errno::FAULT);
        }
        let at = stretch.address + page * PAGE_BYTES;
        let holds_data = match entry {
            Some(entry) if !entry.is_touched() => false,
            Some(entry) if entry.is_present() => {
                // SAFETY: inside the stretch, which is readable memory that is not written now.
                !page_is_zero(unsafe {
                    slice::from_raw_parts(core::ptr::with_exposed_provenance(at), PAGE_BYTES)
                })
            }
            _ => {
                let mut copy = [0u8; PAGE_BYTES];
                read_own(at, &mut copy)?;
                !page_is_zero(&copy)
            }
        };
        match (run, holds_data) {
            (None, true) => run = Some(page),
            (Some(begin), false) => {
                write_pages(stretch, begin, page)?;
                run = None;
            }
            _ => {}
        }
        Ok(())
    })?;
    if let Some(begin) = run {
        write_pages(stretch, begin, stretch.length / PAGE_BYTES)?;
    }
    Ok(())
}

/// Copies a page of the program's that may be there or not: `EFAULT` instead of a signal.
fn read_own(address: usize, copy: &mut [u8; PAGE_BYTES]) -> Result<(), Errno> {
    let to = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: PAGE_BYTES };
    let iov_base = core::ptr::with_exposed_provenance_mut(address);
    let from = libc::iovec { iov_base, iov_len: PAGE_BYTES };
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: one page each, of which the kernel checks that it is there.
    let count = unsafe {
        libc::syscall(libc::SYS_process_vm_readv, own, &raw const to, 1, &raw const from, 1, 0)
    };
    match count {
        -1 if Errno::from_io_error(&std::io::Error::last_os_error()) != Some(Errno::FAULT) => {
            // The call is forbidden here.
            // SAFETY: inside the stretch, which is memory that nobody writes now.
            unsafe {
                let from = core::ptr::with_exposed_provenance::<u8>(address);
                copy.as_mut_ptr().copy_from_nonoverlapping(from, PAGE_BYTES);
            }
            Ok(())
        }
        count if usize::try_from(count) == Ok(PAGE_BYTES) => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Makes guard pages of those pages of the copy that are such in the stretch.
fn guard_alike(stretch: Stretch<'_>, pagemap: BorrowedFd<'_>, staging: usize) -> Result<(), Errno> {
    const GUARD_INSTALL: libc::c_int = 102;
    for_each_entry(stretch, Some(pagemap), |page, entry| {
        if entry.is_some_and(PagemapEntry::is_guard) {
            let at = core::ptr::with_exposed_provenance_mut(staging + page * PAGE_BYTES);
            // SAFETY: a page of the staging area, which only this thread knows.
            unsafe { libc::madvise(at, PAGE_BYTES, GUARD_INSTALL) };
        }
        Ok(())
    })
}

/// Copies to a device, which can only be mapped. What is there before belongs to no process, and is
/// perhaps no zeros.
fn copy_onto_device(stretch: Stretch<'_>) -> Result<(), Errno> {
    let there = StagingPages::over(stretch)?;
    for at in (0..stretch.length).step_by(PAGE_BYTES) {
        // SAFETY: one page of the stretch, which is readable memory that is not written now, and
        // one of the mapping just made, which is for the pages of the stretch alone.
        unsafe {
            let from = core::ptr::with_exposed_provenance::<u8>(stretch.address + at);
            let to = core::ptr::with_exposed_provenance_mut::<u8>(there.address + at);
            let zeros = |page| page_is_zero(slice::from_raw_parts(page, PAGE_BYTES));
            if !zeros(from) || !zeros(to) {
                to.copy_from_nonoverlapping(from, PAGE_BYTES);
            }
        }
    }
    Ok(())
}

fn write_pages(stretch: Stretch<'_>, begin: usize, end: usize) -> Result<(), Errno> {
    let mut done = begin * PAGE_BYTES;
    while done < end * PAGE_BYTES {
        let at = core::ptr::with_exposed_provenance(stretch.address + done);
        // SAFETY: inside the stretch, which is readable memory that is not written now.
        let bytes = unsafe { slice::from_raw_parts(at, end * PAGE_BYTES - done) };
        match pwrite(stretch.region.file(), bytes, stretch.offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Copies the stretch to `to`, which holds zeros: from the file, of which only the parts that hold
/// data are read, or from the mapping; from a device by another mapping.
pub(crate) fn copy_back(
    stretch: Stretch<'_>,
    to: usize,
    source: ReadBackSource,
    filler: Option<&PageFiller>,
) -> Result<(), Errno> {
    if source == ReadBackSource::Mapping {
        return copy_mapping(stretch.address, stretch.length, to);
    }
    if stretch.region.kind == Kind::Device {
        return copy_mapping(StagingPages::over(stretch)?.address, stretch.length, to);
    }
    let end = stretch.offset + stretch.length as u64;
    let mut at = stretch.offset;
    while at < end {
        let data = match seek(stretch.region.file(), SeekFrom::Data(at)) {
            Ok(data) if data < end => data,
            Ok(_) | Err(Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let hole = seek(stretch.region.file(), SeekFrom::Hole(data))?.min(end);
        at = data;
        // Where the program has them mapped, if they can be read there.
        if let Some(filler) = filler {
            let into = usize::try_from(data - stretch.offset).map_err(|_| Errno::INVAL)?;
            let length = usize::try_from(hole - data).map_err(|_| Errno::INVAL)?;
            if filler.fill(to + into, stretch.address + into, length)? {
                at = hole;
                continue;
            }
        }
        populate(to, data - stretch.offset, hole - data);
        while at < hole {
            let into = usize::try_from(at - stretch.offset).map_err(|_| Errno::INVAL)?;
            let length = usize::try_from(hole - at).map_err(|_| Errno::INVAL)?;
            // SAFETY: inside the staging area, which only this thread knows.
            let bytes = unsafe {
                let to = core::ptr::with_exposed_provenance_mut::<u8>(to + into);
                slice::from_raw_parts_mut(to, length)
            };
            match pread(stretch.region.file(), bytes, at) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => at += count as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

/// Makes pages of the staging area at once that are going to be written, instead of by a fault
/// each. Where the kernel cannot (before Linux 5.14) they come as they are written.
fn populate(staging: usize, from: u64, length: u64) {
    let (Ok(from), Ok(length)) = (usize::try_from(from), usize::try_from(length)) else { return };
    let at = core::ptr::with_exposed_provenance_mut(staging + from);
    // SAFETY: pages of the staging area, which only this thread knows; their contents stay.
    let _ = unsafe { madvise(at, length, Advice::LinuxPopulateWrite) };
}

fn copy_mapping(from: usize, length: usize, to: usize) -> Result<(), Errno> {
    let mut copy = [0u8; PAGE_BYTES];
    for at in (0..length).step_by(PAGE_BYTES) {
        read_own(from + at, &mut copy)?;
        if !page_is_zero(&copy) {
            let to = core::ptr::with_exposed_provenance_mut::<u8>(to + at);
            // SAFETY: one page of the staging area, which only this thread knows.
            unsafe { to.copy_from_nonoverlapping(copy.as_ptr(), PAGE_BYTES) };
        }
    }
    Ok(())
}

/// Pages mapped for a moment, mostly fresh private ones: unmapped again unless they were moved
/// elsewhere.
pub(crate) struct StagingPages {
    pub address: usize,
    length: usize,
}

impl StagingPages {
    pub(crate) fn new(length: usize) -> Result<StagingPages, Errno> {
        // SAFETY: a new mapping at an address the kernel chooses.
        let at = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(core::ptr::null_mut(), length, protection, MapFlags::PRIVATE)?
        };
        Ok(StagingPages { address: at.expose_provenance(), length })
    }

    /// The pages of the file that a stretch is on, or is to be, once more.
    fn over(stretch: Stretch<'_>) -> Result<StagingPages, Errno> {
        let Stretch { region, offset, length, .. } = stretch;
        if !region.file_is_ours() {
            return Err(Errno::BADF);
        }
        // SAFETY: a new mapping at an address the kernel chooses.
        let at = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                core::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                region.file(),
                offset,
            )?
        };
        Ok(StagingPages { address: at.expose_provenance(), length })
    }

    pub(crate) fn into_address(self) -> usize {
        let address = self.address;
        core::mem::forget(self);
        address
    }
}

impl Drop for StagingPages {
    fn drop(&mut self) {
        if self.length > 0 {
            unmap(self.address, self.length);
        }
    }
}

/// Unmaps pages that this crate mapped for itself.
pub(crate) fn unmap(address: usize, length: usize) {
    // SAFETY: callers pass only what they mapped and alone know.
    let _ = unsafe { munmap(core::ptr::with_exposed_provenance_mut(address), length) };
}

pub(crate) fn protection_of(mapping: &proc_maps::Mapping<'_>) -> MprotectFlags {
    let mut protection = MprotectFlags::empty();
    protection.set(MprotectFlags::READ, mapping.may_read);
    protection.set(MprotectFlags::WRITE, mapping.may_write);
    protection.set(MprotectFlags::EXEC, mapping.may_execute);
    protection
}

/// `/proc/self/pagemap`, if the process may read it (a process that is not dumpable may not).
pub(crate) fn open_pagemap() -> Option<OwnedFd> {
    proc_maps::open_read(c"/proc/self/pagemap").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_pages_are_recognised_to_the_last_byte() {
        let mut page = vec![0u8; PAGE_BYTES];
        assert!(page_is_zero(&page));
        for at in [0, 63, 64, 65, 2048, PAGE_BYTES - 1] {
            page[at] = 1;
            assert!(!page_is_zero(&page), "byte {at}");
            page[at] = 0;
        }
    }
}
