//! A queue pair as C sees it, and what is behind it.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use omniverb_abi::{ibv_global_route, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_xrcd};
use omniverb_client::OpenedQp;
use omniverb_device::{Qp, Signaling};

use super::event_wait::until_acknowledged;
use super::work_request_builder::Builder;

/// A queue pair; every one has room for the work request builder.
#[repr(C)]
pub(crate) struct QpShell {
    ex: ibv_qp_ex,
    pub(crate) qp: Arc<Qp>,
    /// What builds work requests, if the application asked for that.
    pub(super) builder: Option<Box<Builder>>,
    pub(super) signaling: Signaling,
    /// XRC: where it receives, or null.
    pub(super) xrcd: *mut ibv_xrcd,
    /// The address vector as it was set: route, LID, SL, whether global, port.
    pub(super) route: SharedRoute,
    /// It is another process's, and this one has it open; `qp` is in its place.
    pub(super) opened: Option<OpenedQp>,
    asyncs_returned: AtomicU32,
}

/// What queries tell of an address vector.
pub(super) type Route = (ibv_global_route, u16, u8, u8, u8);
/// It is that of a queue pair, whichever object it is asked by.
pub(super) type SharedRoute = Arc<Mutex<Option<Route>>>;

impl QpShell {
    /// What C is to see of a queue pair.
    pub(super) fn new(
        ex: ibv_qp_ex,
        qp: Arc<Qp>,
        builder: Option<Box<Builder>>,
        signaling: Signaling,
        xrcd: *mut ibv_xrcd,
    ) -> QpShell {
        let asyncs_returned = AtomicU32::new(0);
        let (route, opened) = (Arc::default(), None);
        QpShell { ex, qp, builder, signaling, xrcd, route, opened, asyncs_returned }
    }

    /// # Safety
    /// `qp` is a live QP of ours.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a QpShell {
        // SAFETY: the caller's promise.
        unsafe { &*qp.cast::<QpShell>() }
    }

    /// An asynchronous event was handed out.
    pub(super) fn async_returned(&self) {
        self.asyncs_returned.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns when all events that were handed out have been acknowledged.
    ///
    /// # Safety
    /// `qp` is a live QP of ours.
    pub(super) unsafe fn await_acknowledgements(qp: *mut ibv_qp) {
        // SAFETY: the caller's promise.
        unsafe {
            let returned = QpShell::of(qp).asyncs_returned.load(Ordering::Acquire);
            let (mutex, cond) = (&raw mut (*qp).mutex, &raw mut (*qp).cond);
            until_acknowledged(mutex, cond, &raw const (*qp).events_completed, returned);
        }
    }
}

/// What a queue pair has room for, as C is told.
pub(super) fn granted(qp: &Qp) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: qp.caps.send_max,
        max_recv_wr: qp.caps.recv_max,
        max_send_sge: qp.caps.send_sge_max,
        max_recv_sge: qp.caps.recv_sge_max,
        max_inline_data: qp.caps.inline_max,
    }
}
