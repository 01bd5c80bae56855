//! Takes what the broker has said, and has it handled.
//!
//! There is one conversation with the broker ([`super::broker`]) and one loop that takes messages,
//! which gives each to [`super::broker_link_messages`], and what that does not know to the handler
//! of light connections.

use std::sync::OnceLock;

use omniverb_formats::broker_message::Reply;

use super::broker::{self, Files};
use super::{broker_link_messages, connection_watch, ended_links, kernel_fallback};

/// What takes messages with the state of light connections at hand ([`take_with`]). It says
/// `false`, and has taken none, in a process that has none: a child may be one.
static HANDLER: OnceLock<fn() -> bool> = OnceLock::new();

/// Has all messages taken by this from now on. At the start of the program.
pub(crate) fn set_handler(take: fn() -> bool) {
    _ = HANDLER.set(take);
}

/// Looks whether there is anything. For calls that have no link in their hands yet: some may be
/// left.
#[inline(always)]
pub(super) fn poll() {
    if broker::is_any() {
        take();
    }
}

/// The same behind a call that has slept: what was to be heard of may be gone.
pub(super) fn poll_after_sleep() {
    connection_watch::hears();
    poll();
}

#[cold]
fn take() {
    if !HANDLER.get().is_some_and(|take| take()) {
        _ = take_with(&mut |_, _| {});
    }
    if ended_links::take_revoked() {
        kernel_fallback::leave_revoked();
    }
}

/// Takes all mail; `with` has what is not of links, with its files. `false`: another thread is at
/// it, or this one, interrupted.
pub(crate) fn take_with(with: &mut dyn FnMut(Reply, Files)) -> bool {
    broker::take(&mut |reply, files| {
        if let Some((reply, files)) = broker_link_messages::came(reply, files) {
            with(reply, files);
        }
    })
}
