//! Declares those of the next library's functions that are still called with C's own arguments;
//! [`crate::native`] has them all with safe ones.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next library's functions, from their slots (`symbol_lookup.rs`). They may be left by
/// `longjmp`, or by cancellation, which unwinds: there is nothing to be cleaned up, and as the
/// library is built, to abort, no frame of it has anything that unwinding would stop at. (With
/// `C-unwind` it would abort.)
macro_rules! next {
    ($($name:ident = $slot:ident($($argument:ident: $kind:ty),*) -> $out:ty;)*) => {
        unsafe extern "C" {
            $(safe static $slot: AtomicPtr<c_void>;)*
        }
        $(
            #[inline(always)]
            pub(crate) unsafe fn $name($($argument: $kind),*) -> $out {
                type Function = unsafe extern "C" fn($($kind),*) -> $out;
                let function = $slot.load(Ordering::Relaxed);
                // SAFETY: the slot holds a function of this name, whose arguments are these; one
                // that takes any number finds them where it looks for them.
                let function = unsafe { core::mem::transmute::<*mut c_void, Function>(function) };
                // SAFETY: the caller's arguments are those of the program.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

next! {
    next_getsockopt = ov_next_getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut u32
    ) -> c_int;
    next_poll = ov_next_poll(all: *mut libc::pollfd, count: u64, timeout: c_int) -> c_int;
    next_sendfile = ov_next_sendfile(
        to: c_int, from: c_int, offset: *mut i64, count: usize
    ) -> isize;
    next_setsockopt = ov_next_setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32
    ) -> c_int;
    next_ioctl = ov_next_ioctl(fd: c_int, request: u64, argument: usize) -> c_int;
    next_epoll_ctl = ov_next_epoll_ctl(
        set: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event
    ) -> c_int;
}
