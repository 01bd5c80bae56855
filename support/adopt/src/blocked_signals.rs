//! Blocks the calling thread's signals while pages move.
#![expect(unsafe_code)]
// UNSAFETY: raw rt_sigprocmask, since libc's refuses to block the signals it uses internally
// (thread cancellation), and access to errno.

/// Bytes of the kernel's signal set.
const KERNEL_SET_BYTES: usize = 8;

/// Blocks every signal for this thread until dropped, then restores mask and `errno`.
pub(crate) struct BlockedSignals {
    mask: u64,
    errno: i32,
}

fn set_mask(new: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both pointers are to live 8-byte sets, the size told to the kernel.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const new,
            &raw mut old,
            KERNEL_SET_BYTES,
        );
    }
    old
}

impl BlockedSignals {
    pub(crate) fn new() -> BlockedSignals {
        // SAFETY: errno of this thread.
        let errno = unsafe { *libc::__errno_location() };
        BlockedSignals { mask: set_mask(u64::MAX), errno }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_mask(self.mask);
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = self.errno };
    }
}
