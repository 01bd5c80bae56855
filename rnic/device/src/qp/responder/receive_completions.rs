//! Completes receives: of messages that have come, and of those that fail.

use super::Receives;
use crate::cq::{Entry, SolicitedEvent};
use crate::qp::attached_completion_counters::AttachedCounters;
use crate::qp::statistics::Meter;
use crate::qp::xrc::XrcState;
use crate::qp::{Inner, Qp};
use crate::receive_ring::Receive;
use crate::verbs_constants::{Wc, status, wc_flags, wc_opcode};
use omniverb_link::record::{IMMEDIATE, INVALIDATE};
use omniverb_terms::{Qpn, Service};

/// What the completion of a receive uses.
pub(in crate::qp) struct Deliveries<'q> {
    receives: &'q mut Receives,
    extended: &'q mut XrcState,
    counting: &'q AttachedCounters,
    meter: &'q mut Meter,
}

/// A message that a receive has got.
pub(super) struct Delivered {
    /// Of the receive.
    pub(super) wr_id: u64,
    /// Of the completion.
    pub(super) opcode: u32,
    pub(super) length: u64,
    /// Of its last record.
    pub(super) flags: u32,
    pub(super) immediate: u32,
    /// The queue pair that sent it.
    pub(super) from: Qpn,
}

impl Inner {
    #[inline(always)]
    pub(in crate::qp) fn deliveries(&mut self) -> Deliveries<'_> {
        let Inner { receives, extended, counting, meter, .. } = self;
        Deliveries { receives, extended, counting, meter }
    }
}

impl Deliveries<'_> {
    /// A receive got its message.
    #[inline(always)]
    pub(super) fn deliver(&mut self, qp: &Qp, message: Delivered) {
        let Delivered { wr_id, opcode, length, flags, immediate, from } = message;
        let with_immediate = if flags & IMMEDIATE != 0 { wc_flags::WITH_IMM } else { 0 };
        let with_invalidate = if flags & INVALIDATE != 0 { wc_flags::WITH_INV } else { 0 };
        let wc = Wc {
            wr_id,
            status: status::SUCCESS,
            opcode,
            byte_len: length as u32,
            immediate,
            qp_num: qp.number.0,
            src_qp: from.0,
            flags: with_immediate | with_invalidate,
            ..Wc::default()
        };
        self.meter.received(length);
        self.complete(qp, wc, SolicitedEvent::of(flags));
    }

    /// A receive got the immediate data of a WRITE of so many bytes.
    #[inline(always)]
    pub(super) fn deliver_immediate(
        &mut self,
        qp: &Qp,
        from: Qpn,
        wr_id: u64,
        (length, flags, immediate): (u64, u32, u32),
    ) {
        let opcode = wc_opcode::RECV_RDMA_WITH_IMM;
        self.deliver(qp, Delivered { wr_id, opcode, length, flags, immediate, from });
    }

    /// A receive is complete.
    #[inline(always)]
    pub(super) fn complete(&mut self, qp: &Qp, wc: Wc, solicits: SolicitedEvent) {
        self.counting.received(&wc);
        match qp.service {
            Service::XrcRecv => self.extended.complete_of_target(qp, wc, solicits),
            _ => {
                self.receives.complete(Entry::new(wc, qp.receive_release(), solicits));
            }
        }
    }

    /// Completes a receive that failed.
    pub(in crate::qp) fn fail(&mut self, qp: &Qp, receive: &Receive, status: u32) {
        let wc = Wc {
            wr_id: receive.wr_id,
            status,
            opcode: wc_opcode::RECV,
            qp_num: qp.number.0,
            ..Wc::default()
        };
        self.complete(qp, wc, SolicitedEvent::Nothing);
        qp.hand_over(self.receives);
    }

    /// A receive that was taken serves the next message, or is flushed with the rest. Others share
    /// those of an SRQ, which do not go back.
    #[cold]
    pub(super) fn put_back(&mut self, qp: &Qp, receive: &Receive, status: u32) {
        match qp.shares_receives() {
            true => self.fail(qp, receive, status),
            false => self.receives.put_back(),
        }
    }

    /// Completes all receives that wait: none gets a message any more.
    pub(in crate::qp) fn flush(&mut self, qp: &Qp) {
        while let Some(receive) = self.receives.take() {
            self.fail(qp, &receive, status::WR_FLUSH_ERR);
        }
    }
}
