//! Starts a thread in a foreign program: it takes none of its signals.

use std::thread::{Builder, JoinHandle};

use omniverb_terms::Errno;

/// Starts a thread. Its stack is that of any thread of Rust's, 2 MiB, since the program's functions
/// are called there.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Errno> {
    // SAFETY: both sets are plain memory that the calls fill in; a new thread has the mask of the
    // one that makes it, which gets its own back.
    unsafe {
        let mut all = core::mem::zeroed();
        let mut old = core::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let spawned = Builder::new().name(name.into()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, core::ptr::null_mut());
        spawned.map_err(|_| Errno::EAGAIN)
    }
}
