//! Handles what the broker has said.

use core::sync::atomic::{AtomicPtr, Ordering};

use super::{broker, connection_watch, ended_links, kernel_fallback};

/// What takes messages that are not for links, too; null: nothing does.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has all messages taken by `take` from now on: some of them are for its connections. It says
/// `false`, and has taken none, in a process that has no such connections: a child may be one.
pub(crate) fn set_handler(take: fn() -> bool) {
    HANDLER.store(take as *mut (), Ordering::Release);
}

fn handler() -> Option<fn() -> bool> {
    let handler = HANDLER.load(Ordering::Acquire);
    // SAFETY: a function of `set_handler`, or null, which an `Option` of one is.
    unsafe { core::mem::transmute::<*mut (), Option<fn() -> bool>>(handler) }
}

/// Looks whether there is anything. For calls that have no link in their hands yet: some may be
/// left.
#[inline(always)]
pub(super) fn poll() {
    if broker::is_any() {
        take();
    }
}

/// The same behind a call that has slept: whoever was to be heard of may be gone.
pub(super) fn poll_after_sleep() {
    connection_watch::hears();
    poll();
}

#[cold]
fn take() {
    if !handler().is_some_and(|take| take()) {
        _ = broker::take(&mut |_, _| {});
    }
    if ended_links::take_revoked() {
        kernel_fallback::leave_revoked();
    }
}
