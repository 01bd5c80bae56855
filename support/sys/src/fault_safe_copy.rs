//! Copies to and from the program's memory without raising a signal, even where pages are gone.
//!
//! The kernel makes the copies: it reaches the program's side as `read(2)` does a buffer, and says
//! where it cannot. So a page that another thread is moving is waited for, as in any system call.
//! Nothing is forced: what may not be written by the program is not written for a peer either.
//!
//! What is written comes from a file of ours ([`preadv_copy`]). What is read, and what is written
//! where there is no such file, is copied by `process_vm_writev` and `process_vm_readv` of this
//! very process, which need no right.
//!
//! Where a filter of system calls forbids them, pages are looked at just before they are touched.
//! Then a program that protects a page in the instant between is still hit by a signal.
// UNSAFETY: system calls that rustix lacks, on addresses that the kernel checks.
#![expect(unsafe_code)]

use crate::memory_probe;
use crate::page_protection::NeededAccess;
use crate::preadv_copy::{self, StagingSlot};
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use omniverb_ring::UserMemory;
use rustix::mm::{Advice, madvise};
use rustix::process::getpid;

const PAGE: usize = 4096;
/// Bytes that become visible last: programs wait for the end of what a peer writes.
const LAST: usize = 8;
/// Bytes copied at a time by way of a buffer on the stack, which may be a small one.
const PIECE: usize = 4096;
/// Pieces placed by one system call: with so many each costs no more than a copy of its own.
const TOGETHER: usize = 32;

/// Copies `ours` to as much of the program's memory. False: some of it may not be written.
#[must_use]
pub fn place(ours: UserMemory, program: UserMemory) -> bool {
    match preadv_copy::slot().and_then(|slot| by_file(&slot, ours, program)) {
        Some(is_placed) => is_placed,
        None => copy(CopyDirection::Place, ours, program),
    }
}

/// Copies by way of the file. None: it is gone.
fn by_file(slot: &StagingSlot, ours: UserMemory, program: UserMemory) -> Option<bool> {
    let length = ours.len().min(program.len());
    let mut done = 0;
    while done < length {
        let piece = program.skip(done).first(preadv_copy::BYTES.min(length - done));
        let staged = slot.memory(piece.len());
        staged.copy_from(ours.skip(done));
        if slot.scatter(staged, &ending_last(piece).map(vector))? < piece.len() {
            return Some(false);
        }
        done += piece.len();
    }
    Some(true)
}

/// Copies several pieces, from ours to the program's each, in order and as [`place`] does, by one
/// system call. Says how many: the next one may not be written, or there was no more room for it
/// ([`TOGETHER`] pieces, [`preadv_copy::BYTES`] bytes or, where there is no file, [`PIECE`]).
#[must_use]
pub fn place_all(pieces: &[(UserMemory, UserMemory)]) -> usize {
    if let Some(slot) = preadv_copy::slot() {
        let gathered = CopyBatch::new(pieces, |length| slot.memory(length), preadv_copy::BYTES);
        if let Some(copied) = slot.scatter(gathered.staged, gathered.parts()) {
            return gathered.pieces_in(copied);
        }
    }
    let one_by_one = || pieces.iter().take_while(|(ours, program)| place(*ours, *program)).count();
    if IS_REFUSED.load(Ordering::Relaxed) {
        return one_by_one();
    }
    // To pin one page costs less than to pin the ring for each piece.
    let mut bytes = MaybeUninit::<[u8; PIECE]>::uninit();
    let stack = bytes.as_mut_ptr().expose_provenance();
    // SAFETY: it lives until the kernel has read it, and only what was written is read.
    let memory = |length| unsafe { UserMemory::new(stack, length) };
    let gathered = CopyBatch::new(pieces, memory, PIECE);
    match transfer(CopyDirection::Place, gathered.parts(), gathered.staged) {
        Ok(copied) => gathered.pieces_in(copied),
        Err(libc::ENOSYS | libc::EPERM | libc::EACCES) => one_by_one(),
        Err(_) => 0,
    }
}

/// Pieces that were put one behind the other, to be copied by one system call.
struct CopyBatch {
    staged: UserMemory,
    parts: [libc::iovec; 2 * TOGETHER],
    parts_count: usize,
    ends: [usize; TOGETHER],
    count: usize,
}

impl CopyBatch {
    /// As many as there is room for, into `memory` of that length.
    #[inline]
    fn new(
        pieces: &[(UserMemory, UserMemory)],
        memory: impl Fn(usize) -> UserMemory,
        room: usize,
    ) -> CopyBatch {
        let (mut ends, mut count, mut length) = ([0; TOGETHER], 0, 0);
        for ((ours, program), end) in pieces.iter().zip(&mut ends) {
            let size = ours.len().min(program.len());
            if size > room - length {
                break;
            }
            length += size;
            *end = length;
            count += 1;
        }
        let staged = memory(length);
        let mut parts = [const { vector(UserMemory::EMPTY) }; 2 * TOGETHER];
        let (mut parts_count, mut begin) = (0, 0);
        for ((ours, program), end) in pieces.iter().zip(&ends[..count]) {
            let size = end - begin;
            staged.skip(begin).first(size).copy_from(ours.first(size));
            for part in ending_last(program.first(size)) {
                if !part.is_empty() {
                    parts[parts_count] = vector(part);
                    parts_count += 1;
                }
            }
            begin = *end;
        }
        CopyBatch { staged, parts, parts_count, ends, count }
    }

    fn parts(&self) -> &[libc::iovec] {
        &self.parts[..self.parts_count]
    }

    /// How many are wholly among so many bytes.
    fn pieces_in(&self, bytes: usize) -> usize {
        self.ends[..self.count].iter().take_while(|end| **end <= bytes).count()
    }
}

/// Copies the program's memory to as much of ours. False: some of it may not be read.
#[must_use]
pub fn fetch(program: UserMemory, ours: UserMemory) -> bool {
    copy(CopyDirection::Fetch, ours, program)
}

/// Whether the eight bytes at an address, a multiple of eight, may be written just now.
#[must_use]
pub fn bears_atomics(program: UserMemory) -> bool {
    memory_probe::is_writable(program.address())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyDirection {
    /// From ours to the program's.
    Place,
    /// From the program's to ours.
    Fetch,
}

/// What the kernel made of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyOutcome {
    All,
    /// One of the two sides cannot be reached.
    Fault,
    /// It makes none.
    Refused,
}

/// The kernel makes no such copies here.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);
/// Memory of ours was met that the kernel cannot pin: a device's, which a virtual machine's window
/// is. Nothing hangs on it but speed.
static IS_UNPINNABLE: AtomicBool = AtomicBool::new(false);

fn copy(way: CopyDirection, ours: UserMemory, program: UserMemory) -> bool {
    let length = ours.len().min(program.len());
    let (ours, program) = (ours.first(length), program.first(length));
    if length == 0 {
        return true;
    }
    if !IS_REFUSED.load(Ordering::Relaxed) {
        let direct = match IS_UNPINNABLE.load(Ordering::Relaxed) {
            true => CopyOutcome::Fault,
            false => by_kernel(way, ours, program),
        };
        let made = match direct {
            CopyOutcome::Fault => piecewise(way, ours, program),
            made => made,
        };
        match made {
            CopyOutcome::All => {
                // The program's side is sound, so it was ours.
                if direct == CopyOutcome::Fault {
                    IS_UNPINNABLE.store(true, Ordering::Relaxed);
                }
                return true;
            }
            CopyOutcome::Fault => return false,
            CopyOutcome::Refused => IS_REFUSED.store(true, Ordering::Relaxed),
        }
    }
    after_a_look(way, ours, program)
}

/// By way of memory of ours that can be pinned.
#[cold]
fn piecewise(way: CopyDirection, ours: UserMemory, program: UserMemory) -> CopyOutcome {
    let mut bytes = [0; PIECE];
    let mut done = 0;
    while done < program.len() {
        let (ours, program) = (ours.skip(done).first(PIECE), program.skip(done).first(PIECE));
        let piece = &mut bytes[..program.len()];
        if way == CopyDirection::Place {
            ours.read(piece);
        }
        match UserMemory::lend_mut(piece, |piece| by_kernel(way, piece, program)) {
            CopyOutcome::All => {}
            other => return other,
        }
        if way == CopyDirection::Fetch {
            ours.write(piece);
        }
        done += program.len();
    }
    CopyOutcome::All
}

#[cold]
fn after_a_look(way: CopyDirection, ours: UserMemory, program: UserMemory) -> bool {
    let needs = match way {
        CopyDirection::Place => NeededAccess::Writing,
        CopyDirection::Fetch => NeededAccess::Reading,
    };
    if !memory_probe::is_usable_throughout(program.address(), program.len(), needs) {
        return false;
    }
    match way {
        CopyDirection::Place => program.copy_from(ours),
        CopyDirection::Fetch => ours.copy_from(program),
    }
    true
}

fn by_kernel(way: CopyDirection, ours: UserMemory, program: UserMemory) -> CopyOutcome {
    match transfer(way, &ending_last(program).map(vector), ours) {
        Ok(count) if count == program.len() => CopyOutcome::All,
        Err(libc::ENOSYS | libc::EPERM | libc::EACCES) => CopyOutcome::Refused,
        _ => CopyOutcome::Fault,
    }
}

/// Its parts, in the order in which they become visible.
fn ending_last(program: UserMemory) -> [UserMemory; 2] {
    let first = program.len().saturating_sub(LAST);
    [program.first(first), program.skip(first)]
}

const fn vector(memory: UserMemory) -> libc::iovec {
    libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut::<c_void>(memory.address()),
        iov_len: memory.len(),
    }
}

/// Copies between parts of the program's memory and as much of ours, and says how many bytes; an
/// error if none. The program's side is the local one: the kernel touches that as it does any
/// buffer, and pins only ours.
fn transfer(way: CopyDirection, program: &[libc::iovec], ours: UserMemory) -> Result<usize, i32> {
    let remote = vector(ours);
    let call = match way {
        CopyDirection::Place => libc::SYS_process_vm_readv,
        CopyDirection::Fetch => libc::SYS_process_vm_writev,
    };
    // Whole registers: what is above an `int` in them is anything.
    const ONE: libc::c_ulong = 1;
    const NONE: libc::c_ulong = 0;
    let (local, parts) = (program.as_ptr(), program.len());
    let copied = |process: i32| {
        // SAFETY: the kernel checks every address. What it writes is `ours`, which its creator
        // vouched for, or the program's, which a peer's request may have written.
        let copied =
            unsafe { libc::syscall(call, process, local, parts, &raw const remote, ONE, NONE) };
        usize::try_from(copied).map_err(|_| memory_probe::errno())
    };
    let before = memory_probe::errno();
    let mut made = copied(this_process());
    if made == Err(libc::ESRCH) {
        made = copied(getpid().as_raw_nonzero().get());
    }
    memory_probe::set_errno(before);
    made
}

/// The page that a child of `fork` finds wiped, however it was made: by a stale number it would
/// reach its parent.
#[repr(C, align(4096))]
struct WipeOnFork {
    /// The process; 0: not looked up since it began.
    process: AtomicI32,
    rest: [u8; PAGE - 4],
}

static HERE: WipeOnFork = WipeOnFork { process: AtomicI32::new(0), rest: [0; PAGE - 4] };

fn this_process() -> i32 {
    match HERE.process.load(Ordering::Relaxed) {
        0 => look_up(),
        known => known,
    }
}

#[cold]
fn look_up() -> i32 {
    let process = getpid().as_raw_nonzero().get();
    let page = (&raw const HERE).cast_mut().cast();
    debug_assert!(HERE.rest.len() < PAGE);
    // SAFETY: a page of our own, of which a child is to see zeros.
    if unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_ok() {
        HERE.process.store(process, Ordering::Relaxed);
    }
    process
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
    use std::os::fd::AsFd;

    const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    /// Two pages; what is done to the second one is the test's.
    fn pages() -> usize {
        // SAFETY: memory of our own.
        let at = unsafe {
            mmap_anonymous(core::ptr::null_mut(), 2 * PAGE, BOTH, MapFlags::PRIVATE).unwrap()
        };
        at.expose_provenance()
    }

    fn at(address: usize, length: usize) -> UserMemory {
        // SAFETY: that it may not be there is what these copies are for.
        unsafe { UserMemory::new(address, length) }
    }

    fn pointer(address: usize) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(address)
    }

    /// What each way says: of the first page, and of what reaches into the second one.
    fn said(address: usize) -> [[bool; 2]; 2] {
        let mut ours = vec![7; 2 * PAGE];
        let ways: [fn(CopyDirection, UserMemory, UserMemory) -> bool; 3] =
            [copy, after_a_look, first_way];
        let said = ways.map(|by| {
            [CopyDirection::Place, CopyDirection::Fetch].map(|way| {
                let all = UserMemory::lend_mut(&mut ours, |ours| {
                    assert!(by(way, ours, at(address, PAGE)), "the first page");
                    by(way, ours, at(address, 2 * PAGE))
                });
                let across = UserMemory::lend_mut(&mut ours, |ours| {
                    by(way, ours.first(8), at(address + PAGE - 4, 8))
                });
                assert_eq!(all, across);
                all
            })
        });
        assert_eq!(said[0], said[1]);
        assert_eq!(said[0], said[2]);
        [said[0], said[1]]
    }

    /// What programs get.
    fn first_way(way: CopyDirection, ours: UserMemory, program: UserMemory) -> bool {
        match way {
            CopyDirection::Place => place(ours, program),
            CopyDirection::Fetch => fetch(program, ours),
        }
    }

    #[test]
    fn unreachable_memory_is_an_error_and_no_signal() {
        let both = [[true; 2]; 2];
        let neither = [[false; 2]; 2];
        let address = pages();
        let second = pointer(address + PAGE);
        assert_eq!(said(address), both);
        // SAFETY: memory of this test's.
        unsafe {
            mprotect(second, PAGE, MprotectFlags::READ).unwrap();
            assert_eq!(said(address), [[false, true]; 2], "read-only");
            mprotect(second, PAGE, MprotectFlags::empty()).unwrap();
            assert_eq!(said(address), neither, "protected");
            mprotect(second, PAGE, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            assert_eq!(said(address), both);
            let file = crate::memfd::unsealed("test", PAGE as u64).unwrap();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(second, PAGE, BOTH, flags, file.as_fd(), PAGE as u64).unwrap();
            assert_eq!(said(address), neither, "behind the end of a file");
            munmap(second, PAGE).unwrap();
            // Where others map something meanwhile it is theirs: to be read only.
            let mut ours = [0; 8];
            let read =
                UserMemory::lend_mut(&mut ours, |ours| fetch(at(address + PAGE - 4, 8), ours));
            assert!(!read || memory_probe::is_mapped(address + PAGE, 1));
            munmap(pointer(address), PAGE).unwrap();
        }
    }

    #[test]
    fn all_bytes_come_by_whatever_way() {
        let address = pages();
        let all: Vec<u8> = (0..2 * PAGE).map(|at| (at % 251) as u8).collect();
        type Copy = fn(CopyDirection, UserMemory, UserMemory) -> bool;
        let pieces: Copy = |way, ours, program| piecewise(way, ours, program) == CopyOutcome::All;
        for by in [copy as Copy, pieces, after_a_look, first_way] {
            for (from, length) in [(0, 1), (3, 8), (5, 9), (17, PAGE), (0, 2 * PAGE), (1, 8000)] {
                let program = at(address + from, length);
                program.write(&vec![0; length]);
                assert!(UserMemory::lend(&all[..length], |ours| by(
                    CopyDirection::Place,
                    ours,
                    program
                )));
                let mut found = vec![0; length];
                assert!(UserMemory::lend_mut(&mut found, |ours| by(
                    CopyDirection::Fetch,
                    ours,
                    program
                )));
                assert!(found == all[..length]);
            }
        }
        // SAFETY: memory of this test's.
        unsafe { munmap(pointer(address), 2 * PAGE).unwrap() };
    }

    /// Whichever piece it is that cannot be written: those before it are placed, in order, and none
    /// behind it.
    #[test]
    fn pieces_are_placed_up_to_one_that_cannot_be() {
        const SIZES: [usize; 8] = [8, 1, 24, 700, 9, 8, 64, 8];
        let address = pages();
        let all: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8).collect();
        // SAFETY: memory of this test's.
        unsafe { mprotect(pointer(address + PAGE), PAGE, MprotectFlags::READ).unwrap() };
        let room = |size| at(address + 2 * PAGE - size, size);
        for bad in 0..=SIZES.len() {
            // The first four go to a place each, the others over what those wrote.
            let mut expected = vec![0; PAGE];
            at(address, PAGE).write(&expected);
            let (mut from, mut pieces) = (0, Vec::new());
            UserMemory::lend(&all, |ours| {
                for (index, size) in SIZES.into_iter().enumerate() {
                    let to = index % 4 * 800 + index;
                    let program = if index == bad { room(size) } else { at(address + to, size) };
                    pieces.push((ours.skip(from).first(size), program));
                    if index < bad {
                        expected[to..to + size].copy_from_slice(&all[from..from + size]);
                    }
                    from += size;
                }
                assert_eq!(place_all(&pieces), bad);
            });
            let mut found = vec![0; PAGE];
            at(address, PAGE).read(&mut found);
            assert!(found == expected, "{bad}");
        }
        // No more than there is room for.
        UserMemory::lend(&all, |ours| {
            let pieces = |size: usize, count| vec![(ours.first(size), at(address, size)); count];
            assert_eq!(place_all(&pieces(8, TOGETHER + 1)), TOGETHER);
            assert_eq!(place_all(&[]), 0);
        });
        // SAFETY: memory of this test's.
        unsafe { munmap(pointer(address), 2 * PAGE).unwrap() };
    }

    /// A thread protects the page all the time while it is written and read.
    #[test]
    fn an_mprotect_meanwhile_is_not_undone() {
        let address = pages();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for flags in [MprotectFlags::empty(), MprotectFlags::READ, MprotectFlags::WRITE]
                    {
                        // SAFETY: a page of this test's, which is touched by guarded copies only.
                        unsafe { mprotect(pointer(address), PAGE, flags).unwrap() };
                    }
                }
            });
            let mut ours = [1; 64];
            for _ in 0..20_000 {
                UserMemory::lend_mut(&mut ours, |ours| {
                    let _ = place(ours, at(address, 64));
                    let _ = fetch(at(address, 64), ours);
                });
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(!IS_REFUSED.load(Ordering::Relaxed));
        // SAFETY: memory of this test's.
        unsafe { munmap(pointer(address), 2 * PAGE).unwrap() };
    }

    #[test]
    fn a_child_of_fork_reaches_itself() {
        let address = pages();
        let program = at(address, 8);
        assert!(UserMemory::lend(&[1; 8], |ours| place(ours, program)));
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut seen = [0; 8];
            let done = UserMemory::lend(&[2; 8], |ours| place(ours, program));
            program.read(&mut seen);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!done || seen != [2; 8])) };
        }
        let mut status = 0;
        // SAFETY: reaps the child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let mut seen = [0; 8];
        program.read(&mut seen);
        assert_eq!((status, seen), (0, [1; 8]));
        // SAFETY: memory of this test's.
        unsafe { munmap(pointer(address), 2 * PAGE).unwrap() };
    }
}
