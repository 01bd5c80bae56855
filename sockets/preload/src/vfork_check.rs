//! Tells whether the calling process owns this memory, or runs in its parent's (`vfork`).
//!
//! The child of a `vfork`, or of `clone` with the memory shared, runs in its parent's memory with
//! descriptors of its own. What it does with those must not be taken for the parent's. So a caller
//! that is about to make such a child says so, and a call that finds that said asks the kernel
//! which process it is in. A child of `fork` has a copy of everything, which is right as it is; the
//! kernel wipes one page of it (`MADV_WIPEONFORK`), by which it knows that it is another process,
//! however it was made.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

use rustix::process::getpid;

use crate::anonymous_mappings::WipedPage;
use crate::symbol_lookup;

/// The process; 0: not looked up since it began. A child of `fork` finds it wiped.
static PROCESS: WipedPage<AtomicU32> = WipedPage::new(AtomicU32::new(0));

/// A thread with this memory may be of another process, at any time from now on.
const SHARED: u32 = 1;
/// Threads of this process may have different descriptors: nothing that is known is sure.
const APART: u32 = 2;
/// The kernel does not wipe the page.
const KEPT: u32 = 4;
static DOUBTS: AtomicU32 = AtomicU32::new(0);
/// The program has made threads, or children with its memory, past `pthread_create`.
static HAS_CLONED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// Two words of the calling thread: it is making, or is, a child that has its memory; and it is
    /// at a lane ([`LaneGuard`]).
    fn ov_sockets_thread() -> *const [AtomicU32; 2];
}

#[inline(always)]
fn words() -> &'static [AtomicU32; 2] {
    // SAFETY: the entry points have them; they are there as long as the thread, whose only user
    // this is.
    unsafe { &*ov_sockets_thread() }
}

#[inline(always)]
fn thread() -> &'static AtomicU32 {
    &words()[0]
}

/// The thread is at a lane of a light connection, until this is dropped: what interrupts it and
/// comes to light connections is refused.
pub(crate) struct LaneGuard(&'static [AtomicU32; 2]);

impl LaneGuard {
    /// `None`: it is, and was interrupted.
    #[inline(always)]
    pub(crate) fn enter() -> Option<LaneGuard> {
        let words = words();
        if words[1].load(Ordering::Relaxed) != 0 {
            return None;
        }
        // A handler that interrupts this between the two is through before it goes on.
        words[1].store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Some(LaneGuard(words))
    }

    /// As [`this_thread`].
    #[inline(always)]
    pub(crate) fn thread(&self) -> u64 {
        core::ptr::from_ref(&self.0[0]) as u64
    }
}

impl Drop for LaneGuard {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0[1].store(0, Ordering::Relaxed);
    }
}

/// In a child of `fork`: what its parent's thread did it does not.
pub(crate) fn leave_lane_in_child() {
    words()[1].store(0, Ordering::Relaxed);
}

/// It is at one, and was interrupted there.
#[inline(always)]
pub(crate) fn is_in_lane_call() -> bool {
    words()[1].load(Ordering::Relaxed) != 0
}

/// A name of this thread, which none of this process has that lives; not 0.
#[inline(always)]
pub(crate) fn this_thread() -> u64 {
    core::ptr::from_ref(thread()) as u64
}

/// A child of `fork` is recognised, however it was made.
pub(crate) fn detects_forks() -> bool {
    DOUBTS.load(Ordering::Relaxed) & KEPT == 0
}

/// At the start.
pub(crate) fn begin() {
    PROCESS.store(process_id(), Ordering::Relaxed);
    if !PROCESS.wipe_on_fork() {
        DOUBTS.fetch_or(KEPT, Ordering::Relaxed);
    }
}

/// What this thread does with descriptors concerns the tables in this memory.
#[inline(always)]
pub(crate) fn is_this_process() -> bool {
    let doubts = DOUBTS.load(Ordering::Relaxed);
    if doubts == 0 && thread().load(Ordering::Relaxed) == 0 {
        return true;
    }
    is_this_process_after_all(doubts)
}

#[cold]
fn is_this_process_after_all(doubts: u32) -> bool {
    if doubts & APART != 0 {
        return false;
    }
    let process_id = process_id();
    let known = PROCESS.load(Ordering::Relaxed);
    // A page that is not wiped names the parent in a child of `fork`, whose memory is its own all
    // the same. Then there is no way to tell.
    if known == 0 {
        PROCESS.store(process_id, Ordering::Relaxed);
    } else if known != process_id {
        return false;
    }
    // The child is gone, or runs another program: a parent of `vfork` waits for that.
    thread().store(0, Ordering::Relaxed);
    true
}

/// This thread is about to make a child that has its memory, and waits for it.
pub(crate) fn begin_vfork() {
    remember();
    thread().store(1, Ordering::Relaxed);
}

/// This process is about to make one that has its memory, and goes on.
pub(crate) fn begin_shared_clone() {
    remember();
    DOUBTS.fetch_or(SHARED, Ordering::Relaxed);
}

/// Descriptors are about to be of a thread, or shared with another process.
pub(crate) fn mark_fd_tables_apart() {
    if is_this_process() {
        DOUBTS.fetch_or(APART, Ordering::Relaxed);
    }
}

/// What is known may be wrong for good.
pub(crate) fn are_fd_tables_apart() -> bool {
    DOUBTS.load(Ordering::Relaxed) & APART != 0
}

fn remember() {
    if PROCESS.load(Ordering::Relaxed) == 0 {
        PROCESS.store(process_id(), Ordering::Relaxed);
    }
}

fn process_id() -> u32 {
    getpid().as_raw_nonzero().get().unsigned_abs()
}

/// No thread but this one has this memory, for all that is known: neither the C library nor the
/// program itself has made one.
pub(crate) fn is_single_threaded() -> bool {
    symbol_lookup::is_single_threaded() && !HAS_CLONED.load(Ordering::Relaxed)
}

/// What flags of `clone` mean for memory and descriptors.
pub(crate) fn note_clone(flags: c_int) {
    let has = |flag: c_int| flags & flag != 0;
    let thread = has(libc::CLONE_THREAD);
    if has(libc::CLONE_VM) {
        HAS_CLONED.store(true, Ordering::Relaxed);
    }
    if has(libc::CLONE_VM) && !thread {
        // In the parent's memory, with the parent's thread's words unless it brings its own.
        if has(libc::CLONE_VFORK) && !has(libc::CLONE_SETTLS) {
            begin_vfork()
        } else {
            begin_shared_clone()
        }
    }
    if has(libc::CLONE_FILES) != has(libc::CLONE_VM) && (thread || has(libc::CLONE_FILES)) {
        mark_fd_tables_apart();
    }
}
