//! Finds other *processes* in this process's memory (`clone(CLONE_VM)` without `CLONE_THREAD`).
//!
//! Sandboxes and launchers make such processes, `vfork()` and `posix_spawn()` for a moment, and
//! they store as threads do, but are in no list of threads.
//!
//! In: nothing. Out: their threads, and the number of the newest process that was looked at.
//!
//! For a process of one thread only `unshare(CLONE_VM)` tells that there is none. Others are
//! compared, as `process_shares_memory.rs` says.
//!
//! A process that has none of our memory never gets it: it is shared when a process is made, by one
//! that has it. So all are looked at once, while the program runs on; and when all that were found
//! are stopped, only those made since, which have later numbers. They are compared in the same way.
//!
//! **What is not found**: a process that does not show in our `/proc`. That is one outside of our
//! PID namespace (which then made us, and went on in our memory), and with `hidepid` another user's
//! process, which only a program that had privileges can have made.
#![expect(unsafe_code)]
// UNSAFETY: asks by `unshare`.

use crate::error::AdoptError;
use crate::proc_task_files::{belongs, for_each_number, open_directory};
use crate::process_shares_memory::{Reservation, compare, has_own_size, size_of};
use core::ffi::CStr;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicI32, Ordering};
use omniverb_sys::proc_maps;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::CWD;
use rustix::io::{Errno, read};
use rustix::process::{Pid, getpid, test_kill_process};
use rustix::thread::gettid;

/// Processes besides this one. No known program makes more, and adoption does not happen then.
const SHARERS_MAX: usize = 8;
/// A process has its number a moment before it is to be seen. So many numbers that were given out
/// before all were looked at are looked at again: more are not given out in that moment.
const UNSEEN_MAX: i32 = 256;
/// Most numbers to look at one by one; with more it is simpler to look at all processes.
const NEW_MAX: i32 = 1024;

/// A process that has our memory.
pub(crate) struct SharingProcess {
    pub process: i32,
    /// Lists its threads.
    pub threads: OwnedFd,
}

/// All processes that share this one's memory, as far as they can be found.
pub(crate) struct SharingProcesses {
    list: [Option<SharingProcess>; SHARERS_MAX],
    /// Processes with higher numbers were not looked at, or too early. 0: it is not known.
    newest: AtomicI32,
}

/// True if the kernel says that only the calling thread uses this memory.
pub(crate) fn none() -> bool {
    // SAFETY: of a process of one thread, in memory of its own, it changes nothing, otherwise it
    // fails; it takes no pointer.
    if unsafe { libc::unshare(libc::CLONE_VM) } == 0 {
        return true;
    }
    let refused = std::io::Error::last_os_error().raw_os_error();
    // A sandbox that knows no `unshare` is no answer.
    refused != Some(libc::EINVAL)
        && SharingProcesses::find().is_ok_and(|found| found.iter().count() == 0)
}

/// Whether the number is given out: a fifth of a microsecond, where a look into `/proc` takes ten.
fn is_given(number: i32) -> bool {
    Pid::from_raw(number).is_some_and(|task| test_kill_process(task) != Err(Errno::SRCH))
}

/// The number that was given out last in our PID namespace; 0 if it is not to be known.
fn newest_number() -> i32 {
    number_in(c"/proc/loadavg")
}

/// The number that a file ends with, or 0.
fn number_in(path: &'static CStr) -> i32 {
    let mut text = [0u8; 128];
    let file = proc_maps::open_read(path);
    let last = file.and_then(|file| read(&file, &mut text)).ok().map(|count| &text[..count]);
    let last = last.and_then(|text| text.trim_ascii().rsplit(|&byte| byte == b' ').next());
    last.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(0)
}

/// The number that was given out so many before this one; 0 if that is not known.
fn before(number: i32, count: i32, end: i32) -> i32 {
    match number - count {
        _ if number <= 0 || end <= count => 0,
        earlier if earlier > 0 => earlier,
        anew => anew + end - 1,
    }
}

fn for_each_process(visit: impl FnMut(i32) -> ControlFlow<()>) -> Result<(), Errno> {
    let processes = open_directory(CWD, format_args!("/proc"))?;
    for_each_number(processes.as_fd(), visit)
}

impl SharingProcesses {
    /// Looks at all processes.
    ///
    /// # Errors
    /// `NotPermitted` where it cannot be known, `Busy` if it could not be known this time.
    pub(crate) fn find() -> Result<SharingProcesses, AdoptError> {
        let end = number_in(c"/proc/sys/kernel/pid_max");
        let newest = AtomicI32::new(before(newest_number(), UNSEEN_MAX, end));
        let reservation = Reservation::new().ok_or(AdoptError::NotPermitted)?;
        let reserved = reservation.pages();
        let own = getpid().as_raw_nonzero().get();
        let thread = gettid().as_raw_nonzero().get();
        let (mut list, mut found, mut seen) = ([const { None }; SHARERS_MAX], 0, false);
        let mut outcome = Ok(());
        for_each_process(|process| {
            if size_of(process) < reserved {
                return ControlFlow::Continue(());
            }
            let compared = if process == own { None } else { compare(thread, process) };
            let shares = compared.or_else(|| has_own_size(process, reserved));
            if process == own {
                seen = shares == Some(true);
                return ControlFlow::Continue(());
            }
            outcome = match (shares, list.get_mut(found)) {
                (Some(false), _) => Ok(()),
                (None, _) => Err(AdoptError::Busy),
                (Some(true), None) => Err(AdoptError::NotPermitted),
                (Some(true), Some(free)) => open_threads(process).map(|threads| {
                    *free = threads.map(|threads| SharingProcess { process, threads });
                    found += usize::from(free.is_some());
                }),
            };
            if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        drop(reservation);
        outcome?;
        // Where not even we are to be seen in our own memory no other process is.
        if seen { Ok(SharingProcesses { list, newest }) } else { Err(AdoptError::Busy) }
    }

    /// No process is known, nor up to which number: [`SharingProcesses::are_all`] looks at all
    /// there are.
    pub(crate) fn not_looked_for() -> SharingProcesses {
        SharingProcesses { list: [const { None }; SHARERS_MAX], newest: AtomicI32::new(0) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SharingProcess> {
        self.list.iter().flatten()
    }

    /// True if no other process has got our memory by now. All that are known, and all threads of
    /// `process`, stand still, but for the one that waits for `helper`, which asks.
    pub(crate) fn are_all(&self, process: i32, helper: i32) -> bool {
        let known = |task: i32| {
            task == helper
                || belongs(process, task)
                || self.iter().any(|sharer| belongs(sharer.process, task))
        };
        let has_our_size = |task: i32| {
            let before = size_of(process);
            let theirs = size_of(task);
            // If ours changes another process changes it.
            theirs != 0 && (theirs == before || size_of(process) != before)
        };
        // One of the same program may be as large: not with a reservation of random length.
        let like_us = |task: i32| {
            has_our_size(task) && Reservation::new().is_none_or(|_reserved| has_our_size(task))
        };
        let stranger =
            |task: i32| like_us(task) && !known(task) && compare(helper, task) != Some(false);
        let newest = newest_number();
        let looked_to = match NewNumbers::since(self.newest.load(Ordering::Relaxed), newest) {
            Some(new) if new.contains(helper) => new.look(stranger),
            _ => look_at_everybody(stranger).then_some(newest),
        };
        if let Some(newest) = looked_to {
            self.newest.store(newest, Ordering::Relaxed);
        }
        looked_to.is_some()
    }
}

/// The list of a process's threads; `None` if it has ended.
fn open_threads(process: i32) -> Result<Option<OwnedFd>, AdoptError> {
    match open_directory(CWD, format_args!("/proc/{process}/task")) {
        Ok(threads) => Ok(Some(threads)),
        Err(Errno::NOENT | Errno::SRCH) => Ok(None),
        Err(_) => Err(AdoptError::NotPermitted),
    }
}

/// Looks at all processes, until it finds the same ones twice: a list is a moment old when its last
/// one is looked at, and one that is gone by then may have made another with a lower number than
/// the next one listed. False if one is a stranger, or if they change all the time.
fn look_at_everybody(stranger: impl Fn(i32) -> bool) -> bool {
    const LOOKS_MAX: usize = 8;
    let mut before = None;
    for _ in 0..LOOKS_MAX {
        let (mut found, mut list) = (false, FNV_BASIS);
        let looked = for_each_process(|task| {
            list = (list ^ u64::from(task.cast_unsigned())).wrapping_mul(FNV_PRIME);
            found |= stranger(task);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if found || looked.is_err() {
            return false;
        }
        if before.replace(list) == Some(list) {
            return true;
        }
    }
    false
}

/// Of the hash by Fowler, Noll and Vo.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// Numbers in the order in which they are given out: behind the last one the first ones come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewNumbers {
    since: i32,
    newest: i32,
    /// One more than the highest.
    end: i32,
}

impl NewNumbers {
    /// `None` if they are not known, or too many.
    fn since(since: i32, newest: i32) -> Option<NewNumbers> {
        let new = NewNumbers { since, newest, end: number_in(c"/proc/sys/kernel/pid_max") };
        let are_numbers = [since, newest].iter().all(|number| (1..new.end).contains(number));
        (are_numbers && new.count() <= NEW_MAX).then_some(new)
    }

    /// How far a number is behind `since`.
    fn place(&self, number: i32) -> i32 {
        (number - self.since).rem_euclid(self.end - 1)
    }

    fn count(&self) -> i32 {
        self.place(self.newest)
    }

    fn contains(&self, number: i32) -> bool {
        (1..self.end).contains(&number) && (1..=self.count()).contains(&self.place(number))
    }

    fn iter(self) -> impl Iterator<Item = i32> {
        (0..self.count()).map(move |index| (self.since + index).rem_euclid(self.end - 1) + 1)
    }

    /// Looks at each, in order, and at those that are given out meanwhile. The newest number, if
    /// none is a stranger.
    fn look(mut self, stranger: impl Fn(i32) -> bool) -> Option<i32> {
        // A process that is not seen any more may have made another before it ended, with a later
        // number.
        let stranger = |task: i32| is_given(task) && stranger(task);
        while self.count() > 0 {
            if self.iter().any(stranger) {
                return None;
            }
            self = NewNumbers::since(self.newest, newest_number())?;
        }
        Some(self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_numbers_may_wrap() {
        let new = NewNumbers { since: 30, newest: 33, end: 41 };
        assert_eq!(new.iter().collect::<Vec<_>>(), [31, 32, 33]);
        assert!(new.contains(31) && new.contains(33));
        assert!(!new.contains(30) && !new.contains(34) && !new.contains(73) && !new.contains(0));

        let anew = NewNumbers { since: 38, newest: 2, end: 41 };
        assert_eq!(anew.iter().collect::<Vec<_>>(), [39, 40, 1, 2]);
        assert!(anew.contains(40) && anew.contains(1));
        assert!(!anew.contains(38) && !anew.contains(3) && !anew.contains(41));

        let nobody = NewNumbers { since: 5, newest: 5, end: 41 };
        assert!(nobody.iter().next().is_none() && !nobody.contains(5));
    }

    #[test]
    fn before_the_first_numbers_are_the_last_ones() {
        assert_eq!([before(1000, 256, 4096), before(100, 256, 4096)], [744, 3939]);
        assert_eq!([before(0, 256, 4096), before(100, 256, 0)], [0, 0]);
    }

    #[test]
    fn a_word_that_changes_all_the_time_is_unknown() {
        assert!(look_at_everybody(|_| false));
        assert!(!look_at_everybody(|task| task == getpid().as_raw_nonzero().get()));
    }
}
