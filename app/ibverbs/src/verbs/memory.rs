//! Protection domains and memory regions.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use omniverb_abi::{ibv_context, ibv_mr, ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp};
use omniverb_device::region::NO_RKEY;
use omniverb_device::{Region, access};
use omniverb_terms::Errno;

use super::context::{ContextShell, one_less, one_more};
use super::limits::{MR_BYTES_MAX, PD_MAX};
use crate::errno::null;

/// A protection domain.
#[repr(C)]
pub(crate) struct PdShell {
    pd: ibv_pd,
    /// Unique in the process.
    pub(crate) number: u32,
    /// Objects made in it.
    pub(crate) users: AtomicU32,
}

impl PdShell {
    /// # Safety
    /// `pd` is a live PD of ours.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a PdShell {
        // SAFETY: the caller's promise.
        unsafe { &*pd.cast::<PdShell>() }
    }
}

/// A memory region.
#[repr(C)]
struct MrShell {
    mr: ibv_mr,
    region: Arc<Region>,
}

/// Makes a protection domain.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // SAFETY: the caller's promise.
    let shell = unsafe { ContextShell::of(context) };
    if !one_more(&shell.counts.pds, PD_MAX) {
        return null(Errno::ENOMEM);
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let pd = ibv_pd { context, handle: number };
    Box::into_raw(Box::new(PdShell { pd, number, users: AtomicU32::new(0) })).cast()
}

/// Frees it; `EBUSY` while objects are left in it.
///
/// # Safety
/// `pd` is a live PD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if PdShell::of(pd).users.load(Ordering::Acquire) != 0 {
            return Errno::EBUSY.raw();
        }
        one_less(&ContextShell::of((*pd).context).counts.pds);
        drop(Box::from_raw(pd.cast::<PdShell>()));
    }
    0
}

/// Access flags that a client may ask for and a device may ignore.
const OPTIONAL: u32 = 0x3ff0_0000;
/// Huge pages are pages.
const HUGETLB: u32 = 1 << 7;
const ZERO_BASED: u32 = 1 << 5;

/// Registers memory.
///
/// # Safety
/// `pd` is live; the range stays mapped until the region is deregistered.
unsafe fn register(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    let flags = flags & !OPTIONAL;
    let known = access::LOCAL_WRITE | access::REMOTE | HUGETLB | ZERO_BASED;
    let writes = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if flags & !known != 0 {
        // Memory windows and on-demand paging are features that other devices have.
        let offered_elsewhere = 1 << 4 | 1 << 6;
        let unknown = flags & !known & !offered_elsewhere != 0;
        return null(if unknown { Errno::EINVAL } else { Errno::EOPNOTSUPP });
    }
    let iova = if flags & ZERO_BASED != 0 { 0 } else { iova };
    if length == 0
        || length as u64 > MR_BYTES_MAX
        || (address as usize).checked_add(length).is_none()
        || iova.checked_add(length as u64).is_none()
        || (writes && flags & access::LOCAL_WRITE == 0)
    {
        return null(Errno::EINVAL);
    }
    if !is_mapped(address as usize, length) {
        return null(Errno::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let shell = ContextShell::of((*pd).context);
        let number = PdShell::of(pd).number;
        let made = shell.client.register(
            number,
            address as usize,
            length,
            iova,
            flags & (access::LOCAL_WRITE | access::REMOTE),
        );
        match made {
            Err(errno) => null(errno),
            Ok(region) => {
                PdShell::of(pd).users.fetch_add(1, Ordering::AcqRel);
                let mr = ibv_mr {
                    context: (*pd).context,
                    pd,
                    addr: address,
                    length,
                    handle: region.lkey.0,
                    lkey: region.lkey.0,
                    // A key that opens nothing looks like one that does, as on hardware.
                    rkey: if region.rkey == NO_RKEY { region.lkey.0 } else { region.rkey.0 },
                };
                Box::into_raw(Box::new(MrShell { mr, region })).cast()
            }
        }
    }
}

/// Whether every page of a range is mapped.
fn is_mapped(address: usize, length: usize) -> bool {
    let start = address & !0xfff;
    let end = (address + length).next_multiple_of(0x1000);
    // SAFETY: MS_ASYNC changes nothing; it only reports unmapped pages (ENOMEM).
    let found = unsafe {
        rustix::mm::msync(start as *mut c_void, end - start, rustix::mm::MsyncFlags::ASYNC)
    };
    found.is_ok()
}

/// `ibv_reg_mr`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, address, length, address as u64, flags as u32) }
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, address, length, iova, flags as u32) }
}

/// `ibv_reg_mr_iova2`: what newer headers make of `ibv_reg_mr`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(pd, address, length, iova, flags) }
}

/// Deregisters memory. When this returns, no peer reaches it any more.
///
/// # Safety
/// `mr` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = &*mr.cast::<MrShell>();
        if let Err(errno) = ContextShell::of((*mr).context).client.deregister(&shell.region) {
            return errno.raw();
        }
        PdShell::of((*mr).pd).users.fetch_sub(1, Ordering::AcqRel);
        drop(Box::from_raw(mr.cast::<MrShell>()));
    }
    0
}

/// Memory windows are not offered, but inlines call this slot without looking.
pub(super) unsafe extern "C" fn bind_mw(
    _qp: *mut ibv_qp,
    _mw: *mut ibv_mw,
    _bind: *mut ibv_mw_bind,
) -> c_int {
    Errno::EOPNOTSUPP.raw()
}

/// As [`bind_mw`].
pub(super) unsafe extern "C" fn dealloc_mw(_mw: *mut ibv_mw) -> c_int {
    Errno::EOPNOTSUPP.raw()
}
