//! Sockets over RDMA: none can be made yet. Programs that only wait for descriptors by these
//! names (each of rdmacm-utils's does) wait for the kernel's.

use core::ffi::c_int;

use libc::{fd_set, nfds_t, pollfd, timeval};

/// Waits for descriptors.
///
/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rpoll(files: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::poll(files, count, timeout) }
}

/// Waits for descriptors.
///
/// # Safety
/// As `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::select(count, read, write, except, timeout) }
}
