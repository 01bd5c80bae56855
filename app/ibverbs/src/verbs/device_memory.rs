//! Device memory: memory of the program that only its handle leads to, and regions in it.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use omniverb_abi::{
    IBV_ACCESS_OPTIONAL_RANGE, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd,
};
use omniverb_client::RegistrationRequest;
use omniverb_device::{RegionKind, access};
use omniverb_session::device_import_messages;
use omniverb_terms::Errno;

use super::context::ContextShell;
use super::importable_objects::{DeviceMemory, MemoryOf};
use super::memory_region::registered;
use super::object_limits::DM_ALIGNMENT_LOG_MAX;
use super::thread_domain_and_dm_handles::DmShell;
use crate::errno::{null, outcome};
use crate::refusal_log::refused;

/// What is copied begins and ends on such a boundary.
const GRAIN: u64 = 4;

/// `ibv_alloc_dm`.
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the inline's arguments.
    let ibv_alloc_dm_attr { length, log_align_req, comp_mask } = unsafe { *attr };
    if comp_mask != 0 || length == 0 || log_align_req > DM_ALIGNMENT_LOG_MAX {
        return null(Errno::EINVAL);
    }
    // SAFETY: the inline's argument.
    let shell = unsafe { ContextShell::of(context) };
    match DeviceMemory::new(length, 1 << log_align_req, shell.counts.clone()) {
        Ok(of) => {
            shell.family.device_memory.add(of.handle, of.clone());
            shell.family.offer(&shell.client);
            into_c(context, of)
        }
        Err(errno) => null(errno),
    }
}

fn into_c(context: *mut ibv_context, of: Arc<DeviceMemory>) -> *mut ibv_dm {
    let dm = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 0,
        handle: of.handle,
    };
    Box::into_raw(Box::new(DmShell { dm, of })).cast()
}

/// `ibv_free_dm`; `EBUSY` while regions are in it. An importer can do nothing with it any more but
/// unimport it.
pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the inline's argument is live, and not used any more.
    unsafe {
        let handle = DmShell::of(dm).of.handle;
        let context = ContextShell::of((*dm).context);
        // A forked child's copy: locks may be as a thread of the parent's had them.
        if !context.client.is_ours() {
            return 0;
        }
        let family = &context.family;
        let freed = match family.elsewhere() {
            Some(_) if DmShell::of(dm).of.users.are_some() => Err(Errno::EBUSY),
            Some(elsewhere) if DmShell::of(dm).of.is_elsewhere() => {
                elsewhere.import.destroy(device_import_messages::DEVICE_MEMORY, handle)
            }
            _ => family.free_device_memory(handle),
        };
        if freed.is_ok() {
            drop(Box::from_raw(dm.cast::<DmShell>()));
        }
        outcome(freed)
    }
}

/// Device memory of the family of this context, by its handle. `ENOENT`: there is none.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    // SAFETY: the caller's promise.
    let family = &unsafe { ContextShell::of(context) }.family;
    let found = match family.elsewhere() {
        Some(elsewhere) => {
            elsewhere.import.device_memory(handle).map(DeviceMemory::imported).map_err(not_had)
        }
        None => family.device_memory.get(handle).ok_or(Errno::ENOENT),
    };
    match found {
        Ok(of) => into_c(context, of),
        Err(errno) => null(errno),
    }
}

/// Gives up what was imported; the memory stays.
///
/// # Safety
/// `dm` was imported, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the caller's promise.
    unsafe {
        // A forked child's copy: what it is mapped by is the parent's.
        if ContextShell::of((*dm).context).client.is_ours() {
            drop(Box::from_raw(dm.cast::<DmShell>()));
        }
    }
}

fn not_had(errno: Errno) -> Errno {
    refused!(errno, "ibv_import_dm: the process that has it does not give it, or does not answer")
}

/// The place of some bytes; `None` if they are not wholly inside, or not on boundaries.
///
/// # Safety
/// `dm` is live.
unsafe fn place(dm: *mut ibv_dm, offset: u64, length: usize) -> Option<*mut c_void> {
    // SAFETY: the caller's promise.
    let shell = &unsafe { DmShell::of(dm) }.of;
    let end = offset.checked_add(length as u64)?;
    let fits =
        end <= shell.length as u64 && offset.is_multiple_of(GRAIN) && end.is_multiple_of(GRAIN);
    fits.then(|| shell.memory.wrapping_byte_add(offset as usize))
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    source: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        let Some(place) = place(dm, offset, length) else { return Errno::EFAULT.raw() };
        omniverb_ring::copy_many(source.cast(), place.cast(), length);
    }
    0
}

unsafe extern "C" fn memcpy_from_dm(
    target: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        let Some(place) = place(dm, offset, length) else { return Errno::EFAULT.raw() };
        omniverb_ring::copy_many(place.cast(), target.cast(), length);
    }
    0
}

/// `ibv_reg_dm_mr`: its first byte is address 0.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: u32,
) -> *mut ibv_mr {
    let known = access::LOCAL_WRITE | access::REMOTE | access::ZERO_BASED | access::MW_BIND;
    let access = flags & !IBV_ACCESS_OPTIONAL_RANGE;
    let peers_write = access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if access & !known != 0
        || access & access::ZERO_BASED == 0
        || (peers_write && access & access::LOCAL_WRITE == 0)
    {
        return null(Errno::EINVAL);
    }
    // SAFETY: the inline's arguments.
    unsafe {
        let shell = &DmShell::of(dm).of;
        let inside = offset.checked_add(length as u64).is_some_and(|e| e <= shell.length as u64);
        if !inside {
            return null(Errno::EINVAL);
        }
        let address = shell.memory as usize + offset as usize;
        let access = access & !access::ZERO_BASED;
        let wish = RegistrationRequest {
            pd: 0,
            address,
            length,
            iova: 0,
            access,
            extras: RegionKind::default(),
        };
        registered(pd, core::ptr::null_mut(), wish, MemoryOf::Device(shell.clone()))
    }
}
