//! Decides whether a call that a signal has interrupted goes on.
//!
//! The kernel restarts calls of its own sockets if the signal's handler was installed with
//! `SA_RESTART`; `poll`, in which we wait, it never does, nor does it say which signal came. So all
//! handlers are asked whose signals can come: if each has the flag, so has the one that ran. Where
//! some have it and some have not, the call ends, as programs that have installed any without must
//! expect.

use core::mem::MaybeUninit;
use core::ptr::null;

use libc::c_int;
use libc::{SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_IGN, SIG_SETMASK};
use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

/// Where the kernel's signals end that have names, and where those for programs do.
const SIGNALS: c_int = 64;

/// What a thread does itself, and not while it sleeps: many runtimes have handlers for these,
/// and so has what reports crashes.
const FAULTS: [c_int; 7] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP];

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

/// Which signals this thread does not let come.
fn blocked() -> libc::sigset_t {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: nothing is changed; a place for the mask, which is numbers: zero is valid.
    unsafe {
        libc::pthread_sigmask(SIG_SETMASK, null(), mask.as_mut_ptr());
        mask.assume_init()
    }
}

/// After `EINTR`: whether the call goes on.
pub(crate) fn goes_on() -> bool {
    let mask = blocked();
    // SAFETY: a mask.
    let may_come = |signal: &c_int| unsafe { libc::sigismember(&mask, *signal) } != 1;
    let signals = (1..=SIGNALS).filter(|signal| !FAULTS.contains(signal)).filter(may_come);
    let mut handlers = signals.filter_map(restarts).peekable();
    handlers.peek().is_some() && handlers.all(|restarts| restarts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::c_call_helpers::alone;
    use std::ptr::null_mut;

    extern "C" fn nothing(_: c_int) {}

    fn handle(signal: c_int, handler: usize, flags: c_int) {
        // SAFETY: numbers and a handler: zero is valid for the rest. It is used only here.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            assert_eq!(libc::sigaction(signal, &action, null_mut()), 0);
        }
    }

    fn mask(how: c_int, signal: c_int) {
        // SAFETY: a set of one signal, which is not sent.
        unsafe {
            let mut set = core::mem::zeroed();
            libc::sigaddset(&mut set, signal);
            assert_eq!(libc::pthread_sigmask(how, &set, null_mut()), 0);
        }
    }

    #[test]
    fn handlers_that_cannot_have_run_are_not_asked() {
        let _alone = alone();
        let does = nothing as extern "C" fn(c_int) as usize;
        handle(libc::SIGUSR1, does, SA_RESTART);
        handle(SIGABRT, does, 0);
        assert!(goes_on());
        handle(libc::SIGWINCH, does, 0);
        assert!(!goes_on());
        mask(libc::SIG_BLOCK, libc::SIGWINCH);
        assert!(goes_on());
        mask(libc::SIG_UNBLOCK, libc::SIGWINCH);
        for signal in [libc::SIGUSR1, libc::SIGWINCH, SIGABRT] {
            handle(signal, SIG_DFL, 0);
        }
    }
}
