//! Starts threads of ours in a foreign program: they take none of its signals.
// UNSAFETY: blocks signals for the new thread, which only the C library's mask calls can do.
#![expect(unsafe_code)]

use crate::errno_conversion::errno_of;
use omniverb_terms::Errno;
use std::io;

/// Address space for a stack: messages are kilobytes, and builds without optimisation keep many.
const STACK_BYTES: usize = 1 << 20;

/// All signals blocked while it lives: a thread started meanwhile takes none of the application's.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> BlockedSignals {
        // SAFETY: both sets are plain memory that the calls fill in; blocking signals for a
        // moment has no other effect.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut old = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            BlockedSignals(old)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the set that `new` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Starts a thread that takes none of the application's signals.
pub(crate) fn spawn_quietly(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let masked = BlockedSignals::new();
    let spawned = std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(work);
    drop(masked);
    spawned.map(drop).map_err(|error| errno_of(&error))
}

/// The same, for the thread that listens to bells.
pub(crate) fn spawn_listener(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    spawn_quietly(name, work).map_err(|errno| io::Error::from_raw_os_error(errno.raw()))
}
