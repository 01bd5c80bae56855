//! Handles a request packet that was taken before (9.9.3: duplicate requests): nothing is executed
//! again, but what the requester may have missed is said again. Errors found here are never
//! answered.

use super::{
    Pending, PendingKind, ReadInProgress, RememberedKind, RememberedRequest, RepeatedResponse,
    Responder, State,
};
use crate::unwrapped_psn::Sequence;
use crate::upper_layer::{Delivery, ReadRequest};
use crate::{Config, UpperLayer, segmentation};
use omniverb_wire::{Operation as Code, Packet};

impl Responder {
    pub(super) fn duplicate(
        &mut self,
        config: &Config,
        psn: Sequence,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) {
        let operation = packet.opcode().operation;
        if psn >= self.answered {
            self.duplicate_of_pending(config, psn, packet, upper);
            return;
        }
        match operation {
            Code::Send { .. } | Code::Write { .. } => self.acknowledging.make_due(),
            Code::ReadRequest => self.read_again(config, psn, packet, upper),
            Code::CompareSwap | Code::FetchAdd | Code::AtomicWrite | Code::Flush => {
                let executed = self.memories.iter().find_map(|memory| match memory.kind {
                    RememberedKind::Once { executed } if memory.first == psn => executed,
                    _ => None,
                });
                let queued = self.replays.iter().any(
                    |replay| matches!(replay, RepeatedResponse::Once { psn: p, .. } if *p == psn),
                );
                if let Some(executed) = executed
                    && !queued
                {
                    self.replays.push_back(RepeatedResponse::Once { psn, executed });
                }
            }
            _ => {}
        }
    }

    /// It was taken, and its answer has not left or not left completely.
    fn duplicate_of_pending(
        &mut self,
        config: &Config,
        psn: Sequence,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) {
        let found = self.pending.partition_point(|pending| pending.last < psn);
        let Some(pending) = self.pending.get_mut(found) else { return };
        self.asked_again |= pending.state == State::Waiting;
        match &mut pending.kind {
            PendingKind::Part => {
                if let State::NotReady { nak_sent } = &mut pending.state {
                    *nak_sent = false;
                }
                pending.ask |= packet.bth().is_ack_requested();
            }
            PendingKind::Read(reading) => {
                let begun = *reading;
                if psn < begun.next && packet.opcode().operation == Code::ReadRequest {
                    let memory = self.memories.iter().find(|m| m.first == pending.first).copied();
                    if let Some(memory) = memory
                        && let Some(again) = self.again(config, &memory, psn, packet, upper)
                    {
                        upper.release(begun.ticket);
                        self.starved = false;
                        // The rest of the original extent stays to be answered as well.
                        if let Some(Pending { kind: PendingKind::Read(reading), .. }) =
                            self.pending.get_mut(found)
                        {
                            *reading = again;
                        }
                    }
                }
            }
            PendingKind::Once(_) => {}
        }
    }

    /// Checks a repeated READ against what is remembered of it, and asks the layer above anew.
    /// What is asked for must lie inside, and end where the original ended.
    fn again(
        &mut self,
        config: &Config,
        memory: &RememberedRequest,
        psn: Sequence,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) -> Option<ReadInProgress> {
        let RememberedKind::Read { address, key, length } = memory.kind else { return None };
        let reth = packet.reth()?;
        let skipped = (psn - memory.first) * config.path_mtu as u64;
        let left = length.checked_sub(skipped)?;
        let same = reth.address() == address.wrapping_add(skipped)
            && reth.key() == key
            && u64::from(reth.length()) == left;
        if !same {
            return None;
        }
        let ticket = self.new_ticket();
        let address = reth.address();
        let srq = packet.srq().unwrap_or(0);
        let request = ReadRequest { address, key, srq, length: left, is_repeated: true };
        let last = psn + segmentation::packets(left, config.path_mtu) - 1;
        match upper.read(ticket, &request) {
            Delivery::Done | Delivery::Later => Some(ReadInProgress {
                ticket,
                base: psn,
                next: psn,
                last,
                begin: psn,
                length: left,
            }),
            _ => None,
        }
    }

    /// A READ whose answer has left before.
    fn read_again(
        &mut self,
        config: &Config,
        psn: Sequence,
        packet: &Packet<'_>,
        upper: &mut impl UpperLayer,
    ) {
        let covers = |first: Sequence, last: Sequence| (first..=last).contains(&psn);
        let queued = self.replays.iter().position(|replay| match replay {
            RepeatedResponse::Read(reading) => covers(reading.base, reading.last),
            _ => false,
        });
        if let Some(RepeatedResponse::Read(reading)) =
            queued.and_then(|index| self.replays.get(index))
            && reading.next <= psn
        {
            // Its answer is on the way, from the layer above perhaps.
            self.asked_again |= self.starved;
            return;
        }
        let Some(memory) = self.memories.iter().find(|m| covers(m.first, m.last)).copied() else {
            return;
        };
        let is_gone = |replay: &RepeatedResponse| match replay {
            RepeatedResponse::Gone { last, .. } => *last == memory.last,
            _ => false,
        };
        if self.replays.iter().any(is_gone) {
            // It is about to be told.
            return;
        }
        let Some(again) = self.again(config, &memory, psn, packet, upper) else { return };
        self.starved = false;
        // One answer at a time for one original: at most as many as are remembered.
        let older = self
            .replays
            .iter()
            .position(|replay| matches!(replay, RepeatedResponse::Read(r) if r.last == again.last));
        match older.and_then(|index| self.replays.get_mut(index)) {
            Some(replay) => {
                if let RepeatedResponse::Read(reading) = replay {
                    upper.release(reading.ticket);
                }
                *replay = RepeatedResponse::Read(again);
            }
            None => self.replays.push_back(RepeatedResponse::Read(again)),
        }
    }
}
