//! Protection domains and memory regions.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use omniverb_abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_RANGE, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_FLAGS_SUPPORTED,
    ibv_context, ibv_dm, ibv_mr, ibv_pd, ibv_td,
};
use omniverb_client::Wish;
use omniverb_device::region::NO_RKEY;
use omniverb_device::{Extras, Region, access};
use omniverb_terms::{Errno, Rkey};

use super::context::ContextShell;
use super::limits::MR_BYTES_MAX;
use super::presence;
use super::users::{DmShell, TdShell};
use crate::errno::{null, set_errno};
use crate::why::refused;

/// A protection domain.
#[repr(C)]
pub(crate) struct PdShell {
    pd: ibv_pd,
    /// What the device knows it by; unique in the process.
    number: u32,
    /// Objects made in it.
    users: AtomicU32,
    /// What it is a parent domain of: another PD, and a thread domain if it has one.
    parent_of: Option<(*mut ibv_pd, *mut ibv_td)>,
}

impl PdShell {
    /// # Safety
    /// `pd` is a live PD of ours.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a PdShell {
        // SAFETY: the caller's promise.
        unsafe { &*pd.cast::<PdShell>() }
    }

    /// Its number, unique in the process.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// An object is made in it.
    pub(super) fn begin_use(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// One made in it is gone.
    pub(super) fn end_use(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A memory region.
#[repr(C)]
struct MrShell {
    mr: ibv_mr,
    region: Arc<Region>,
    of: MemoryOf,
}

/// Whose memory a region is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryOf {
    Program,
    /// Nobody's: a null MR.
    Nobody,
    /// This piece of device memory.
    Device(*mut ibv_dm),
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
    if !shell.counts.pds.one_more() {
        return null(Errno::ENOMEM);
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let pd = ibv_pd { context, handle: number };
    let (users, parent_of) = (AtomicU32::new(0), None);
    Box::into_raw(Box::new(PdShell { pd, number, users, parent_of })).cast()
}

/// Makes a parent domain: whatever is made in it is made in `of`.
///
/// # Safety
/// `of` is live, `td` is null or live.
pub(super) unsafe fn parent_domain(of: *mut ibv_pd, td: *mut ibv_td) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    unsafe {
        let context = (*of).context;
        if !ContextShell::of(context).counts.pds.one_more() {
            return null(Errno::ENOMEM);
        }
        let number = PdShell::of(of).number;
        PdShell::of(of).begin_use();
        if let Some(td) = TdShell::of(td) {
            td.begin_use();
        }
        let pd = ibv_pd { context, handle: number };
        let (users, parent_of) = (AtomicU32::new(0), Some((of, td)));
        Box::into_raw(Box::new(PdShell { pd, number, users, parent_of })).cast()
    }
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
        if let Some((of, td)) = PdShell::of(pd).parent_of {
            PdShell::of(of).end_use();
            if let Some(td) = TdShell::of(td) {
                td.end_use();
            }
        }
        ContextShell::of((*pd).context).counts.pds.one_less();
        drop(Box::from_raw(pd.cast::<PdShell>()));
    }
    0
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
fn checked(range: Range, flags: u32) -> Result<Wish, Errno> {
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
        true => Extras::looking(presence::is_there),
        false => Extras::default(),
    };
    let access = access & !(access::ZERO_BASED | IBV_ACCESS_HUGETLB);
    if on_demand && address.is_null() && length == usize::MAX {
        // All that the program has and will have.
        let (length, iova) = (MR_BYTES_MAX as usize, 0);
        return Ok(Wish { pd: 0, address: 0, length, iova, access, extras });
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
        let writes = access & access::LOCAL_WRITE != 0;
        if !presence::is_usable(address as usize, length, writes) {
            let why = "memory that is not mapped, or not for that access";
            return Err(refused!(Errno::EFAULT, "ibv_reg_mr: {why}"));
        }
    }
    let iova = if flags & access::ZERO_BASED != 0 { 0 } else { iova };
    Ok(Wish { pd: 0, address: address as usize, length, iova, access, extras })
}

/// Registers what was checked.
///
/// # Safety
/// As [`register`].
pub(super) unsafe fn registered(
    pd: *mut ibv_pd,
    address: *mut c_void,
    wish: Wish,
    of: MemoryOf,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe {
        let client = &ContextShell::of((*pd).context).client;
        let length = if of == MemoryOf::Nobody { 0 } else { wish.length };
        let region = match client.register(Wish { pd: PdShell::of(pd).number(), ..wish }) {
            Ok(region) => region,
            Err(errno) => return null(refused!(errno, "ibv_reg_mr: over a quota, or no daemon")),
        };
        PdShell::of(pd).begin_use();
        if let MemoryOf::Device(dm) = of {
            DmShell::of(dm).begin_use();
        }
        let rkey = if region.rkey == NO_RKEY { client.spare_rkey() } else { region.rkey };
        let mr = ibv_mr {
            context: (*pd).context,
            pd,
            addr: address,
            length,
            handle: region.lkey.0,
            lkey: region.lkey.0,
            rkey: rkey.0,
        };
        Box::into_raw(Box::new(MrShell { mr, region, of })).cast()
    }
}

/// The region of an MR.
///
/// # Safety
/// `mr` is live.
pub(super) unsafe fn region_of<'a>(mr: *mut ibv_mr) -> &'a Region {
    // SAFETY: the caller's promise.
    unsafe { &(*mr.cast::<MrShell>()).region }
}

/// Registers anew: other memory, another PD, other rights. The keys stay as they are; what peers do
/// by them is not mapped any more.
///
/// # Safety
/// `mr` is live and nobody else is at it; `pd` and the memory are as for `ibv_reg_mr`, as far as
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
        if shell.of != MemoryOf::Program || shell.region.extras.looks.is_some() {
            return fail(INPUT, Errno::EINVAL);
        }
        let old = shell.region.clone();
        let (address, length) =
            if moves { (address, length) } else { (shell.mr.addr, shell.mr.length) };
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
        let pd = if changes(IBV_REREG_MR_CHANGE_PD) { pd } else { shell.mr.pd };
        let wish = Wish { pd: PdShell::of(pd).number(), ..wish };
        let client = &ContextShell::of(shell.mr.context).client;
        match client.reregister(&old, wish, Rkey(shell.mr.rkey)) {
            Ok(region) => shell.region = region,
            Err(errno) => return fail(COMMAND, errno),
        }
        PdShell::of(pd).begin_use();
        PdShell::of(shell.mr.pd).end_use();
        (shell.mr.pd, shell.mr.addr, shell.mr.length) = (pd, address, length);
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
        if let MemoryOf::Device(dm) = shell.of {
            DmShell::of(dm).end_use();
        }
        PdShell::of((*mr).pd).end_use();
        drop(Box::from_raw(mr.cast::<MrShell>()));
    }
    0
}
