//! Runs: packets in the middle of a WRITE that are taken in one go.

use super::nak_and_receive_state::ResponderState;
use super::{EndOfMessage, Message, PendingKind, Responder, State, part};
use crate::upper_layer::{Kind, RunOutcome, UpperLayer};
use crate::{AddressedPackets, Config, MESSAGE_MAX};
use omniverb_terms::Service;
use omniverb_wire::{PacketPosition, WriteRun};

impl Responder {
    /// Takes a run that is what is expected, if the layer above places it at once. Otherwise each
    /// packet is to be judged by itself.
    pub(crate) fn handle_run(
        &mut self,
        config: &Config,
        run: &WriteRun<'_>,
        upper: &mut impl UpperLayer,
    ) -> RunOutcome {
        // A run is of RC.
        let takes = config.service == Service::Rc
            && config.naming == AddressedPackets::Every
            && self.standing == ResponderState::Takes;
        let Some(packet) = run.packet().filter(|_| takes) else { return RunOutcome::Nothing };
        let expected = packet.bth().psn() == self.expected.psn()
            && packet.bth().is_in_default_partition()
            && self.pending.len() < config.unanswered_max;
        let Some((address, key, total, offset)) = self.writes(&packet) else {
            return RunOutcome::Nothing;
        };
        let after = offset + run.bytes() as u64;
        let fits = packet.payload().len() == config.path_mtu && total <= MESSAGE_MAX;
        if !expected || !fits || after >= total {
            return RunOutcome::Nothing;
        }
        let place = PacketPosition::new(offset == 0, false);
        let part = part(&packet, Kind::Write { address, key, total }, place, offset);
        if upper.deliver_run(&part, run) == RunOutcome::Nothing {
            return RunOutcome::Nothing;
        }
        self.clear_naks();
        self.new_ticket();
        self.take(
            &packet,
            run.count() as u64,
            EndOfMessage::Nothing,
            State::Done,
            PendingKind::Part,
        );
        self.message = Message::Write { address, key, total, offset: after };
        RunOutcome::All
    }
}
