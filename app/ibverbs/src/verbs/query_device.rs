//! Answers queries of the device's and its port's attributes. Only what works is advertised.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use omniverb_abi::{
    IB_UVERBS_DEVICE_ATOMIC_WRITE, IB_UVERBS_DEVICE_FLUSH_GLOBAL, IBV_ATOMIC_GLOB,
    IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE, IBV_DEVICE_SYS_IMAGE_GUID, IBV_DEVICE_XRC,
    IBV_LINK_LAYER_ETHERNET, IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_ATOMIC_WRITE,
    IBV_ODP_SUPPORT_FLUSH, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE,
    IBV_PORT_ATTR_COMPAT_LEN, IBV_PORT_IP_BASED_GIDS, IBV_QPF_GRH_REQUIRED, ibv_context,
    ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_odp_caps,
    ibv_odp_transport_caps, ibv_port_attr, ibv_query_device_ex_input,
};
use omniverb_client::{GidEntry, REGIONS_MAX};
use omniverb_device::limits;
use omniverb_session::limits::{ATTACHMENTS_MAX, GIDS_MAX, GROUPS_MAX};
use omniverb_terms::Errno;

use super::clocks::KILOHERTZ;
use super::context::ContextShell;
use super::object_limits::{AH_MAX, CQ_MAX, DM_BYTES_MAX, MR_BYTES_MAX, PD_MAX, SRQ_MAX};
use crate::errno::minus_one;

/// The vendor number that software devices use.
const VENDOR: u32 = 0x00ff_ffff;

fn device_attributes(shell: &ContextShell) -> ibv_device_attr {
    let nic = shell.client.nic();
    // SAFETY: numbers and arrays of numbers; zero is valid.
    let mut attr: ibv_device_attr = unsafe { core::mem::zeroed() };
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    for (place, byte) in attr.fw_ver.iter_mut().zip(version) {
        *place = *byte as c_char;
    }
    let signed = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    attr.node_guid = u64::from_ne_bytes(nic.node_guid);
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = MR_BYTES_MAX;
    attr.page_size_cap = !0xfff; // any page size from 4 KiB up
    attr.vendor_id = VENDOR;
    attr.vendor_part_id = 0;
    attr.hw_ver = 1;
    attr.max_qp = signed(nic.qp_max.min(limits::QP_SLOTS as u32));
    attr.max_qp_wr = signed(limits::WR_MAX);
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attr.max_sge = signed(limits::SGE_MAX);
    attr.max_sge_rd = attr.max_sge;
    attr.max_cq = signed(CQ_MAX);
    attr.max_cqe = signed(limits::CQE_MAX);
    attr.max_mr = signed(nic.mr_max.min(REGIONS_MAX as u32));
    attr.max_pd = signed(PD_MAX);
    attr.max_qp_rd_atom = c_int::from(limits::RD_ATOMIC_MAX);
    attr.max_qp_init_rd_atom = c_int::from(limits::RD_ATOMIC_MAX);
    attr.max_res_rd_atom = attr.max_qp.saturating_mul(c_int::from(limits::RD_ATOMIC_MAX));
    attr.atomic_cap = IBV_ATOMIC_GLOB;
    attr.max_mw = signed(limits::WINDOWS_MAX as u32);
    attr.max_mcast_grp = GROUPS_MAX as c_int;
    attr.max_mcast_qp_attach = ATTACHMENTS_MAX as c_int;
    attr.max_total_mcast_qp_attach = ATTACHMENTS_MAX as c_int;
    attr.max_ah = signed(AH_MAX);
    attr.max_srq = signed(SRQ_MAX);
    attr.max_srq_wr = signed(limits::WR_MAX);
    attr.max_srq_sge = signed(limits::SGE_MAX);
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr
}

/// Pages are never pinned, so all of it works with memory that comes and goes.
fn on_demand() -> ibv_odp_caps {
    let messages = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let reads = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    let newer = IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE;
    ibv_odp_caps {
        general_caps: u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT),
        per_transport_caps: ibv_odp_transport_caps {
            rc_odp_caps: messages | IBV_ODP_SUPPORT_WRITE | reads | newer,
            uc_odp_caps: messages | IBV_ODP_SUPPORT_WRITE,
            ud_odp_caps: messages,
        },
    }
}

/// What a RoCEv2 packet carries besides its payload, at most: IPv6, UDP, the transport's headers
/// and the check sum.
const HEADERS: u32 = 80;
/// `IBV_MTU_4096`.
const MTU_4096: u32 = 5;

/// The longest packets (`enum ibv_mtu`) that fit every interface this device is reached through.
fn active_mtu(gids: &[GidEntry]) -> u32 {
    let outward = gids.iter().filter(|entry| !entry.gid.is_loopback() && entry.mtu != 0);
    let Some(least) = outward.map(|entry| entry.mtu).min() else { return MTU_4096 };
    let room = least.saturating_sub(HEADERS);
    (2..=MTU_4096).rev().find(|mtu| 128 << mtu <= room).unwrap_or(1)
}

fn port_attributes(active_mtu: u32) -> ibv_port_attr {
    // SAFETY: numbers only; zero is valid.
    let mut attr: ibv_port_attr = unsafe { core::mem::zeroed() };
    const WIDTH_4X: u8 = 2;
    const SPEED_EDR: u8 = 32;
    const PHYSICAL_LINK_UP: u8 = 5;
    attr.state = IBV_PORT_ACTIVE;
    attr.max_mtu = MTU_4096;
    attr.active_mtu = active_mtu;
    attr.gid_tbl_len = GIDS_MAX as c_int;
    attr.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = limits::MESSAGE_MAX as u32;
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    attr.active_width = WIDTH_4X;
    attr.active_speed = SPEED_EDR;
    attr.phys_state = PHYSICAL_LINK_UP;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    attr.flags = IBV_QPF_GRH_REQUIRED;
    attr
}

/// Copies as many bytes of `ours` as the caller has room for; what it has beyond is zeroed.
///
/// # Safety
/// `theirs` has `length` bytes; `T` has no padding that must not be seen.
unsafe fn copy_sized<T>(ours: &T, theirs: *mut c_void, length: usize) {
    // SAFETY: the caller's promise; at most the size of each side is touched.
    unsafe {
        ptr::write_bytes(theirs.cast::<u8>(), 0, length);
        let source = ptr::from_ref(ours).cast::<u8>();
        ptr::copy_nonoverlapping(source, theirs.cast::<u8>(), length.min(size_of::<T>()));
    }
}

/// `ibv_query_device`.
///
/// # Safety
/// Both pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { attr.write(device_attributes(ContextShell::of(context))) };
    0
}

/// `ibv_query_device_ex`, with as many bytes as the caller's header knows.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    length: usize,
) -> c_int {
    // SAFETY: the caller's pointers; `input` may be null.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 {
            return Errno::EINVAL.raw();
        }
        let mut ours: ibv_device_attr_ex = core::mem::zeroed();
        ours.orig_attr = device_attributes(ContextShell::of(context));
        // What is to survive a loss of power no region takes (`ibv_reg_mr` says so).
        ours.device_cap_flags_ex = u64::from(ours.orig_attr.device_cap_flags)
            | IB_UVERBS_DEVICE_FLUSH_GLOBAL
            | IB_UVERBS_DEVICE_ATOMIC_WRITE;
        ours.phys_port_cnt_ex = 1;
        ours.odp_caps = on_demand();
        // What annex A19 adds is of RC only.
        ours.xrc_odp_caps = ours.odp_caps.per_transport_caps.rc_odp_caps
            & !(IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE);
        ours.completion_timestamp_mask = u64::MAX;
        ours.hca_core_clock = KILOHERTZ;
        ours.max_dm_size = DM_BYTES_MAX;
        // Nothing is moderated: an event comes with the first completion.
        ours.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: 0, max_cq_period: 0 };
        copy_sized(&ours, attr.cast(), length);
    }
    0
}

/// `ibv_query_port`: the exported symbol only knows the oldest 48 bytes.
///
/// # Safety
/// `attr` has that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port(context, port, attr.cast(), IBV_PORT_ATTR_COMPAT_LEN) }
}

/// The same for clients older than the symbol.
pub(super) unsafe extern "C" fn query_port_compatible(
    context: *mut ibv_context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ov_ibv_query_port(context, port, attr) }
}

/// `ibv_query_port` as inlines call it.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    if port != 1 {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller's context, and `length` bytes.
    unsafe {
        let gids = ContextShell::of(context).fresh_gids();
        copy_sized(&port_attributes(active_mtu(&gids)), attr.cast(), length);
    }
    0
}

/// The one P_Key, full member of the default partition.
///
/// # Safety
/// `pkey` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port != 1 || index != 0 {
        return minus_one(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { pkey.write(0xffff) };
    0
}

/// Where a P_Key (network byte order) is in the table.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    if port != 1 || pkey != 0xffff {
        return minus_one(Errno::EINVAL);
    }
    0
}

/// Port speed in units of 100 Mb/s.
///
/// # Safety
/// `speed` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_port_speed(
    _context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    if port != 1 {
        return Errno::EINVAL.raw();
    }
    // SAFETY: the caller's promise. Four lanes at 25 Gb/s, as the port attributes say.
    unsafe { speed.write(1000) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str, mtu: u32) -> GidEntry {
        let address: std::net::IpAddr = address.parse().unwrap();
        GidEntry { gid: address.into(), ifindex: 1, mtu }
    }

    #[test]
    fn packets_fit_the_narrowest_interface() {
        let alone = |mtu| active_mtu(&[entry("10.0.0.1", mtu)]);
        let steps = [(68, 1), (335, 1), (336, 1), (592, 2), (1103, 2), (1104, 3), (1500, 3)];
        for (mtu, expected) in steps {
            assert_eq!(alone(mtu), expected, "{mtu}");
        }
        for (mtu, expected) in [(2128, 4), (4175, 4), (4176, 5), (9000, 5), (65536, 5)] {
            assert_eq!(alone(mtu), expected, "{mtu}");
        }
        let table = [
            entry("fe80::1", 9000),
            entry("10.0.0.1", 1500),
            entry("127.0.0.1", 700),
            entry("::1", 700),
            entry("10.0.0.2", 0),
        ];
        assert_eq!(active_mtu(&table), 3);
    }

    #[test]
    fn without_an_interface_there_is_no_limit() {
        assert_eq!(active_mtu(&[]), 5);
        assert_eq!(active_mtu(&[entry("127.0.0.1", 700), entry("10.0.0.1", 0)]), 5);
    }
}
