//! Event channels.

use std::os::fd::RawFd;
use std::sync::Arc;

use omniverb_abi::rdma_event_channel;
use omniverb_terms::Errno;

use crate::device;
use crate::errno::null;
use crate::event_queue::Queue;
use crate::refusal_log::{AttemptedStep, LoggedCall};

/// The C struct, and its events.
#[repr(C)]
pub(crate) struct ChannelShell {
    channel: rdma_event_channel,
    pub(crate) queue: Arc<Queue>,
}

impl ChannelShell {
    /// # Safety
    /// `channel` is live.
    pub(crate) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a ChannelShell {
        // SAFETY: the caller's promise.
        unsafe { &*channel.cast::<ChannelShell>() }
    }
}

/// A channel with nothing in it.
pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
    let queue = Arc::new(Queue::new()?);
    let fd: RawFd = queue.raw_fd();
    let shell = Box::new(ChannelShell { channel: rdma_event_channel { fd }, queue });
    Ok(Box::into_raw(shell).cast())
}

/// Makes a channel; `ENODEV` where there is no device.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rdma_create_event_channel() -> *mut rdma_event_channel {
    static CALL: LoggedCall = LoggedCall::new("rdma_create_event_channel", AttemptedStep::Create);
    CALL.explain(device::check_present().and_then(|()| create())).unwrap_or_else(null)
}

/// Destroys one. Its identifiers are destroyed, and its events acknowledged.
///
/// # Safety
/// `channel` is live, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: the caller's promise; it was leaked when it was made.
        drop(unsafe { Box::from_raw(channel.cast::<ChannelShell>()) });
    }
}
