//! Asynchronous events: from the device to the context they belong to.

use core::ffi::c_int;

use omniverb_abi::{
    ibv_async_event, ibv_async_event_element, ibv_context, ibv_cq, ibv_qp, ibv_srq,
};
use omniverb_client::Doorbell;
use omniverb_device::AsyncEvent;

use super::context::ContextShell;
use super::event_wait::{acknowledge, take_event};
use super::{cq::CqShell, qp_handle::QpShell, srq::SrqShell};

/// What kind of object an event is about.
enum EventSubject {
    Cq,
    Qp,
    Srq,
}

fn subject(kind: AsyncEvent) -> EventSubject {
    match kind {
        AsyncEvent::CqError => EventSubject::Cq,
        AsyncEvent::SrqError | AsyncEvent::SrqLimitReached => EventSubject::Srq,
        _ => EventSubject::Qp,
    }
}

/// The device reports an event about the object at `cookie`.
pub(super) fn deliver(kind: AsyncEvent, cookie: usize) {
    if cookie == 0 {
        return;
    }
    // SAFETY: cookies are the addresses of our shells, and the device reports nothing about an
    // object whose destroy verb has begun to free it.
    let context: *mut ibv_context = unsafe {
        match subject(kind) {
            EventSubject::Cq => (*(cookie as *mut ibv_cq)).context,
            EventSubject::Qp => (*(cookie as *mut ibv_qp)).context,
            EventSubject::Srq => (*(cookie as *mut ibv_srq)).context,
        }
    };
    // SAFETY: a live object's context is open.
    let events = unsafe { &ContextShell::of(context).events };
    // SAFETY: as above; what it is was written before it became a cookie.
    let is_told = matches!(subject(kind), EventSubject::Qp)
        && unsafe { QpShell::of(cookie as *mut ibv_qp).opened.is_some() };
    // Another process says so, as often as it likes.
    if is_told { events.push_once((kind, cookie)) } else { events.push((kind, cookie)) }
}

/// Fills in the C event and counts it as returned.
///
/// # Safety
/// `object` is a live object of the event's kind, `event` is valid.
unsafe fn describe(kind: AsyncEvent, object: usize, event: *mut ibv_async_event) {
    // SAFETY: the caller's promise.
    unsafe {
        let element = match subject(kind) {
            EventSubject::Cq => {
                CqShell::of(object as *mut ibv_cq).async_returned();
                ibv_async_event_element { cq: object as *mut ibv_cq }
            }
            EventSubject::Qp => {
                QpShell::of(object as *mut ibv_qp).async_returned();
                ibv_async_event_element { qp: object as *mut ibv_qp }
            }
            EventSubject::Srq => {
                SrqShell::of(object as *mut ibv_srq).async_returned();
                ibv_async_event_element { srq: object as *mut ibv_srq }
            }
        };
        event.write(ibv_async_event { element, event_type: kind as u32 });
    }
}

/// `ibv_get_async_event`, without the waiting; see `cancellable_event_waits.c`.
///
/// # Safety
/// All pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omniverb_take_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
    bell: *mut *const Doorbell,
) -> c_int {
    // SAFETY: the caller's promise; an object is alive until its events are acknowledged.
    unsafe {
        take_event(&ContextShell::of(context).events, bell, |(kind, object)| {
            describe(kind, object, event);
        })
    }
}

/// Acknowledges an event.
///
/// # Safety
/// `event` came from `ibv_get_async_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_ack_async_event(event: *mut ibv_async_event) {
    const CQ_ERR: u32 = AsyncEvent::CqError as u32;
    const SRQ_ERR: u32 = AsyncEvent::SrqError as u32;
    const SRQ_LIMIT: u32 = AsyncEvent::SrqLimitReached as u32;
    const QP_FIRST: u32 = AsyncEvent::QpFatal as u32;
    const QP_LAST_BUT_ONE: u32 = AsyncEvent::SqDrained as u32;
    const QP_LAST: u32 = AsyncEvent::QpLastWqeReached as u32;
    // SAFETY: the caller's promise: the object lives until its events are acknowledged.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            CQ_ERR => {
                let cq = element.cq;
                acknowledge(
                    &raw mut (*cq).mutex,
                    &raw mut (*cq).cond,
                    &raw mut (*cq).async_events_completed,
                    1,
                );
            }
            SRQ_ERR | SRQ_LIMIT => {
                let srq = element.srq;
                acknowledge(
                    &raw mut (*srq).mutex,
                    &raw mut (*srq).cond,
                    &raw mut (*srq).events_completed,
                    1,
                );
            }
            QP_FIRST..=QP_LAST_BUT_ONE | QP_LAST => {
                let qp = element.qp;
                acknowledge(
                    &raw mut (*qp).mutex,
                    &raw mut (*qp).cond,
                    &raw mut (*qp).events_completed,
                    1,
                );
            }
            _ => {}
        }
    }
}
