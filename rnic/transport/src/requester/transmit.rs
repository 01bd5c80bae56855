//! Makes request packets.

use super::{Extent, QueuedRequest, Requester, RequesterState};
use crate::segmentation;
use crate::unwrapped_psn::Sequence;
use crate::upper_layer::{GatherOutcome, UpperLayer};
use crate::work_request::{Operation, Status};
use crate::{Config, Time};
use omniverb_wire::{AtomicEth, Bth, Builder, Feth, Opcode, Operation as Code, Reth, XrcEth};

/// Within a long message an acknowledgement is asked for at least this often, so that the window
/// moves on (9.7.5.1.2 leaves the choice to the requester)...
const ASK_EVERY: u64 = 16;
/// ... and so often within the time after which one that was asked for is late: who may send only a
/// packet now and then learns of a loss as soon as others.
const ASKS_WHILE_EARLY: u64 = 2;
/// Samples of the round trip time under way at most.
const SAMPLES_MAX: usize = 32;

impl Requester {
    /// PSNs that may be under way, once it is known that the peer takes them.
    pub(super) fn window(&self, config: &Config) -> u64 {
        config.window.min(self.congestion.window())
    }

    /// PSNs that may still be sent now.
    pub(super) fn room(&self, config: &Config) -> u64 {
        let window = self.window(config);
        let window = self.probing.map_or(window, |probing| window.min(probing.packets()));
        let room = window.saturating_sub(self.next - self.unacked);
        // The window shrank below what is under way, and nothing of that asks for an answer: one
        // more packet does.
        let stuck = room == 0 && self.asked <= self.unacked;
        if stuck { 1 } else { room }
    }

    /// Writes the next packet. `None`: nothing to send now.
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        config: &Config,
        datagram: &mut [u8],
        upper: &mut impl UpperLayer,
    ) -> Option<usize> {
        self.paced = false;
        if self.standing == RequesterState::Failed
            || self.not_ready.is_some()
            || self.starved
            || self.next == self.tail
        {
            return None;
        }
        let room = self.room(config);
        if room == 0 || self.defers(config, room) {
            self.bursting = false;
            return None;
        }
        let job = *self.next_job()?;
        // Fence (10.8.3.3): every earlier READ and atomic is answered.
        let earlier = self.extents.front().is_some_and(|extent| extent.last < job.first);
        if job.request.is_fenced && self.next == job.first && earlier {
            return None;
        }
        let known = self.extents.iter().find(|e| (e.first..=e.last).contains(&self.next)).copied();
        let response = job.request.operation.has_response();
        if response && known.is_none() && self.extents.len() >= config.max_rd_atomic {
            return None; // 9.4.4, 9.4.5.1: no more than negotiated
        }
        if response && known.is_none() {
            // A new READ waits until it can ask for a good part of a window, not for a packet each
            // time one arrives.
            let wanted = (job.last + 1 - self.next).min(config.window.div_ceil(2));
            if room < wanted.min(self.congestion.window().div_ceil(2)) {
                return None;
            }
        }
        if self.congestion.due() > now {
            self.paced = true;
            return None;
        }
        let begins = self.begins_operation(&job);
        if begins && !self.operations.may_begin() {
            return None;
        }
        let (length, last) = if response {
            let extent = known
                .unwrap_or(Extent { first: self.next, last: job.last.min(self.next + room - 1) });
            let length = self.ask(config, &job, extent.last, datagram)?;
            if known.is_none() {
                self.extents.push_back(extent);
            }
            (length, extent.last)
        } else {
            (self.data(now, config, &job, room, datagram, upper)?, self.next)
        };
        if begins {
            self.operations.note_begun();
        }
        self.after_sending(now, config, last);
        Some(length)
    }

    /// Whether the next packet is the first of an operation, and leaves for the first time.
    fn begins_operation(&self, job: &QueuedRequest) -> bool {
        self.next == job.first && self.next == self.sent && job.request.place.begins()
    }

    /// Whether what follows the present job may have to wait: then an answer must be on its way.
    fn pauses_after_job(&self) -> bool {
        if self.operations.is_limited() {
            return true;
        }
        let follower = self.jobs.get(self.at + 1);
        follower.is_none_or(|next| next.request.operation.has_response() || next.request.is_fenced)
    }

    /// After how many packets to ask for an acknowledgement: a quarter of what is not over, so that
    /// the layer above can go on in time, and in time for the window to move on.
    pub(super) fn asks_every(&self, config: &Config) -> u64 {
        let quarter = (self.tail - self.unacked) / 4;
        let often = config.ask_every.map_or(ASK_EVERY, |most| quarter.min(most).max(ASK_EVERY));
        often.min(self.congestion.window().div_ceil(2))
    }

    /// Whether it is worth waiting until more fits into the window: an answer that moves it is due.
    fn defers(&self, config: &Config, room: u64) -> bool {
        let burst = config.burst.min(self.congestion.window() / 4).min(self.tail - self.next);
        !self.bursting && room < burst && self.unacked < self.asked
    }

    pub(super) fn after_sending(&mut self, now: Time, config: &Config, last: Sequence) {
        let packets = last + 1 - self.next;
        if self.next < self.sent {
            self.resent += packets;
            self.silence.note_retransmission(now);
        } else if self.asked == last + 1 && self.samples.len() < SAMPLES_MAX {
            // The first answer to a READ carries its first PSN. Only what is sent for the first
            // time gives a sample: otherwise nobody knows which of the two was answered.
            self.samples.push_back((self.next, now));
        }
        self.congestion.on_send(now, packets, self.round_trip.smoothed());
        self.bursting = self.tail != last + 1;
        self.next = last + 1;
        self.sent = self.sent.max(self.next);
        if self.asked == self.next {
            self.asked_at = now;
            if std::mem::take(&mut self.retry_is_due) && !self.spend_retry() {
                return;
            }
        }
        self.arm(now, config);
    }

    /// A packet of a SEND or WRITE.
    fn data(
        &mut self,
        now: Time,
        config: &Config,
        job: &QueuedRequest,
        room: u64,
        datagram: &mut [u8],
        upper: &mut impl UpperLayer,
    ) -> Option<usize> {
        let index = self.next - job.first;
        let count = job.last - job.first + 1;
        let often = self.asks_every(config);
        if self.next == self.unacked {
            self.asked_at = now;
        }
        let long = now >= self.asked_at + config.early_timeout / ASKS_WHILE_EARLY;
        let due = long || self.next + 1 >= self.asked.min(self.next) + often;
        let ends = self.next == job.last && (config.ask_every.is_none() || self.pauses_after_job());
        let ask = ends || room == 1 || due;
        let header = |code| Bth::new(code, config.destination, self.next.psn()).ack_requested(ask);
        let mtu = config.path_mtu;
        let request = &job.request;
        let mut builder = segmentation::begin(
            datagram,
            config.service,
            request,
            (index, count),
            mtu,
            job.naming(config),
            header,
        )?;
        let payload = builder.payload();
        if !payload.is_empty() {
            match upper.gather(request.id, index * mtu as u64, payload) {
                GatherOutcome::Filled => {}
                GatherOutcome::Later => {
                    self.starved = true;
                    return None;
                }
                GatherOutcome::Failed => {
                    self.fail_locally(job.first);
                    return None;
                }
            }
        }
        let length = builder.finish();
        if ask {
            self.asked = self.next + 1;
        }
        Some(length)
    }

    /// The memory of a request is gone. Earlier ones that the peer has not acknowledged cannot be
    /// waited for any more; the failed one is the first to end with a status of its own.
    fn fail_locally(&mut self, first: Sequence) {
        while let Some(job) = self.jobs.front().filter(|job| job.first < first) {
            let id = job.request.id;
            let status = Status::Flushed;
            self.events.push_back(crate::Event::Completed { id, status, original: None });
            self.jobs.pop_front();
        }
        self.fail(Status::LocalProtection);
    }

    /// A READ request, an atomic or a FLUSH.
    fn ask(
        &mut self,
        config: &Config,
        job: &QueuedRequest,
        last: Sequence,
        datagram: &mut [u8],
    ) -> Option<usize> {
        let bth = |operation| {
            let code = Opcode::new(config.service, operation);
            let bth = Bth::new(code.to_byte(), config.destination, self.next.psn());
            (code, bth.ack_requested(true))
        };
        let mtu = config.path_mtu as u64;
        let srq = config.service.is_extended().then(|| XrcEth::new(job.request.srq));
        let length = match job.request.operation {
            Operation::Read { address, key } => {
                let begin = (self.next - job.first) * mtu;
                let end = ((last + 1 - job.first) * mtu).min(job.request.length);
                let (code, bth) = bth(Code::ReadRequest);
                let reth = Reth::new(address.wrapping_add(begin), key, (end - begin) as u32);
                Builder::new(datagram, code, bth, 0)?.maybe(srq).header(reth).finish()
            }
            Operation::CompareSwap { address, key, compare, swap } => {
                let (code, bth) = bth(Code::CompareSwap);
                let operands = AtomicEth::new(address, key, swap, compare);
                Builder::new(datagram, code, bth, 0)?.maybe(srq).header(operands).finish()
            }
            Operation::FetchAdd { address, key, add } => {
                let (code, bth) = bth(Code::FetchAdd);
                let operands = AtomicEth::new(address, key, add, 0);
                Builder::new(datagram, code, bth, 0)?.maybe(srq).header(operands).finish()
            }
            Operation::AtomicWrite { address, key, value } => {
                let (code, bth) = bth(Code::AtomicWrite);
                let reth = Reth::new(address, key, value.len() as u32);
                let mut builder = Builder::new(datagram, code, bth, value.len())?.header(reth);
                builder.payload().copy_from_slice(&value);
                builder.finish()
            }
            Operation::Flush { address, key, length, placement, selectivity } => {
                let (code, bth) = bth(Code::Flush);
                let feth = Feth::new(placement, selectivity);
                let reth = Reth::new(address, key, length);
                Builder::new(datagram, code, bth, 0)?.header(feth).header(reth).finish()
            }
            Operation::Send { .. } | Operation::Write { .. } => return None,
        };
        self.asked = last + 1;
        Some(length)
    }
}
