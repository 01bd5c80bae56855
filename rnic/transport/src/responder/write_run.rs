//! Runs: packets in the middle of a WRITE that are taken in one go.

use super::nak_state::Standing;
use super::{Ends, Message, Pended, Responder, State, part};
use crate::upper_layer::{Kind, Taken, Upper};
use crate::{Config, MESSAGE_MAX, Naming};
use omniverb_terms::Service;
use omniverb_wire::{Place, Run};

impl Responder {
    /// Takes a run that is what is expected, if the layer above places it at once. Otherwise each
    /// packet is to be judged by itself.
    pub(crate) fn handle_run(
        &mut self,
        config: &Config,
        run: &Run<'_>,
        upper: &mut impl Upper,
    ) -> Taken {
        // A run is of RC.
        let takes = config.service == Service::Rc
            && config.naming == Naming::Every
            && self.standing == Standing::Takes;
        let Some(packet) = run.packet().filter(|_| takes) else { return Taken::Nothing };
        let expected = packet.bth().psn() == self.expected.psn()
            && packet.bth().is_in_default_partition()
            && self.pending.len() < config.unanswered_max;
        let Some((address, key, total, offset)) = self.writes(&packet) else {
            return Taken::Nothing;
        };
        let after = offset + run.bytes() as u64;
        let fits = packet.payload().len() == config.path_mtu && total <= MESSAGE_MAX;
        if !expected || !fits || after >= total {
            return Taken::Nothing;
        }
        let place = Place::new(offset == 0, false);
        let part = part(&packet, Kind::Write { address, key, total }, place, offset);
        if upper.deliver_run(&part, run) == Taken::Nothing {
            return Taken::Nothing;
        }
        self.goes_on();
        self.new_ticket();
        self.take(&packet, run.count() as u64, Ends::Nothing, State::Done, Pended::Part);
        self.message = Message::Write { address, key, total, offset: after };
        Taken::All
    }
}
