//! Tells whether another process has this one's memory.
//!
//! `kcmp` compares the memory of two processes, where it is permitted. Elsewhere their sizes are
//! compared (`statm`, which every process may read of every other), while a piece of address space
//! of random length is reserved. So only the same memory has that size. Other programs that compare
//! at the same moment do not: they reserve lengths of their own.
#![expect(unsafe_code)]
// UNSAFETY: asks by `kcmp`; reserves address space, which it gives back.

use crate::proc_task_files::{for_each_number, open_directory, read_start, with_path};
use crate::stretch_move::PAGE_BYTES;
use core::ops::ControlFlow;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, CWD, statat};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The most that is reserved, the first that there is room for. The larger, the fewer others have
/// a size to be compared.
const RESERVATIONS: [usize; 4] = [16 << 40, 256 << 30, 4 << 30, 256 << 20];
/// This part of it is of random length.
const RANDOM_SHARE: usize = 4;
/// So often two sizes are compared, at most, until both stand still for long enough to tell.
const LOOKS_MAX: usize = 256;
/// Sizes that differ so often, while ours did not seem to change, are those of two memories. Less
/// is not enough: a thread may map and unmap just around the look at the other one.
const DIFFERENT_MIN: usize = 32;
/// `kcmp`: the memory.
const KCMP_VM: libc::c_long = 1;

/// Reserved address space.
pub(crate) struct Reservation {
    address: usize,
    length: usize,
}

impl Reservation {
    pub(crate) fn new() -> Option<Reservation> {
        RESERVATIONS.iter().find_map(|&longest| {
            let random = omniverb_sys::random::number();
            let length = random_length(longest, random);
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping, of nothing, where the kernel likes it.
            let made = unsafe {
                mmap_anonymous(core::ptr::null_mut(), length, ProtFlags::empty(), flags).ok()?
            };
            Some(Reservation { address: made.expose_provenance(), length })
        })
    }

    pub(crate) fn pages(&self) -> u64 {
        (self.length / PAGE_BYTES) as u64
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let at = core::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: mapped in `new`, known only here.
        let _ = unsafe { munmap(at, self.length) };
    }
}

/// Pages of address space a process has. 0: none, it has ended or is the kernel's.
pub(crate) fn size_of(process: i32) -> u64 {
    let own = size_in(format_args!("/proc/{process}/statm"));
    if own > 0 {
        return own;
    }
    // The first thread may have ended before the others. Two links are the directory's own.
    let links = with_path(format_args!("/proc/{process}/task"), |path| {
        statat(CWD, path, AtFlags::empty()).map(|status| status.st_nlink)
    });
    if links.is_ok_and(|links| links <= 3) {
        return 0;
    }
    let Ok(tasks) = open_directory(CWD, format_args!("/proc/{process}/task")) else { return 0 };
    let mut found = 0;
    let _ = for_each_number(tasks.as_fd(), |task| {
        found = size_in(format_args!("/proc/{process}/task/{task}/statm"));
        if found > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

fn size_in(path: core::fmt::Arguments<'_>) -> u64 {
    let mut text = [0u8; 128];
    let first = read_start(CWD, path, &mut text).ok();
    let first = first.and_then(|text| text.split(|&byte| byte == b' ').next());
    first.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(0)
}

/// A number of bytes up to `longest`, whose pages are as random as `random` is.
fn random_length(longest: usize, random: u64) -> usize {
    let random_pages = longest / RANDOM_SHARE / PAGE_BYTES;
    longest - (random % random_pages as u64) as usize * PAGE_BYTES
}

/// Whether a process has the memory of `thread`, which is one of ours. `None`: `kcmp` does not
/// tell.
pub(crate) fn compare(thread: i32, process: i32) -> Option<bool> {
    let (one, other) = (libc::c_long::from(thread), libc::c_long::from(process));
    // SAFETY: a comparison of two numbers' objects in the kernel; no memory is passed.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    match order {
        0 => Some(true),
        // A first thread that has ended has no memory, which others of the process may have still.
        1.. if size_in(format_args!("/proc/{process}/statm")) > 0 => Some(false),
        _ => None,
    }
}

/// Whether a process has the size of this one, of which a random part is reserved. `None`: this
/// one's changes all the time.
pub(crate) fn has_own_size(process: i32, reserved: u64) -> Option<bool> {
    let mut different = 0;
    for _ in 0..LOOKS_MAX {
        let before = size_in(format_args!("/proc/self/statm"));
        let theirs = size_of(process);
        let after = size_in(format_args!("/proc/self/statm"));
        if theirs == 0 || before.abs_diff(theirs).min(after.abs_diff(theirs)) > reserved / 2 {
            return Some(false);
        }
        if before == after {
            if theirs == before {
                return Some(true);
            }
            different += 1;
            if different == DIFFERENT_MIN {
                return Some(false);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;
    use rustix::thread::gettid;

    #[test]
    fn sizes_of_other_memories_differ() {
        let _alone = crate::move_lock::MOVES.guard();
        let own = getpid().as_raw_nonzero().get();
        let thread = gettid().as_raw_nonzero().get();
        let reservation = Reservation::new().unwrap();
        // SAFETY: the child waits for its end, by raw system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: of the child, which has nothing else to do.
                unsafe { libc::pause() };
            }
        }
        // As large as we are: only `kcmp` can tell.
        assert!(compare(thread, child).is_none_or(|same| !same));
        assert!(compare(thread, own).is_none_or(|same| same));
        drop(reservation);
        let reservation = Reservation::new().unwrap();
        // A test in another thread may change our size all the time.
        assert_ne!(has_own_size(child, reservation.pages()), Some(true));
        assert_ne!(has_own_size(own, reservation.pages()), Some(false));
        // SAFETY: our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn lengths_are_random_within_a_quarter() {
        for longest in RESERVATIONS {
            for random in [0, 1, u64::MAX / 3, u64::MAX] {
                let length = random_length(longest, random);
                assert!(length <= longest && length > longest - longest / 4);
                assert!(length.is_multiple_of(PAGE_BYTES));
            }
            assert_ne!(random_length(longest, 1), random_length(longest, 2));
        }
    }
}
