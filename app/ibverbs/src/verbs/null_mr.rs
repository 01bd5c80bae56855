//! Null MRs, and their memory: what is written there is gone, and what is read there is anything.
//! As long as the longest message, and made of a few pages that repeat.

use core::ptr::null_mut;
use std::sync::OnceLock;

use omniverb_abi::{ibv_mr, ibv_pd};
use omniverb_client::RegistrationRequest;
use omniverb_device::limits::MESSAGE_MAX;
use omniverb_device::{RegionKind, access};
use omniverb_terms::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use super::importable_objects::MemoryOf;
use super::memory_region::registered;
use crate::errno::null;

/// Bytes that repeat: what all of it takes at most. With fewer there would be too many mappings.
const STEP: usize = 16 << 20;
const LENGTH: usize = MESSAGE_MAX as usize;

/// Registers a region to which every address belongs: what is written there is gone, and what is
/// read there is anything.
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let Some((address, length)) = area() else { return null(Errno::ENOMEM) };
    let extras = RegionKind::everywhere();
    let access = access::LOCAL_WRITE;
    let wish = RegistrationRequest { pd: 0, address, length, iova: 0, access, extras };
    // SAFETY: the inline's argument; the area stays for ever.
    unsafe { registered(pd, null_mut(), wish, MemoryOf::Nobody) }
}

/// Address and length. `None`: it cannot be had. It stays for ever, also in forked children.
fn area() -> Option<(usize, usize)> {
    static AREA: OnceLock<Option<usize>> = OnceLock::new();
    let address = (*AREA.get_or_init(|| make().ok()))?;
    Some((address, LENGTH))
}

fn make() -> rustix::io::Result<usize> {
    let file = omniverb_sys::memfd::unsealed("omniverb-null", STEP as u64)?;
    let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a free range of addresses, and then mappings inside of it.
    unsafe {
        let begin = mmap_anonymous(null_mut(), LENGTH, ProtFlags::empty(), reserve)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        for offset in (0..LENGTH).step_by(STEP) {
            mmap(
                begin.byte_add(offset),
                STEP,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &file,
                0,
            )?;
        }
        Ok(begin as usize)
    }
}
