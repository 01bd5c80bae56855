//! `ibv_modify_qp`, `ibv_query_qp`.

use core::ffi::c_int;

use omniverb_abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use omniverb_client::{Connection, lock};
use omniverb_device::attributes::State;
use omniverb_device::{QpAttributes, QpMask, limits};
use omniverb_terms::{Errno, Qpn};

use super::address::{resolve, route};
use super::context::ContextShell;
use super::qp::{QpShell, granted};
use crate::why::refused;

/// A PSN has 24 bits; drivers leave the others out.
const PSN: u32 = 0xff_ffff;

/// The device's attributes in a C struct. Of access flags those of queue pairs count; others are
/// kept for queries, as drivers do.
fn attributes(attr: &ibv_qp_attr) -> QpAttributes {
    QpAttributes {
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        access_flags: attr.qp_access_flags,
        qkey: attr.qkey,
        path_mtu: attr.path_mtu,
        dest_qpn: Qpn(attr.dest_qp_num),
        rq_psn: attr.rq_psn & PSN,
        sq_psn: attr.sq_psn & PSN,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        route: route(&attr.ah_attr),
    }
}

/// Whether the values that the mask names are in range.
fn values_are_valid(mask: QpMask, attr: &ibv_qp_attr) -> bool {
    let when = |flag: QpMask, valid: bool| !mask.contains(flag) || valid;
    when(QpMask::PORT, attr.port_num == 1)
        && when(QpMask::PKEY_INDEX, attr.pkey_index == 0)
        && when(QpMask::PATH_MTU, (1..=5).contains(&attr.path_mtu))
        && when(QpMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= limits::RD_ATOMIC_MAX)
        && when(QpMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= limits::RD_ATOMIC_MAX)
        && when(QpMask::MIN_RNR_TIMER, attr.min_rnr_timer < 32)
        && when(QpMask::TIMEOUT, attr.timeout < 32)
        && when(QpMask::RETRY_CNT, attr.retry_cnt < 8)
        && when(QpMask::RNR_RETRY, attr.rnr_retry < 8)
        && when(QpMask::DEST_QPN, attr.dest_qp_num < 1 << 24)
        && when(QpMask::ALT_PATH, attr.alt_port_num == 1 && attr.alt_pkey_index == 0)
        && when(QpMask::ALT_PATH, attr.alt_timeout < 32)
}

/// `ibv_modify_qp`.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let Some(mask) = QpMask::from_bits(mask as u32) else { return Errno::EINVAL.raw() };
    // SAFETY: the caller's promise.
    unsafe {
        let shell = QpShell::of(qp);
        let context = ContextShell::of((*qp).context);
        let attr = &*attr;
        if !values_are_valid(mask, attr) {
            let why = "a value that the mask names is out of range";
            return refused!(Errno::EINVAL, "ibv_modify_qp: {why} (mask {mask:?})").raw();
        }
        let to = if mask.contains(QpMask::STATE) {
            match State::from_number(attr.qp_state) {
                Some(state) => state,
                None => return Errno::EINVAL.raw(),
            }
        } else {
            shell.qp.state()
        };
        let current = if mask.contains(QpMask::CUR_STATE) {
            State::from_number(attr.cur_qp_state)
        } else {
            None
        };
        let connection = if mask.contains(QpMask::AV) {
            match resolve(context, &attr.ah_attr) {
                Ok((dgid, sgid)) => {
                    Some(Connection { dgid, sgid, dest_qpn: Qpn(attr.dest_qp_num) })
                }
                Err(errno) => return errno.raw(),
            }
        } else {
            None
        };
        if mask.contains(QpMask::ALT_PATH)
            && let Err(errno) = resolve(context, &attr.alt_ah_attr)
        {
            return errno.raw();
        }
        let given = attributes(attr);
        let done = context.client.modify_qp(&shell.qp, mask, to, &given, current, connection);
        (*qp).state = shell.qp.state() as u32;
        match done {
            Ok(()) => {
                shell.remember(mask, attr);
                0
            }
            Err(errno) => {
                let (qpn, now) = (shell.qp.number.0, shell.qp.state());
                refused!(
                    errno,
                    "ibv_modify_qp: queue pair {qpn} in {now:?} may not go to {to:?} with \
                     {mask:?}, or the daemon refuses it"
                )
                .raw()
            }
        }
    }
}

/// `ibv_query_qp`: everything that is known, whatever the mask.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    const MIGRATED: u32 = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let shell = QpShell::of(qp);
        let (state, known) = shell.qp.query();
        let cap = granted(&shell.qp);
        attr.write(ibv_qp_attr {
            qp_state: state as u32,
            cur_qp_state: state as u32,
            path_mtu: known.path_mtu,
            path_mig_state: MIGRATED,
            qkey: known.qkey,
            rq_psn: known.rq_psn,
            sq_psn: known.sq_psn,
            dest_qp_num: known.dest_qpn.0,
            qp_access_flags: known.access_flags,
            cap,
            ah_attr: shell.address(),
            pkey_index: known.pkey_index,
            max_rd_atomic: known.max_rd_atomic,
            max_dest_rd_atomic: known.max_dest_rd_atomic,
            min_rnr_timer: known.min_rnr_timer,
            port_num: known.port,
            timeout: known.timeout,
            retry_cnt: known.retry_cnt,
            rnr_retry: known.rnr_retry,
            ..ibv_qp_attr::default()
        });
        init.write(ibv_qp_init_attr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap,
            qp_type: (*qp).qp_type,
            sq_sig_all: c_int::from(shell.signal_all),
        });
        (*qp).state = state as u32;
    }
    0
}

impl QpShell {
    /// Keeps the address vector for queries; the device itself does not need it any more.
    fn remember(&self, mask: QpMask, attr: &ibv_qp_attr) {
        if mask.contains(QpMask::AV) {
            let ibv_ah_attr { grh, dlid, sl, is_global, port_num, .. } = attr.ah_attr;
            *lock(&self.route) = Some((grh, dlid, sl, is_global, port_num));
        }
    }

    fn address(&self) -> ibv_ah_attr {
        let kept = *lock(&self.route);
        let (grh, dlid, sl, is_global, port_num) = kept.unwrap_or((no_route(), 0, 0, 0, 0));
        ibv_ah_attr { grh, dlid, sl, is_global, port_num, ..ibv_ah_attr::default() }
    }
}

fn no_route() -> ibv_global_route {
    ibv_global_route { dgid: ibv_gid::default(), ..ibv_global_route::default() }
}
