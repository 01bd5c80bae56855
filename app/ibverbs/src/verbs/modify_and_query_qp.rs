//! `ibv_modify_qp`, `ibv_query_qp`.

use core::ffi::c_int;
use std::sync::Arc;

use omniverb_abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use omniverb_client::{Client, Connection, lock};
use omniverb_device::qp_attributes::State;
use omniverb_device::{Qp, QpAttributes, QpMask, Signaling, limits};
use omniverb_terms::{Errno, Qkey, Qpn};

use super::address_handle::{resolve, route};
use super::context::ContextShell;
use super::qp_attr_codec::{Gids, attr_of, words};
use super::qp_handle::{QpShell, SharedRoute, granted};
use crate::refusal_log::{of_daemon, refused};

/// PSNs and numbers of queue pairs have 24 bits; devices leave the others out.
const LOW_24: u32 = 0xff_ffff;
/// So they do beyond the bits of RNR timers (five) and of retry counts (three).
const LOW_5: u8 = 0x1f;
const LOW_3: u8 = 0x7;

/// The device's attributes in a C struct. Of access flags those of queue pairs count; others are
/// kept for queries, as drivers do.
fn attributes(attr: &ibv_qp_attr) -> QpAttributes {
    QpAttributes {
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        access_flags: attr.qp_access_flags,
        qkey: Qkey(attr.qkey),
        path_mtu: attr.path_mtu,
        dest_qpn: Qpn(attr.dest_qp_num & LOW_24),
        rq_psn: attr.rq_psn & LOW_24,
        sq_psn: attr.sq_psn & LOW_24,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer & LOW_5,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt & LOW_3,
        rnr_retry: attr.rnr_retry & LOW_3,
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
        && when(QpMask::TIMEOUT, attr.timeout < 32)
        && when(QpMask::ALT_PATH, attr.alt_port_num == 1 && attr.alt_pkey_index == 0)
        && when(QpMask::ALT_PATH, attr.alt_timeout < 32)
}

/// Looks at the values that the mask names.
pub(super) fn check(mask: QpMask, attr: &ibv_qp_attr) -> Result<(), Errno> {
    if !values_are_valid(mask, attr) {
        let why = "a value that the mask names is out of range";
        return Err(refused!(Errno::EINVAL, "ibv_modify_qp: {why} (mask {mask:?})"));
    }
    let names = |flag: QpMask, number| !mask.contains(flag) || State::from_number(number).is_some();
    match names(QpMask::STATE, attr.qp_state) && names(QpMask::CUR_STATE, attr.cur_qp_state) {
        true => Ok(()),
        false => Err(refused!(Errno::EINVAL, "ibv_modify_qp: a state that does not exist")),
    }
}

/// Changes a queue pair of this process. What is asked has been [looked at](check), and the GIDs
/// are those of the address vector, if the mask names that.
pub(super) fn modify(
    client: &Arc<Client>,
    qp: &Arc<Qp>,
    kept: &SharedRoute,
    mask: QpMask,
    attr: &ibv_qp_attr,
    gids: Option<Gids>,
) -> Result<(), Errno> {
    let wanted = State::from_number(attr.qp_state).filter(|_| mask.contains(QpMask::STATE));
    let to = wanted.unwrap_or_else(|| qp.state());
    let current = State::from_number(attr.cur_qp_state);
    let current = current.filter(|_| mask.contains(QpMask::CUR_STATE));
    let dest_qpn = Qpn(attr.dest_qp_num & LOW_24);
    let connection = gids.map(|(dgid, sgid)| Connection { dgid, sgid, dest_qpn });
    let done = client.modify_qp(qp, mask, to, &attributes(attr), current, connection);
    done.inspect(|()| remember(kept, mask, attr)).map_err(|errno| {
        let (qpn, now) = (qp.number.0, qp.state());
        let verb = "ibv_modify_qp: queue pair";
        match errno {
            Errno::EINVAL => {
                refused!(errno, "{verb} {qpn} in {now:?} may not go to {to:?} with {mask:?}")
            }
            errno => refused!(errno, "{verb} {qpn}, to {to:?}: {}", of_daemon(errno)),
        }
    })
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
    let Some(mask) = QpMask::from_bits(mask as u32) else { return Errno::EOPNOTSUPP.raw() };
    // SAFETY: the caller's promise.
    unsafe {
        let shell = QpShell::of(qp);
        let mask = mask.relevant_to(shell.qp.service);
        let context = ContextShell::of((*qp).context);
        let attr = &*attr;
        let wanted = |flag, address| match mask.contains(flag) {
            true => resolve(context, address).map(Some),
            false => Ok(None),
        };
        let gids = check(mask, attr)
            .and_then(|()| wanted(QpMask::AV, &attr.ah_attr))
            .and_then(|gids| wanted(QpMask::ALT_PATH, &attr.alt_ah_attr).map(|_| gids));
        let gids = match gids {
            Ok(gids) => gids,
            Err(errno) => return errno.raw(),
        };
        let done = match &shell.opened {
            None => modify(&context.client, &shell.qp, &shell.route, mask, attr, gids),
            Some(opened) => opened.modify(mask.bits(), words(attr, gids)).map(drop),
        };
        if shell.opened.is_none() {
            (*qp).state = shell.qp.state() as u32;
        } else if done.is_ok() && mask.contains(QpMask::STATE) {
            (*qp).state = attr.qp_state;
        }
        done.err().map_or(0, |errno| errno.raw())
    }
}

/// What is known of a queue pair of this process.
pub(super) fn known(qp: &Qp, kept: &SharedRoute) -> ibv_qp_attr {
    const MIGRATED: u32 = 0;
    let (state, known) = qp.query();
    ibv_qp_attr {
        qp_state: state as u32,
        cur_qp_state: state as u32,
        path_mtu: known.path_mtu,
        path_mig_state: MIGRATED,
        qkey: known.qkey.0,
        rq_psn: known.rq_psn,
        sq_psn: known.sq_psn,
        dest_qp_num: known.dest_qpn.0,
        qp_access_flags: known.access_flags,
        cap: granted(qp),
        ah_attr: address(kept),
        pkey_index: known.pkey_index,
        max_rd_atomic: known.max_rd_atomic,
        max_dest_rd_atomic: known.max_dest_rd_atomic,
        min_rnr_timer: known.min_rnr_timer,
        port_num: known.port,
        timeout: known.timeout,
        retry_cnt: known.retry_cnt,
        rnr_retry: known.rnr_retry,
        ..ibv_qp_attr::default()
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
    // SAFETY: the caller's promise.
    unsafe {
        let shell = QpShell::of(qp);
        let found = match &shell.opened {
            None => known(&shell.qp, &shell.route),
            Some(opened) => match opened.query() {
                Ok(found) => ibv_qp_attr { cap: granted(&shell.qp), ..attr_of(&found) },
                Err(errno) => {
                    let why = "the process that made the queue pair does not answer";
                    return refused!(errno, "ibv_query_qp: {why}").raw();
                }
            },
        };
        attr.write(found);
        init.write(ibv_qp_init_attr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap: found.cap,
            qp_type: (*qp).qp_type,
            sq_sig_all: c_int::from(shell.signaling == Signaling::All),
        });
        (*qp).state = found.qp_state;
    }
    0
}

/// Keeps the address vector for queries; the device itself does not need it any more.
fn remember(kept: &SharedRoute, mask: QpMask, attr: &ibv_qp_attr) {
    if mask.contains(QpMask::AV) {
        let ibv_ah_attr { grh, dlid, sl, is_global, port_num, .. } = attr.ah_attr;
        *lock(kept) = Some((grh, dlid, sl, is_global, port_num));
    }
}

fn address(kept: &SharedRoute) -> ibv_ah_attr {
    let kept = *lock(kept);
    let (grh, dlid, sl, is_global, port_num) = kept.unwrap_or((no_route(), 0, 0, 0, 0));
    ibv_ah_attr { grh, dlid, sl, is_global, port_num, ..ibv_ah_attr::default() }
}

fn no_route() -> ibv_global_route {
    ibv_global_route { dgid: ibv_gid::default(), ..ibv_global_route::default() }
}
