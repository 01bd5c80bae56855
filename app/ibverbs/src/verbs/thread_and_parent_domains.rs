//! Thread domains and parent domains.

use core::ffi::c_int;
use core::ptr;

use omniverb_abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use omniverb_terms::Errno;

use super::object_counts::UserCount;
use super::parent_domain_allocators::ParentDomainAllocators;
use super::protection_domain::parent_domain;
use super::thread_domain_and_dm_handles::TdShell;
use crate::errno::null;

/// Bits of `comp_mask` of a parent domain.
const ALLOCATORS: u32 = 1 << 0;
const CONTEXT: u32 = 1 << 1;
/// Buffers of the library may be in memory that a confidential guest shares with its host (release
/// 65). Allowed, not asked for: no device of ours needs it (`IBV_DEVICE_CC_DMA_BOUNCE`).
const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;
const KNOWN: u32 = ALLOCATORS | CONTEXT | ALLOW_CC_UNPROTECTED_ALLOC;

/// `ibv_alloc_td`.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the inline's arguments.
    if unsafe { (*attr).comp_mask } != 0 {
        return null(Errno::EINVAL);
    }
    let td = ibv_td { context };
    Box::into_raw(Box::new(TdShell { td, users: UserCount::default() })).cast()
}

/// `ibv_dealloc_td`; `EBUSY` while parent domains have it.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the inline's argument is live, and not used any more.
    unsafe {
        if TdShell::of(td).is_none_or(|shell| shell.users.are_some()) {
            return Errno::EBUSY.raw();
        }
        drop(Box::from_raw(td.cast::<TdShell>()));
    }
    0
}

/// `ibv_alloc_parent_domain`.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    _context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the inline's arguments; fields behind `comp_mask` only if that names them, since
    // older callers have a shorter struct.
    unsafe {
        let mask = (*attr).comp_mask;
        let named = mask & CONTEXT != 0;
        let pd_context = if named { (*attr).pd_context } else { ptr::null_mut() };
        let allocators = match mask & ALLOCATORS {
            0 => None,
            _ => ParentDomainAllocators::of((*attr).alloc, (*attr).free, pd_context),
        };
        let half = mask & ALLOCATORS != 0 && allocators.is_none();
        if (*attr).pd.is_null() || mask & !KNOWN != 0 || half {
            return null(Errno::EINVAL);
        }
        parent_domain((*attr).pd, (*attr).td, allocators)
    }
}
