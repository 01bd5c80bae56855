//! Address handles: where a datagram goes.

use core::ffi::c_int;

use omniverb_abi::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
};
use omniverb_device::send_work_request::Destination;
use omniverb_device::{DatagramAddress, GlobalRoute};
use omniverb_terms::{Errno, Gid, Qkey, Qpn};

use super::context::ContextShell;
use super::protection_domain::PdShell;
use crate::errno::{minus_one, null};
use crate::refusal_log::refused;

const WC_GRH: u32 = 1;

/// An address handle, and what it stands for.
#[repr(C)]
pub(super) struct AhShell {
    ah: ibv_ah,
    dgid: Gid,
    sgid: Gid,
    route: GlobalRoute,
}

impl AhShell {
    /// # Safety
    /// `ah` is a live AH of ours.
    #[inline(always)]
    pub(super) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a AhShell {
        // SAFETY: the caller's promise.
        unsafe { &*ah.cast::<AhShell>() }
    }
}

impl AhShell {
    /// A datagram by way of it, to this queue pair.
    #[inline(always)]
    pub(super) fn leads_to(&self, qpn: Qpn, qkey: Qkey) -> DatagramAddress {
        let destination = Destination { dgid: self.dgid, sgid: self.sgid, qpn };
        DatagramAddress { destination, qkey, route: self.route }
    }
}

/// The GIDs that address attributes name: (destination, source). RoCE has no other addresses.
pub(super) fn resolve(shell: &ContextShell, attr: &ibv_ah_attr) -> Result<(Gid, Gid), Errno> {
    if attr.is_global == 0 {
        let why = "an address without GRH (is_global 0): RoCE has no other; a GID index is needed";
        return Err(refused!(Errno::EINVAL, "{why}"));
    }
    if Gid::new(attr.grh.dgid.raw).is_zero() || attr.port_num > 1 {
        return Err(refused!(Errno::EINVAL, "an address with a GID of zero, or port above 1"));
    }
    let index = usize::from(attr.grh.sgid_index);
    let sgid = shell
        .gid(index)
        .ok_or_else(|| refused!(Errno::EINVAL, "sgid_index {index} names no GID of this device"))?;
    Ok((Gid::new(attr.grh.dgid.raw), sgid))
}

/// What an address vector says about the way to there.
pub(super) fn route(attr: &ibv_ah_attr) -> GlobalRoute {
    let ibv_global_route { flow_label, hop_limit, traffic_class, .. } = attr.grh;
    GlobalRoute { traffic_class, hop_limit, flow_label: flow_label & 0xf_ffff }
}

/// `ibv_create_ah`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's promise.
    unsafe {
        let context = (*pd).context;
        let shell = ContextShell::of(context);
        if (*attr).port_num != 1 {
            return null(Errno::EINVAL);
        }
        let (dgid, sgid) = match resolve(shell, &*attr) {
            Ok(gids) => gids,
            Err(errno) => return null(errno),
        };
        if let Err(errno) = shell.counts.ahs.one_more("ibv_create_ah") {
            return null(errno);
        }
        PdShell::of(pd).begin_use();
        let ah = ibv_ah { context, pd, handle: 0 };
        let route = route(&*attr);
        Box::into_raw(Box::new(AhShell { ah, dgid, sgid, route })).cast()
    }
}

/// `ibv_destroy_ah`. Datagrams already posted keep their address.
///
/// # Safety
/// `ah` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        PdShell::end_use((*ah).pd);
        ContextShell::of((*ah).context).counts.ahs.one_less();
        drop(Box::from_raw(ah.cast::<AhShell>()));
    }
    0
}

/// The two addresses in the 40 bytes before a datagram: (sender, us).
fn addresses(grh: &[u8; 40]) -> (Gid, Gid) {
    let wide = |bytes: &[u8]| {
        let mut gid = [0; 16];
        match bytes.len() {
            4 => {
                gid[10..12].fill(0xff);
                gid[12..].copy_from_slice(bytes);
            }
            _ => gid.copy_from_slice(bytes),
        }
        Gid::new(gid)
    };
    // An IPv4 header sits in the second half, and the first half is then no IPv6 header.
    if grh[0] >> 4 != 6 && grh[20] >> 4 == 4 {
        (wide(&grh[32..36]), wide(&grh[36..40]))
    } else {
        (wide(&grh[8..24]), wide(&grh[24..40]))
    }
}

/// Address attributes that answer a received datagram.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's promise; the GRH area is 40 bytes of any alignment.
    unsafe {
        if (*wc).wc_flags & WC_GRH == 0 {
            return minus_one(Errno::EINVAL);
        }
        let bytes: [u8; 40] = grh.cast::<[u8; 40]>().read_unaligned();
        let (sender, us) = addresses(&bytes);
        let shell = ContextShell::of(context);
        let Some(sgid_index) = shell.gid_index(us) else { return minus_one(Errno::EINVAL) };
        attr.write(ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: sender.bytes() },
                flow_label: 0,
                sgid_index,
                hop_limit: 64,
                traffic_class: 0,
            },
            is_global: 1,
            port_num: port,
            ..ibv_ah_attr::default()
        });
    }
    0
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: the caller's promise.
    unsafe {
        if ov_ibv_init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) != 0 {
            return core::ptr::null_mut();
        }
        ov_ibv_create_ah(pd, &raw mut attr)
    }
}
