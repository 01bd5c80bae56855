//! Thread domains and device memory, as objects that others are made of.

use std::sync::Arc;

use omniverb_abi::{ibv_dm, ibv_td};

use super::importable_objects::DeviceMemory;
use super::object_counts::UserCount;

/// A thread domain: a promise that one thread at a time uses what is made in it. Nothing here is
/// faster for it.
#[repr(C)]
pub(super) struct TdShell {
    pub(super) td: ibv_td,
    pub(super) users: UserCount,
}

/// Device memory as C sees it.
#[repr(C)]
pub(super) struct DmShell {
    pub(super) dm: ibv_dm,
    pub(super) of: Arc<DeviceMemory>,
}

impl TdShell {
    /// One more object is made of it.
    pub(super) fn begin_use(&self) {
        self.users.one_more();
    }

    /// One is gone.
    pub(super) fn end_use(&self) {
        self.users.one_less();
    }

    /// # Safety
    /// `td` is null or live.
    pub(super) unsafe fn of<'a>(td: *mut ibv_td) -> Option<&'a TdShell> {
        // SAFETY: the caller's promise.
        unsafe { td.cast::<TdShell>().as_ref() }
    }
}

impl DmShell {
    /// # Safety
    /// `dm` is live.
    pub(super) unsafe fn of<'a>(dm: *mut ibv_dm) -> &'a DmShell {
        // SAFETY: the caller's promise.
        unsafe { &*dm.cast::<DmShell>() }
    }
}
