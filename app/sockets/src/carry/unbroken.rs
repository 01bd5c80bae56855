//! Whether a thread has run all the time since it has looked at the clock, without asking what time
//! it is, which takes a fifth of a call that sends eight bytes.
//!
//! A call is to find what has happened at the kernel's socket [`super::clock::MOMENT`] ago or
//! earlier. A thread that has just looked at the clock for a link need not do so again for some
//! calls, if it has run all the time in between. The kernel says that: it clears the word by which
//! a thread says that it is in a restartable sequence (`rseq_cs`, `linux/rseq.h`) when the thread
//! has lost the processor, or had a signal, outside of that sequence. The word names a sequence in
//! which no thread ever is. So a thread that has slept, however, looks at the clock; one that
//! computes for long between two calls, and loses no processor in all that time, finds what it
//! should have found [`CALLS`] calls later at most.
//!
//! The word is the C library's (2.35 and newer), and whoever has sequences of his own writes it
//! when one begins: then the next look is at the clock. Where there is no such word all are.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::links::{Link, Word};
use crate::place;

/// Calls that may go by one look at the clock.
const CALLS: u64 = 15;
/// Where the word is in what the kernel and a thread have in common, and how long that is at least.
const WORD: usize = 8;
const BYTES: u32 = 16;

/// Where the word of the calling thread is, from where its memory is on; 0: there is none.
static AT: AtomicUsize = AtomicUsize::new(0);
/// Stretches of time that threads have run without a break, as far as they were numbered.
static STRETCHES: AtomicU32 = AtomicU32::new(0);

/// At the start of the program, when the C library may allocate.
pub(super) fn begin() {
    let find = |name: &CStr| {
        // SAFETY: a string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (bytes, offset) = (find(c"__rseq_size"), find(c"__rseq_offset"));
    // SAFETY: numbers of the C library's, if it has them, that never change.
    let found = unsafe { (bytes.cast::<u32>().as_ref(), offset.cast::<isize>().as_ref()) };
    if let (Some(bytes), Some(offset)) = found
        && *bytes >= BYTES
    {
        AT.store(offset.cast_unsigned().wrapping_add(WORD), Ordering::Relaxed);
    }
}

/// The calling thread has run all the time since it has looked at the clock for this link, and
/// nobody wants the socket looked at.
#[inline(always)]
pub(super) fn is_so(link: Link) -> bool {
    let left = link.get(Word::Unbroken);
    let is_so = left > 0
        && link.get(Word::LookedIn) == u64::from(place::stretch().load(Ordering::Relaxed))
        && link.get(Word::Looked) != 0
        && word::is_ours(AT.load(Ordering::Relaxed));
    if is_so {
        link.set(Word::Unbroken, left - 1);
    }
    is_so
}

/// A stretch of time of a thread.
#[derive(Clone, Copy)]
pub(super) struct Stretch(u32);

/// The one that the calling thread is in from here on, before it looks at the clock; if that can be
/// told.
#[inline(always)]
pub(super) fn stretch() -> Option<Stretch> {
    let at = AT.load(Ordering::Relaxed);
    if at == 0 {
        return None;
    }
    let stretch = place::stretch();
    if !word::is_ours(at) {
        // What was looked at before is old, for whatever link.
        stretch.store(STRETCHES.fetch_add(1, Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        word::set(at);
    }
    Some(Stretch(stretch.load(Ordering::Relaxed)))
}

impl Stretch {
    /// The thread has looked at the clock for this link in it, and found that all is well.
    #[inline(always)]
    pub(super) fn has_looked(self, link: Link) {
        // What another thread has said of the same link is as true.
        link.set(Word::LookedIn, u64::from(self.0));
        link.set(Word::Unbroken, CALLS);
    }
}

/// The word of the calling thread, at that place of its memory.
#[cfg(target_arch = "x86_64")]
mod word {
    use core::arch::asm;

    unsafe extern "C" {
        /// The sequence in which no thread ever is, of the entry points.
        safe static ov_sockets_sequence: u64;
    }

    fn ours() -> u64 {
        (&raw const ov_sockets_sequence).addr() as u64
    }

    /// It is as we have set it.
    #[inline(always)]
    pub(super) fn is_ours(at: usize) -> bool {
        let word: u64;
        // SAFETY: the C library has told that it is there, in each thread.
        unsafe {
            asm!(
                "mov {word}, qword ptr fs:[{at}]",
                at = in(reg) at,
                word = out(reg) word,
                options(nostack, readonly, preserves_flags)
            );
        }
        word == ours()
    }

    /// Sets it. No sequence is under way, since we are not in one.
    #[inline(always)]
    pub(super) fn set(at: usize) {
        // SAFETY: as above. What it names is a sequence as the kernel wants it, which stays.
        unsafe {
            asm!(
                "mov qword ptr fs:[{at}], {word}",
                at = in(reg) at,
                word = in(reg) ours(),
                options(nostack, preserves_flags)
            );
        }
    }
}

/// There is no such word that we know of.
#[cfg(not(target_arch = "x86_64"))]
mod word {
    pub(super) fn is_ours(_: usize) -> bool {
        false
    }

    pub(super) fn set(_: usize) {}
}
