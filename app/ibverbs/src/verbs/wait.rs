//! Waiting until the application has acknowledged every event about an object it destroys, as
//! the specification asks (11.2.6.3), with the mutex and condition that the C structs carry.

use libc::{pthread_cond_t, pthread_mutex_t};

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
