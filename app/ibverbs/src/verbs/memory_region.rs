//! Memory regions.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use omniverb_abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_RANGE, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_FLAGS_SUPPORTED, ibv_mr,
    ibv_pd,
};
use omniverb_client::{Client, ImportedRegion, RegistrationRequest, lock};
use omniverb_device::{RegionKind, access};
use omniverb_ring::UserMemory;
use omniverb_session::device_import_messages;
use omniverb_sys::{memory_probe, page_protection::NeededAccess};
use omniverb_terms::{Errno, Rkey};

use super::context::ContextShell;
use super::contexts_of_one_cmd_fd::SharedCommandFile;
use super::importable_objects::{ImportableRegion, MemoryOf, State};
use super::object_limits::MR_BYTES_MAX;
use super::protection_domain::PdShell;
use crate::errno::{null, set_errno};
use crate::refusal_log::{of_daemon, refused};

/// A memory region as C sees it.
#[repr(C)]
struct MrShell {
    mr: ibv_mr,
    of: Arc<ImportableRegion>,
}

/// Access flags that a client may ask for and a device may ignore.
const OPTIONAL: u32 = IBV_ACCESS_OPTIONAL_RANGE;

/// Registers memory of the program's.
///
/// # Safety
/// `pd` is live; the range stays mapped until the region is deregistered, unless it is to be paged
/// on demand.
pub(super) unsafe fn register(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    let range = Range { address, length, iova };
    match checked(range, flags) {
        // SAFETY: the caller's promise.
        Ok(wish) => unsafe { registered(pd, address, wish, MemoryOf::Program) },
        Err(errno) => null(errno),
    }
}

/// Memory that is to be registered.
#[derive(Clone, Copy)]
struct Range {
    address: *mut c_void,
    length: usize,
    /// What requests name the first byte by.
    iova: u64,
}

/// What is to be registered of memory of the program's, in a PD that is to be filled in.
fn checked(range: Range, flags: u32) -> Result<RegistrationRequest, Errno> {
    let Range { address, length, iova } = range;
    let access = flags & !OPTIONAL;
    let known = access::LOCAL_WRITE
        | access::REMOTE
        | access::MW_BIND
        | access::ZERO_BASED
        | access::ON_DEMAND
        | IBV_ACCESS_HUGETLB;
    let peers_write = access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if access & !known != 0 || (peers_write && access & access::LOCAL_WRITE == 0) {
        let why = "unknown access flags, persistence, or remote write without local write";
        return Err(refused!(Errno::EINVAL, "ibv_reg_mr: {why} ({access:#x})"));
    }
    let on_demand = access & access::ON_DEMAND != 0;
    let extras = match on_demand {
        true => RegionKind::looking(is_there),
        false => RegionKind::default(),
    };
    let access = access & !(access::ZERO_BASED | IBV_ACCESS_HUGETLB);
    if on_demand && address.is_null() && length == usize::MAX {
        // All that the program has and will have.
        let (length, iova) = (MR_BYTES_MAX as usize, 0);
        return Ok(RegistrationRequest { pd: 0, address: 0, length, iova, access, extras });
    }
    // Pages of the device begin where those of the program do.
    if length == 0
        || length as u64 > MR_BYTES_MAX
        || (address as usize).checked_add(length).is_none()
        || iova.checked_add(length as u64).is_none()
        || (address as u64 ^ iova) & 0xfff != 0
    {
        let why = "no length, a range that wraps, or an IOVA of another page offset";
        return Err(refused!(Errno::EINVAL, "ibv_reg_mr: {why}"));
    }
    if !on_demand {
        let needs = match access & access::LOCAL_WRITE {
            0 => NeededAccess::Reading,
            _ => NeededAccess::Writing,
        };
        if !memory_probe::is_usable(address as usize, length, needs) {
            let why = "memory that is not mapped, or not for that access";
            return Err(refused!(Errno::EFAULT, "ibv_reg_mr: {why}"));
        }
    }
    let iova = if flags & access::ZERO_BASED != 0 { 0 } else { iova };
    Ok(RegistrationRequest { pd: 0, address: address as usize, length, iova, access, extras })
}

/// Whether memory that comes and goes is there, just before it is used.
fn is_there(memory: UserMemory) -> bool {
    memory.is_empty() || memory_probe::is_mapped(memory.address(), memory.len())
}

/// Registers what was checked.
///
/// # Safety
/// As [`register`].
pub(super) unsafe fn registered(
    pd: *mut ibv_pd,
    address: *mut c_void,
    wish: RegistrationRequest,
    of: MemoryOf,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe {
        let context = ContextShell::of((*pd).context);
        let length = if matches!(of, MemoryOf::Nobody) { 0 } else { wish.length };
        let region = match context
            .client
            .register(RegistrationRequest { pd: PdShell::of(pd).number(), ..wish })
        {
            Ok(region) => region,
            Err(errno) => return null(refused!(errno, "ibv_reg_mr: {}", of_daemon(errno))),
        };
        PdShell::of(pd).begin_use();
        if let MemoryOf::Device(dm) = &of {
            dm.users.one_more();
        }
        // Whether or not it opens anything now.
        let rkey = Rkey(region.lkey.0);
        let mr = ibv_mr {
            context: (*pd).context,
            pd,
            addr: address,
            length,
            handle: region.lkey.0,
            lkey: region.lkey.0,
            rkey: rkey.0,
        };
        let state = Mutex::new(State { region, rkey, pd, address, length });
        let of = Arc::new(ImportableRegion { state, of });
        context.family.regions.add(mr.handle, of.clone());
        Box::into_raw(Box::new(MrShell { mr, of })).cast()
    }
}

/// Registers anew: other memory, another PD, other rights. The keys stay as they are; what peers do
/// by them is not mapped any more.
///
/// # Safety
/// `mr` is live and no other thread uses it; `pd` and the memory are as for `ibv_reg_mr`, as far as
/// `flags` say that they change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // `enum ibv_rereg_mr_err_code`: what went wrong; the region is as it was in both cases.
    const INPUT: c_int = -1;
    const COMMAND: c_int = -4;
    let fail = |code: c_int, errno: Errno| {
        set_errno(errno);
        code
    };
    let flags = flags as u32;
    let changes = |what: u32| flags & what != 0;
    let moves = changes(IBV_REREG_MR_CHANGE_TRANSLATION);
    if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || (changes(IBV_REREG_MR_CHANGE_PD) && pd.is_null())
        || (moves && (length == 0 || address.is_null()))
    {
        return fail(INPUT, Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let shell = &mut *mr.cast::<MrShell>();
        let of = shell.of.clone();
        let mut state = lock(&of.state);
        if !matches!(of.of, MemoryOf::Program) || state.region.extras.looks.is_some() {
            return fail(INPUT, Errno::EINVAL);
        }
        let old = state.region.clone();
        // An importer may have deregistered it.
        if !ContextShell::of(shell.mr.context).family.regions.has(old.lkey.0, &of) {
            return fail(INPUT, Errno::ENOENT);
        }
        let (address, length) =
            if moves { (address, length) } else { (state.address, state.length) };
        let iova = if moves { address as u64 } else { old.iova };
        let access = match changes(IBV_REREG_MR_CHANGE_ACCESS) {
            true => access as u32,
            false => old.access,
        };
        // What begins at zero has another offset in its first page than its memory.
        let zero_based = iova == 0;
        let named = if zero_based { address as u64 } else { iova };
        let flags = access | if zero_based { access::ZERO_BASED } else { 0 };
        let wish = match checked(Range { address, length, iova: named }, flags) {
            Ok(wish) if wish.extras.looks.is_none() => wish,
            Ok(_) => return fail(INPUT, Errno::EINVAL),
            Err(errno) => return fail(INPUT, errno),
        };
        let pd = if changes(IBV_REREG_MR_CHANGE_PD) { pd } else { state.pd };
        let wish = RegistrationRequest { pd: PdShell::of(pd).number(), ..wish };
        let client = &ContextShell::of(shell.mr.context).client;
        // Another process imports it anew, when it is another one: that needs the lock.
        let family = &ContextShell::of(shell.mr.context).family;
        if let Err(errno) = family.ends(device_import_messages::REGION, old.lkey.0) {
            return fail(COMMAND, errno);
        }
        match client.reregister(&old, wish, state.rkey) {
            Ok(region) => state.region = region,
            Err(errno) => return fail(COMMAND, errno),
        }
        if changes(IBV_REREG_MR_CHANGE_PD) {
            PdShell::of(pd).begin_use();
            PdShell::end_use(state.pd);
            (state.pd, shell.mr.pd) = (pd, pd);
        }
        if moves {
            (state.address, state.length) = (address, length);
            (shell.mr.addr, shell.mr.length) = (address, length);
        }
    }
    0
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

/// Deregisters a region for all processes. `EBUSY` while windows are bound to it, `ENOENT`: it was
/// deregistered.
///
/// # Safety
/// The PD that it is counted by is live, if it is in the table.
pub(super) unsafe fn deregister(
    family: &SharedCommandFile,
    client: &Client,
    of: &Arc<ImportableRegion>,
) -> Result<(), Errno> {
    let state = lock(&of.state);
    let handle = state.region.lkey.0;
    if let MemoryOf::Elsewhere(imported) = &of.of {
        if state.region.is_bound() {
            return Err(Errno::EBUSY);
        }
        let elsewhere = family.elsewhere().ok_or(Errno::EIO)?;
        elsewhere.import.destroy(device_import_messages::REGION, imported.handle)?;
        imported.end_here();
        return Ok(());
    }
    if !family.regions.has(handle, of) {
        return Err(Errno::ENOENT);
    }
    if state.region.is_bound() {
        return Err(Errno::EBUSY);
    }
    // It is not imported meanwhile: that needs the lock.
    family.ends(device_import_messages::REGION, handle)?;
    client.deregister(&state.region)?;
    let _ = family.regions.take(handle, |_| true);
    if let MemoryOf::Device(dm) = &of.of {
        dm.users.one_less();
    }
    // SAFETY: the caller's promise.
    unsafe { PdShell::end_use(state.pd) };
    Ok(())
}

/// Deregisters memory. When this returns, no peer reaches it any more. An importer can do nothing
/// with it any more but unimport it.
///
/// # Safety
/// `mr` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let (context, of) = (ContextShell::of((*mr).context), &(*mr.cast::<MrShell>()).of);
        // A forked child's copy: nothing of it is registered, and locks may be as a thread of the
        // parent's had them.
        if !context.client.is_ours() {
            return 0;
        }
        if let Err(errno) = deregister(&context.family, &context.client, of) {
            return errno.raw();
        }
        drop(Box::from_raw(mr.cast::<MrShell>()));
    }
    0
}

/// A region of the family of this PD, by its handle; its address is not told. `ENOENT`: there is
/// none. Of another process's the handle is that one's, and the L_Key one of ours; besides as in
/// [`omniverb_client::Import::region`].
///
/// # Safety
/// `pd` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    let context = unsafe { (*pd).context };
    // SAFETY: a live PD's.
    let family = &unsafe { ContextShell::of(context) }.family;
    let found = match family.elsewhere() {
        Some(elsewhere) => elsewhere.region(handle).map(|of| imported(pd, of)),
        None => family.regions.get(handle).ok_or(Errno::ENOENT),
    };
    let of = match found {
        Ok(of) => of,
        Err(Errno::ENOENT) => return null(Errno::ENOENT),
        Err(errno) => return null(refused!(errno, "ibv_import_mr: {}", not_had(errno))),
    };
    let state = lock(&of.state);
    let (length, lkey, rkey) = (state.length, state.region.lkey.0, state.rkey.0);
    drop(state);
    let mr = ibv_mr { context, pd, addr: core::ptr::null_mut(), length, handle, lkey, rkey };
    Box::into_raw(Box::new(MrShell { mr, of })).cast()
}

/// A region of another process's.
fn imported(pd: *mut ibv_pd, of: Arc<ImportedRegion>) -> Arc<ImportableRegion> {
    let region = of.region().clone();
    let (rkey, length, address) = (of.rkey, region.memory.len(), core::ptr::null_mut());
    let state = Mutex::new(State { region, rkey, pd, address, length });
    Arc::new(ImportableRegion { state, of: MemoryOf::Elsewhere(of) })
}

/// Why a region of another process's cannot be had.
fn not_had(errno: Errno) -> &'static str {
    match errno {
        Errno::EOPNOTSUPP => {
            "its owner's memory cannot be shared in place: a file, huge pages, a stack, on demand, \
             or its process uses io_uring or the like"
        }
        Errno::EPERM => "its owner keeps its pages, or may not move them",
        Errno::EIO | Errno::ETIMEDOUT => "the process that has it is gone, or does not answer",
        Errno::EADDRINUSE => "its R_Key means something else here",
        Errno::EAGAIN => "its owner's threads keep its pages busy, or too much is moved already",
        _ => "too much, or something that is no region",
    }
}

/// Gives up what was imported; the region stays.
///
/// # Safety
/// `mr` was imported, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller's promise.
    unsafe {
        // A forked child's copy: what it is mapped by is the parent's.
        if ContextShell::of((*mr).context).client.is_ours() {
            drop(Box::from_raw(mr.cast::<MrShell>()));
        }
    }
}
