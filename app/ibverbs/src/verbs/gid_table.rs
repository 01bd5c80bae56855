//! The GID table: RoCE v2 entries, dense, the same order in every network namespace.

use core::ffi::c_int;

use omniverb_abi::{IBV_GID_TYPE_ROCE_V2, ibv_context, ibv_gid, ibv_gid_entry};
use omniverb_client::{GidEntry, lock};
use omniverb_session::limits::GIDS_MAX;

use super::context::ContextShell;
use crate::errno::minus_one;
use omniverb_terms::{Errno, Gid};

impl ContextShell {
    /// The table as it is now; what it was if the daemon does not answer.
    pub(super) fn fresh_gids(&self) -> Vec<GidEntry> {
        let mut kept = lock(&self.gids);
        if let Ok(table) = self.client.gids() {
            *kept = table;
        }
        kept.clone()
    }

    /// One entry, from the table as it was last seen.
    pub(super) fn gid_entry(&self, index: usize) -> Option<GidEntry> {
        let known = {
            let kept = lock(&self.gids);
            kept.get(index).cloned()
        };
        known.or_else(|| self.fresh_gids().get(index).cloned())
    }

    /// The same, without what else is known of it.
    pub(super) fn gid(&self, index: usize) -> Option<Gid> {
        self.gid_entry(index).map(|entry| entry.gid)
    }

    /// Where a GID is in the table.
    pub(super) fn gid_index(&self, gid: Gid) -> Option<u8> {
        let kept = lock(&self.gids);
        let index = kept.iter().position(|entry| entry.gid == gid)?;
        u8::try_from(index).ok()
    }
}

/// An entry; an empty one reads as zeros.
///
/// # Safety
/// Both pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let Some(index) = usize::try_from(index).ok().filter(|i| port == 1 && *i < GIDS_MAX) else {
        return minus_one(Errno::EINVAL);
    };
    // SAFETY: the caller's promise.
    unsafe {
        let table = ContextShell::of(context).fresh_gids();
        gid.write(ibv_gid { raw: table.get(index).map_or([0; 16], |entry| entry.gid.bytes()) });
    }
    0
}

fn entry(index: usize, from: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: from.gid.bytes() },
        gid_index: index as u32,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: from.ifindex,
    }
}

/// An entry with all that is known about it. Positive errno: `ENODATA` for an empty one.
///
/// # Safety
/// `out` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov__ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if port != 1 || index as usize >= GIDS_MAX || flags != 0 || size < size_of::<ibv_gid_entry>() {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller's promise.
    let table = unsafe { ContextShell::of(context) }.fresh_gids();
    match table.get(index as usize) {
        None => Errno::ENODATA.raw(),
        Some(found) => {
            // SAFETY: the caller's promise; the size was checked.
            unsafe { out.write(entry(index as usize, found)) };
            0
        }
    }
}

/// All entries; how many, or minus errno.
///
/// # Safety
/// `out` has `most` entries of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov__ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: the caller's promise.
    let table = unsafe { ContextShell::of(context) }.fresh_gids();
    if flags != 0 || size < size_of::<ibv_gid_entry>() || table.len() > most {
        return -(Errno::EINVAL.raw() as isize);
    }
    for (index, found) in table.iter().enumerate() {
        // SAFETY: `index` is below `most`; entries are `size` bytes apart.
        unsafe { out.byte_add(index * size).write(entry(index, found)) };
    }
    table.len() as isize
}

/// What kind of GID a row of the table holds, in sysfs's numbering: 1 is RoCE v2.
///
/// # Safety
/// `kind` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let shell = unsafe { ContextShell::of(context) };
    if port != 1 || index as usize >= GIDS_MAX {
        return minus_one(Errno::EINVAL);
    }
    if shell.gid(index as usize).is_none() {
        return minus_one(Errno::ENODATA);
    }
    // SAFETY: the caller's promise.
    unsafe { kind.write(1) };
    0
}
