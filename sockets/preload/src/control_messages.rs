//! Records the descriptors that control messages carry on unix sockets.
//!
//! What is passed may be received by anybody, and stays open as long as it is under way: a socket
//! that is passed is the kernel's. What is received is somebody's: nothing is known of it.

use core::ffi::c_int;

use omniverb_connection::descriptors::Why;

use crate::user_memory::{UserMessage, UserMessages};
use crate::{fallback_ledger, table};

/// A message was sent.
pub(crate) fn sent(message: UserMessage<'_>) {
    message.each_descriptor(|fd| {
        if table::look(fd).kind().is_stream() {
            fallback_ledger::keep(fd, Why::Passed);
        }
    });
}

/// So many messages of a list were.
pub(crate) fn sent_many(messages: UserMessages<'_>, count: c_int) {
    first(messages, count).for_each(sent);
}

/// A message was received.
pub(crate) fn received(message: UserMessage<'_>) {
    message.each_descriptor(table::forget);
}

/// So many messages of a list were.
pub(crate) fn received_many(messages: UserMessages<'_>, count: c_int) {
    first(messages, count).for_each(received);
}

fn first(messages: UserMessages<'_>, count: c_int) -> impl Iterator<Item = UserMessage<'_>> {
    (0..count.max(0) as usize).map(move |index| messages.get(index).as_const())
}
