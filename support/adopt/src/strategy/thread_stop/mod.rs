//! Stops the other threads for a moment, where userfaultfd is not permitted.
//!
//! The calling thread makes a helper process that shares its memory, waits for it as after
//! `vfork()`, and reaps it. The helper stops every other thread with ptrace, and those of
//! all other processes in this memory (see `address_space_sharers.rs`), copies, replaces, and
//! lets the threads go. Why not a signal handler in each thread instead: it would turn sleeping
//! system calls into EINTR, run on stacks that may be too small for a signal frame, fail for
//! threads that block the signal, and take a signal number from the program. A thread stopped by
//! ptrace runs no code, and the kernel restarts the system call it was in.
//!
//! What the program can notice: a transfer that already moved some bytes returns that number (as
//! after SIGSTOP and SIGCONT), and the time limit of an `epoll_wait` starts anew. On processors
//! other than x86-64 the few calls that the kernel does not restart by itself (`epoll_wait`,
//! `sigtimedwait`, `semop`, sockets with a time limit) return EINTR.
//!
//! The helper's death at any moment is harmless: the kernel lets traced threads go when their
//! tracer ends, and the replacement is a single system call. It also gives up by itself: after
//! `STOP_TIME_MAX` it lets go of everything, and a timer ends it if it hangs in the kernel.
//!
//! Not available where the process is traced already (strace, gdb), is not dumpable, or ptrace is
//! forbidden; then the pages stay where they are.
#![expect(unsafe_code)]
// UNSAFETY: makes the helper, which runs in this process's memory on a stack of its own.

mod helper;
mod helper_request;
mod refusal_code;
mod tracee;

use crate::address_space_sharers::SharingProcesses;
use crate::error::AdoptError;
use crate::stretch_move::{PAGE_BYTES, StagingPages, StretchMove};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use helper_request::{REFUSED, STARTED, StopRequest, THREADS_MAX};
use omniverb_sys::proc_maps;
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::read;
use rustix::process::getpid;
use rustix::thread::gettid;
use tracee::Tracee;

const STACK_BYTES: usize = 256 << 10;

/// Stack and thread table of helpers in one piece: an inaccessible page, the stack growing down to
/// it, and the table above. 0: there is none yet. Reserved before the first page moves, so that a
/// release takes no new address space. With [`crate::move_lock::MOVES`] held.
static MEMORY: AtomicUsize = AtomicUsize::new(0);

/// Makes sure that there is memory for a helper.
///
/// # Errors
/// What the kernel says.
pub(super) fn prepare() -> Result<(), AdoptError> {
    if MEMORY.load(Ordering::Relaxed) == 0 {
        let table_bytes = (THREADS_MAX * size_of::<Tracee>()).next_multiple_of(PAGE_BYTES);
        let memory = StagingPages::new(STACK_BYTES + table_bytes)?;
        // SAFETY: the lowest page of what was just mapped.
        unsafe {
            let guard = core::ptr::with_exposed_provenance_mut(memory.address);
            rustix::mm::mprotect(guard, PAGE_BYTES, rustix::mm::MprotectFlags::empty())?;
        }
        MEMORY.store(memory.into_address(), Ordering::Relaxed);
    }
    Ok(())
}

pub(super) fn perform(
    work: &StretchMove<'_>,
    sharers: &SharingProcesses,
) -> Result<(), AdoptError> {
    prepare()?;
    let stack_top = MEMORY.load(Ordering::Relaxed) + STACK_BYTES;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let thread_list = openat(CWD, c"/proc/self/task", flags, Mode::empty())?;
    allow_own_children_to_trace();
    let order = StopRequest {
        work,
        sharers,
        process: getpid().as_raw_nonzero().get(),
        thread_list: thread_list.as_fd(),
        caller: gettid().as_raw_nonzero().get(),
        threads: core::ptr::with_exposed_provenance_mut(stack_top),
        progress: AtomicU32::new(STARTED),
        reason: AtomicI32::new(0),
    };
    // No exit signal: the program sees no SIGCHLD and its waits do not find the helper. Shared
    // descriptors: a copy of the table would be closed one by one at the helper's end.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS;
    // SAFETY: `main` runs on memory of its own; this thread waits until it is done, so `order`
    // outlives it.
    let child = unsafe {
        let top = core::ptr::with_exposed_provenance_mut(stack_top);
        libc::clone(main, top, flags, (&raw const order).cast_mut().cast())
    };
    if child < 0 {
        return Err(AdoptError::NotPermitted);
    }
    let mut status: c_int = 0;
    // SAFETY: reaps our own child; `__WALL` because it has no exit signal.
    unsafe { libc::syscall(libc::SYS_wait4, child, &raw mut status, libc::__WALL, 0) };
    order.outcome()
}

extern "C" fn main(order: *mut c_void) -> c_int {
    // SAFETY: the caller's order, alive until this process ends.
    let order: &StopRequest<'_> = unsafe { &*order.cast() };
    if let Err(reason) = helper::run(order) {
        order.reason.store(reason, Ordering::Relaxed);
        order.progress.store(REFUSED, Ordering::Release);
    }
    0
}

/// Where Yama lets a process be traced only by its ancestors, name the helper's parent (this
/// process, hence all its descendants) as allowed.
fn allow_own_children_to_trace() {
    let mut scope = [0u8; 4];
    let restricted = proc_maps::open_read(c"/proc/sys/kernel/yama/ptrace_scope")
        .and_then(|file| read(&file, &mut scope))
        .is_ok_and(|count| scope[..count].trim_ascii() == b"1");
    if restricted {
        // SAFETY: takes integers only.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, getpid().as_raw_nonzero().get(), 0, 0, 0) };
    }
}
