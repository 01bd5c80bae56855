//! What the helper process does: find and stop every thread of the program but the one that
//! called, have the work done, let them go.
//!
//! When is everybody stopped? Threads are made by running threads only. Once every thread of a list
//! stands still, a thread that is not on the list can only have been there while the list was read,
//! so the list is read again until it brings nothing new, and its length is compared with the
//! kernel's own count.
#![expect(unsafe_code)]
// UNSAFETY: timers and signals of the helper, and the thread table in raw memory.

use super::tracee::Tracee;
use super::{Order, REASON_BUSY, REASON_NOT_PERMITTED, STOP_TIME_MAX, THREADS_MAX, work_halted};
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::slice;
use core::time::Duration;
use omniverb_sys::clock;
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, RawDir, fstat, openat};
use rustix::io::read;
use rustix::thread::{ClockId, clock_nanosleep_relative, sched_yield};
use rustix::time::Timespec;

/// Longest time in addition that threads may take that merely wait for a processor.
const OVERLOAD_TIME_MAX: Duration = Duration::from_millis(200);
/// After giving up, longest wait for the threads that did not stop.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(3);
/// Ends the helper if stopping hangs in the kernel (as when a thread executes another program at
/// the same time). Far above the others: a helper that dies cannot settle anything.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Ends the helper if copying does. Long, since pages may have to come back from swap.
const COPY_DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn run(order: &Order<'_>) -> Result<(), i32> {
    arm(STOP_DEADLINE);
    let list = order.thread_list;
    let mut halted = Halted { table: order.threads, count: 0, process: order.process, list };
    let outcome = halted.stop_all(order.caller).and_then(|()| {
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
pub(super) fn disarm() {
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
pub(super) struct Halted<'a> {
    table: *mut Tracee,
    count: usize,
    process: i32,
    list: BorrowedFd<'a>,
}

/// A path, built without allocating.
struct Path {
    text: [u8; 32],
    length: usize,
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        // One byte stays for the terminator.
        let room = self.text.get_mut(self.length..end).filter(|_| end < 32).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// The kernel's letter for what a thread is doing. `None`: it is gone.
fn state_of(list: BorrowedFd<'_>, thread: i32) -> Option<u8> {
    let mut path = Path { text: [0; 32], length: 0 };
    write!(path, "{thread}/stat").ok()?;
    let path = CStr::from_bytes_until_nul(&path.text).ok()?;
    let file = openat(list, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0u8; 512];
    let count = read(&file, &mut text).ok()?;
    // The name before the state is in parentheses and may contain any byte.
    let end_of_name = text[..count].iter().rposition(|&byte| byte == b')')?;
    text.get(end_of_name + 2).copied()
}

/// True if a thread has ended, though its number is still listed.
pub(super) fn is_dead(list: BorrowedFd<'_>, thread: i32) -> bool {
    state_of(list, thread).is_none_or(|state| matches!(state, b'Z' | b'X' | b'x'))
}

fn now() -> Duration {
    Duration::from_nanos(clock::now())
}

fn nap() {
    const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000 };
    let _ = clock_nanosleep_relative(ClockId::Monotonic, &NAP);
}

impl Halted<'_> {
    fn tracees(&mut self) -> &mut [Tracee] {
        // SAFETY: the first `count` entries were written by `take_new`.
        unsafe { slice::from_raw_parts_mut(self.table, self.count) }
    }

    fn stop_all(&mut self, caller: i32) -> Result<(), i32> {
        let give_up_at = now() + STOP_TIME_MAX;
        let mut quiet_looks = 0;
        while quiet_looks < 2 {
            let listed = self.take_new(caller)?;
            if listed.new > 0 {
                quiet_looks = 0;
                self.wait_for_all(give_up_at)?;
            } else {
                let links = fstat(self.list).map_err(|_| REASON_NOT_PERMITTED)?.st_nlink;
                quiet_looks = if listed.all + 2 == links as usize { quiet_looks + 1 } else { 0 };
                // Threads that end, but are not gone from the count yet.
                if quiet_looks == 0 && now() > give_up_at + OVERLOAD_TIME_MAX {
                    return Err(REASON_BUSY);
                }
            }
        }
        Ok(())
    }

    /// Seizes the threads that are not held yet.
    fn take_new(&mut self, caller: i32) -> Result<Listed, i32> {
        rustix::fs::seek(self.list, rustix::fs::SeekFrom::Start(0)).map_err(|_| REASON_BUSY)?;
        let mut listed = Listed { new: 0, all: 0, caller: false };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(self.list, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|_| REASON_BUSY)?;
            let name = core::str::from_utf8(entry.file_name().to_bytes()).unwrap_or("");
            let Ok(thread) = name.parse::<i32>() else { continue };
            listed.all += 1;
            if thread == caller {
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
                return Err(REASON_NOT_PERMITTED);
            }
            if let Some(tracee) = Tracee::seize(self.process, thread, self.list)? {
                // SAFETY: the table has room, see above; entries need no dropping.
                unsafe { self.table.add(index).write(tracee) };
                self.count = self.count.max(index + 1);
                listed.new += 1;
            }
        }
        // Numbers of another PID namespace: nothing here can be trusted.
        if listed.caller { Ok(listed) } else { Err(REASON_NOT_PERMITTED) }
    }

    fn wait_for_all(&mut self, give_up_at: Duration) -> Result<(), i32> {
        const PATIENT_LOOKS: usize = 50;
        for index in 0..self.count {
            let mut looks = 0;
            while !self.tracees()[index].has_stopped()? {
                looks += 1;
                if looks < PATIENT_LOOKS {
                    sched_yield();
                } else if now() > give_up_at && !self.only_waits_for_a_processor(index, give_up_at)
                {
                    return Err(REASON_BUSY);
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
            && matches!(state_of(self.list, self.tracees()[index].thread), Some(b'R' | b't'))
    }

    /// True if a stopped thread runs on these pages: they are a stack then.
    pub(super) fn any_stack_within(&self, address: usize, length: usize) -> bool {
        // SAFETY: the first `count` entries were written by `take_new`.
        let tracees = unsafe { slice::from_raw_parts(self.table, self.count) };
        tracees
            .iter()
            .filter_map(Tracee::stack_pointer)
            .any(|pointer| (address..address + length).contains(&pointer))
    }

    /// After giving up: a thread that was woken to stop, but has not come to it, must not find its
    /// system call interrupted when the helper is gone. So its stop is waited for all the same,
    /// while everybody else runs again. Threads deep in the kernel are in no such call; those the
    /// kernel lets go when the helper ends.
    fn settle(&mut self) {
        let give_up_at = now() + SETTLE_TIME_MAX;
        for index in 0..self.count {
            while self.tracees()[index].has_stopped() == Ok(false) && now() < give_up_at {
                if matches!(state_of(self.list, self.tracees()[index].thread), None | Some(b'D')) {
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

struct Listed {
    new: usize,
    all: usize,
    caller: bool,
}
