//! The functions of `src/ibverbs_imports.rs`, of which nothing is real: one device, queue pairs
//! that remember their state, and the daemon beside.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use omniverb_abi::*;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{VERSION, decode, encode};
use omniverb_sys::lock;

use super::fake_daemon;
use crate::private_abi::{PrivateAnswer, PrivateClient};

/// Our end of every connection.
pub(crate) const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 8, 7];
/// READs and atomics at a time.
pub(crate) const DEPTH: u8 = 16;

/// What listens to the daemon.
type MessageListener = unsafe extern "C" fn(*mut c_void, *const c_void, usize);
static HEAR: Mutex<Option<MessageListener>> = Mutex::new(None);

/// The listener, called.
pub(crate) fn tell(message: Option<&[u8]>) {
    let hear = *lock(&HEAR);
    let (place, bytes) =
        message.map_or((core::ptr::null(), 0), |m| (m.as_ptr().cast::<c_void>(), m.len()));
    if let Some(hear) = hear {
        // SAFETY: the library's own function, which takes any message.
        unsafe { hear(null_mut(), place, bytes) }
    }
}

fn zeroed<T>() -> *mut T {
    // SAFETY: C structs of numbers, pointers and mutexes: zero is valid.
    Box::into_raw(unsafe { Box::new(core::mem::zeroed()) })
}

struct Shared(*mut verbs_context);
// SAFETY: only its address is used.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn context() -> *mut ibv_context {
    static CONTEXT: OnceLock<Shared> = OnceLock::new();
    let made = CONTEXT.get_or_init(|| {
        let verbs: *mut verbs_context = zeroed();
        // SAFETY: just made.
        unsafe {
            (*verbs).create_qp_ex = Some(create_qp_ex);
            (*verbs).create_srq_ex = Some(create_srq_ex);
            (*verbs).context.device = zeroed();
            (*verbs).context.ops.post_recv = Some(post_recv);
            (*verbs).context.ops.post_send = Some(post_send);
            (*verbs).context.ops.poll_cq = Some(poll_cq);
        }
        Shared(verbs)
    });
    // SAFETY: never freed.
    unsafe { &raw mut (*made.0).context }
}

pub(crate) unsafe fn ibv_get_device_list(_count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: never freed.
    Box::into_raw(Box::new([unsafe { (*context()).device }, null_mut()])).cast()
}

pub(crate) unsafe fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
}

pub(crate) unsafe fn ibv_open_device(_device: *mut ibv_device) -> *mut ibv_context {
    context()
}

pub(crate) unsafe fn ibv_close_device(_context: *mut ibv_context) -> c_int {
    0
}

pub(crate) unsafe fn ibv_query_device(
    _context: *mut ibv_context,
    out: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        (*out).max_qp_rd_atom = c_int::from(DEPTH);
        (*out).max_qp_init_rd_atom = c_int::from(DEPTH);
    }
    0
}

/// That of all addresses.
pub(crate) static INTERFACE: AtomicU32 = AtomicU32::new(2);

pub(crate) unsafe fn _ibv_query_gid_table(
    _context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    _most: usize,
    _flags: u32,
    _size: usize,
) -> isize {
    let entry = |index: u32, raw| ibv_gid_entry {
        gid: ibv_gid { raw },
        gid_index: index,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: INTERFACE.load(Ordering::Relaxed),
    };
    // SAFETY: the caller's promise.
    unsafe {
        out.write(entry(0, [0xfe; 16]));
        out.add(1).write(entry(1, GID));
    }
    2
}

pub(crate) unsafe fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let pd: *mut ibv_pd = zeroed();
    // SAFETY: just made.
    unsafe { (*pd).context = context };
    pd
}

pub(crate) unsafe fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(pd) });
    0
}

pub(crate) unsafe fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _access: c_int,
) -> *mut ibv_mr {
    let mr: *mut ibv_mr = zeroed();
    // SAFETY: just made.
    unsafe { ((*mr).pd, (*mr).addr, (*mr).length) = (pd, addr, length) };
    mr
}

pub(crate) unsafe fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(mr) });
    0
}

pub(crate) unsafe fn ibv_get_cq_event(
    _: *mut ibv_comp_channel,
    _: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    -1
}

pub(crate) unsafe fn ibv_ack_cq_events(_cq: *mut ibv_cq, _count: u32) {}

pub(crate) unsafe fn ibv_create_comp_channel(_context: *mut ibv_context) -> *mut ibv_comp_channel {
    zeroed()
}

pub(crate) unsafe fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(channel) });
    0
}

pub(crate) unsafe fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    _cq_context: *mut c_void,
    _channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let cq: *mut ibv_cq = zeroed();
    // SAFETY: just made.
    unsafe { ((*cq).context, (*cq).cqe) = (context, cqe) };
    cq
}

/// What completes next, in any queue.
static COMPLETIONS: Mutex<VecDeque<ibv_wc>> = Mutex::new(VecDeque::new());

/// Has this complete.
pub(crate) fn complete(completion: ibv_wc) {
    lock(&COMPLETIONS).push_back(completion);
}

/// How many have not been polled; they are forgotten.
pub(crate) fn uncompleted() -> usize {
    core::mem::take(&mut *lock(&COMPLETIONS)).len()
}

unsafe extern "C" fn poll_cq(_cq: *mut ibv_cq, _most: c_int, out: *mut ibv_wc) -> c_int {
    let Some(completion) = lock(&COMPLETIONS).pop_front() else { return 0 };
    // SAFETY: the caller's promise: room for one.
    unsafe { out.write(completion) };
    1
}

unsafe extern "C" fn post_send(
    _qp: *mut ibv_qp,
    _request: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    0
}

/// The receive that was posted last: its number, where, and how many bytes.
static RECEIVE: Mutex<(u64, u64, u32)> = Mutex::new((0, 0, 0));

/// Has these bytes come from a queue pair to the poster of the last receive, which is still there.
pub(crate) fn arrive(bytes: &[u8], src_qp: u32) {
    let (wr_id, to, room) = *lock(&RECEIVE);
    assert!(bytes.len() <= room as usize);
    let to = core::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: memory that was posted, with room for them.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    complete(ibv_wc { wr_id, byte_len: bytes.len() as u32, src_qp, ..ibv_wc::default() });
}

unsafe extern "C" fn post_recv(
    _qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if (*request).num_sge > 0 {
            let entry = &*(*request).sg_list;
            *lock(&RECEIVE) = ((*request).wr_id, entry.addr, entry.length);
        }
    }
    0
}

pub(crate) unsafe fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(cq) });
    0
}

unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    static LATEST: AtomicU32 = AtomicU32::new(100);
    let qp: *mut ibv_qp = zeroed();
    // SAFETY: just made; the caller's promise.
    unsafe {
        (*qp).qp_num = LATEST.fetch_add(1, Ordering::Relaxed);
        (*qp).pd = (*attr).pd;
        (*qp).context = context;
        (*qp).qp_type = (*attr).qp_type;
    }
    qp
}

pub(crate) unsafe fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let ah: *mut ibv_ah = zeroed();
    // SAFETY: just made; the caller's promise.
    unsafe {
        assert!((*attr).is_global == 1 && (*attr).grh.sgid_index == 1);
        (*ah).pd = pd;
    }
    ah
}

pub(crate) unsafe fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(ah) });
    0
}

/// Takes any state that comes after the last one.
pub(crate) unsafe fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let (qp, attr) = unsafe { (&mut *qp, &*attr) };
    let wanted = match attr.qp_state {
        IBV_QPS_RTR if qp.qp_type == IBV_QPT_RC => {
            if attr.ah_attr.grh.sgid_index != 1 || attr.ah_attr.is_global != 1 {
                return libc::EINVAL;
            }
            IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_MAX_DEST_RD_ATOMIC
        }
        IBV_QPS_RTS if qp.qp_type == IBV_QPT_RC => IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC,
        _ => 0,
    };
    if attr.qp_state + 1 < qp.state || mask.cast_unsigned() & wanted != wanted {
        return libc::EINVAL;
    }
    qp.state = attr.qp_state;
    0
}

pub(crate) unsafe fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(qp) });
    0
}

/// Entries that no SRQ's request has.
pub(crate) const TOO_MANY: u32 = 100;

unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller's promise; just made.
    unsafe {
        if (*attr).attr.max_sge >= TOO_MANY {
            libc::__errno_location().write(libc::EINVAL);
            return null_mut();
        }
        let srq: *mut ibv_srq = zeroed();
        ((*srq).context, (*srq).pd) = (context, (*attr).pd);
        srq
    }
}

pub(crate) unsafe fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: from above.
    drop(unsafe { Box::from_raw(srq) });
    0
}

pub(crate) unsafe fn ibv_attach_mcast(_: *mut ibv_qp, _: *const ibv_gid, _: u16) -> c_int {
    0
}

pub(crate) unsafe fn ibv_detach_mcast(_: *mut ibv_qp, _: *const ibv_gid, _: u16) -> c_int {
    0
}

pub(crate) unsafe fn omniverb_private_open(
    version: u32,
    _context: *mut ibv_context,
    opened: *mut *mut PrivateClient,
) -> c_int {
    assert_eq!(version, u32::from(VERSION));
    // SAFETY: the caller's promise.
    unsafe { opened.write(core::ptr::dangling_mut()) };
    0
}

pub(crate) unsafe fn omniverb_private_leave(_: *mut ibv_qp) -> c_int {
    0
}

pub(crate) unsafe fn omniverb_private_call(
    _opened: *mut PrivateClient,
    question: *const c_void,
    bytes: usize,
    answer: *mut PrivateAnswer,
) -> c_int {
    // SAFETY: the caller's promise.
    let question = unsafe { core::slice::from_raw_parts(question.cast::<u8>(), bytes) };
    let (tag, asked) = decode(question).unwrap();
    let said = match fake_daemon::ask(asked) {
        Ok(said) => said,
        Err(errno) => return errno.raw(),
    };
    let mut message = [0; MESSAGE_BYTES_MAX];
    let length = encode(tag, &said, &mut message);
    // SAFETY: the caller's promise.
    unsafe {
        (*answer).bytes = length;
        (*answer).descriptors = 0;
        let to = (&raw mut (*answer).message).cast::<u8>();
        core::ptr::copy_nonoverlapping(message.as_ptr(), to, message.len());
    }
    0
}

pub(crate) unsafe fn omniverb_private_listen(
    _opened: *mut PrivateClient,
    hear: Option<MessageListener>,
    _cookie: *mut c_void,
) -> c_int {
    *lock(&HEAR) = hear;
    0
}
