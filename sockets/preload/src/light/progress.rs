//! Takes frames out of channels, and puts in what connections owe.
//!
//! Each call with a light connection does so, for all connections; no thread exists for it.

use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::light::connection_slot::{Closing, Flag};
use omniverb_connection::light::frame::{Endpoint, HEADER};
use omniverb_connection::light::{Endpoints, Frame};
use rustix::thread::sched_yield;

use super::channel::{Channel, FOR_ANSWERS, FRAMES, ProtocolError};
use super::listeners::Admission;
use super::local_addresses::ADDRESSES;
use super::mmap_buffers::SLOTS;
use super::reopen_unaccepted::{Loss, RefusalCause};
use super::state::{State, has_mapped};
use super::{broker, sleepers};
use crate::tsc_clock;

/// How long after a look at the doorbells there is another one, though no thread sleeps: about a
/// millisecond. The end of a peer is seen by its doorbell only.
const BELLS: u64 = tsc_clock::SECOND >> 10;

/// How often it is looked whether there is a broker again, in nanoseconds.
const LEFT_ALONE: u64 = 1_000_000_000;

/// What is to become of an `Open`.
enum Opened {
    Done,
    /// It stays where it is for now.
    Later,
}

/// When they were looked at last.
static HEARD: AtomicU64 = AtomicU64::new(0);

impl State {
    /// Takes out what has come by all channels, and says what is owed.
    pub(super) fn progress(&mut self) {
        let now = tsc_clock::now();
        if now.wrapping_sub(HEARD.load(Ordering::Relaxed)) > BELLS {
            HEARD.store(now, Ordering::Relaxed);
            self.hear();
        }
        broker::look(self);
        self.say_still();
        self.say_gone();
        for index in 0..self.channels_end {
            self.progress_channel(index);
        }
    }

    /// When a sleeper is to look without being woken; `None`: never.
    pub(super) fn wakes_at(&self) -> Option<u64> {
        let mut across =
            self.channels.iter().flatten().filter_map(|channel| channel.across.as_ref());
        // A new broker wakes no thread, and no broker has heard of some of these yet.
        let is_left_alone = across.any(|across| across.broker != broker::connection());
        let later = is_left_alone.then(|| tsc_clock::nanoseconds() + LEFT_ALONE);
        self.unaccepted.wake().or(later)
    }

    /// Tells the broker of channels that have ended.
    pub(super) fn say_gone(&mut self) {
        if self.gone.1 == 0 {
            return;
        }
        let (names, count) = self.gone;
        self.gone.1 = 0;
        for name in &names[..count] {
            if !broker::ended(*name) {
                broker::note_gone_channel(self, *name);
            }
        }
    }

    /// There is something in a ring that can be taken out.
    pub(super) fn has_frames(&mut self) -> bool {
        self.channels
            .iter()
            .flatten()
            .any(|channel| channel.has_next() && !channel.is_short_of_room)
    }

    /// Takes what has rung. Channels whose other process is gone are lost, when all is taken out
    /// that it has said.
    pub(super) fn hear(&mut self) {
        sleepers::rung(|place| {
            let Some(index) = place else {
                broker::take(self);
                return;
            };
            let Some(channel) = self.channels[index].as_mut() else { return };
            if channel.has_strays {
                self.unaccepted.set_due();
            }
            let is_there = channel.hear();
            let how = if channel.is_cut() { Closing::Reset } else { Closing::Orderly };
            let name = channel.name;
            if sleepers::are_any() {
                // What has rung was for them, too.
                channel.sleeps();
                channel.awaits_still();
            }
            self.progress_channel(index);
            if !is_there {
                self.progress_channel(index);
                if self.channel_of(index, name).is_some() {
                    self.lose(index, how);
                }
            }
        });
    }

    /// Wakes those threads that what has come may be for.
    pub(super) fn tell(&mut self) {
        if core::mem::take(&mut self.has_news) {
            sleepers::wake();
        }
    }

    /// The same of one channel.
    pub(super) fn progress_channel(&mut self, index: usize) {
        // A thread that takes frames out may come here again, by the broker's messages.
        if self.takes_frames == Some(index) || !self.may_go_on(index) {
            return;
        }
        let Some(channel) = self.channels[index].as_mut() else { return };
        if channel.has_next() || channel.debts.count() > 0 {
            let before = self.takes_frames.replace(index);
            let outcome = self.take_frames(index);
            self.takes_frames = before;
            if outcome.is_err() {
                return self.lose(index, Closing::Orderly);
            }
            self.pay(index);
        }
        self.look_at_lanes(index);
        if let Some(channel) = self.channels[index].as_mut() {
            channel.publish();
        }
    }

    /// Takes all frames that are there now: those of a peer that is gone are not looked at later,
    /// and a sleeper is not woken for what came before. Then other channels have their turn.
    fn take_frames(&mut self, index: usize) -> Result<(), ProtocolError> {
        let Some(name) = self.channels[index].as_ref().map(|channel| channel.name) else {
            return Ok(());
        };
        for _ in 0..FRAMES {
            if self.channel_of(index, name).is_none() || !self.may_go_on(index) {
                return Ok(());
            }
            let Some(channel) = self.channel_of(index, name) else { return Ok(()) };
            let Some((frame, id)) = channel.next()? else { return Ok(()) };
            match frame {
                Frame::Open => {
                    let is_over = channel.is_over;
                    // There is to be room for the answer that there is no listener.
                    let is_short =
                        self.lacks_room(index, HEADER, |channel| &mut channel.is_short_of_room);
                    if let Some(channel) = self.channel_of(index, name) {
                        channel.is_short_of_room = is_short;
                    }
                    // For a peer that is gone nothing is deferred: later frames may be for other
                    // connections.
                    if is_short && !is_over {
                        return Ok(());
                    }
                    if !is_short
                        && let Opened::Later = self.opened(index, id)?
                        && !is_over
                    {
                        return Ok(());
                    }
                }
                _ => {
                    // Frames under way to a refused connection are dropped.
                    if let Some(slot) = channel.ids.slot(id) {
                        self.came(index, slot, frame)?;
                    }
                }
            }
            if let Some(channel) = self.channel_of(index, name) {
                channel.take(frame);
            }
        }
        Ok(())
    }

    /// There is less room in a channel than that, which is noted where the channel has `wanted`:
    /// then the other side is to say when there is more.
    pub(super) fn lacks_room(
        &mut self,
        index: usize,
        least: usize,
        wanted: fn(&mut Channel) -> &mut bool,
    ) -> bool {
        let Some(channel) = self.channels[index].as_mut() else { return false };
        if channel.room(least) >= least {
            return false;
        }
        *wanted(channel) = true;
        if sleepers::are_any() {
            // A sleeper has not said that room is wanted: that is looked for once more.
            channel.sleeps();
        }
        channel.room(least) < least
    }

    /// The channel of a place, if it is that one still.
    pub(super) fn channel_of(&mut self, index: usize, name: u64) -> Option<&mut Channel> {
        self.channels[index].as_mut().filter(|channel| channel.name == name)
    }

    /// A peer connects: to a listener of this process, or in vain.
    fn opened(&mut self, index: usize, id: u32) -> Result<Opened, ProtocolError> {
        let Some(channel) = self.channels[index].as_ref() else { return Ok(Opened::Done) };
        if !channel.ids.may_open_remotely(id) {
            return Err(ProtocolError);
        }
        let (names, name) = (channel.names(), channel.name);
        let may = |state: &mut State| {
            let Some(channel) = state.channel_of(index, name) else { return false };
            let is_within = channel.across.is_none();
            let may = channel.may_come(&names, tsc_clock::nanoseconds);
            may && (!is_within || state.is_own(index, &names.to))
        };
        let is_across = channel.across.is_some();
        let mut may_come = may(self);
        if !may_come && is_across {
            // That they may was said before they came.
            let is_all = broker::take_all(self);
            may_come = may(self);
            if let Some(across) = self.channel_of(index, name).and_then(|one| one.across.as_mut()) {
                if may_come || is_all {
                    across.clear_put_off();
                } else if across.put_off_until_limit(tsc_clock::nanoseconds()) {
                    sched_yield();
                    return Ok(Opened::Later);
                }
            }
        }
        let listener = self.listeners.hearing(&names).filter(|_| may_come);
        let Some(admission) = listener.map(|listener| listener.admission(index)) else {
            if let Some(channel) = self.channel_of(index, name) {
                channel.put(Frame::Close(true), id);
            }
            return Ok(Opened::Done);
        };
        if let Admission::InsteadOf(largest) = admission {
            self.drops_one(&names, largest);
        }
        let slots = self.slots.used();
        let Some(channel) = self.channel_of(index, name) else { return Ok(Opened::Done) };
        let has_room = channel.ids.used() < SLOTS as u32 - slots && admission != Admission::Full;
        let Some(slot) = has_room.then(|| self.slots.allocate(index as u16, names)).flatten()
        else {
            if let Some(channel) = self.channel_of(index, name) {
                channel.puts_off(id);
            }
            return Ok(Opened::Done);
        };
        self.slots.at(slot).id = id;
        self.slots.at(slot).set_flag(Flag::Pending);
        if let Some(listener) = self.listeners.hearing(&names) {
            listener.pending.push(&mut self.slots, slot, listener.arrived);
            self.slots.at(slot).socket = listener.id;
            listener.arrived += 1;
            self.listeners.waiting += 1;
        }
        self.has_news = true;
        let Some(channel) = self.channel_of(index, name) else { return Ok(Opened::Done) };
        if channel.ids.insert_remote(id, slot) { Ok(Opened::Done) } else { Err(ProtocolError) }
    }

    /// Whether an address is this host's, in the network namespace of its listener.
    fn is_own(&mut self, index: usize, to: &Endpoint) -> bool {
        let names = Endpoints { from: *to, to: *to };
        // What is bound to it is proof enough.
        let is_bound = !to.is_any()
            && self.listeners.hearing(&names).is_some_and(|one| one.name.address == to.address);
        let now = tsc_clock::nanoseconds();
        if is_bound || self.local.knows(to, now) {
            return true;
        }
        // The kernel is asked with the lock held: that counts for the peer that names such
        // addresses.
        let Some(channel) = self.channels[index].as_mut() else { return false };
        if ADDRESSES.remaining(channel.asked, now) == 0 {
            return false;
        }
        let is_own = self.local.asks(to, now);
        let then = tsc_clock::nanoseconds();
        channel.asked = ADDRESSES.charge(channel.asked, then, then.saturating_sub(now));
        is_own
    }

    /// The oldest that waits with those of such names, of a channel that has the most, makes way.
    #[cold]
    fn drops_one(&mut self, names: &Endpoints, channel: usize) {
        let Some(listener) = self.listeners.hearing(names) else { return };
        let at = listener.pending.first_of(channel);
        if at == 0 {
            return;
        }
        listener.pending.remove(&mut self.slots, at);
        self.listeners.waiting -= 1;
        self.puts_off(at);
    }

    /// Refuses one that was not accepted, and waits no more: its client may ask again.
    pub(super) fn puts_off(&mut self, at: u32) {
        let slot = self.slots.at(at);
        slot.clear_flag(Flag::Pending);
        let (id, index) = (slot.id, usize::from(slot.channel));
        slot.queue.clear(&mut self.pool);
        let own = self.channels[index].as_mut().filter(|channel| channel.ids.slot(id) == Some(at));
        if let Some(channel) = own {
            if channel.room(HEADER) >= HEADER {
                // It owes nothing else, and frames under way to it are dropped.
                channel.puts_off(id);
                channel.publish();
                channel.release_id(id);
                self.slots.free(at);
                return;
            }
            channel.counts_full();
        }
        self.slots.at(at).close(0);
        self.owe(at);
        self.settle(at);
    }

    /// There is no memory for what comes for one that waits.
    fn overflows(&mut self, at: u32) {
        let id = self.slots.at(at).socket;
        let Some(listener) = self.listeners.of_id(id) else {
            return self.reset_for_lack_of_memory(at);
        };
        listener.pending.remove(&mut self.slots, at);
        self.listeners.waiting -= 1;
        self.puts_off(at);
    }

    /// Something of a connection that is there.
    fn came(&mut self, index: usize, at: u32, frame: Frame) -> Result<(), ProtocolError> {
        let slot = self.slots.at(at);
        if slot.has(Flag::PeerClosed) {
            return Err(ProtocolError);
        }
        let waited = slot.waits_for_credit();
        slot.observe(&mut self.pool, frame);
        if waited {
            self.waited_for_accept(at, index);
        }
        let slot = self.slots.at(at);
        match frame {
            Frame::Data(bytes) => {
                if slot.is_receiving() {
                    if !slot.may_receive(bytes) {
                        return Err(ProtocolError);
                    }
                    let Some(channel) = self.channels[index].as_ref() else { return Ok(()) };
                    let account = (&mut self.pool, slot.owner());
                    let is_there = slot.may_be_kept(bytes)
                        && slot.queue.push(account, bytes as usize, |done, place| {
                            channel.bytes(done, place);
                        });
                    if !is_there && slot.may_be_kept(bytes) && slot.has(Flag::Pending) {
                        self.overflows(at);
                        return Ok(());
                    }
                    if !is_there {
                        self.reset_for_lack_of_memory(at);
                    }
                }
            }
            Frame::Credit(bytes) => {
                if !slot.has(Flag::Closed) && !slot.add_credit(bytes) {
                    return Err(ProtocolError);
                }
            }
            Frame::End => {
                self.takes_rest_of_lane(index, at)?;
                self.slots.at(at).peer_ended();
            }
            Frame::AssignLane(lane) => self.peer_assigned_lane(index, at, lane as usize)?,
            Frame::ReleaseLane(counted) => self.peer_released_lane(index, at, counted)?,
            Frame::Close(is_reset) => {
                self.takes_rest_of_lane(index, at)?;
                self.leave_lane(at);
                let was_asked = self.slots.at(at).is_unaccepted();
                let is_full = was_asked
                    && self.channels[index].as_mut().is_some_and(|channel| channel.take_put_off());
                let why = if is_full { RefusalCause::Full } else { RefusalCause::Refused };
                if self.leaves(at, why) {
                    self.owe(at);
                    self.settle(at);
                    return Ok(());
                }
                let how = if is_reset || was_asked { Closing::Reset } else { Closing::Orderly };
                self.slots.at(at).peer_closed(how);
                self.owe(at);
            }
            Frame::Accepted if slot.has(Flag::Connecting) => {
                if self.unaccepted.are_any() {
                    // There may be room for them now.
                    self.unaccepted.hurry(tsc_clock::nanoseconds());
                }
                return Ok(());
            }
            Frame::Accepted | Frame::Open => return Err(ProtocolError),
        }
        self.settle(at);
        self.news(at);
        Ok(())
    }

    /// Something has come for one of ours that has sent all that it might before it is accepted: it
    /// was, or was refused.
    #[cold]
    fn waited_for_accept(&mut self, at: u32, index: usize) {
        if let Some(channel) = self.channels[index].as_mut() {
            channel.awaits_accept_no_more();
        }
        self.news(at);
    }

    /// There is no memory for what comes.
    pub(super) fn reset_for_lack_of_memory(&mut self, at: u32) {
        self.leave_lanes(at);
        self.slots.at(at).reset_for_lack_of_memory(&mut self.pool);
        self.owe(at);
    }

    /// A connection has changed in a way that a thread may wait for.
    pub(super) fn news(&mut self, at: u32) {
        self.has_news = true;
        self.push_ready(at);
    }

    /// Its set is to look at it.
    pub(super) fn push_ready(&mut self, at: u32) {
        let slot = self.slots.at(at);
        if let Some(set) = slot.set.checked_sub(1) {
            self.sets.clear_outer_told(usize::from(set));
            let set = self.sets.at(usize::from(set));
            self.slots.push_ready(&mut set.ready, at);
        }
    }

    /// It has something to say, or wants room.
    pub(super) fn owe(&mut self, at: u32) {
        if self.slots.at(at).is_detached() {
            return;
        }
        let channel = usize::from(self.slots.at(at).channel);
        let wants_room_only = self.slots.at(at).next_owed().is_none();
        if let Some(channel) = self.channels[channel].as_mut() {
            channel.is_only_short &= wants_room_only;
            self.slots.push_owing(&mut channel.debts, at);
            if wants_room_only && sleepers::are_any() {
                // A sleeper has not said that room is wanted.
                channel.sleeps();
            }
        }
    }

    /// Says what is owed, as far as there is room.
    pub(super) fn pay(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let has_room = channel.room(2 * FOR_ANSWERS) >= 2 * FOR_ANSWERS;
        if channel.is_only_short && !has_room {
            return;
        }
        // Unless one that is put back owes more.
        channel.is_only_short = true;
        for _ in 0..channel.debts.count() {
            let Some(channel) = self.channels[index].as_mut() else { return };
            if channel.room(HEADER) < HEADER {
                channel.is_only_short = false;
                if sleepers::are_any() {
                    // A sleeper has not said that room is wanted: that is looked for once more.
                    channel.sleeps();
                }
                if channel.room(HEADER) < HEADER {
                    return;
                }
            }
            let Some(at) = self.slots.pop(&mut channel.debts) else { return };
            let slot = self.slots.at(at);
            slot.clear_flag(Flag::Owing);
            let (id, mut is_last) = (slot.id, false);
            while let Some(frame) = slot.next_owed() {
                if channel.room(HEADER) < HEADER {
                    break;
                }
                channel.put(frame, id);
                slot.frame_sent(frame);
                is_last |= matches!(frame, Frame::End | Frame::Close(_));
            }
            let wants_room = slot.has(Flag::NoRoom);
            let has_room = channel.room(2 * FOR_ANSWERS) >= 2 * FOR_ANSWERS;
            let owes = slot.next_owed().is_some() || wants_room && !has_room;
            if wants_room && has_room {
                slot.clear_flag(Flag::NoRoom);
                self.news(at);
            }
            if owes {
                self.owe(at);
            }
            if is_last {
                self.release_outgoing_lane(at);
            }
            self.settle(at);
        }
    }

    /// If both ends have closed the id is free; if no descriptor names it either, the slot is.
    pub(super) fn settle(&mut self, at: u32) {
        let slot = self.slots.at(at);
        if !slot.has(Flag::Used) || !slot.is_released() || slot.is_detached() {
            return;
        }
        let (id, index) = (slot.id, usize::from(slot.channel));
        if let Some(channel) = self.channels[index].as_mut()
            && channel.ids.slot(id) == Some(at)
        {
            channel.release_id(id);
        }
        let slot = self.slots.at(at);
        let is_listed = slot.has(Flag::Owing) || slot.has(Flag::Pending);
        if slot.is_moving() {
            if !is_listed {
                self.detach(at);
            }
            return;
        }
        if slot.has(Flag::Closed) && !is_listed {
            slot.queue.clear(&mut self.pool);
            self.slots.free(at);
        }
    }

    /// No descriptor names it any more.
    pub(super) fn close(&mut self, at: u32) {
        self.leave_set(at);
        // What has come and is not received makes it a reset.
        let index = usize::from(self.slots.at(at).channel);
        self.progress_channel(index);
        // A call that is under way must not go on with what comes behind what is forgotten here.
        self.leave_lanes(at);
        let in_lane = self.in_lane(at);
        let slot = self.slots.at(at);
        slot.close(in_lane);
        if slot.has(Flag::ResetOnClose) || !(slot.is_unaccepted() || slot.is_moving()) {
            slot.queue.clear(&mut self.pool);
        }
        slot.clear_flag(Flag::NoRoom);
        self.owe(at);
        self.settle(at);
        self.progress_channel(index);
    }

    /// A channel is no more: the other process is gone, or has written what makes no sense; or the
    /// two are parted, which is a reset of all connections.
    pub(super) fn lose(&mut self, index: usize, how: Closing) {
        self.lose_lanes(index, how);
        let Some(mut channel) = self.channels[index].take() else { return };
        // Among them are some that have no id any more.
        while let Some(at) = self.slots.pop(&mut channel.debts) {
            self.slots.at(at).clear_flag(Flag::Owing);
            self.settle(at);
        }
        let loss = match how {
            Closing::Reset => Loss::Parted,
            Closing::Orderly if channel.is_over => Loss::Gone,
            Closing::Orderly => Loss::ProtocolError,
        };
        for id in 0..channel.ids.upper_bound() {
            if let Some(at) = channel.ids.slot(id) {
                self.loses(at, loss);
            }
        }
        // Nor does a lying peer go on elsewhere with what it may still get here.
        if loss != Loss::Gone {
            channel.cut();
        }
        broker::loses(self, channel.name);
        has_mapped(index, [0; 2]);
        if let Some(bell) = channel.bell() {
            sleepers::hears_no_more(bell);
        }
        channel.end();
        self.has_news = true;
    }
}
