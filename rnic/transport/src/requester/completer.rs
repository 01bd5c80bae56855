//! The completer (9.7.5.1, 9.9.2): response packets in, completions out.

use super::{Requester, RequesterState};
use crate::unwrapped_psn::Sequence;
use crate::upper_layer::{PlaceOutcome, UpperLayer};
use crate::work_request::{Event, Operation, Status};
use crate::{Config, Time, segmentation};
use omniverb_wire::{Operation as Code, Packet, Syndrome};

impl Requester {
    /// Takes a response packet.
    pub(crate) fn handle_response(
        &mut self,
        now: Time,
        config: &Config,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) {
        if self.standing == RequesterState::Failed {
            return;
        }
        let psn = self.unacked.nearest(packet.bth().psn());
        // Answers to what is over, or was never asked: ignored (9.7.5.1.3, "ghost"
        // acknowledgements).
        if psn < self.unacked || psn >= self.sent {
            return;
        }
        match packet.opcode().operation {
            Code::Acknowledge => {
                let Some(aeth) = packet.aeth() else { return };
                self.acknowledge(now, config, psn, aeth.syndrome());
            }
            Code::ReadResponse { .. } => self.read_response(now, config, psn, packet, upper),
            Code::AtomicAcknowledge => self.atomic_response(now, config, psn, packet),
            _ => {}
        }
        if let Some((psn, status)) = self.standing.refused()
            && self.unacked >= psn
        {
            self.fail(status);
        }
    }

    fn acknowledge(&mut self, now: Time, config: &Config, psn: Sequence, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Ack(_) => {
                self.acknowledged(now, config, psn + 1);
            }
            Syndrome::ReceiverNotReady(code) => {
                self.not_ready_heard += 1;
                if self.acknowledged(now, config, psn) {
                    self.receiver_not_ready(now, config, code);
                }
            }
            Syndrome::SequenceError => {
                self.gaps_heard += 1;
                if self.acknowledged(now, config, psn) {
                    self.sequence_error(now, config);
                }
            }
            Syndrome::Refused(refusal) => {
                let status = Status::Refused(refusal);
                // Earlier READs and atomics without an answer are asked for anew first (9.7.5.1.4).
                // The answers may have been overtaken, or the responder answers still
                // (`GoneReads::Refused`); usually it is in the error state and will not, but it is
                // not gone either.
                if self.standing == RequesterState::Going {
                    self.standing = RequesterState::Refused(psn, status);
                }
                self.retries = self.retries.min(self.retries_anew(config));
                if self.acknowledged(now, config, psn) {
                    self.fail(status);
                }
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// Everything before `end` is acknowledged. False: there was a READ or atomic among it whose
    /// answer is missing; it is asked for anew (9.7.5.1.4: implied NAK).
    fn acknowledged(&mut self, now: Time, config: &Config, end: Sequence) -> bool {
        let before = self.unacked;
        let mut complete = true;
        while self.unacked < end {
            let Some(job) = self.jobs.front() else { break };
            if job.request.operation.has_response() {
                complete = false;
                break;
            }
            let reached = end.min(job.last + 1);
            self.unacked = reached;
            if reached > job.last {
                self.complete(None);
            }
        }
        if self.unacked > before {
            self.progress(now, config, self.unacked - before);
        }
        if !complete {
            self.lost(now);
        }
        complete
    }

    /// The oldest request is over.
    fn complete(&mut self, original: Option<u64>) {
        let Some(job) = self.jobs.pop_front() else { return };
        self.at = self.at.saturating_sub(1);
        let id = job.request.id;
        self.events.push_back(Event::Completed { id, status: Status::Success, original });
    }

    fn read_response(
        &mut self,
        now: Time,
        config: &Config,
        psn: Sequence,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) {
        let Some(job) = self.job_at(psn).copied() else { return };
        // What brings nothing back is answered like a READ of nothing (A19).
        let length = match job.request.operation {
            Operation::Read { .. } => job.request.length,
            Operation::AtomicWrite { .. } | Operation::Flush { .. } => 0,
            _ => return,
        };
        // It acknowledges everything before the READ (9.7.5.1.2).
        if !self.acknowledged(now, config, job.first) {
            return;
        }
        if psn != self.unacked {
            self.lost(now);
            return;
        }
        let index = psn - job.first;
        let expected = segmentation::payload(length, config.path_mtu, index);
        let refused = packet.aeth().is_some_and(|a| !matches!(a.syndrome(), Syndrome::Ack(_)));
        if packet.payload().len() != expected || refused {
            self.fail(Status::BadResponse); // 9.9.2.4.1
            return;
        }
        if expected > 0 {
            let offset = index * config.path_mtu as u64;
            match upper.place(job.request.id, offset, packet.payload()) {
                PlaceOutcome::Done => {}
                PlaceOutcome::Full => {
                    // The peer answers, so it is alive: time does not run against it.
                    self.crowded = true;
                    self.rearm(now, config);
                    return;
                }
                PlaceOutcome::Failed => {
                    self.fail(Status::LocalProtection);
                    return;
                }
            }
        }
        self.unacked = psn + 1;
        if psn == job.last {
            self.complete(None);
        }
        self.progress(now, config, 1);
    }

    fn atomic_response(&mut self, now: Time, config: &Config, psn: Sequence, packet: &Packet<'_>) {
        let Some(job) = self.job_at(psn).copied() else { return };
        let atomic = matches!(
            job.request.operation,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
        );
        if !atomic || !self.acknowledged(now, config, job.first) {
            return;
        }
        let Some(result) = packet.atomic_ack() else { return };
        self.unacked = psn + 1;
        self.complete(Some(result.original()));
        self.progress(now, config, 1);
    }

    /// Something new was acknowledged (9.9.2.1.1: counters and timer start afresh).
    fn progress(&mut self, now: Time, config: &Config, packets: u64) {
        let again = self.next;
        self.next = self.next.max(self.unacked);
        self.retries = self.retries_anew(config);
        self.retry_is_due = false;
        self.patient_since = None;
        self.rnr_retries = config.rnr_retry;
        (self.not_ready, self.unready_since) = (None, None);
        self.answered(now);
        if self.recovering.is_some_and(|psn| psn < self.unacked) {
            self.recovering = None;
        }
        while self.extents.front().is_some_and(|extent| extent.last < self.unacked) {
            self.extents.pop_front();
        }
        if let Some(probing) = self.probing {
            // A READ is one packet, however many answer it.
            let more_comes = self.extents.front().is_some_and(|extent| extent.first < self.unacked);
            let packets = if more_comes { 0 } else { packets };
            self.probing = probing.heard((self.unacked, again), packets, self.window(config));
        }
        let mut sample = None;
        while let Some((_, time)) = self.samples.front().filter(|(psn, _)| *psn < self.unacked) {
            sample = Some(now.saturating_sub(*time));
            self.samples.pop_front();
        }
        if let Some(sample) = sample {
            self.round_trip.sample(sample);
        }
        let round_trip = (self.round_trip.least(), self.round_trip.smoothed());
        self.congestion.on_ack(now, packets, sample, round_trip);
        self.rearm(now, config);
    }
}
