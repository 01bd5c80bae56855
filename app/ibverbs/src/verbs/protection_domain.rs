//! Protection domains.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use omniverb_abi::{ibv_context, ibv_pd, ibv_td};
use omniverb_session::device_import_messages;
use omniverb_terms::Errno;

use super::context::ContextShell;
use super::contexts_of_one_cmd_fd::SharedCommandFile;
use super::importable_objects::ProtectionDomain;
use super::object_counts::UserCount;
use super::parent_domain_allocators::{Loans, ParentDomainAllocators, Resource};
use super::thread_domain_and_dm_handles::TdShell;
use crate::errno::null;

/// A protection domain as C sees it: made, imported, or a parent domain.
#[repr(C)]
pub(crate) struct PdShell {
    pd: ibv_pd,
    of: Arc<ProtectionDomain>,
    /// C, until it gives it up, and the objects made by this one. The last one frees it: programs
    /// unimport a PD before the queue pairs that they made with it.
    holders: AtomicU32,
    /// What it is a parent domain of: another PD, and a thread domain if it has one.
    parent_of: Option<(*mut ibv_pd, *mut ibv_td)>,
    /// Of a parent domain: where memory for objects made in it comes from.
    allocators: Option<ParentDomainAllocators>,
}

impl PdShell {
    fn into_c(
        context: *mut ibv_context,
        of: Arc<ProtectionDomain>,
        parent_of: Option<(*mut ibv_pd, *mut ibv_td)>,
        allocators: Option<ParentDomainAllocators>,
    ) -> *mut ibv_pd {
        let pd = ibv_pd { context, handle: of.handle() };
        let holders = AtomicU32::new(1);
        Box::into_raw(Box::new(PdShell { pd, of, holders, parent_of, allocators })).cast()
    }

    /// # Safety
    /// `pd` is a live PD of ours.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a PdShell {
        // SAFETY: the caller's promise.
        unsafe { &*pd.cast::<PdShell>() }
    }

    /// Its number, unique in the process.
    pub(super) fn number(&self) -> u32 {
        self.of.number
    }

    /// The lender of memory to an object that is to be made in it, if there is one.
    ///
    /// # Safety
    /// `pd` is a live PD of ours, and stays so as long as the object.
    pub(super) unsafe fn loans(pd: *mut ibv_pd, resource: Resource) -> Option<Arc<Loans>> {
        // SAFETY: the caller's promise.
        let allocators = unsafe { PdShell::of(pd) }.allocators?;
        Some(allocators.lend(pd, resource))
    }

    /// An object is made in it.
    pub(super) fn begin_use(&self) {
        self.of.users.one_more();
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    /// One made in it is gone.
    ///
    /// # Safety
    /// That object was counted by [`Self::begin_use`], and does not use it any more.
    pub(super) unsafe fn end_use(pd: *mut ibv_pd) {
        // SAFETY: the object was one of its holders until now.
        unsafe {
            PdShell::of(pd).of.users.one_less();
            PdShell::let_go(pd);
        }
    }

    /// # Safety
    /// The caller is one of its holders, and does not use it any more.
    unsafe fn let_go(pd: *mut ibv_pd) {
        // SAFETY: the caller holds it; the last one frees it.
        unsafe {
            if PdShell::of(pd).holders.fetch_sub(1, Ordering::AcqRel) == 1 {
                drop(Box::from_raw(pd.cast::<PdShell>()));
            }
        }
    }
}

/// Makes a protection domain.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let shell = unsafe { ContextShell::of(context) };
    if let Err(errno) = shell.counts.pds.one_more("ibv_alloc_pd") {
        return null(errno);
    }
    let of = ProtectionDomain::new();
    shell.family.domains.add(of.number, of.clone());
    shell.family.offer(&shell.client);
    PdShell::into_c(context, of, None, None)
}

/// Makes a parent domain: whatever is made in it is made in `of`.
///
/// # Safety
/// `of` is live, `td` is null or live.
pub(super) unsafe fn parent_domain(
    of: *mut ibv_pd,
    td: *mut ibv_td,
    allocators: Option<ParentDomainAllocators>,
) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    unsafe {
        let context = (*of).context;
        let counts = &ContextShell::of(context).counts;
        if let Err(errno) = counts.pds.one_more("ibv_alloc_parent_domain") {
            return null(errno);
        }
        PdShell::of(of).begin_use();
        if let Some(td) = TdShell::of(td) {
            td.begin_use();
        }
        let ProtectionDomain { number, elsewhere, .. } = *PdShell::of(of).of;
        let same = ProtectionDomain { number, elsewhere, users: UserCount::default() };
        PdShell::into_c(context, Arc::new(same), Some((of, td)), allocators)
    }
}

/// Frees it; `EBUSY` while objects are left in it. An importer can do nothing with it any more but
/// unimport it.
///
/// # Safety
/// `pd` is a live PD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = PdShell::of(pd);
        let context = ContextShell::of((*pd).context);
        // A forked child's copy: locks may be as a thread of the parent's had them.
        if !context.client.is_ours() {
            return 0;
        }
        if let Some((of, td)) = shell.parent_of {
            if shell.of.users.are_some() {
                return Errno::EBUSY.raw();
            }
            PdShell::end_use(of);
            if let Some(td) = TdShell::of(td) {
                td.end_use();
            }
            context.counts.pds.one_less();
        } else if let Err(errno) = destroy(&context.family, &shell.of) {
            return errno.raw();
        }
        PdShell::let_go(pd);
    }
    0
}

/// For all processes that have it: here, or where it is.
fn destroy(family: &SharedCommandFile, of: &ProtectionDomain) -> Result<(), Errno> {
    match (family.elsewhere(), of.elsewhere) {
        (Some(_), Some(_)) if of.users.are_some() => Err(Errno::EBUSY),
        (Some(elsewhere), Some(handle)) => {
            elsewhere.import.destroy(device_import_messages::DOMAIN, handle)
        }
        _ => family.deallocate(of.number),
    }
}

/// A PD of the family of this context, by its handle; of another process's it is that one's handle.
/// `ENOENT`: there is none; `EIO`, `ETIMEDOUT`: that process does not answer.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let family = &unsafe { ContextShell::of(context) }.family;
    let found = match family.elsewhere() {
        Some(elsewhere) => elsewhere.import.domain(handle).map(|()| elsewhere.domain(handle)),
        None => family.domains.get(handle).ok_or(Errno::ENOENT),
    };
    match found {
        Ok(of) => PdShell::into_c(context, of, None, None),
        Err(errno) => null(errno),
    }
}

/// Gives up what was imported; the PD stays.
///
/// # Safety
/// `pd` was imported, and is used only by objects made with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: C is a holder until now.
    unsafe { PdShell::let_go(pd) };
}
