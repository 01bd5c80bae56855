//! "Please end" as a descriptor.
#![expect(unsafe_code)]
// UNSAFETY: signalfd and the signal mask are not in rustix.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// A descriptor that is readable once SIGTERM or SIGINT came, which no longer end the process.
/// Call this before the process has a second thread: threads inherit the mask.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn termination() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is initialised by sigemptyset before the other calls read it; the mask and the
    // descriptor are this process's own, and nobody else knows the new descriptor.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
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
