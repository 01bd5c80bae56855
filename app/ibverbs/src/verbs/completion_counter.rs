//! Completion counters: how much of what queue pairs do has succeeded, and failed.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use omniverb_abi::*;
use omniverb_device::{AttachError, COUNTER_MAX, CountedUnit, Counter, CounterValue, counted};
use omniverb_terms::Errno;

use super::context::ContextShell;
use super::object_limits::COUNTER_COUNT_MAX;
use super::qp_handle::QpShell;
use crate::errno::null;
use crate::refusal_log::refused;

/// A completion counter as C sees it.
#[repr(C)]
struct CounterShell {
    counter: ibv_comp_cntr,
    of: Arc<Counter>,
}

/// # Safety
/// `counter` is live.
unsafe fn shell<'a>(counter: *mut ibv_comp_cntr) -> &'a CounterShell {
    // SAFETY: the caller's promise.
    unsafe { &*counter.cast::<CounterShell>() }
}

/// What can be counted, how far, and by how many counters. `EINVAL`: the caller's struct is shorter
/// than the first one that there was.
///
/// # Safety
/// `caps` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov__ibv_query_comp_cntr_caps(
    _context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    if size < size_of::<ibv_comp_cntr_caps>() {
        return Errno::EINVAL.raw();
    }
    let ours = ibv_comp_cntr_caps {
        max_value: COUNTER_MAX,
        max_counters: COUNTER_COUNT_MAX,
        supported_qp_attach_ops: counted::ALL,
    };
    // SAFETY: the caller's promise. What a longer struct has more is not there.
    unsafe {
        caps.cast::<u8>().write_bytes(0, size);
        caps.write(ours);
    }
    0
}

/// Makes a counter of requests or of bytes. `EOPNOTSUPP`: of anything else; `ENOMEM`: there are as
/// many as there may be.
///
/// # Safety
/// `context` is open, `attributes` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // SAFETY: the caller's promise.
    let (asked, place) = unsafe { (*attributes, ContextShell::of(context)) };
    let counts = match asked.r#type {
        IBV_COMP_CNTR_TYPE_WRS => CountedUnit::Requests,
        IBV_COMP_CNTR_TYPE_BYTES => CountedUnit::Bytes,
        _ => return null(Errno::EOPNOTSUPP),
    };
    if asked.comp_mask != 0 || asked.flags != 0 {
        return null(Errno::EOPNOTSUPP);
    }
    if let Err(errno) = place.counts.counters.one_more("ibv_create_comp_cntr") {
        return null(errno);
    }
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    let counter = ibv_comp_cntr { context, handle };
    Box::into_raw(Box::new(CounterShell { counter, of: Counter::new(counts) })).cast()
}

/// Frees it; `EBUSY` while a queue pair counts by it.
///
/// # Safety
/// `counter` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: the caller's promise; it is not used afterwards.
    unsafe {
        let place = ContextShell::of((*counter).context);
        // A forked child's copy: locks may be as a thread of the parent's had them.
        if !place.client.is_ours() {
            return 0;
        }
        if shell(counter).of.is_attached() {
            return Errno::EBUSY.raw();
        }
        place.counts.counters.one_less();
        drop(Box::from_raw(counter.cast::<CounterShell>()));
    }
    0
}

/// Has a queue pair in RESET or INIT count these operations by it, until it is destroyed. What is
/// flushed or refused counts as failed.
///
/// # Safety
/// `qp` and `counter` are live, `attributes` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attributes: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let (asked, queue, counts) = unsafe { (*attributes, QpShell::of(qp), shell(counter)) };
    // SAFETY: as above.
    let (context, is_ours) = unsafe { ((*qp).context, is_ours(counter)) };
    if !is_ours {
        return Errno::EIO.raw();
    }
    if asked.comp_mask != 0 || queue.opened.is_some() {
        return Errno::EOPNOTSUPP.raw();
    }
    if context != counts.counter.context {
        let why = "queue pair and counter are of different contexts";
        return refused!(Errno::EINVAL, "ibv_qp_attach_comp_cntr: {why}").raw();
    }
    match queue.qp.attach_counter(&counts.of, asked.op_mask) {
        Ok(()) => 0,
        Err(AttachError::Taken) => Errno::EBUSY.raw(),
        Err(AttachError::NotOffered) => Errno::EOPNOTSUPP.raw(),
        Err(AttachError::Invalid) => {
            let why = "no operation is named, or the queue pair is neither in RESET nor in INIT";
            refused!(Errno::EINVAL, "ibv_qp_attach_comp_cntr: {why}").raw()
        }
    }
}

/// Whether it is not a forked child's copy, whose queue pairs are the parent's.
///
/// # Safety
/// `counter` is live.
unsafe fn is_ours(counter: *mut ibv_comp_cntr) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ContextShell::of((*counter).context).client.is_ours() }
}

/// # Safety
/// `counter` is live, `value` may be written to.
unsafe fn read(counter: *mut ibv_comp_cntr, value: *mut u64, tally: CounterValue) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !is_ours(counter) {
            return Errno::EIO.raw();
        }
        value.write(shell(counter).of.read(tally));
    }
    0
}

/// How much has succeeded. Serves the queue pairs that count here, as a poll of their CQs would.
///
/// # Safety
/// `counter` is live, `value` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_read_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { read(counter, value, CounterValue::Successes) }
}

/// How many requests have failed or were flushed. Serves queue pairs, too.
///
/// # Safety
/// `counter` is live, `value` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_read_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { read(counter, value, CounterValue::Failures) }
}

/// Sets what has succeeded.
///
/// # Safety
/// `counter` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { shell(counter).of.set(CounterValue::Successes, value) };
    0
}

/// Sets what has failed.
///
/// # Safety
/// `counter` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_set_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { shell(counter).of.set(CounterValue::Failures, value) };
    0
}

/// Adds to what has succeeded; behind the largest number comes 0.
///
/// # Safety
/// `counter` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { shell(counter).of.add(CounterValue::Successes, amount) };
    0
}

/// Adds to what has failed; behind the largest number comes 0.
///
/// # Safety
/// `counter` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_inc_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    amount: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { shell(counter).of.add(CounterValue::Failures, amount) };
    0
}
