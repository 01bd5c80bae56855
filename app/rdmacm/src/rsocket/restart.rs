//! Whether a call goes on that a signal has interrupted.
//!
//! The kernel restarts calls of its own sockets if the signal's handler was installed with
//! `SA_RESTART`; `poll`, in which we wait, it never does, nor does it say which signal came. So all
//! handlers are asked: if each has the flag, so has the one that ran. Where some have it and some
//! have not, the call ends, as programs that have installed any without must expect.

use core::mem::MaybeUninit;
use core::ptr::null;

use libc::c_int;
use libc::{SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_IGN, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};

/// Where the kernel's signals end that have names, and where those for programs do.
const SIGNALS: c_int = 64;

/// What a thread does itself, and not while it sleeps: many runtimes have handlers for these.
const FAULTS: [c_int; 5] = [SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP];

/// What a handler has of interest: `None`, if there is none.
fn restarts(signal: c_int) -> Option<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is changed; a place for the action. What libc has for itself it refuses.
    if unsafe { libc::sigaction(signal, null(), action.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: written.
    let action = unsafe { action.assume_init() };
    // One that is for one signal only is gone by now, but for its flags.
    let is_none = matches!(action.sa_sigaction, SIG_DFL | SIG_IGN)
        && (action.sa_sigaction == SIG_IGN || action.sa_flags & SA_RESETHAND == 0);
    (!is_none).then_some(action.sa_flags & SA_RESTART != 0)
}

/// After `EINTR`: whether the call goes on.
pub(crate) fn goes_on() -> bool {
    let signals = (1..=SIGNALS).filter(|signal| !FAULTS.contains(signal));
    let mut handlers = signals.filter_map(restarts).peekable();
    handlers.peek().is_some() && handlers.all(|restarts| restarts)
}
