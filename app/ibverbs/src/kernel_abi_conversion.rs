//! Conversions between the structs of the kernel's user ABI and those of verbs.h. rdma-core's own
//! connection manager library imports them; no program calls them.

use omniverb_abi::*;

fn ah_attr(src: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: src.grh.dgid },
            flow_label: src.grh.flow_label,
            sgid_index: src.grh.sgid_index,
            hop_limit: src.grh.hop_limit,
            traffic_class: src.grh.traffic_class,
        },
        dlid: src.dlid,
        sl: src.sl,
        src_path_bits: src.src_path_bits,
        static_rate: src.static_rate,
        is_global: src.is_global,
        port_num: src.port_num,
    }
}

/// An address vector from the kernel's form.
///
/// # Safety
/// Both pointers are valid for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *const ib_uverbs_ah_attr,
) {
    // SAFETY: the caller's promise.
    unsafe { dst.write(ah_attr(&src.read())) };
}

/// QP attributes from the kernel's form. Like every libibverbs this one leaves two fields alone:
/// `qp_state`, which is what the caller asks for, and `rate_limit`, which the form lacks.
///
/// # Safety
/// Both pointers are valid for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *const ib_uverbs_qp_attr,
) {
    // SAFETY: the caller's promise.
    let src = unsafe { src.read() };
    // SAFETY: the caller's promise; the reference ends with this function.
    let dst = unsafe { &mut *dst };
    dst.cur_qp_state = src.cur_qp_state;
    dst.path_mtu = src.path_mtu;
    dst.path_mig_state = src.path_mig_state;
    dst.qkey = src.qkey;
    dst.rq_psn = src.rq_psn;
    dst.sq_psn = src.sq_psn;
    dst.dest_qp_num = src.dest_qp_num;
    dst.qp_access_flags = src.qp_access_flags;
    dst.cap = ibv_qp_cap {
        max_send_wr: src.max_send_wr,
        max_recv_wr: src.max_recv_wr,
        max_send_sge: src.max_send_sge,
        max_recv_sge: src.max_recv_sge,
        max_inline_data: src.max_inline_data,
    };
    dst.ah_attr = ah_attr(&src.ah_attr);
    dst.alt_ah_attr = ah_attr(&src.alt_ah_attr);
    dst.pkey_index = src.pkey_index;
    dst.alt_pkey_index = src.alt_pkey_index;
    dst.en_sqd_async_notify = src.en_sqd_async_notify;
    dst.sq_draining = src.sq_draining;
    dst.max_rd_atomic = src.max_rd_atomic;
    dst.max_dest_rd_atomic = src.max_dest_rd_atomic;
    dst.min_rnr_timer = src.min_rnr_timer;
    dst.port_num = src.port_num;
    dst.timeout = src.timeout;
    dst.retry_cnt = src.retry_cnt;
    dst.rnr_retry = src.rnr_retry;
    dst.alt_port_num = src.alt_port_num;
    dst.alt_timeout = src.alt_timeout;
}

/// A path record from the kernel's form.
///
/// # Safety
/// Both pointers are valid for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_copy_path_rec_from_kern(
    dst: *mut ibv_sa_path_rec,
    src: *const ib_user_path_rec,
) {
    // SAFETY: the caller's promise.
    let src = unsafe { src.read() };
    let path = ibv_sa_path_rec {
        dgid: ibv_gid { raw: src.dgid },
        sgid: ibv_gid { raw: src.sgid },
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic.cast_signed(),
        flow_label: src.flow_label,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        reversible: src.reversible.cast_signed(),
        numb_path: src.numb_path,
        pkey: src.pkey,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        mtu: src.mtu as u8,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
    // SAFETY: the caller's promise.
    unsafe { dst.write(path) };
}

/// A path record in the kernel's form.
///
/// # Safety
/// Both pointers are valid for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_copy_path_rec_to_kern(
    dst: *mut ib_user_path_rec,
    src: *const ibv_sa_path_rec,
) {
    // SAFETY: the caller's promise.
    let src = unsafe { src.read() };
    let path = ib_user_path_rec {
        dgid: src.dgid.raw,
        sgid: src.sgid.raw,
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic.cast_unsigned(),
        flow_label: src.flow_label,
        reversible: src.reversible.cast_unsigned(),
        mtu: u32::from(src.mtu),
        pkey: src.pkey,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        numb_path: src.numb_path,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
    // SAFETY: the caller's promise.
    unsafe { dst.write(path) };
}
