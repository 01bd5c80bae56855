//! Models lanes, as `sockets/preload/src/light/lane_assignment.rs` assigns them, without bytes.

use super::{Nonsense, State};
use omniverb_connection::light::Frame;
use omniverb_connection::light::frame::{HEADER, LANE_MAX, LANES};
use omniverb_connection::light::lane_assignment::Flow;
use omniverb_connection::light::connection_slot::Flag;

/// Whose they are, by ways; 0: nobody's. And how many bytes are there.
#[derive(Default)]
pub(super) struct Lanes {
    slots: [[u32; LANES as usize]; 2],
    there: [u32; LANES as usize],
}

impl State<'_> {
    /// The other end says that one has a lane, which it mostly may; or that it has none any more.
    pub(super) fn says_lane(&mut self, at: u32, count: u16) {
        let slot = *self.slots.at(at);
        let index = usize::from(slot.channel);
        let Some(channel) = self.channels[index].as_ref() else { return };
        let frame = match slot.lane(Flow::In) {
            Some(lane) if count.is_multiple_of(2) => {
                Frame::ReleaseLane((channel.lanes.there[lane] + u32::from(count % 5)).min(LANE_MAX))
            }
            _ => Frame::AssignLane(u32::from(count / 2) % LANES),
        };
        if channel.ids.slot(slot.id) == Some(at) {
            self.comes(index, Some((frame, slot.id)));
        }
    }

    /// Bytes come by one.
    pub(super) fn comes_by_lane(&mut self, index: usize, count: u16) {
        if let Some(channel) = self.channels[index].as_mut() {
            let there = &mut channel.lanes.there[usize::from(count) % LANES as usize];
            *there = LANE_MAX.min(*there + u32::from(count / 16));
        }
    }

    pub(super) fn in_lane(&mut self, at: u32) -> usize {
        let slot = self.slots.at(at);
        let Some(lane) = slot.lane(Flow::In) else { return 0 };
        let channel =
            self.channels[usize::from(slot.channel)].as_ref().expect("who has lost it has none");
        channel.lanes.there[lane] as usize
    }

    /// `false`: nothing is there.
    pub(super) fn receives_by_lane(&mut self, at: u32, bytes: u32) -> bool {
        let slot = self.slots.at(at);
        let Some(lane) = slot.lane(Flow::In) else { return false };
        let channel =
            self.channels[usize::from(slot.channel)].as_mut().expect("who has lost it has none");
        let there = &mut channel.lanes.there[lane];
        let was = *there;
        *there -= bytes.min(was);
        was > 0
    }

    pub(super) fn peer_assigned_lane(
        &mut self,
        index: usize,
        at: u32,
        lane: usize,
    ) -> Result<(), Nonsense> {
        let channel = self.channels[index].as_mut().expect("it has come by that");
        let owner = &mut channel.lanes.slots[Flow::In as usize][lane];
        if *owner != 0 || !self.slots.at(at).peer_assigned_lane(lane) {
            return Err(Nonsense);
        }
        *owner = at;
        Ok(())
    }

    pub(super) fn peer_released_lane(
        &mut self,
        index: usize,
        at: u32,
        counted: u32,
    ) -> Result<(), Nonsense> {
        if !self.slots.at(at).peer_may_release_lane(counted) {
            return Err(Nonsense);
        }
        let there = self.takes_rest_of_lane(index, at);
        if !self.slots.at(at).peer_released_lane((counted, there)) {
            return Err(Nonsense);
        }
        self.owe(at);
        Ok(())
    }

    pub(super) fn takes_rest_of_lane(&mut self, index: usize, at: u32) -> u32 {
        let Some(lane) = self.slots.at(at).lane(Flow::In) else { return 0 };
        let channel = self.channels[index].as_mut().expect("it has come by that");
        channel.lanes.slots[Flow::In as usize][lane] = 0;
        let there = core::mem::take(&mut channel.lanes.there[lane]);
        let slot = self.slots.at(at);
        slot.lane_drained();
        let push = |_: usize, place: &mut [u8]| place.fill(5);
        let account = (&mut self.pool, slot.owner());
        if slot.is_receiving() && !slot.queue.push(account, there as usize, push) {
            self.lacks_memory(at);
        }
        there
    }

    /// There is none for what comes.
    pub(super) fn lacks_memory(&mut self, at: u32) {
        self.slots.at(at).reset_for_lack_of_memory(&mut self.pool);
        self.owe(at);
    }

    /// It is busy.
    pub(super) fn assign_lane(&mut self, at: u32) {
        let slot = self.slots.at(at);
        let Some(channel) = self.channels[usize::from(slot.channel)].as_mut() else { return };
        let free = channel.lanes.slots[Flow::Out as usize].iter().position(|owner| *owner == 0);
        if let Some(lane) = free
            && slot.may_have_lane()
            && !slot.is_detached()
            && channel.room >= HEADER
        {
            channel.put(Frame::AssignLane(lane as u32));
            slot.assign_lane(lane);
            channel.lanes.slots[Flow::Out as usize][lane] = at;
        }
    }

    /// Its lane is full, or is another one's.
    pub(super) fn release_lane(&mut self, at: u32, unread: u32) {
        let slot = self.slots.at(at);
        let Some(lane) = slot.lane(Flow::Out) else { return };
        let channel =
            self.channels[usize::from(slot.channel)].as_mut().expect("who has lost it has none");
        if channel.room < HEADER || slot.has(Flag::WriteShut) || slot.has(Flag::PeerClosed) {
            return;
        }
        channel.put(Frame::ReleaseLane(unread));
        let before = slot.credit;
        slot.release_lane(unread);
        assert_eq!(slot.credit + unread, before, "there is credit for all of a lane");
        channel.lanes.slots[Flow::Out as usize][lane] = 0;
    }

    /// It has said its last.
    pub(super) fn has_ended(&mut self, at: u32) {
        let slot = self.slots.at(at);
        let Some(lane) = slot.lane(Flow::Out) else { return };
        slot.release_lane(0);
        if let Some(channel) = self.channels[usize::from(slot.channel)].as_mut() {
            channel.lanes.slots[Flow::Out as usize][lane] = 0;
        }
    }

    pub(super) fn lose_lanes(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_ref() else { return };
        let [inward, outward] = channel.lanes.slots;
        inward.into_iter().filter(|at| *at != 0).for_each(|at| {
            self.takes_rest_of_lane(index, at);
        });
        outward.into_iter().filter(|at| *at != 0).for_each(|at| self.has_ended(at));
    }

    /// A lane is that of the slot that has it, and of none that goes by no channel.
    pub(super) fn look_at_lanes(&self, slot: (u32, usize, [Option<usize>; 2])) {
        let (at, index, lanes) = slot;
        for (way, lane) in lanes.into_iter().enumerate() {
            let Some(lane) = lane else { continue };
            let channel = self.channels[index].as_ref().expect("who has lost it has none");
            assert_eq!(channel.lanes.slots[way][lane], at);
        }
    }
}
