//! Queue pairs: making, destroying.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use omniverb_abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE,
    IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_DRIVER, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_RECV, ibv_context,
    ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_xrcd,
};
use omniverb_device::{Qp, QpSpec, Signaling, limits};
use omniverb_terms::{Errno, Qpn, Service};

use super::context::ContextShell;
use super::cq::CqShell;
use super::parent_domain_allocators::{Loans, Resource};
use super::protection_domain::PdShell;
use super::qp_handle::{QpShell, granted};
use super::srq::SrqShell;
use super::xrc_domain::XrcdShell;
use super::{qp_ex, work_request_builder};
use crate::errno::null;
use crate::refusal_log::{of_daemon, refused};

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
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the inline's arguments; fields beyond `comp_mask` only if the mask names them.
    unsafe {
        let mask = (*init).comp_mask;
        if mask & !known != 0
            || (mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && (*init).create_flags != 0)
        {
            return null(Errno::EOPNOTSUPP);
        }
        let receives = (*init).qp_type == IBV_QPT_XRC_RECV;
        if !receives && (mask & IBV_QP_INIT_ATTR_PD == 0 || (*init).pd.is_null()) {
            return null(Errno::EINVAL);
        }
        let wanted = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let operations = wanted.then(|| (*init).send_ops_flags);
        let service = Service::from_qp_type((*init).qp_type);
        let builds = |wanted| {
            service.is_some_and(|service| work_request_builder::can_build(service, wanted))
        };
        if operations.is_some_and(|wanted| !builds(wanted)) {
            return null(Errno::EOPNOTSUPP);
        }
        if receives {
            let named = mask & IBV_QP_INIT_ATTR_XRCD != 0;
            let xrcd = if named { (*init).xrcd } else { ptr::null_mut() };
            return create_receiver(context, xrcd, init.cast());
        }
        create((*init).pd, init.cast(), operations)
    }
}

/// Why there is no queue pair of a type.
fn not_offered(qp_type: u32) -> Errno {
    match qp_type {
        IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => Errno::EOPNOTSUPP,
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

/// Bytes of a request that can be inline: at least as many as its entries take in the queues of
/// devices. Some programs ask for none, and send a few.
fn inline_room(cap: &ibv_qp_cap) -> u32 {
    const ENTRY: u32 = size_of::<omniverb_abi::ibv_sge>() as u32;
    cap.max_inline_data.max(ENTRY * cap.max_send_sge).min(limits::INLINE_MAX)
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
        let mut asked = *init;
        let Some(service) = Service::from_qp_type(asked.qp_type) else {
            let errno = not_offered(asked.qp_type);
            return null(refused!(errno, "ibv_create_qp: type {} is not offered", asked.qp_type));
        };
        let sends_only = service == Service::XrcSend;
        // Receives are the SRQ's, or there are none: what is asked for does not count.
        if sends_only || !asked.srq.is_null() {
            (asked.cap.max_recv_wr, asked.cap.max_recv_sge) = (0, 0);
        } else {
            asked.cap.max_recv_sge = asked.cap.max_recv_sge.max(1);
        }
        let lacks_cq = asked.send_cq.is_null() || asked.recv_cq.is_null() && !sends_only;
        // One that receives in a domain is made with that.
        if service == Service::XrcRecv || lacks_cq || !caps_are_valid(&asked.cap) {
            let cap = asked.cap;
            return null(refused!(Errno::EINVAL, "ibv_create_qp: no CQ, or too much of {cap:?}"));
        }
        let context = (*pd).context;
        let srq =
            (!asked.srq.is_null() && !sends_only).then(|| SrqShell::of(asked.srq).inner.clone());
        // That of XRC completes where it says itself.
        if srq.as_ref().is_some_and(|srq| srq.number().is_some()) {
            return null(refused!(Errno::EINVAL, "ibv_create_qp: an SRQ for XRC"));
        }
        let signaling = match asked.sq_sig_all {
            0 => Signaling::Flagged,
            _ => Signaling::All,
        };
        let recv_cq = if sends_only { asked.send_cq } else { asked.recv_cq };
        let loans = PdShell::loans(pd, Resource::Qp);
        let made = ContextShell::of(context).client.create_qp(QpSpec {
            service,
            pd: PdShell::of(pd).number(),
            send_cq: CqShell::of(asked.send_cq).cq.clone(),
            recv_cq: CqShell::of(recv_cq).cq.clone(),
            srq,
            domain: None,
            send_max: asked.cap.max_send_wr,
            recv_max: asked.cap.max_recv_wr,
            send_sge_max: asked.cap.max_send_sge.max(1),
            recv_sge_max: asked.cap.max_recv_sge,
            inline_max: inline_room(&asked.cap),
            signaling,
            lending: Loans::lending(&loans),
        });
        let qp = match made {
            Ok(qp) => qp,
            Err(errno) if Loans::have_refused(&loans) => return null(errno),
            Err(errno) => {
                return null(refused!(errno, "ibv_create_qp: {}", of_daemon(errno)));
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
        let shell = QpShell::new(ex, qp, builder, signaling, ptr::null_mut());
        let made = Box::into_raw(Box::new(shell));
        QpShell::of(made.cast()).qp.cookie.store(made as usize, Ordering::Release);
        made.cast()
    }
}

/// One that receives in an XRC domain: it has nothing of its own but its connection.
///
/// # Safety
/// `context` is open, `init` valid, `xrcd` null or live.
unsafe fn create_receiver(
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(place) = XrcdShell::of(xrcd) else { return null(Errno::EINVAL) };
        let client = &ContextShell::of(context).client;
        let domain = Some(place.area.domain.clone());
        // Nothing ever completes here: receives do in the CQs of their SRQs.
        match client.create_qp(QpSpec::bare(&client.shared, Service::XrcRecv, domain)) {
            Ok(qp) => {
                (*init).cap = granted(&qp);
                let made = receiver(context, xrcd, qp, (*init).qp_context);
                let shell = QpShell::of(made);
                place.area.add(&shell.qp, made as usize, shell.route.clone());
                client.expect_hand_overs(&place.area.domain);
                made
            }
            Err(errno) => null(refused!(errno, "ibv_create_qp: {}", of_daemon(errno))),
        }
    }
}

/// C's object for one that receives in a domain, which may have several.
///
/// # Safety
/// `context` is open, `xrcd` live.
unsafe fn receiver(
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    qp: Arc<Qp>,
    qp_context: *mut c_void,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise; all of it may be zero.
    unsafe {
        let mut ex: ibv_qp_ex = core::mem::zeroed();
        let base = &mut ex.qp_base;
        base.context = context;
        base.qp_context = qp_context;
        base.handle = qp.number.0;
        base.qp_num = qp.number.0;
        base.qp_type = IBV_QPT_XRC_RECV;
        base.state = qp.state() as u32;
        if let Some(place) = XrcdShell::of(xrcd) {
            place.users.one_more();
        }
        Box::into_raw(Box::new(QpShell::new(ex, qp, None, Signaling::Flagged, xrcd))).cast()
    }
}

/// `ibv_open_qp`: another object for a queue pair that receives in an XRC domain, of this process
/// or another. It lives until the last of them is destroyed, or the process that made it ends. Its
/// events come to the first object of those that a process made of its own, and to each that is of
/// another's.
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: the inline's arguments.
    unsafe {
        let asked = *attr;
        let mask = asked.comp_mask & !IBV_QP_OPEN_ATTR_CONTEXT;
        if mask & !needed != 0 {
            return null(Errno::EOPNOTSUPP);
        }
        let place = if mask == needed { XrcdShell::of(asked.xrcd) } else { None };
        let Some(place) = place.filter(|_| asked.qp_type == IBV_QPT_XRC_RECV) else {
            return null(Errno::EINVAL);
        };
        let named = asked.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if named { asked.qp_context } else { ptr::null_mut() };
        let opened = place.area.open(Qpn(asked.qp_num), |qp, route| {
            let made = receiver(context, asked.xrcd, qp, qp_context);
            (*made.cast::<QpShell>()).route = route;
            made
        });
        let number = Qpn(asked.qp_num);
        opened.unwrap_or_else(|| open_elsewhere(context, asked.xrcd, place, number, qp_context))
    }
}

/// The same, for one of another process.
///
/// # Safety
/// `context` is open, `xrcd` live, and `place` is that.
unsafe fn open_elsewhere(
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    place: &XrcdShell,
    number: Qpn,
    qp_context: *mut c_void,
) -> *mut ibv_qp {
    let known = place
        .area
        .open_elsewhere(number)
        .and_then(|opened| opened.query().map(|known| (opened, known)));
    let (opened, known) = match known {
        Ok(found) => found,
        Err(errno) => {
            let why = "no queue pair receives there under that number, or no answer";
            return null(refused!(errno, "ibv_open_qp: {why}"));
        }
    };
    // SAFETY: the caller's promise; no other thread knows the object yet.
    unsafe {
        let made = receiver(context, xrcd, opened.qp.clone(), qp_context);
        (*made).state = known.state;
        let shell = &mut *made.cast::<QpShell>();
        let opened = shell.opened.insert(opened);
        shell.qp.cookie.store(made as usize, Ordering::Release);
        opened.begin_events();
        made
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
        if context.client.is_attached(&shell.qp) {
            return refused!(Errno::EBUSY, "ibv_destroy_qp: attached to a group").raw();
        }
        let place = XrcdShell::of(shell.xrcd);
        if shell.opened.is_some() {
            shell.qp.cookie.store(0, Ordering::Release);
            if context.client.is_ours() {
                shell.qp.finish_access();
            }
        } else if context.client.is_ours()
            && place.is_some_and(|place| place.area.remove(&shell.qp, qp as usize))
        {
            // Others have it open. An event that was for this object may still be on its way, by a
            // thread that has the queue pair's lock.
            shell.qp.finish_access();
        } else {
            // Does nothing in a forked child: all of it is the parent's, and locks that a thread
            // of the parent had are held for ever.
            context.client.destroy_qp(&shell.qp);
        }
        context.events.retain(|(_, object)| *object != qp as usize);
        QpShell::await_acknowledgements(qp);
        match place {
            Some(place) => place.users.one_less(),
            None => PdShell::end_use((*qp).pd),
        }
        drop(Box::from_raw(qp.cast::<QpShell>()));
    }
    0
}
