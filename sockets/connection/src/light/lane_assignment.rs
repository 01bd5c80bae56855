//! Assigns lanes to busy connections, as each end records it.
//!
//! Connections of a channel share its ring. A connection that sends much gets a *lane* for what it
//! sends: a ring of bytes of its own, which its ends fill and empty without frames, and without
//! what all connections of a process have in common. There are few, and frames of the channel
//! assign them: `AssignLane` gives one to a connection; `ReleaseLane`, `End` and `Close` take it
//! away. What was in it then comes behind what is in the queue, and before all that comes by the
//! channel.
//!
//! A connection with a lane has credit left for all that is in it: so it can always return to the
//! channel.

pub use super::connection_activity::Flow;

use super::connection_slot::{Flag, Slot};
use super::frame::LANE_MAX;

impl Slot {
    /// It has sent something by the channel, which has seen so many of that. Whether it is busy.
    #[inline]
    pub fn record_send(&mut self, clock: u16) -> bool {
        self.activity.record_send(clock)
    }

    /// It has to be busy anew.
    pub fn cool_down(&mut self) {
        self.activity.cool_down();
    }

    /// The lane of what comes or goes.
    #[must_use]
    #[inline(always)]
    pub fn lane(&self, way: Flow) -> Option<usize> {
        self.activity.lane(way)
    }

    /// What it sends may go by a lane: it is a connection of both ends, and stays one.
    #[must_use]
    pub fn may_have_lane(&self) -> bool {
        let is_over =
            [Flag::WriteShut, Flag::PeerClosed, Flag::ResetByPeer, Flag::Closed, Flag::CloseSent]
                .into_iter()
                .any(|flag| self.has(flag));
        !is_over
            && self.is_settled_at_both_ends()
            && self.lane(Flow::Out).is_none()
            && self.credit >= LANE_MAX
    }

    /// It has this lane from now on, for what it sends.
    pub fn assign_lane(&mut self, lane: usize) {
        self.activity.set_lane(Flow::Out, Some(lane));
    }

    /// It has none any more. So many bytes are to come by it yet, which count as if they went by
    /// the channel.
    pub fn release_lane(&mut self, bytes: u32) {
        self.activity.set_lane(Flow::Out, None);
        self.credit = self.credit.saturating_sub(bytes);
        self.cool_down();
    }

    /// The other end sends by this lane from now on: `false` if it may not.
    pub fn peer_assigned_lane(&mut self, lane: usize) -> bool {
        let is_open =
            [Flag::Pending, Flag::PeerEnded, Flag::PeerClosed].map(|flag| !self.has(flag));
        let may = self.lane(Flow::In).is_none() && is_open == [true; 3];
        if may {
            self.activity.set_lane(Flow::In, Some(lane));
        }
        may
    }

    /// The other end may say that it comes by the channel again, and counts so much.
    #[must_use]
    pub fn peer_may_release_lane(&self, counted: u32) -> bool {
        self.lane(Flow::In).is_some() && (!self.is_receiving() || self.may_receive(counted))
    }

    /// It sends by the channel again. Of what it counts (`counted`) so much was in the lane still
    /// (`there`), which is in the queue now. `false`: that cannot be.
    pub fn peer_released_lane(&mut self, (counted, there): (u32, u32)) -> bool {
        let read = counted.checked_sub(there);
        if self.is_receiving() {
            self.count_consumed(read.unwrap_or(0));
        }
        read.is_some()
    }

    /// Nothing comes by its lane any more.
    pub fn lane_drained(&mut self) {
        self.activity.set_lane(Flow::In, None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection_slot::{Closing, WINDOW};
    use super::super::frame::Endpoints;
    use super::*;

    fn slot() -> Slot {
        let mut slot = Slot::default();
        slot.begin(0, Endpoints::default());
        slot
    }

    #[test]
    fn only_what_goes_on_has_a_lane() {
        let mut ended = slot();
        assert!(ended.may_have_lane());
        ended.shut_write();
        let mut closed = slot();
        closed.peer_closed(Closing::Orderly);
        let mut asked = slot();
        asked.begin_connect();
        let mut accepted = slot();
        accepted.accept_here();
        let mut poor = slot();
        poor.credit = LANE_MAX - 1;
        let mut has_one = slot();
        has_one.assign_lane(3);
        for slot in [ended, closed, asked, accepted, poor, has_one] {
            assert!(!slot.may_have_lane(), "{slot:?}");
        }
        has_one.release_lane(9);
        assert!(has_one.may_have_lane() && has_one.credit == WINDOW - 9);
    }

    #[test]
    fn what_was_read_from_the_lane_is_credit() {
        let mut slot = slot();
        assert!(slot.peer_assigned_lane(2) && !slot.peer_assigned_lane(3));
        assert_eq!(slot.lane(Flow::In), Some(2));
        assert!(slot.peer_may_release_lane(WINDOW) && !slot.peer_may_release_lane(WINDOW + 1));
        slot.lane_drained();
        assert!(!slot.peer_may_release_lane(0));
        assert!(slot.peer_released_lane((1000, 0)) && slot.lane(Flow::In).is_none());
        assert!(slot.may_receive(WINDOW - 1000) && !slot.may_receive(WINDOW - 999));
        assert!(slot.peer_assigned_lane(2) && !slot.peer_released_lane((10, 11)));
        slot.peer_ended();
        assert!(!slot.peer_assigned_lane(1));
    }
}
