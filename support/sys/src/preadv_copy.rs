//! Copies bytes to the program's memory by `preadv` from a memory file of ours, without a signal.
//!
//! The bytes are staged in a mapping of the file, and the kernel takes them from its page cache: no
//! process is looked up and no page is pinned, which makes this twice as quick as
//! `process_vm_readv`. One file serves the whole process; a copy has a slot of it to itself.
//!
//! Programs close descriptors that they know nothing of, and get the number for another file. So
//! what is staged lies behind a random number, which comes back first, and so far into the file
//! that files of others have nothing there.
//!
//! A forked child does not have the mapping, and finds its page of the state wiped.
// UNSAFETY: a system call with addresses that the kernel checks, and advice about a page of ours.
#![expect(unsafe_code)]

use crate::mapping::Access;
use crate::{Extent, memfd, memory_probe, random};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use omniverb_ring::{UserMemory, Window};
use rustix::mm::{Advice, madvise};
use std::os::fd::{AsRawFd, OwnedFd};

const PAGE: usize = 4096;
/// Bytes of one copy: as many as a record of a ring has at most.
pub(crate) const BYTES: usize = 64 << 10;
/// Parts of the program's memory that one copy goes to.
pub(crate) const PARTS: usize = 64;
/// Bytes of the number that comes before what is staged.
const NUMBER: usize = size_of::<u64>();
/// Where in a slot the staged bytes begin, or up to seven bytes behind it: they end on a multiple
/// of eight, so that their last word lies in one page.
const HEAD: usize = 64;
const SLOT: usize = BYTES + PAGE;
/// Budget: copies of a process that are staged at once; others take the other way.
pub const SLOTS: usize = 4;
/// Budget: files that a process makes, one after the other, because it closed their descriptors.
pub const FILES: u32 = 4;
/// Where in the file the slots begin. Only files of more than a pebibyte have something there.
const OFFSET: u64 = 1 << 50;

/// The file, for as long as the process lives.
struct StagingFile {
    file: OwnedFd,
    slots: Window,
    number: u64,
    /// A bit for each slot.
    taken: AtomicU32,
}

/// What a forked child finds wiped.
#[repr(C, align(4096))]
struct State {
    staging: AtomicPtr<StagingFile>,
    /// Files that were begun.
    made: AtomicU32,
    rest: [u8; PAGE - 16],
}

static STATE: State = State {
    staging: AtomicPtr::new(core::ptr::null_mut()),
    made: AtomicU32::new(0),
    rest: [0; PAGE - 16],
};

/// A slot that is ours until this is dropped.
pub(crate) struct StagingSlot {
    staging: &'static StagingFile,
    index: usize,
}

/// A slot. None: all are taken, or there is no file.
pub(crate) fn slot() -> Option<StagingSlot> {
    let staging = match STATE.staging.load(Ordering::Acquire) {
        staging if staging.is_null() => make()?,
        // SAFETY: it was leaked by `make`.
        staging => unsafe { &*staging },
    };
    let mut taken = staging.taken.load(Ordering::Relaxed);
    loop {
        let index = taken.trailing_ones() as usize;
        if index >= SLOTS {
            return None;
        }
        let before = staging.taken.fetch_or(1 << index, Ordering::Acquire);
        if before & 1 << index == 0 {
            return Some(StagingSlot { staging, index });
        }
        taken = before;
    }
}

impl StagingSlot {
    /// Memory for as many bytes as are to be copied, [`BYTES`] at most.
    pub(crate) fn memory(&self, length: usize) -> UserMemory {
        let length = length.min(BYTES);
        let padding = length.wrapping_neg() % 8;
        self.staging.slots.memory(self.index * SLOT + HEAD + padding, length)
    }

    /// Copies what was put into [`memory`](Self::memory) of that length to parts of the program's
    /// memory, in order. Says how many bytes there was room for, up to one that cannot be written.
    /// None: the descriptor is another file's by now, and what was copied is anything.
    pub(crate) fn scatter(&self, staged: UserMemory, parts: &[libc::iovec]) -> Option<usize> {
        let at = staged.address() - self.staging.slots.address() - NUMBER;
        let number = self.staging.number.to_ne_bytes();
        self.staging.slots.memory(at, NUMBER).write(&number);
        let mut found = [0u8; NUMBER];
        let mut vectors = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 1 + PARTS];
        let parts = parts.get(..PARTS.min(parts.len()))?;
        vectors[0] = libc::iovec { iov_base: (&raw mut found).cast::<c_void>(), iov_len: NUMBER };
        vectors[1..=parts.len()].copy_from_slice(parts);
        // Whole registers: what is above an `int` in them is anything.
        let file = libc::c_long::from(self.staging.file.as_raw_fd());
        let (count, offset) = (1 + parts.len(), OFFSET as usize + at);
        const NO_MORE: libc::c_ulong = 0;
        let before = memory_probe::errno();
        // SAFETY: the kernel checks every address. What it writes is `found`, or the program's,
        // which a peer's request may have written.
        let copied = unsafe {
            libc::syscall(libc::SYS_preadv, file, vectors.as_ptr(), count, offset, NO_MORE)
        };
        memory_probe::set_errno(before);
        let copied = usize::try_from(copied).ok().and_then(|all| all.checked_sub(NUMBER));
        if copied.is_none() || found != number {
            self.lose();
            return None;
        }
        copied
    }

    /// The descriptor is another file's: it is left alone, and the next copy makes a file anew.
    #[cold]
    fn lose(&self) {
        let lost = core::ptr::from_ref(self.staging).cast_mut();
        let (made, none) = (Ordering::Relaxed, core::ptr::null_mut());
        let _ = STATE.staging.compare_exchange(lost, none, made, made);
    }
}

impl Drop for StagingSlot {
    fn drop(&mut self) {
        self.staging.taken.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

/// Makes the file. None: there is none to be had, or there were enough of them.
#[cold]
fn make() -> Option<&'static StagingFile> {
    let made = STATE.made.load(Ordering::Relaxed);
    if made >= FILES {
        return None;
    }
    let page = (&raw const STATE).cast_mut().cast();
    debug_assert!(STATE.rest.len() < PAGE);
    // What fails for good is not tried for each copy.
    if STATE.made.compare_exchange(made, made + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return None;
    }
    // SAFETY: a page of our own, of which a child is to see zeros.
    unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.ok()?;
    let length = (SLOTS * SLOT) as u64;
    let mut file = memfd::create("omniverb-copies", OFFSET + length).ok()?;
    if file.as_raw_fd() <= libc::STDERR_FILENO {
        // Not where a program prints to that closed its standard streams.
        file = rustix::io::fcntl_dupfd_cloexec(&file, libc::STDERR_FILENO + 1).ok()?;
    }
    let slots = Extent::new(&file, OFFSET, length).map(Access::ReadWrite).ok()?;
    let (number, taken) = (random::number(), AtomicU32::new(0));
    let staging = Box::leak(Box::new(StagingFile { file, slots, number, taken }));
    STATE.staging.store(core::ptr::from_mut(staging), Ordering::Release);
    Some(staging)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fault_safe_copy, lock};
    use std::sync::Mutex;

    /// Tests that need a slot, or all of them.
    static SLOTS_USED: Mutex<()> = Mutex::new(());

    /// Copies to memory of its own, by the file if that is possible; and whether it was.
    fn copy(bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut found = vec![0; bytes.len()];
        let by_file = UserMemory::lend_mut(&mut found, |program| {
            let Some(slot) = slot() else { return false };
            let staged = slot.memory(bytes.len());
            staged.write(bytes);
            let (iov_base, iov_len) = (program.address() as *mut c_void, program.len());
            slot.scatter(staged, &[libc::iovec { iov_base, iov_len }]) == Some(bytes.len())
        });
        (found, by_file)
    }

    /// Whatever is at the number that the file had, a WRITE is placed, and once more by a file.
    #[test]
    fn a_descriptor_that_the_program_closed_is_noticed() {
        let _used = lock(&SLOTS_USED);
        // In a process of its own: others are disturbed.
        // SAFETY: the child uses nothing that another thread may hold, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let bytes: Vec<u8> = (1..=200).collect();
            let mut is_right = copy(&bytes) == (bytes.clone(), true);
            for path in [c"/dev/zero", c"/proc/self/exe", c"/", c""] {
                // SAFETY: as in `slot`.
                let staging = unsafe { &*STATE.staging.load(Ordering::Acquire) };
                // SAFETY: what a program does that knows nothing of the file.
                unsafe {
                    libc::close(staging.file.as_raw_fd());
                    libc::open(path.as_ptr(), libc::O_RDONLY);
                }
                let mut found = vec![0; bytes.len()];
                is_right &= UserMemory::lend(&bytes, |ours| {
                    UserMemory::lend_mut(&mut found, |program| {
                        fault_safe_copy::place(ours, program)
                    })
                }) && found == bytes;
                if STATE.made.load(Ordering::Relaxed) < FILES {
                    is_right &= copy(&bytes) == (bytes.clone(), true);
                } else {
                    is_right &= slot().is_none();
                }
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: reaps the child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn what_is_staged_ends_on_a_multiple_of_eight_and_is_copied_whole() {
        let _used = lock(&SLOTS_USED);
        let all: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        for length in [1, 7, 8, 9, 4095, 4096, 4097, BYTES - 1, BYTES] {
            let slot = slot().unwrap();
            let memory = slot.memory(length);
            assert!((memory.address() + length).is_multiple_of(8) && memory.len() == length);
            drop(slot);
            assert!(copy(&all[..length]) == (all[..length].to_vec(), true));
        }
        let mut found = vec![0; 3 * BYTES + 5];
        let long: Vec<u8> = (0..found.len()).map(|at| (at % 241) as u8).collect();
        let is_placed = UserMemory::lend(&long, |ours| {
            UserMemory::lend_mut(&mut found, |program| fault_safe_copy::place(ours, program))
        });
        assert!(is_placed && found == long);
        let placed = UserMemory::lend(&long, |ours| {
            UserMemory::lend_mut(&mut found, |program| {
                let piece = |at| (ours.skip(at).first(BYTES / 4), program.skip(at));
                fault_safe_copy::place_all(&[0, 1, 2, 3, 4].map(|number| piece(number * BYTES / 4)))
            })
        });
        assert_eq!(placed, 4);
    }

    #[test]
    fn slots_are_taken_once_and_given_back() {
        let _used = lock(&SLOTS_USED);
        // Tests of other modules have some at times.
        let slots: Vec<StagingSlot> = std::iter::from_fn(slot).collect();
        assert!(slots.len() <= SLOTS);
        let mut indexes: Vec<usize> = slots.iter().map(|slot| slot.index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        assert_eq!(indexes.len(), slots.len());
        // None is left, and copies are made all the same.
        let mut found = [0; 8];
        assert!(UserMemory::lend(&[3; 8], |ours| {
            UserMemory::lend_mut(&mut found, |program| fault_safe_copy::place(ours, program))
        }));
        assert_eq!(found, [3; 8]);
        drop(slots);
        assert!(slot().is_some());
    }
}
