//! Thread domains and device memory, as objects that others are made of.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use std::alloc::Layout;

use omniverb_abi::{ibv_dm, ibv_td};

/// How many objects are made of another.
#[derive(Default)]
pub(super) struct Users(AtomicU32);

impl Users {
    /// Whether there are some.
    pub(super) fn are_some(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// One more is.
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One is gone.
    pub(super) fn one_less(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A thread domain: a promise that one thread at a time uses what is made in it. Nothing here is
/// faster for it.
#[repr(C)]
pub(super) struct TdShell {
    pub(super) td: ibv_td,
    pub(super) users: Users,
}

/// Device memory: here, memory of the program that only its handle leads to.
#[repr(C)]
pub(super) struct DmShell {
    pub(super) dm: ibv_dm,
    pub(super) memory: *mut c_void,
    pub(super) length: usize,
    pub(super) layout: Layout,
    pub(super) users: Users,
}

macro_rules! used {
    ($shell:ident) => {
        impl $shell {
            /// One more object is made of it.
            pub(super) fn begin_use(&self) {
                self.users.one_more();
            }

            /// One is gone.
            pub(super) fn end_use(&self) {
                self.users.one_less();
            }
        }
    };
}

used!(TdShell);
used!(DmShell);

impl TdShell {
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
