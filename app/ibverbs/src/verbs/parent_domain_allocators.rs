//! The allocators of parent domains: whose memory the queues of what is made there are in.
//!
//! A program that gives its parent domain `alloc` and `free` has the entries of CQs and the
//! receives of QPs and SRQs in memory that it chose: pages of its own pool, of a NUMA node, huge
//! ones. Both are called in the verb that makes, resizes or destroys an object, by the thread that
//! calls that verb, without a lock of ours.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use omniverb_abi::ibv_pd;
use omniverb_client::generation;
use omniverb_ring::{Lender, MemoryLender, NoMemory};
use omniverb_terms::Errno;

use crate::refusal_log::refused;

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;

/// `resource_type`: what memory is for. Providers put their `rdma_driver_id` into the upper half
/// and count in the lower one; this is `RDMA_DRIVER_UNKNOWN`, 0, and numbers as those of mlx5dv.h.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(super) enum Resource {
    /// The receives of a QP (`MLX5DV_RES_TYPE_QP`).
    Qp = 1,
    /// The receives of an SRQ (`MLX5DV_RES_TYPE_SRQ`).
    Srq = 4,
    /// The entries of a CQ, and their times (`MLX5DV_RES_TYPE_CQ`).
    Cq = 5,
}

/// What a parent domain was given.
#[derive(Clone, Copy)]
pub(super) struct ParentDomainAllocators {
    alloc: Alloc,
    free: Free,
    context: *mut c_void,
}

impl ParentDomainAllocators {
    /// Both, and what they are to be given; `None` if one is missing.
    pub(super) fn of(
        alloc: Option<Alloc>,
        free: Option<Free>,
        context: *mut c_void,
    ) -> Option<Self> {
        Some(ParentDomainAllocators { alloc: alloc?, free: free?, context })
    }

    /// As a lender, for one object of this parent domain.
    pub(super) fn lend(self, domain: *mut ibv_pd, resource: Resource) -> Arc<Loans> {
        let (generation, has_refused) = (generation(), AtomicBool::new(false));
        Arc::new(Loans { allocators: self, domain, resource, generation, has_refused })
    }
}

/// What a parent domain lends one object.
pub(super) struct Loans {
    allocators: ParentDomainAllocators,
    domain: *mut ibv_pd,
    resource: Resource,
    /// The process's, when the object was made.
    generation: u64,
    has_refused: AtomicBool,
}

impl Loans {
    /// The lender that is looked for, which may not be there.
    pub(super) fn lending(loans: &Option<Arc<Loans>>) -> MemoryLender {
        loans.clone().map(|loans| loans as Arc<dyn Lender>)
    }

    /// Whether memory was asked for and there was none, which has been said then.
    pub(super) fn have_refused(loans: &Option<Arc<Loans>>) -> bool {
        loans.as_ref().is_some_and(|loans| loans.has_refused.load(Ordering::Relaxed))
    }

    fn free(&self, memory: *mut c_void) {
        let ParentDomainAllocators { free, context, .. } = self.allocators;
        // SAFETY: the program's function, with what it gave for that; the parent domain is live as
        // long as objects are that were made in it.
        unsafe { free(self.domain, context, memory, self.resource as u64) }
    }

    fn none(&self, why: &str) -> NoMemory {
        self.has_refused.store(true, Ordering::Relaxed);
        let _ = refused!(Errno::ENOMEM, "the allocators of a parent domain: {why}");
        NoMemory
    }
}

// SAFETY: the pointers are the program's, and ours to the parent domain; neither is looked into,
// and whichever thread uses an object may destroy it.
unsafe impl Send for Loans {}
// SAFETY: as above.
unsafe impl Sync for Loans {}

// SAFETY: what `alloc` returns is memory of the size that was asked for, which the program leaves
// alone until it is told to free it: ibv_alloc_parent_domain(3). Alignment is looked at.
unsafe impl Lender for Loans {
    fn lend(&self, bytes: usize, alignment: usize) -> Result<Option<NonNull<u8>>, NoMemory> {
        let ParentDomainAllocators { alloc, context, .. } = self.allocators;
        // SAFETY: as with `free`.
        let memory = unsafe { alloc(self.domain, context, bytes, alignment, self.resource as u64) };
        if memory.addr() == USE_DEFAULT {
            return Ok(None);
        }
        let Some(given) = NonNull::new(memory) else { return Err(self.none("alloc gave none")) };
        if !memory.addr().is_multiple_of(alignment) {
            self.free(memory);
            return Err(self.none("alloc gave memory that is not aligned as it was asked to"));
        }
        Ok(Some(given.cast()))
    }

    /// In a forked child the object is the parent's, and so is the memory: it may be shared.
    fn take_back(&self, memory: NonNull<u8>) {
        if self.generation == generation() {
            self.free(memory.as_ptr().cast());
        }
    }
}
