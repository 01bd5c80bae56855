//! `ibv_advise_mr`: pages of regions are to be in memory soon.

use core::ffi::{c_int, c_void};

use omniverb_abi::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, ibv_pd, ibv_sge,
};
use omniverb_device::access;
use omniverb_ring::UserMemory;
use omniverb_terms::{Errno, Lkey};
use rustix::mm::{Advice, madvise};

use super::context::ContextShell;
use super::protection_domain::PdShell;

const PAGE: usize = 4096;

/// `ibv_advise_mr`. Done before it returns, with or without the flag that asks for it.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    let (how, needed) = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH => (Some(Advice::LinuxPopulateRead), 0),
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => {
            (Some(Advice::LinuxPopulateWrite), access::LOCAL_WRITE)
        }
        // What is in memory already needs nothing.
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => (None, 0),
        _ => return Errno::EOPNOTSUPP.raw(),
    };
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the inline's arguments; the list has `count` entries.
    unsafe {
        let regions = &ContextShell::of((*pd).context).shared().regions;
        for index in 0..count as usize {
            let sge = list.add(index).read();
            let region = regions.get(Lkey(sge.lkey));
            let Some(region) = region.filter(|region| region.pd == PdShell::of(pd).number()) else {
                return Errno::EINVAL.raw();
            };
            if region.access & needed != needed {
                return Errno::EPERM.raw();
            }
            let Some(part) = region.part(sge.addr, u64::from(sge.length)) else {
                return Errno::EFAULT.raw();
            };
            if let Some(how) = how {
                fetch(part, how);
            }
        }
    }
    0
}

/// Has pages brought into memory. That is a kindness: where the kernel cannot (before Linux 5.14),
/// they come when they are used.
fn fetch(part: UserMemory, how: Advice) {
    let begin = part.address() & !(PAGE - 1);
    let end = (part.address() + part.len()).next_multiple_of(PAGE);
    // SAFETY: reads pages of the program, or writes them as they are.
    let _ = unsafe { madvise(begin as *mut c_void, end - begin, how) };
}
