//! Tells whether a thread may be in the middle of direct I/O.
//!
//! A thread inside a direct read has handed physical pages to a device; the device's stores pass
//! by every write protection. Where threads are stopped there is no such thread (a thread in
//! direct I/O does not stop before it is done), but write-protecting pages does not see it.
//!
//! A request that begins when pages are protected waits for that, as every store does: it is about
//! requests that were under way at that moment. So this is asked *while they are protected*, each
//! time. Such a request has a descriptor that is open for direct I/O, in the table of one of the
//! threads, of all processes in this memory. Or another thread has closed the descriptor meanwhile,
//! or changed its flags; then the thread sleeps, uninterruptibly, or is about to: so a thread that
//! runs, and has ever read from storage, is watched until it slept or has used the processor for
//! longer than it takes to hand over a request of usual size.
//!
//! A thread that stores there waits meanwhile, and how much there is to look at is the program's
//! affair: all descriptors, once for each thread where `kcmp` is forbidden. So it is looked at once
//! before the pages are protected, and if that takes too long they never are; and no longer than
//! that under protection.
#![expect(unsafe_code)]
// UNSAFETY: borrows descriptors of the program by number, only to ask for their flags; reads
// the clocks of its threads.

use super::move_necessity_and_obstacles::MoveNecessity;
use crate::address_space_sharers::SharingProcesses;
use crate::kernel_page_users::shares_files;
use crate::proc_task_files::{self, for_each_number, open_directory, read_start};
use core::ops::ControlFlow;
use core::time::Duration;
use omniverb_sys::clock;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{CWD, OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::thread::gettid;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// How much of the processor looking at descriptors may take, or at threads.
const LOOK_TIME_MAX: Duration = Duration::from_millis(20);
/// How many times that may pass meanwhile: on a busy machine this thread, too, waits for its turn.
const LOAD_MAX: u32 = 10;
/// How long threads may take to come out of a request.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(20);
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000 };
/// Far more than a request of 1 MiB takes the processor until it sleeps, also where a hypervisor
/// takes the processor away meanwhile, which counts.
const SUBMIT_TIME_NS: u64 = 1_000_000;

/// What descriptors tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectIoDescriptors {
    /// None is open for direct I/O.
    Without,
    /// One is, or it cannot be known.
    Direct,
    /// There was no end to them in time.
    TooMany,
}

/// What looking may take.
struct ScanBudget {
    time: Duration,
    /// Both clocks at the beginning.
    begun: u64,
    ran: u64,
    is_spent: bool,
}

impl ScanBudget {
    fn new(time: Duration) -> ScanBudget {
        ScanBudget { time, begun: clock::now(), ran: own_processor_time(), is_spent: false }
    }

    /// To be asked before each descriptor or thread.
    fn check_spent(&mut self) -> bool {
        let passed = Duration::from_nanos(clock::now().saturating_sub(self.begun));
        if !self.is_spent && passed > self.time {
            let ran = Duration::from_nanos(own_processor_time().saturating_sub(self.ran));
            self.is_spent = ran > self.time || passed > self.time * LOAD_MAX;
        }
        self.is_spent
    }
}

fn own_processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Is a file open for direct I/O?
pub(super) fn descriptors(sharers: Option<&SharingProcesses>) -> DirectIoDescriptors {
    descriptors_within(sharers, LOOK_TIME_MAX)
}

fn descriptors_within(sharers: Option<&SharingProcesses>, time: Duration) -> DirectIoDescriptors {
    let own = gettid().as_raw_nonzero().get();
    let mut budget = ScanBudget::new(time);
    let found = own_table(&mut budget) || {
        let apart = |task: i32| {
            let look = || task != own && !shares_files(own, task);
            budget.check_spent() || look() && table_of(task, &mut budget)
        };
        any_task(sharers, apart).unwrap_or(true)
    };
    match found {
        _ if budget.is_spent => DirectIoDescriptors::TooMany,
        true => DirectIoDescriptors::Direct,
        false => DirectIoDescriptors::Without,
    }
}

/// Waits until every thread was seen outside of a request once. False: that took too long.
/// For what is mandatory waiting does so at some time, but looking at many threads does not.
pub(super) fn has_drained(sharers: Option<&SharingProcesses>, need: MoveNecessity) -> bool {
    let give_up_at = clock::now() + DRAIN_TIME_MAX.as_nanos() as u64;
    let own = gettid().as_raw_nonzero().get();
    let mut budget = ScanBudget::new(LOOK_TIME_MAX);
    let stays = |task: i32| {
        let mut ran_before = None;
        if need == MoveNecessity::Optional && budget.check_spent() {
            return true;
        }
        while task != own && may_be_in_request(task, &mut ran_before) {
            if clock::now() > give_up_at {
                return true;
            }
            let _ = rustix::thread::nanosleep(&NAP);
        }
        false
    };
    any_task(sharers, stays) == Ok(false)
}

/// Whether it is so with one of the threads in this memory.
fn any_task(
    sharers: Option<&SharingProcesses>,
    mut which: impl FnMut(i32) -> bool,
) -> Result<bool, Errno> {
    let mut found = false;
    let mut look = |list: BorrowedFd<'_>| {
        for_each_number(list, |task| {
            found |= which(task);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    };
    look(open_directory(CWD, format_args!("/proc/self/task"))?.as_fd())?;
    for sharer in sharers.into_iter().flat_map(SharingProcesses::iter) {
        // One that has ended has no threads to list.
        match open_directory(CWD, format_args!("/proc/{}/task", sharer.process)) {
            Ok(list) => match look(list.as_fd()) {
                Ok(()) | Err(Errno::NOENT | Errno::SRCH) => {}
                Err(errno) => return Err(errno),
            },
            Err(Errno::NOENT | Errno::SRCH) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

fn own_table(budget: &mut ScanBudget) -> bool {
    let Ok(directory) = open_directory(CWD, format_args!("/proc/thread-self/fd")) else {
        return true;
    };
    let mut found = false;
    let looked = for_each_number(directory.as_fd(), |number| {
        // SAFETY: used for one fcntl; a descriptor closed meanwhile yields EBADF.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        found |= budget.check_spent()
            || fcntl_getfl(descriptor).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found || looked.is_err()
}

fn table_of(task: i32, budget: &mut ScanBudget) -> bool {
    let gone = |errno| matches!(errno, Errno::NOENT | Errno::SRCH);
    let directory = match open_directory(CWD, format_args!("/proc/{task}/fdinfo")) {
        Ok(directory) => directory,
        Err(errno) => return !gone(errno),
    };
    let mut found = false;
    let looked = for_each_number(directory.as_fd(), |number| {
        let mut text = [0u8; 256];
        if budget.check_spent() {
            found = true;
            return ControlFlow::Break(());
        }
        found |= match read_start(&directory, format_args!("{number}"), &mut text) {
            Ok(text) => flags_in(text).is_none_or(|flags| flags & OFlags::DIRECT.bits() != 0),
            Err(errno) => !gone(errno),
        };
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found || looked.is_err_and(|errno| !gone(errno))
}

/// The flags of a descriptor, as its `fdinfo` tells them.
fn flags_in(text: &[u8]) -> Option<u32> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let octal = lines.find_map(|line| line.strip_prefix(b"flags:"))?.trim_ascii();
    u32::from_str_radix(core::str::from_utf8(octal).ok()?, 8).ok()
}

/// A thread that sleeps where signals do not reach it, in a system call that may be direct I/O, or
/// may be about to. `ran_before`: what it had run at the first look.
fn may_be_in_request(task: i32, ran_before: &mut Option<u64>) -> bool {
    match proc_task_files::state(task) {
        Some(b'R') if has_read_storage(task) => {
            let now = processor_time(task);
            now.is_none_or(|now| now < *ran_before.get_or_insert(now) + SUBMIT_TIME_NS)
        }
        Some(b'D') => sleeps_in_request(task),
        _ => false,
    }
}

fn has_read_storage(task: i32) -> bool {
    let mut text = [0u8; 512];
    let Ok(text) = read_start(CWD, format_args!("/proc/{task}/io"), &mut text) else { return true };
    let mut lines = text.split(|&byte| byte == b'\n');
    lines.find_map(|line| line.strip_prefix(b"read_bytes:")).is_none_or(|count| count != b" 0")
}

/// Nanoseconds a thread of this process has run. `None` for other processes'.
fn processor_time(task: i32) -> Option<u64> {
    const OF_A_THREAD: libc::clockid_t = 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in a struct of ours; a number that is no thread's yields an error.
    let told = unsafe { libc::clock_gettime((!task << 3) | OF_A_THREAD, &raw mut time) };
    (told == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn sleeps_in_request(task: i32) -> bool {
    /// Calls in which it sleeps for something else: a child that has not called exec yet, changes
    /// of the mappings (as ours), and what stores nothing.
    const OTHERS: [i64; 16] = [
        libc::SYS_clone,
        libc::SYS_clone3,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork,
        #[cfg(not(target_arch = "x86_64"))]
        libc::SYS_clone,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_futex,
    ];
    // None: a page fault, outside of any call.
    proc_task_files::system_call(task)
        .is_none_or(|call| call.is_some_and(|call| !OTHERS.contains(&call)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_are_parsed_from_fdinfo() {
        assert_eq!(flags_in(b"pos:\t0\nflags:\t0140000\nmnt_id:\t29\n"), Some(0o140_000));
        assert_eq!(flags_in(b"pos:\t0\n"), None);
    }

    #[test]
    fn looking_ends_in_time() {
        assert_eq!(descriptors_within(None, Duration::ZERO), DirectIoDescriptors::TooMany);
        // Other tests of this process have no direct I/O.
        assert_eq!(descriptors_within(None, Duration::from_secs(60)), DirectIoDescriptors::Without);
    }
}
