//! Numbers the packets in one queue pair's traces, and writes the traces for the daemon.

use super::request_state::TraceNumbers;
use crate::scatter_gather::pieces;
use omniverb_link::captured_operations_ring::{ACKNOWLEDGED, NOT_READY, PIECE};
use omniverb_link::{Trace, Tracer};
use omniverb_ring::UserMemory;
use omniverb_terms::Psn;
use std::sync::Arc;

/// Messages are numbered in 24 bits.
const NUMBER: u32 = 0xff_ffff;

/// Whether a request takes its numbers with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PsnUse {
    /// It does: the next one has the PSN and MSN after it.
    Counts,
    /// It was not taken, for want of a receive, and will be tried again with the same numbers.
    WillBeRepeated,
}

/// What tracing needs to know of a QP.
pub(crate) struct Tracing {
    tracer: Arc<Tracer>,
    /// Of the next packet. `None`: there was none, and the first has the QP's `sq_psn`.
    psn: Option<Psn>,
    /// Messages numbered until now, in 24 bits.
    messages: u32,
}

impl Tracing {
    /// Nothing is numbered yet.
    pub(super) fn new(tracer: Arc<Tracer>) -> Tracing {
        Tracing { tracer, psn: None, messages: 0 }
    }

    /// Whether traces go there.
    pub(super) fn writes_to(&self, tracer: &Arc<Tracer>) -> bool {
        Arc::ptr_eq(&self.tracer, tracer)
    }

    /// Numbers for a request of so many packets, which the next gets, too, if this one is only
    /// tried.
    pub(super) fn number(&mut self, sq_psn: u32, count: u64, attempt: PsnUse) -> TraceNumbers {
        let psn = *self.psn.get_or_insert(Psn::new(sq_psn));
        if attempt == PsnUse::Counts {
            self.psn = Some(psn.plus(count as u32));
            self.messages = self.messages.wrapping_add(1) & NUMBER;
        }
        TraceNumbers { psn, last: psn.plus((count - 1) as u32), messages: self.messages }
    }

    /// Tells, with `length` bytes of payload out of `parts`, in pieces.
    pub(super) fn write(&self, trace: &Trace, length: u64, parts: &[UserMemory]) {
        let with_payload = trace.kind.has_payload();
        let Some(mtu) = trace.mtu_bytes() else { return };
        let keep = self.tracer.keep();
        let mut offset = 0;
        let mut list = Vec::new();
        loop {
            let piece = (length - offset).min(PIECE);
            let mut bytes = 0;
            list.clear();
            let mut add = |from, length| {
                pieces(parts, from, length, |_, part| {
                    bytes += part.len();
                    list.push(part);
                });
            };
            match with_payload {
                false => {}
                true if u64::from(keep) >= mtu => add(offset, piece),
                true => {
                    for at in (0..piece).step_by(mtu as usize) {
                        add(offset + at, (piece - at).min(mtu).min(u64::from(keep)));
                    }
                }
            }
            let second = if with_payload { offset } else { trace.second };
            if !self.tracer.record(&Trace { keep, second, ..*trace }, bytes, &list) {
                let answers = u64::from(trace.flags & (ACKNOWLEDGED | NOT_READY) != 0);
                let left = if with_payload { packets(length - offset, trace.path_mtu) } else { 1 };
                return self.tracer.lose(left + answers);
            }
            offset += piece;
            if !with_payload || offset >= length {
                return;
            }
        }
    }
}

/// Packets that a message takes.
pub(super) fn packets(length: u64, path_mtu: u8) -> u64 {
    length.div_ceil(128 << path_mtu).max(1)
}
