//! The calls that wait for several descriptors.

use core::ffi::c_int;
use core::slice::from_raw_parts_mut;

use libc::{FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLOUT, fd_set, nfds_t, pollfd, timeval};
use omniverb_terms::Errno;

use super::poll;
use crate::errno::outcome;

/// Waits for descriptors.
///
/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rpoll(files: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    if files.is_null() || count == 0 {
        // SAFETY: the caller's promise.
        return unsafe { libc::poll(files, count, timeout) };
    }
    // SAFETY: the caller's promise.
    let files = unsafe { from_raw_parts_mut(files, count as usize) };
    poll::poll(files, timeout).unwrap_or_else(|errno| outcome(Err(errno)))
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
    if !(0..=FD_SETSIZE as c_int).contains(&count) {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise; the numbers are within a set.
    unsafe {
        let has = |set: *mut fd_set, fd| !set.is_null() && libc::FD_ISSET(fd, set);
        let mut files = Vec::new();
        for fd in 0..count {
            let input = if has(read, fd) { POLLIN } else { 0 };
            let output = if has(write, fd) { POLLOUT } else { 0 };
            if input | output != 0 || has(except, fd) {
                files.push(pollfd { fd, events: input | output, revents: 0 });
            }
        }
        let wait = timeout.as_ref().map_or(-1, |time| {
            let whole = time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec / 1000);
            c_int::try_from(whole).unwrap_or(c_int::MAX)
        });
        let asked = ov_rpoll(files.as_mut_ptr(), files.len() as nfds_t, wait);
        if asked < 0 {
            return asked;
        }
        for set in [read, write, except] {
            if !set.is_null() {
                libc::FD_ZERO(set);
            }
        }
        let mut ready = 0;
        let mut say = |set: *mut fd_set, file: &pollfd, bits: i16| {
            if !set.is_null() && file.revents & bits != 0 {
                libc::FD_SET(file.fd, set);
                ready += 1;
            }
        };
        for file in &files {
            if file.events & POLLIN != 0 {
                say(read, file, POLLIN | POLLHUP | POLLERR);
            }
            if file.events & POLLOUT != 0 {
                say(write, file, POLLOUT | POLLERR);
            }
            if file.events == 0 {
                say(except, file, !(POLLIN | POLLOUT));
            }
        }
        ready
    }
}
