//! The device: opened once in a process, for as long as the process lives.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::sync::Mutex;

use omniverb_abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_device, ibv_device_attr,
    ibv_gid_entry, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr, verbs_context,
};
use omniverb_sys::lock;
use omniverb_terms::{Errno, Gid};

use crate::errno::{made, null, verb};
use crate::ibverbs_imports;
use crate::process_id_across_fork;

/// Entries of a GID table that are looked at.
const GIDS_MAX: usize = omniverb_session::limits::GIDS_MAX;

/// The opened device.
#[derive(Clone, Copy)]
struct Device {
    verbs: *mut ibv_context,
    /// The protection domain of identifiers without one of their program's, while it is held.
    pd: *mut ibv_pd,
    /// The XRC domain of identifiers without one, likewise.
    domain: *mut ibv_xrcd,
    holders: usize,
    limits: Limits,
    /// Opened by this process, and not by one that was forked to make it.
    process: i32,
}

// SAFETY: libibverbs's objects are for any thread.
unsafe impl Send for Device {}

/// READs and atomics at a time.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
}

static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

/// Whether there is a device to be had.
///
/// # Errors
/// `ENODEV`.
pub(crate) fn check_present() -> Result<(), Errno> {
    with(|_| Ok(()))
}

fn with<T>(work: impl FnOnce(&mut Device) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut slot = lock(&DEVICE);
    let process = process_id_across_fork::this();
    let mut device = match *slot {
        Some(device) if device.process == process => device,
        _ => open(process)?,
    };
    let result = work(&mut device);
    *slot = Some(device);
    result
}

fn open(process: i32) -> Result<Device, Errno> {
    let mut count = 0;
    // SAFETY: a place for a number.
    let list = unsafe { ibverbs_imports::ibv_get_device_list(&mut count) };
    if list.is_null() {
        return Err(Errno::ENODEV);
    }
    // SAFETY: an array that ends with null.
    let first: *mut ibv_device = unsafe { *list };
    let opened = if first.is_null() {
        Err(Errno::ENODEV)
    } else {
        // SAFETY: in the list.
        made(unsafe { ibverbs_imports::ibv_open_device(first) }).map_err(|_| Errno::ENODEV)
    };
    // SAFETY: from above, for the last time.
    unsafe { ibverbs_imports::ibv_free_device_list(list) };
    let verbs = opened?;
    let limits = limits(verbs).inspect_err(|_| {
        // SAFETY: open, and ours alone.
        unsafe { ibverbs_imports::ibv_close_device(verbs) };
    })?;
    Ok(Device { verbs, pd: null_mut(), domain: null_mut(), holders: 0, limits, process })
}

fn limits(verbs: *mut ibv_context) -> Result<Limits, Errno> {
    let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: open; a place for the attributes.
    verb(unsafe { ibverbs_imports::ibv_query_device(verbs, attributes.as_mut_ptr()) })?;
    // SAFETY: numbers, for which zero is valid, too.
    let attributes = unsafe { attributes.assume_init() };
    let byte = |number: c_int| u8::try_from(number.max(0)).unwrap_or(u8::MAX);
    Ok(Limits {
        initiator_depth: byte(attributes.max_qp_init_rd_atom),
        responder_resources: byte(attributes.max_qp_rd_atom),
    })
}

/// How many READs and atomics at a time the device does, either way.
pub(crate) fn at_most() -> Result<Limits, Errno> {
    with(|device| Ok(device.limits))
}

/// The device, and its default protection domain, for one more holder.
pub(crate) fn hold() -> Result<(*mut ibv_context, *mut ibv_pd), Errno> {
    with(|device| {
        if device.pd.is_null() {
            // SAFETY: open.
            device.pd = made(unsafe { ibverbs_imports::ibv_alloc_pd(device.verbs) })?;
        }
        device.holders += 1;
        Ok((device.verbs, device.pd))
    })
}

/// The XRC domain of identifiers without one; for a holder of the device.
pub(crate) fn domain() -> Result<*mut ibv_xrcd, Errno> {
    with(|device| {
        if device.domain.is_null() {
            // SAFETY: open.
            let open = unsafe { table(device.verbs) }.open_xrcd.ok_or(Errno::EOPNOTSUPP)?;
            let mut asked = ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: open; valid attributes.
            device.domain = made(unsafe { open(device.verbs, &mut asked) })?;
        }
        Ok(device.domain)
    })
}

/// One holder less; the last one takes the default domains with it.
pub(crate) fn put() {
    let mut slot = lock(&DEVICE);
    if let Some(device) = slot.as_mut()
        && device.process == process_id_across_fork::this()
    {
        device.holders = device.holders.saturating_sub(1);
        if device.holders > 0 {
            return;
        }
        // SAFETY: both ours. Where something of the program's is made from one still, it stays.
        unsafe {
            if !device.pd.is_null() && ibverbs_imports::ibv_dealloc_pd(device.pd) == 0 {
                device.pd = null_mut();
            }
            let close = table(device.verbs).close_xrcd;
            if let Some(close) = close
                && !device.domain.is_null()
                && close(device.domain) == 0
            {
                device.domain = null_mut();
            }
        }
    }
}

/// The table of verbs that are no symbols.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn table<'a>(context: *mut ibv_context) -> &'a verbs_context {
    // SAFETY: the caller's promise; every context of libibverbs.so.1 lies in such a table.
    unsafe { &*context.byte_sub(core::mem::offset_of!(verbs_context, context)).cast() }
}

/// Index of the loopback interface in every network namespace.
const LOOPBACK_INTERFACE: u32 = 1;

/// The GID table.
///
/// # Safety
/// `context` is open.
unsafe fn gids(context: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno> {
    let mut entries = [const { MaybeUninit::<ibv_gid_entry>::zeroed() }; GIDS_MAX];
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: the caller's promise; so many entries of that size.
    let count = unsafe {
        ibverbs_imports::_ibv_query_gid_table(
            context,
            entries.as_mut_ptr().cast(),
            GIDS_MAX,
            0,
            size,
        )
    };
    let count = usize::try_from(count).map_err(|_| Errno::EIO)?.min(GIDS_MAX);
    // SAFETY: numbers, for which zero is valid, too.
    Ok(entries[..count].iter().map(|entry| unsafe { entry.assume_init_read() }).collect())
}

/// Whether there is no interface but the loopback, so that the device has its addresses only.
///
/// # Errors
/// `ENODEV`.
pub(crate) fn has_loopback_only() -> Result<bool, Errno> {
    // SAFETY: open.
    let gids = with(|device| unsafe { gids(device.verbs) })?;
    Ok(gids.iter().all(|entry| entry.ndev_ifindex == LOOPBACK_INTERFACE))
}

/// Where in the GID table an address is; of the interface, where several have it.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn gid_index(
    context: *mut ibv_context,
    gid: Gid,
    interface: u32,
) -> Result<u8, Errno> {
    // SAFETY: the caller's promise.
    let known = unsafe { gids(context)? };
    let with_it: Vec<_> = known.iter().filter(|entry| entry.gid.raw == gid.bytes()).collect();
    let there = with_it.iter().find(|entry| entry.ndev_ifindex == interface).or(with_it.first());
    let index = there.ok_or(Errno::ENODEV)?.gid_index;
    u8::try_from(index).map_err(|_| Errno::ENODEV)
}

/// The devices, opened, as an array that ends with null. They stay open.
///
/// # Safety
/// `count` is null or valid for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let found = with(|device| Ok(device.verbs));
    // SAFETY: calloc has no preconditions.
    let list: *mut *mut ibv_context =
        unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) }.cast();
    let result = match found {
        Err(errno) => Err(errno),
        Ok(_) if list.is_null() => Err(Errno::ENOMEM),
        // SAFETY: room for two pointers.
        Ok(verbs) => unsafe {
            list.write(verbs);
            Ok(list)
        },
    };
    // SAFETY: the caller's promise.
    unsafe {
        if !count.is_null() {
            count.write(c_int::from(result.is_ok()));
        }
        if result.is_err() {
            libc::free(list.cast());
        }
    }
    result.unwrap_or_else(null)
}

/// Frees the array.
///
/// # Safety
/// `list` came from [`ov_rdma_get_devices`], or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(list.cast()) };
}
