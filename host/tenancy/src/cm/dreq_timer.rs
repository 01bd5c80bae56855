//! Starts and stops [retransmission of DREQs](super::dreq_retransmission).

use super::message_ends::Ends;
use crate::action::Recipient;
use crate::cm::ConnectionManager;
use crate::timers::Timer;
use omniverb_cm::{Mad, Message};
use omniverb_terms::{Gid, VnicId};

impl ConnectionManager<'_> {
    /// An id is no more, and this, its last word, may be missed.
    pub(super) fn keep_farewell(&mut self, at: VnicId, ends: (Gid, Gid), mad: &Mad, now: u64) {
        // Nothing is lost at home.
        if !ends.1.is_loopback() && !self.tenants.owns(at, ends.1) {
            self.connections.farewells.add(at, ends, mad, now);
            self.set_farewell_timer();
        }
    }

    fn set_farewell_timer(&mut self) {
        match self.connections.farewells.due() {
            Some(at) => self.context.timers.set(Timer::DreqRetransmissions, at),
            None => self.context.timers.clear(Timer::DreqRetransmissions),
        }
    }

    /// A message came about a connection that is not there: its peer may have heard that it ends.
    pub(super) fn hear_of_farewell(&mut self, from: Ends, name: u32, message: &Message) {
        use Message::{Disconnect, Disconnected, Reject};
        if matches!(message, Disconnected(_) | Disconnect(_) | Reject(_)) {
            self.connections.farewells.is_heard(from.at, (from.own, from.sender), name);
            self.set_farewell_timer();
        }
    }

    /// Says again what was not answered.
    pub(crate) fn farewells_due(&mut self, now: u64) {
        while let Some((at, ends, mad)) = self.connections.farewells.take_due(now) {
            self.send_mad(at, ends, mad, Recipient::Known);
        }
        self.set_farewell_timer();
    }

    /// A vNIC is about to go: sends its remaining DREQs now.
    pub(crate) fn last_farewells(&mut self, at: VnicId) {
        for (ends, mad) in self.connections.farewells.take_all(at) {
            self.send_mad(at, ends, mad, Recipient::Known);
        }
        self.set_farewell_timer();
    }
}
