//! Handles what the broker has said.

use super::{broker, connection_watch, ended_links, kernel_fallback};
use crate::light;

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
    match light::is_on() {
        // Some of it is for light connections.
        true => light::take_mail(),
        false => _ = broker::take(&mut |_, _| {}),
    }
    if ended_links::take_revoked() {
        kernel_fallback::leave_revoked();
    }
}
