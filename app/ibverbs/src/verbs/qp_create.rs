//! Queue pairs: making, destroying.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use omniverb_abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPT_DRIVER, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_context, ibv_pd,
    ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use omniverb_device::{QpSpec, limits};
use omniverb_terms::{Errno, Service};

use super::context::ContextShell;
use super::cq::CqShell;
use super::memory::PdShell;
use super::qp::{QpShell, granted};
use super::srq::SrqShell;
use super::{builder, qp_ex};
use crate::errno::null;
use crate::why::refused;

/// `ibv_create_qp`. Granted capacities are written back.
///
/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    if pd.is_null() || init.is_null() {
        return null(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { create(pd, init, None) }
}

/// `ibv_create_qp_ex`.
pub(super) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the inline's arguments; fields beyond `comp_mask` only if the mask names them.
    unsafe {
        let mask = (*init).comp_mask;
        if mask & !known != 0
            || (mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && (*init).create_flags != 0)
        {
            return null(Errno::EOPNOTSUPP);
        }
        if mask & IBV_QP_INIT_ATTR_PD == 0 || (*init).pd.is_null() {
            return null(Errno::EINVAL);
        }
        let wanted = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let operations = wanted.then(|| (*init).send_ops_flags);
        let service = Service::from_qp_type((*init).qp_type);
        let builds = |wanted| service.is_some_and(|service| builder::can_build(service, wanted));
        if operations.is_some_and(|wanted| !builds(wanted)) {
            return null(Errno::EOPNOTSUPP);
        }
        create((*init).pd, init.cast(), operations)
    }
}

/// Why there is no queue pair of a type.
fn not_offered(qp_type: u32) -> Errno {
    match qp_type {
        IBV_QPT_RAW_PACKET | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV | IBV_QPT_DRIVER => {
            Errno::EOPNOTSUPP
        }
        _ => Errno::EINVAL,
    }
}

fn caps_are_valid(cap: &ibv_qp_cap) -> bool {
    cap.max_send_wr <= limits::WR_MAX
        && cap.max_recv_wr <= limits::WR_MAX
        && cap.max_send_sge <= limits::SGE_MAX
        && cap.max_recv_sge <= limits::SGE_MAX
        && cap.max_inline_data <= limits::INLINE_MAX
}

/// # Safety
/// `pd` is live and `init` valid, with live objects in it.
unsafe fn create(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    operations: Option<u64>,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    unsafe {
        let asked = *init;
        let Some(service) = Service::from_qp_type(asked.qp_type) else {
            let errno = not_offered(asked.qp_type);
            return null(refused!(errno, "ibv_create_qp: type {} is not offered", asked.qp_type));
        };
        if asked.send_cq.is_null() || asked.recv_cq.is_null() || !caps_are_valid(&asked.cap) {
            let cap = asked.cap;
            return null(refused!(Errno::EINVAL, "ibv_create_qp: no CQ, or too much of {cap:?}"));
        }
        let context = (*pd).context;
        let srq = (!asked.srq.is_null()).then(|| SrqShell::of(asked.srq).inner.clone());
        let made = ContextShell::of(context).client.create_qp(QpSpec {
            service,
            pd: PdShell::of(pd).number(),
            send_cq: CqShell::of(asked.send_cq).cq.clone(),
            recv_cq: CqShell::of(asked.recv_cq).cq.clone(),
            srq,
            send_max: asked.cap.max_send_wr,
            recv_max: asked.cap.max_recv_wr,
            send_sge_max: asked.cap.max_send_sge.max(1),
            recv_sge_max: asked.cap.max_recv_sge.max(1),
            inline_max: asked.cap.max_inline_data,
            signal_all: asked.sq_sig_all != 0,
        });
        let qp = match made {
            Ok(qp) => qp,
            Err(errno) => {
                return null(refused!(errno, "ibv_create_qp: over a quota, or no daemon"));
            }
        };
        PdShell::of(pd).begin_use();
        (*init).cap = granted(&qp);
        let mut ex: ibv_qp_ex = core::mem::zeroed();
        let base = &mut ex.qp_base;
        base.context = context;
        base.qp_context = asked.qp_context;
        base.pd = pd;
        base.send_cq = asked.send_cq;
        base.recv_cq = asked.recv_cq;
        base.srq = asked.srq;
        base.handle = qp.number.0;
        base.qp_num = qp.number.0;
        base.qp_type = asked.qp_type;
        if let Some(operations) = operations {
            qp_ex::fill(&mut ex, operations);
        }
        let builder = operations.map(|_| Box::default());
        let shell = QpShell::new(ex, qp, builder, asked.sq_sig_all != 0);
        let made = Box::into_raw(Box::new(shell));
        QpShell::of(made.cast()).qp.cookie.store(made as usize, Ordering::Release);
        made.cast()
    }
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// `qp` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = QpShell::of(qp);
        let context = ContextShell::of((*qp).context);
        context.client.destroy_qp(&shell.qp);
        shell.qp.cookie.store(0, Ordering::Release);
        context.events.retain(|(_, object)| *object != qp as usize);
        QpShell::await_acknowledgements(qp);
        PdShell::of((*qp).pd).end_use();
        drop(Box::from_raw(qp.cast::<QpShell>()));
    }
    0
}
