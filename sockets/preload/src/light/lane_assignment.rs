//! Assigns lanes to busy connections, under the lock of the state.
//!
//! The sender gives lanes and takes them away; the receiver hears of it by the channel. What goes
//! by them is in [`super::lanes`].
//!
//! No thread sleeps for room in a lane. A sender that finds its lane full looks for a while, and
//! then returns the connection to the channel, where credit and room hold as always: then there is
//! as much room for what is not read as there would be without lanes.

use omniverb_connection::light::Frame;
use omniverb_connection::light::connection_slot::{Closing, Flag};
use omniverb_connection::light::frame::{HEADER, LANE_MAX};
use omniverb_connection::light::lane_assignment::Flow;
use omniverb_formats::Lane;
use omniverb_formats::channel_layout::{BYTES, LANES};

use super::channel::{Channel, FOR_ANSWERS, ProtocolError};
use super::descriptors::{self, Token};
use super::epoll_sets;
use super::lanes::{QueuedFirst, Takes, handle};
use super::state::State;
use crate::descriptor_tables;
use crate::iovecs::Parts;
use crate::shared_memory::Memory;

const _: () = assert!(LANES as u32 == omniverb_connection::light::frame::LANES);
const _: () = assert!(LANE_MAX as usize == omniverb_formats::channel_layout::LANE);

/// For what a thread is about to sleep.
#[derive(Clone, Copy)]
pub(super) enum WaitTarget<'a> {
    /// For nothing that comes by a lane.
    Frames,
    /// For what comes for a connection.
    One(Token),
    /// For one of these.
    These(&'a [libc::pollfd]),
    /// For a member of a set, or of those in it.
    Members(u32),
}

impl State {
    /// One has sent by the channel: if it is busy it gets a lane.
    #[inline]
    pub(super) fn record_send(&mut self, at: u32) {
        let slot = self.slots.at(at);
        let index = usize::from(slot.channel);
        let Some(channel) = self.channels[index].as_mut() else { return };
        channel.lanes.clock = channel.lanes.clock.wrapping_add(1);
        if slot.record_send(channel.lanes.clock) {
            slot.cool_down();
            if slot.may_have_lane() {
                self.give_lane(at, index);
            }
        }
    }

    #[cold]
    fn give_lane(&mut self, at: u32, index: usize) {
        let least = FOR_ANSWERS + 2 * HEADER;
        let Some(channel) = self.channels[index].as_mut() else { return };
        if channel.room(least) < least {
            return;
        }
        let Some(lane) = channel.free_lane() else { return self.revoke_idle_lane(index) };
        let token = self.token(at);
        let slot = self.slots.at(at);
        let Some(channel) = self.channels[index].as_mut() else { return };
        channel.put(Frame::AssignLane(lane as u32), slot.id);
        slot.assign_lane(lane);
        channel.lanes.slots[Flow::Out as usize][lane] = at;
        channel.shown().goes_by(channel.side, slot.id, Some(lane));
        let whose = channel.whose((token, slot), Flow::Out);
        let place = (index, Flow::Out, lane);
        handle(index, Flow::Out, lane).begins(&whose, place, QueuedFirst::Nothing);
    }

    /// Revokes a lane by which nothing was sent since the last look. It is free when the other end
    /// has heard that.
    fn revoke_idle_lane(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let lane = channel.lanes.hand;
        channel.lanes.hand = (lane + 1) % LANES;
        let at = channel.lanes.slots[Flow::Out as usize][lane];
        if at == 0 || handle(index, Flow::Out, lane).was_used() {
            return;
        }
        // That of one that is about to end is free soon.
        let slot = self.slots.at(at);
        if !slot.has(Flag::WriteShut) && !slot.has(Flag::PeerClosed) {
            self.release_lane(at);
        }
    }

    /// What is sent next goes by the channel. `false`: there is no room there to say so.
    #[cold]
    pub(super) fn release_lane(&mut self, at: u32) -> bool {
        let index = usize::from(self.slots.at(at).channel);
        let least = FOR_ANSWERS + HEADER;
        let Some(channel) = self.channels[index].as_mut() else { return false };
        if channel.room(least) < least {
            return false;
        }
        self.leave_lane(at);
        let slot = self.slots.at(at);
        let Some(lane) = slot.lane(Flow::Out) else { return true };
        let Some(channel) = self.channels[index].as_mut() else { return false };
        let unread = handle(index, Flow::Out, lane).hold().map_or(0, |held| held.unread());
        channel.put(Frame::ReleaseLane(unread), slot.id);
        slot.release_lane(unread);
        self.free_outgoing_lane(at, index, lane);
        true
    }

    /// It has said its last: nothing more goes by its lane.
    pub(super) fn release_outgoing_lane(&mut self, at: u32) {
        let slot = self.slots.at(at);
        let Some(lane) = slot.lane(Flow::Out) else { return };
        let index = usize::from(slot.channel);
        slot.release_lane(0);
        self.free_outgoing_lane(at, index, lane);
    }

    fn free_outgoing_lane(&mut self, at: u32, index: usize, lane: usize) {
        let id = self.slots.at(at).id;
        self.carried.1 += handle(index, Flow::Out, lane).hold().map_or(0, |held| held.sent());
        if let Some(channel) = self.channels[index].as_mut() {
            channel.lanes.slots[Flow::Out as usize][lane] = 0;
            channel.lanes.left[Flow::Out as usize][lane] += 1;
            channel.shown().goes_by(channel.side, id, None);
        }
    }

    /// Senders are to ask from now on whether they may use it: before anything is done that ends
    /// it.
    pub(super) fn leave_lane(&mut self, at: u32) {
        let slot = self.slots.at(at);
        if let Some(lane) = slot.lane(Flow::Out) {
            handle(usize::from(slot.channel), Flow::Out, lane).release(at, Flow::Out);
        }
    }

    /// There is no memory for what comes: nothing behind that is for the program.
    pub(super) fn leave_lanes(&mut self, at: u32) {
        self.leave_lane(at);
        let slot = self.slots.at(at);
        if let Some(lane) = slot.lane(Flow::In) {
            handle(usize::from(slot.channel), Flow::In, lane).release(at, Flow::In);
        }
    }

    /// Its calls wait, or do not.
    pub(super) fn announce_lane(&mut self, at: u32) {
        let slot = self.slots.at(at);
        if let Some(lane) = slot.lane(Flow::In) {
            handle(usize::from(slot.channel), Flow::In, lane).calls((&*slot).into());
        }
    }

    /// Sends by the lane of a connection, as far as there is room.
    pub(super) fn sends_by_lane(
        &mut self,
        at: u32,
        lane: usize,
        parts: &Parts<'_>,
        from: usize,
    ) -> usize {
        let index = usize::from(self.slots.at(at).channel);
        handle(index, Flow::Out, lane).hold().map_or(0, |held| held.send(parts, from))
    }

    /// The other end has one.
    pub(super) fn peer_assigned_lane(
        &mut self,
        index: usize,
        at: u32,
        lane: usize,
    ) -> Result<(), ProtocolError> {
        let token = self.token(at);
        let slot = self.slots.at(at);
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        let is_free = channel.lanes.slots[Flow::In as usize][lane] == 0;
        if !is_free || !slot.peer_assigned_lane(lane) {
            return Err(ProtocolError);
        }
        channel.lanes.slots[Flow::In as usize][lane] = at;
        channel.lanes.inward |= 1 << lane;
        let whose = channel.whose((token, slot), Flow::In);
        let handle = handle(index, Flow::In, lane);
        channel.lanes.noted[lane] = handle.position();
        let before = if slot.received() == 0 { QueuedFirst::Nothing } else { QueuedFirst::Queued };
        let is_lost = !slot.is_receiving();
        handle.begins(&whose, (index, Flow::In, lane), before);
        if is_lost {
            // What comes there is behind bytes that were not read.
            handle.release(at, Flow::In);
        }
        Ok(())
    }

    /// The other end comes by the channel again; so much of what is in its lane it counts.
    pub(super) fn peer_released_lane(
        &mut self,
        index: usize,
        at: u32,
        counted: u32,
    ) -> Result<(), ProtocolError> {
        if !self.slots.at(at).peer_may_release_lane(counted) {
            return Err(ProtocolError);
        }
        let there = self.takes_rest_of_lane(index, at)?;
        if !self.slots.at(at).peer_released_lane((counted, there)) {
            return Err(ProtocolError);
        }
        self.owe(at);
        Ok(())
    }

    /// Nothing comes by the lane of a connection any more: what is there goes to its queue. How
    /// much that is.
    pub(super) fn takes_rest_of_lane(
        &mut self,
        index: usize,
        at: u32,
    ) -> Result<u32, ProtocolError> {
        // Before anything is found that makes no sense: what is lost then has no lane.
        let Some(lane) = self.free_incoming_lane(index, at) else { return Ok(0) };
        let Some(held) = handle(index, Flow::In, lane).hold() else { return Err(ProtocolError) };
        let there = held.waiting().ok_or(ProtocolError)?;
        let slot = self.slots.at(at);
        let has_memory = !slot.is_receiving()
            || slot
                .queue
                .push((&mut self.pool, slot.owner()), there, |done, place| held.read(done, place));
        held.takes(there);
        drop(held);
        if let Some(channel) = self.channels[index].as_mut() {
            let times = &mut channel.lanes.left[Flow::In as usize][lane];
            *times += 1;
            let times = *times;
            channel.lane(Flow::In, lane).mark_left(times);
        }
        if !has_memory {
            self.reset_for_lack_of_memory(at);
        }
        Ok(there as u32)
    }

    /// Nothing comes by the lane of a connection any more: which it was.
    fn free_incoming_lane(&mut self, index: usize, at: u32) -> Option<usize> {
        let slot = self.slots.at(at);
        let lane = slot.lane(Flow::In)?;
        slot.lane_drained();
        handle(index, Flow::In, lane).release(at, Flow::In);
        if let Some(channel) = self.channels[index].as_mut() {
            channel.lanes.slots[Flow::In as usize][lane] = 0;
            channel.lanes.inward &= !(1 << lane);
            channel.lanes.awaited &= !(1 << lane);
        }
        Some(lane)
    }

    /// A channel is about to be no more: what has come by lanes stays, unless the two are parted.
    /// Then it may have come afterwards.
    pub(super) fn lose_lanes(&mut self, index: usize, how: Closing) {
        let Some(channel) = self.channels[index].as_ref() else { return };
        let [inward, outward] = channel.lanes.slots;
        for at in inward.into_iter().filter(|at| *at != 0) {
            match how {
                Closing::Orderly => _ = self.takes_rest_of_lane(index, at),
                Closing::Reset => _ = self.free_incoming_lane(index, at),
            }
        }
        for at in outward.into_iter().filter(|at| *at != 0) {
            self.leave_lane(at);
            self.release_outgoing_lane(at);
        }
        for lane in 0..LANES {
            handle(index, Flow::In, lane).ends();
            handle(index, Flow::Out, lane).ends();
        }
    }

    /// Bytes that are in the lane of a connection. A broken count is found by the thread that takes
    /// them.
    pub(super) fn in_lane(&mut self, at: u32) -> usize {
        let slot = self.slots.at(at);
        let Some(lane) = slot.lane(Flow::In).filter(|_| !slot.has(Flag::ResetByPeer)) else {
            return 0;
        };
        let index = usize::from(slot.channel);
        let Some(channel) = self.channels[index].as_ref() else { return 0 };
        let position = handle(index, Flow::In, lane).position();
        // Another thread may just be taking some.
        channel.lane(Flow::In, lane).head().wrapping_sub(position).min(u64::from(LANE_MAX)) as usize
    }

    /// What can be done with a connection, in events of `epoll`.
    pub(super) fn readiness(&mut self, at: u32) -> u32 {
        let in_lane = self.in_lane(at);
        self.slots.at(at).readiness(in_lane)
    }

    /// Receives from the lane of a connection what there is, behind so many bytes that the call
    /// has.
    pub(super) fn receives_by_lane(
        &mut self,
        at: u32,
        parts: &Parts<'_>,
        (from, takes): (usize, Takes),
    ) -> Result<usize, ProtocolError> {
        let slot = self.slots.at(at);
        let lane = slot.lane(Flow::In).filter(|_| !slot.has(Flag::ResetByPeer));
        let Some(lane) = lane else { return Ok(0) };
        let Some(held) = handle(usize::from(slot.channel), Flow::In, lane).hold() else {
            return Ok(0);
        };
        if slot.received() == 0 {
            held.is_next();
        }
        held.receive(parts, from, takes).ok_or(ProtocolError)
    }

    /// What has come by lanes since that was looked at.
    #[inline]
    pub(super) fn look_at_lanes(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_ref() else { return };
        for lane in channel.lanes.inward() {
            let Some(channel) = self.channels[index].as_mut() else { return };
            let head = channel.lane(Flow::In, lane).head();
            if head == channel.lanes.noted[lane] {
                continue;
            }
            channel.lanes.noted[lane] = head;
            let is_awaited = channel.lanes.awaited & 1 << lane != 0;
            channel.lanes.awaited &= !(1 << lane);
            let at = channel.lanes.slots[Flow::In as usize][lane];
            // If no thread sleeps for it none is woken.
            self.push_ready(at);
            self.has_news |= is_awaited;
        }
    }

    /// A thread is about to sleep for that, and looks once more.
    pub(super) fn awaits(&mut self, what: WaitTarget<'_>) {
        match what {
            WaitTarget::Frames => {}
            WaitTarget::One(token) => {
                if let Some(at) = self.slot(token) {
                    self.awaits_one(at);
                }
            }
            WaitTarget::These(all) => {
                let reads = libc::POLLIN | libc::POLLRDNORM;
                for one in all.iter().filter(|one| one.events & reads != 0) {
                    if let Some(at) = descriptors::slot(one.fd) {
                        self.awaits_one(at);
                    } else if epoll_sets::are_any() {
                        self.awaits(WaitTarget::Members(descriptor_tables::look(one.fd).id()));
                    }
                }
            }
            WaitTarget::Members(set) => {
                let Some(place) = self.sets.find(set) else { return };
                let are_nested = self.sets.nestings > 0;
                for channel in self.channels[..self.channels_end].iter_mut().flatten() {
                    for lane in channel.lanes.inward() {
                        let at = channel.lanes.slots[Flow::In as usize][lane];
                        let set = usize::from(self.slots.at(at).set);
                        if set == place + 1 || are_nested && set != 0 {
                            channel.awaits(lane);
                        }
                    }
                }
            }
        }
    }

    /// No thread sleeps: the doorbell is not to be rung.
    pub(super) fn awaits_nothing(&mut self) {
        for channel in self.channels[..self.channels_end].iter_mut().flatten() {
            for lane in channel.lanes.inward() {
                if channel.lanes.awaited & 1 << lane != 0 {
                    channel.lane(Flow::In, lane).clear_reader_mark();
                }
            }
            channel.lanes.awaited = 0;
        }
    }

    fn awaits_one(&mut self, at: u32) {
        let slot = self.slots.at(at);
        if let Some(lane) = slot.lane(Flow::In)
            && let Some(channel) = self.channels[usize::from(slot.channel)].as_mut()
        {
            channel.awaits(lane);
        }
    }

    /// Bytes that were sent by lanes and not counted yet.
    pub(super) fn count_lane_bytes(&mut self) {
        for index in 0..self.channels_end {
            if self.channels[index].is_some() {
                for lane in 0..LANES {
                    let held = handle(index, Flow::Out, lane).hold();
                    self.carried.1 += held.map_or(0, |held| held.sent());
                }
            }
        }
    }
}

impl Channel {
    /// A lane that no connection sends by.
    fn free_lane(&self) -> Option<usize> {
        let (slots, left) =
            (&self.lanes.slots[Flow::Out as usize], &self.lanes.left[Flow::Out as usize]);
        (0..LANES)
            .find(|lane| slots[*lane] == 0 && self.lane(Flow::Out, *lane).is_free(left[*lane]))
    }

    /// A thread is about to sleep for what comes by one.
    fn awaits(&mut self, lane: usize) {
        self.lanes.awaited |= 1 << lane;
        self.lane(Flow::In, lane).awaits();
    }

    /// Marks the lanes again for sleepers that found nothing: the thread that was woken takes the
    /// doorbell for all of them.
    pub(super) fn awaits_still(&self) {
        for lane in self.lanes.inward().filter(|lane| self.lanes.awaited & 1 << lane != 0) {
            self.lane(Flow::In, lane).awaits();
        }
    }

    /// A lane, by which something comes or goes.
    pub(super) fn lane(&self, way: Flow, number: usize) -> Lane<Memory<BYTES>> {
        Lane::new(self.memory, self.sender(way), number)
    }
}
