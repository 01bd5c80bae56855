//! Runs the helper process: stops every other thread of the program, has the pages moved, resumes
//! them.
//!
//! When are all stopped? Threads are made by running threads only. Once every thread of a list
//! stands still, a thread that is not on the list can only have been there while the list was read,
//! so the list is read again until it brings nothing new, and its length is compared with the
//! kernel's own count. Then the same for every other process in this memory; processes, too, are
//! made by running threads only, so at last those are looked at that were made meanwhile.
#![expect(unsafe_code)]
// UNSAFETY: timers and signals of the helper, and the thread table in raw memory.

use super::helper_request::{REPLACED, REPLACING, StopRequest, THREADS_MAX};
use super::refusal_code;
use super::tracee::Tracee;
use crate::proc_task_files;
use crate::stretch_move::MoveDirection;
use core::mem::MaybeUninit;
use core::slice;
use core::sync::atomic::Ordering;
use core::time::Duration;
use omniverb_sys::clock;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{RawDir, fstat};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{ClockId, clock_nanosleep_relative, sched_yield};
use rustix::time::Timespec;

/// Longest time threads may take to stop. A thread that runs or sleeps takes microseconds; one
/// deep in the kernel (a disk, a `vfork` child that has not called exec yet) takes as long as that.
const STOP_TIME_MAX: Duration = Duration::from_millis(10);
/// Longest time in addition that threads may take that merely wait for a processor.
const OVERLOAD_TIME_MAX: Duration = Duration::from_millis(200);
/// After giving up, longest wait for the threads that did not stop.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(3);
/// Ends the helper if stopping hangs in the kernel (as when a thread executes another program at
/// the same time). Far above the others: a helper that dies cannot settle anything.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Ends the helper if copying does. Long, since pages may have to come back from swap.
const COPY_DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn run(order: &StopRequest<'_>) -> Result<(), i32> {
    arm(STOP_DEADLINE);
    let mut halted = HaltedThreads { table: order.threads, count: 0 };
    let outcome = halted.stop_all(order).and_then(|()| {
        arm(COPY_DEADLINE);
        work_halted(order, &halted)
    });
    disarm();
    halted.let_all_go();
    if outcome.is_err() {
        halted.settle();
    }
    outcome
}

/// Does the work while all threads are halted.
fn work_halted(order: &StopRequest<'_>, halted: &HaltedThreads) -> Result<(), i32> {
    let errno = |errno: Errno| errno.raw_os_error();
    let stretch = order.work.stretch;
    // On the way back a stack is as good as anything else: a thread that runs on it stands still.
    let leaves = matches!(order.work.direction, MoveDirection::Out { .. });
    if leaves && halted.any_stack_within(stretch.address, stretch.length) {
        return Err(refusal_code::STACK);
    }
    let sharers = order.sharers.iter().map(|sharer| (sharer.process, sharer.process));
    let caller = core::iter::once((order.process, order.caller));
    // A later look without stopping threads finds out which buffer it is.
    if order.work.is_pinned(caller.chain(sharers)) {
        return Err(refusal_code::CHANGED);
    }
    let protection = order.work.protection_still().map_err(errno)?.ok_or(refusal_code::CHANGED)?;
    order.work.copy().map_err(errno)?;
    disarm();
    order.progress.store(REPLACING, Ordering::Release);
    order.work.replace(protection).map_err(errno)?;
    order.progress.store(REPLACED, Ordering::Release);
    Ok(())
}

/// SIGALRM after `deadline`. Its default action ends the helper; signal actions are its own.
fn arm(deadline: Duration) {
    let micros = libc::suseconds_t::from(deadline.subsec_micros().cast_signed());
    let seconds = deadline.as_secs().cast_signed();
    // SAFETY: the structures the calls expect; all concern this process only.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGALRM, &raw const action, core::ptr::null_mut());
        let mask = !(1u64 << (libc::SIGALRM - 1));
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8);
        set_timer(libc::timeval { tv_sec: seconds, tv_usec: micros });
    }
}

/// No more deadline.
fn disarm() {
    // SAFETY: as in `arm`.
    unsafe { set_timer(libc::timeval { tv_sec: 0, tv_usec: 0 }) };
}

unsafe fn set_timer(value: libc::timeval) {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: none, it_value: value };
    // SAFETY: a valid structure.
    unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &raw const timer, 0) };
}

/// The threads the helper holds.
struct HaltedThreads {
    table: *mut Tracee,
    count: usize,
}

/// The threads of one process.
struct ProcessThreads<'a> {
    process: i32,
    list: BorrowedFd<'a>,
    /// The one that waits for the helper.
    caller: Option<i32>,
}

fn now() -> Duration {
    Duration::from_nanos(clock::now())
}

fn nap() {
    const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000 };
    let _ = clock_nanosleep_relative(ClockId::Monotonic, &NAP);
}

impl HaltedThreads {
    fn tracees(&mut self) -> &mut [Tracee] {
        // SAFETY: the first `count` entries were written by `take_new`.
        unsafe { slice::from_raw_parts_mut(self.table, self.count) }
    }

    fn stop_all(&mut self, order: &StopRequest<'_>) -> Result<(), i32> {
        let give_up_at = now() + STOP_TIME_MAX;
        let caller = Some(order.caller);
        let own = ProcessThreads { process: order.process, list: order.thread_list, caller };
        self.stop_group(&own, give_up_at)?;
        for sharer in order.sharers.iter() {
            let list = sharer.threads.as_fd();
            self.stop_group(
                &ProcessThreads { process: sharer.process, list, caller: None },
                give_up_at,
            )?;
        }
        let helper = getpid().as_raw_nonzero().get();
        if order.sharers.are_all(order.process, helper) { Ok(()) } else { Err(refusal_code::BUSY) }
    }

    fn stop_group(&mut self, group: &ProcessThreads<'_>, give_up_at: Duration) -> Result<(), i32> {
        let mut quiet_looks = 0;
        while quiet_looks < 2 {
            let listed = self.take_new(group)?;
            if listed.new > 0 {
                quiet_looks = 0;
                self.wait_for_all(give_up_at)?;
            } else {
                let links = fstat(group.list).map_err(|_| refusal_code::NOT_PERMITTED)?.st_nlink;
                quiet_looks = if listed.all + 2 == links as usize { quiet_looks + 1 } else { 0 };
                // Threads that end, but are not gone from the count yet.
                if quiet_looks == 0 && now() > give_up_at + OVERLOAD_TIME_MAX {
                    return Err(refusal_code::BUSY);
                }
            }
        }
        Ok(())
    }

    /// Seizes the threads that are not held yet.
    fn take_new(&mut self, group: &ProcessThreads<'_>) -> Result<ThreadScan, i32> {
        rustix::fs::seek(group.list, rustix::fs::SeekFrom::Start(0))
            .map_err(|_| refusal_code::BUSY)?;
        let mut listed = ThreadScan { new: 0, all: 0, caller: group.caller.is_none() };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(group.list, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|_| refusal_code::BUSY)?;
            let Some(thread) = proc_task_files::number(entry.file_name()) else { continue };
            listed.all += 1;
            if Some(thread) == group.caller {
                listed.caller = true;
                continue;
            }
            let known = self.tracees().iter().position(|tracee| tracee.thread == thread);
            // A number whose thread ended while it was held may be another thread's by now.
            if known.is_some_and(|index| !self.tracees()[index].is_gone()) {
                continue;
            }
            let index = known.unwrap_or(self.count);
            if index == THREADS_MAX {
                return Err(refusal_code::NOT_PERMITTED);
            }
            if let Some(tracee) = Tracee::seize(group.process, thread)? {
                // SAFETY: the table has room, see above; entries need no dropping.
                unsafe { self.table.add(index).write(tracee) };
                self.count = self.count.max(index + 1);
                listed.new += 1;
            }
        }
        // Numbers of another PID namespace: nothing here can be trusted.
        if listed.caller { Ok(listed) } else { Err(refusal_code::NOT_PERMITTED) }
    }

    fn wait_for_all(&mut self, give_up_at: Duration) -> Result<(), i32> {
        const PATIENT_LOOKS: usize = 50;
        for index in 0..self.count {
            let mut looks = 0;
            while !self.tracees()[index].poll_stopped()? {
                looks += 1;
                if looks < PATIENT_LOOKS {
                    sched_yield();
                } else if now() > give_up_at && !self.only_waits_for_a_processor(index, give_up_at)
                {
                    return Err(refusal_code::BUSY);
                } else {
                    nap();
                }
            }
        }
        Ok(())
    }

    /// On an overloaded machine a thread that could run, and would then stop at once, does not get
    /// to run for a long time. Nor would the threads that already stand still.
    fn only_waits_for_a_processor(&mut self, index: usize, give_up_at: Duration) -> bool {
        now() < give_up_at + OVERLOAD_TIME_MAX
            // `t`: it stopped just now.
            && matches!(proc_task_files::state(self.tracees()[index].thread), Some(b'R' | b't'))
    }

    /// True if a stopped thread runs on these pages: they are a stack then.
    fn any_stack_within(&self, address: usize, length: usize) -> bool {
        // SAFETY: the first `count` entries were written by `take_new`.
        let tracees = unsafe { slice::from_raw_parts(self.table, self.count) };
        tracees
            .iter()
            .filter_map(Tracee::stack_pointer)
            .any(|pointer| (address..address + length).contains(&pointer))
    }

    /// After giving up: a thread that was woken to stop, but has not come to it, must not find its
    /// system call interrupted when the helper is gone. So its stop is waited for all the same,
    /// while all others run again. Threads deep in the kernel are in no such call; those the kernel
    /// lets go when the helper ends.
    fn settle(&mut self) {
        let give_up_at = now() + SETTLE_TIME_MAX;
        for index in 0..self.count {
            while self.tracees()[index].poll_stopped() == Ok(false) && now() < give_up_at {
                if matches!(proc_task_files::state(self.tracees()[index].thread), None | Some(b'D'))
                {
                    break;
                }
                nap();
            }
            self.tracees()[index].let_go();
        }
    }

    fn let_all_go(&mut self) {
        for tracee in self.tracees() {
            tracee.let_go();
        }
    }
}

struct ThreadScan {
    new: usize,
    all: usize,
    caller: bool,
}
