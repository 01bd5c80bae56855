//! Waiting for events; and until the application has acknowledged every event about an object it
//! destroys, as the specification asks (11.2.6.3), with the mutex and condition that the C structs
//! carry.

use libc::{pthread_cond_t, pthread_mutex_t};
use omniverb_client::Notifier;
use omniverb_terms::Errno;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;

/// Takes the oldest event; waits for one, unless the application has made the descriptor
/// non-blocking. What waits has taken nothing yet.
///
/// # Safety
/// `events` stays until this returns.
pub(super) unsafe fn take_event<T>(events: *const Notifier<T>) -> Result<T, Errno> {
    loop {
        // SAFETY: the caller's promise.
        match unsafe { (*events).try_take() } {
            Ok(Some(event)) => return Ok(event),
            Ok(None) => {}
            Err(errno) => return Err(errno),
        }
        // SAFETY: the caller's promise; the descriptor is the queue's, which stays.
        let file = unsafe { BorrowedFd::borrow_raw((*events).raw_fd()) };
        let mut one = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
        if let Err(errno) = poll(&mut one, None) {
            return Err(Errno(errno.raw_os_error().cast_unsigned()));
        }
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
