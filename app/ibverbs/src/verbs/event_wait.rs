//! Takes events (a call that finds none waits in `cancellable_event_waits.c`, where it can be
//! cancelled); and waits until the application has acknowledged every event about an object it
//! destroys, as the specification asks (11.2.6.3), with the mutex and condition that the C structs
//! carry.

use core::ffi::c_int;

use libc::{pthread_cond_t, pthread_mutex_t};
use omniverb_client::{Doorbell, Notifier};

use crate::errno::minus_one;

/// Takes the oldest event and has `taken` say what it is, and count it, before a thread that
/// destroys the object has removed its events. What it returns is for `cancellable_event_waits.c`:
/// 0, or -1 with `errno` set (`EAGAIN`: there is none, and the application has made the descriptor
/// non-blocking), or 1: there is none, and `bell` is what to sleep on.
///
/// # Safety
/// `bell` is valid.
pub(super) unsafe fn take_event<T>(
    events: &Notifier<T>,
    bell: *mut *const Doorbell,
    taken: impl FnOnce(T),
) -> c_int {
    match events.try_take(taken) {
        Ok(true) => 0,
        Ok(false) => {
            // SAFETY: the caller's promise.
            unsafe { bell.write(events.bell()) };
            1
        }
        Err(errno) => minus_one(errno),
    }
}

/// Counts acknowledged events.
///
/// # Safety
/// The three belong to one live object.
pub(super) unsafe fn acknowledge(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    completed: *mut u32,
    count: u32,
) {
    // SAFETY: the caller's promise; zeroed mutexes and conditions are initialised ones here.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        completed.write(completed.read().wrapping_add(count));
        libc::pthread_cond_broadcast(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Waits until `completed` reaches `returned`.
///
/// # Safety
/// As [`acknowledge`].
pub(super) unsafe fn until_acknowledged(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    completed: *const u32,
    returned: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while completed.read_volatile() != returned {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}
