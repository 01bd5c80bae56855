//! Records the descriptors that control messages carry on unix sockets.
//!
//! A descriptor under way may be received by any process, and stays open meanwhile: a socket that
//! is passed is the kernel's. Of a descriptor that is received nothing is known.

use core::ffi::c_int;

use omniverb_connection::descriptors::Why;

use crate::user_memory::{UserMessage, UserMessages};
use crate::{descriptor_tables, fallback_ledger};

/// A message was sent.
pub(crate) fn sent(message: UserMessage<'_>) {
    message.each_descriptor(|fd| {
        if descriptor_tables::look(fd).kind().is_stream() {
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
    message.each_descriptor(descriptor_tables::forget);
}

/// So many messages of a list were.
pub(crate) fn received_many(messages: UserMessages<'_>, count: c_int) {
    first(messages, count).for_each(received);
}

fn first(messages: UserMessages<'_>, count: c_int) -> impl Iterator<Item = UserMessage<'_>> {
    (0..count.max(0) as usize).map(move |index| messages.get(index).as_const())
}
