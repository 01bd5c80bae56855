//! Delivers signals to the daemon as descriptors.
#![expect(unsafe_code)]
// UNSAFETY: signalfd and the signal mask are not in rustix.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// A descriptor that is readable once SIGTERM or SIGINT came, which no longer end the process.
/// Call this before the process has a second thread: threads inherit the mask.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn termination() -> io::Result<OwnedFd> {
    of(&[libc::SIGTERM, libc::SIGINT])
}

/// The same for SIGHUP, which asks for the configuration to be read again. What came is
/// [taken](take), or the descriptor stays readable.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn reload() -> io::Result<OwnedFd> {
    of(&[libc::SIGHUP])
}

/// Takes what came by such a descriptor.
pub fn take(file: BorrowedFd<'_>) {
    let mut bytes = [0; 4 * size_of::<libc::signalfd_siginfo>()];
    let _ = rustix::io::read(file, &mut bytes);
}

fn of(signals: &[i32]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is initialised by sigemptyset before the other calls read it; the mask and the
    // descriptor are this process's own, and the new descriptor is known only here.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        let result = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result));
        }
        let file = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(file))
    }
}
