//! Completion channels.

use core::ffi::c_int;
use std::sync::Arc;

use omniverb_abi::{ibv_comp_channel, ibv_context};
use omniverb_client::Notifier;
use omniverb_terms::Errno;

use crate::errno::null;

/// A completion channel: a queue of CQ addresses behind a descriptor.
#[repr(C)]
pub(super) struct ChannelShell {
    channel: ibv_comp_channel,
    pub(super) notifier: Arc<Notifier<usize>>,
}

impl ChannelShell {
    /// # Safety
    /// `channel` is a live channel of ours.
    pub(super) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a ChannelShell {
        // SAFETY: the caller's promise.
        unsafe { &*channel.cast::<ChannelShell>() }
    }
}

/// Counts the CQs of a channel up or down.
///
/// # Safety
/// `channel` is live.
pub(super) unsafe fn count_users(channel: *mut ibv_comp_channel, by: c_int) {
    // SAFETY: the caller's promise; an aligned int that threads may change together.
    let count = unsafe { core::sync::atomic::AtomicI32::from_ptr(&raw mut (*channel).refcnt) };
    count.fetch_add(by, core::sync::atomic::Ordering::AcqRel);
}

/// Makes a channel.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    match Notifier::new() {
        Err(errno) => null(errno),
        Ok(notifier) => {
            let channel = ibv_comp_channel { context, fd: notifier.raw_fd(), refcnt: 0 };
            let notifier = Arc::new(notifier);
            Box::into_raw(Box::new(ChannelShell { channel, notifier })).cast()
        }
    }
}

/// Destroys it; `EBUSY` while CQs report to it.
///
/// # Safety
/// `channel` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if (*channel).refcnt > 0 {
            return Errno::EBUSY.raw();
        }
        drop(Box::from_raw(channel.cast::<ChannelShell>()));
    }
    0
}
