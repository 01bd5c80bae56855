//! Fuzzes light connections by channels whose other ends send anything.
//!
//! What the preload edge does in `light/progress.rs` is done here with the pure parts: slots,
//! lists, ids, queues. Connections that are refused before `accept` go by the other channel.
//!
//! What holds: lists are lists; a connection is known by its id until both ends have closed; what
//! nobody names any more is free; no queue is longer than its window. At the end, when all is
//! closed, no slot and no block is missing.

mod lanes;
mod refused_connections;

use lanes::Lanes;
use omniverb_connection::light::byte_queue::{ByteQueue, PAYLOAD};
use omniverb_connection::light::frame::{DATA_MAX, HEADER, LANE_MAX};
use omniverb_connection::light::lane_assignment::Flow;
use omniverb_connection::light::connection_slot::{Closing, Flag, WINDOW};
use omniverb_connection::light::{
    Block, BlockOwner, BlockPool, ConnectionIds, Endpoints, Frame, List, Slot, SlotTable,
};
use std::collections::VecDeque;

/// Bytes of a step: what is done, and a number.
const STEP: usize = 9;
const SLOTS: usize = 24;
const BLOCKS: usize = 20;
const IDS: usize = 40;
const BACKLOG: u32 = 6;
/// Bytes that a channel has room for, and those that are for answers only.
const RING: usize = 1 << 14;
const FOR_ANSWERS: usize = 64;

struct Channel<'a> {
    ids: ConnectionIds<'a>,
    debts: List,
    /// What has come and was not taken.
    comes: VecDeque<(Frame, u32)>,
    room: usize,
    lanes: Lanes,
}

impl Channel<'_> {
    fn put(&mut self, frame: Frame) {
        self.room = self.room.checked_sub(frame.takes()).expect("it asks for room");
    }
}

struct Nonsense;

/// What a process knows of them.
struct State<'a> {
    slots: SlotTable<'a>,
    pool: BlockPool<'a>,
    channels: [Option<Channel<'a>>; 2],
    ids: Vec<&'a mut [u32]>,
    pending: List,
    listens: bool,
    ready: List,
    /// Connections that go by no channel.
    strays: List,
    /// What the program has.
    numbers: Vec<u32>,
}

/// Frames of any kind come by two channels, between calls of any kind.
pub fn light(bytes: &[u8]) {
    let (mut slots, mut blocks) = ([Slot::default(); SLOTS], Vec::new());
    blocks.resize_with(BLOCKS, Block::new);
    let mut free = [0; BLOCKS];
    let steps = bytes.len() / STEP;
    let mut ids = vec![[0; IDS]; steps + 2];
    let mut state = State {
        slots: SlotTable::new(&mut slots),
        pool: BlockPool::new(&mut blocks, &mut free, |_| {}),
        channels: [None, None],
        ids: ids.iter_mut().map(|ids| &mut ids[..]).collect(),
        pending: List::new(),
        listens: true,
        ready: List::new(),
        strays: List::new(),
        numbers: Vec::new(),
    };
    (0..2).for_each(|index| state.begin(index));
    for step in bytes.chunks_exact(STEP) {
        let mut word = [0; 8];
        word.copy_from_slice(&step[1..]);
        state.step(step[0], u64::from_ne_bytes(word));
        state.look();
    }
    state.end();
}

impl<'a> State<'a> {
    fn begin(&mut self, index: usize) {
        let Some(memory) = self.ids.pop() else { return };
        let (ids, debts) = (ConnectionIds::new(memory, index as u32), List::new());
        let (comes, lanes) = (VecDeque::new(), Lanes::default());
        self.channels[index] = Some(Channel { ids, debts, comes, room: RING, lanes });
    }

    fn step(&mut self, what: u8, word: u64) {
        let index = usize::from(what >> 7);
        let some = usize::from((word >> 40) as u8);
        let one = self.numbers.get(some % self.numbers.len().max(1)).copied();
        let count = word as u16;
        match (what & 0x7f) % 26 {
            0 => self.comes(index, Frame::decode(word)),
            // Mostly such as could come.
            1..=7 => {
                let id = (word >> 32) & 0x1f;
                let (kind, count) = [
                    (1, 40),
                    (2, u64::from(count) % 300 + 1),
                    (2, u64::from(count) % DATA_MAX as u64 + 1),
                    (3, u64::from(count)),
                    (4, 0),
                    (5, 0),
                    (5, 1),
                ][usize::from(what & 0x7f) % 26 - 1];
                self.comes(index, Frame::decode(kind | count << 8 | id << 32));
            }
            8 => {
                let channel = self.channels[index].as_ref();
                let free = (0..IDS as u32)
                    .find(|id| channel.is_some_and(|one| one.ids.may_open_remotely(*id)));
                self.comes(index, free.map(|id| (Frame::Open, id)));
            }
            9 => one.into_iter().for_each(|at| self.sends(at, u32::from(count))),
            10 => self.accept(),
            11 => one.into_iter().for_each(|at| self.send(at, usize::from(count))),
            12 => one.into_iter().for_each(|at| self.receive(at, usize::from(count))),
            13 => one.into_iter().for_each(|at| self.shut(at, count)),
            14 => {
                if let Some(at) = one {
                    self.numbers.retain(|other| *other != at);
                    self.slots.at(at).fd_count = 0;
                    self.close(at);
                }
            }
            15 => self.read(index, usize::from(count)),
            16 => {
                self.lose(index);
                self.begin(index);
            }
            17 => {
                self.listens = !self.listens;
                self.unlisten();
            }
            18 => self.connect(index),
            19 => self.move_strays(index, count & 1 != 0),
            20 => {
                let own = one.filter(|at| usize::from(self.slots.at(*at).channel) == index);
                let id = own.map(|at| self.slots.at(at).id);
                self.comes(index, id.map(|id| (Frame::Accepted, id)));
            }
            21 => one.into_iter().for_each(|at| self.says_lane(at, count)),
            22 => self.comes_by_lane(index, count),
            23 => one.into_iter().for_each(|at| self.assign_lane(at)),
            24 => one.into_iter().for_each(|at| self.release_lane(at, u32::from(count))),
            _ => one.into_iter().for_each(|at| match self.slots.at(at).set {
                0 => {
                    self.slots.at(at).set = 1;
                    self.news(at);
                }
                _ => self.leave_set(at),
            }),
        }
    }

    /// The other end sends what it may.
    fn sends(&mut self, at: u32, bytes: u32) {
        let slot = *self.slots.at(at);
        let index = usize::from(slot.channel);
        let bytes = bytes.min(DATA_MAX as u32);
        let fits = slot.may_receive(bytes) && bytes > 0;
        if fits
            && self.channels[index].as_ref().is_some_and(|one| one.ids.slot(slot.id) == Some(at))
        {
            self.comes(index, Some((Frame::Data(bytes), slot.id)));
        }
    }

    /// By the ring, and perhaps not yet taken.
    fn comes(&mut self, index: usize, frame: Option<(Frame, u32)>) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        match frame {
            Some(frame) => {
                channel.comes.push_back(frame);
                // Several come at a time.
                if !frame.1.is_multiple_of(4) {
                    self.pump(index);
                }
            }
            None => self.lose(index),
        }
    }

    /// The other end has read so much.
    fn read(&mut self, index: usize, bytes: usize) {
        if let Some(channel) = self.channels[index].as_mut() {
            channel.room = RING.min(channel.room + bytes / HEADER * HEADER);
        }
        self.pump(index);
    }

    fn pump(&mut self, index: usize) {
        match self.take_frames(index) {
            Ok(()) => self.pay(index),
            Err(Nonsense) => self.lose(index),
        }
    }

    fn take_frames(&mut self, index: usize) -> Result<(), Nonsense> {
        while let Some(channel) = self.channels[index].as_mut() {
            let Some((frame, id)) = channel.comes.front().copied() else { break };
            match frame {
                Frame::Open if channel.room < HEADER => break,
                Frame::Open => self.opened(index, id)?,
                _ => {
                    if let Some(slot) = channel.ids.slot(id) {
                        self.came(index, slot, frame)?;
                    }
                }
            }
            if let Some(channel) = self.channels[index].as_mut() {
                channel.comes.pop_front();
            }
        }
        Ok(())
    }

    fn opened(&mut self, index: usize, id: u32) -> Result<(), Nonsense> {
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        if !channel.ids.may_open_remotely(id) {
            return Err(Nonsense);
        }
        let has_room = self.listens && self.pending.count() <= BACKLOG;
        let made =
            has_room.then(|| self.slots.allocate(index as u16, Endpoints::default())).flatten();
        let Some(slot) = made else {
            channel.put(Frame::Close(true));
            return Ok(());
        };
        self.slots.append(&mut self.pending, slot);
        self.slots.at(slot).id = id;
        self.slots.at(slot).set_flag(Flag::Pending);
        assert!(channel.ids.insert_remote(id, slot), "it may be opened");
        Ok(())
    }

    fn came(&mut self, index: usize, at: u32, frame: Frame) -> Result<(), Nonsense> {
        let slot = self.slots.at(at);
        assert!(slot.has(Flag::Used) && usize::from(slot.channel) == index, "somebody else's");
        if slot.has(Flag::PeerClosed) {
            return Err(Nonsense);
        }
        slot.observe(&mut self.pool, frame);
        match frame {
            Frame::Data(_) if !slot.is_receiving() => {}
            Frame::Data(bytes) => {
                if !slot.may_receive(bytes) {
                    return Err(Nonsense);
                }
                let account = (&mut self.pool, slot.owner());
                if !slot.queue.push(account, bytes as usize, |_, place| place.fill(1)) {
                    self.lacks_memory(at);
                }
            }
            Frame::Credit(bytes) => {
                if !slot.has(Flag::Closed) && !slot.add_credit(bytes) {
                    return Err(Nonsense);
                }
            }
            Frame::End => {
                self.takes_rest_of_lane(index, at);
                self.slots.at(at).peer_ended();
            }
            Frame::AssignLane(lane) => self.peer_assigned_lane(index, at, lane as usize)?,
            Frame::ReleaseLane(counted) => self.peer_released_lane(index, at, counted)?,
            Frame::Close(is_reset) => {
                self.takes_rest_of_lane(index, at);
                let slot = self.slots.at(at);
                let was_asked = slot.is_unaccepted();
                if self.leaves(at, false) {
                    self.owe(at);
                    self.settle(at);
                    return Ok(());
                }
                let how = if is_reset || was_asked { Closing::Reset } else { Closing::Orderly };
                self.slots.at(at).peer_closed(how);
                self.owe(at);
            }
            Frame::Accepted if slot.has(Flag::Connecting) => return Ok(()),
            Frame::Accepted | Frame::Open => return Err(Nonsense),
        }
        self.settle(at);
        self.news(at);
        Ok(())
    }

    fn news(&mut self, at: u32) {
        if self.slots.at(at).set != 0 {
            self.slots.push_ready(&mut self.ready, at);
        }
    }

    fn owe(&mut self, at: u32) {
        if self.slots.at(at).is_detached() {
            return;
        }
        let index = usize::from(self.slots.at(at).channel);
        if let Some(channel) = self.channels[index].as_mut() {
            self.slots.push_owing(&mut channel.debts, at);
        }
    }

    fn pay(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        for _ in 0..channel.debts.count() {
            let Some(channel) = self.channels[index].as_mut() else { return };
            if channel.room < HEADER {
                return;
            }
            let Some(at) = self.slots.pop(&mut channel.debts) else { return };
            let slot = self.slots.at(at);
            slot.clear_flag(Flag::Owing);
            let mut is_last = false;
            while let Some(frame) = slot.next_owed() {
                assert!(!slot.has(Flag::CloseSent), "Close is the last frame of an end");
                if channel.room < HEADER {
                    break;
                }
                assert_eq!(channel.ids.slot(slot.id), Some(at), "it has no id");
                channel.put(frame);
                slot.frame_sent(frame);
                is_last |= matches!(frame, Frame::End | Frame::Close(_));
            }
            let (wants_room, has_room) = (slot.has(Flag::NoRoom), channel.room >= 2 * FOR_ANSWERS);
            let owes = slot.next_owed().is_some() || wants_room && !has_room;
            if wants_room && has_room {
                slot.clear_flag(Flag::NoRoom);
                self.news(at);
            }
            if owes {
                self.owe(at);
            }
            if is_last {
                self.has_ended(at);
            }
            self.settle(at);
        }
    }

    fn settle(&mut self, at: u32) {
        let slot = self.slots.at(at);
        if !slot.has(Flag::Used) || !slot.is_released() || slot.is_detached() {
            return;
        }
        let (id, index) = (slot.id, usize::from(slot.channel));
        if let Some(channel) = self.channels[index].as_mut()
            && channel.ids.slot(id) == Some(at)
        {
            channel.ids.release(id);
        }
        let slot = self.slots.at(at);
        let is_listed = slot.has(Flag::Owing) || slot.has(Flag::Pending);
        if slot.is_moving() {
            if !is_listed {
                self.slots.at(at).detach();
                self.slots.append(&mut self.strays, at);
            }
            return;
        }
        if slot.has(Flag::Closed) && !is_listed {
            slot.queue.clear(&mut self.pool);
            self.slots.free(at);
        }
    }

    fn close(&mut self, at: u32) {
        self.leave_set(at);
        let index = usize::from(self.slots.at(at).channel);
        self.pump(index);
        let in_lane = self.in_lane(at);
        let slot = self.slots.at(at);
        slot.close(in_lane);
        if slot.has(Flag::ResetOnClose) || !(slot.is_unaccepted() || slot.is_moving()) {
            slot.queue.clear(&mut self.pool);
        }
        slot.clear_flag(Flag::NoRoom);
        self.owe(at);
        self.settle(at);
        self.pump(index);
    }

    fn leave_set(&mut self, at: u32) {
        if self.slots.at(at).set != 0 {
            self.slots.remove_ready(&mut self.ready, at);
            self.slots.at(at).set = 0;
        }
    }

    fn lose(&mut self, index: usize) {
        self.lose_lanes(index);
        let Some(mut channel) = self.channels[index].take() else { return };
        // The one's process is gone; the other's was told to part.
        let how = [Closing::Orderly, Closing::Reset][index & 1];
        while let Some(at) = self.slots.pop(&mut channel.debts) {
            self.slots.at(at).clear_flag(Flag::Owing);
            self.settle(at);
        }
        for id in 0..channel.ids.upper_bound() {
            if let Some(at) = channel.ids.slot(id) {
                self.loses(at, how);
            }
        }
    }

    fn accept(&mut self) {
        let Some(at) = self.slots.pop(&mut self.pending) else { return };
        let slot = self.slots.at(at);
        slot.clear_flag(Flag::Pending);
        slot.fd_count = 1;
        self.numbers.push(at);
        slot.accept_here();
        let index = usize::from(slot.channel);
        if slot.next_owed().is_some() {
            self.owe(at);
            self.pay(index);
        }
        self.settle(at);
    }

    fn send(&mut self, at: u32, bytes: usize) {
        let slot = self.slots.at(at);
        let index = usize::from(slot.channel);
        match slot.may_send() {
            Ok(Some(_)) if slot.is_moving() || slot.lane(Flow::Out).is_some() => {}
            Ok(Some(credit)) => {
                let least = FOR_ANSWERS + 32;
                let channel = self.channels[index].as_mut().expect("who has lost it had a close");
                let most = bytes.min(credit as usize);
                let mut done = 0;
                while done < most && channel.room >= least {
                    let part = (most - done).min(DATA_MAX).min(channel.room - FOR_ANSWERS - HEADER);
                    channel.put(Frame::Data(part as u32));
                    done += part;
                }
                slot.credit -= done as u32;
                slot.keep(&mut self.pool, done, |_, place| place.fill(3));
                if done == 0 && most > 0 {
                    slot.set_flag(Flag::NoRoom);
                    self.owe(at);
                }
            }
            Ok(None) if bytes > 0 => {
                slot.sent_after_close();
                self.news(at);
            }
            _ => {}
        }
    }

    fn receive(&mut self, at: u32, bytes: usize) {
        let slot = self.slots.at(at);
        let index = usize::from(slot.channel);
        if slot.received() == 0 {
            if !self.receives_by_lane(at, bytes as u32) {
                _ = self.slots.at(at).end_of_stream();
            }
            return;
        }
        let mut seen = 0;
        let got = slot.queue.look(&self.pool, bytes, |_, bytes| seen += bytes.len());
        assert!(seen == got && got <= bytes);
        slot.queue.drop(&mut self.pool, got);
        if slot.consume(got as u32).is_some() {
            self.owe(at);
            self.pay(index);
        }
    }

    fn shut(&mut self, at: u32, how: u16) {
        let slot = self.slots.at(at);
        if slot.is_over() {
            return;
        }
        if how & 1 != 0 {
            slot.shut_read();
        }
        if how & 2 != 0 {
            slot.shut_write();
        }
        let index = usize::from(slot.channel);
        self.owe(at);
        self.news(at);
        self.pump(index);
    }

    fn unlisten(&mut self) {
        while let Some(at) = self.slots.pop(&mut self.pending) {
            self.slots.at(at).clear_flag(Flag::Pending);
            self.close(at);
        }
    }

    /// All that holds between two steps.
    fn look(&mut self) {
        let (mut used, mut strays) = (0, 0);
        for at in 1..SLOTS as u32 {
            let slot = *self.slots.at(at);
            if !slot.has(Flag::Used) {
                assert!(slot.queue.is_empty() && slot.fd_count == 0);
                continue;
            }
            used += 1;
            assert!(slot.queue.len() <= (WINDOW + LANE_MAX) as usize && slot.credit <= WINDOW);
            let _ = slot.readiness(self.in_lane(at));
            let lanes = [Flow::In, Flow::Out].map(|way| slot.lane(way));
            self.look_at_lanes((at, usize::from(slot.channel), lanes));
            let ids = self.channels[usize::from(slot.channel)].as_ref().map(|channel| &channel.ids);
            let has_id = ids.is_some_and(|ids| ids.slot(slot.id) == Some(at));
            assert!(has_id != slot.is_released(), "{at}: {slot:?}");
            let names = [slot.fd_count > 0, slot.has(Flag::Pending), slot.has(Flag::Closed)];
            assert_eq!(names.iter().filter(|is| **is).count(), 1, "{at}: {slot:?}");
            let is_listed = slot.has(Flag::Owing) || slot.is_detached();
            let is_left = slot.has(Flag::Closed) && slot.is_released() && !is_listed;
            strays += u32::from(slot.is_detached());
            assert!(!(slot.is_detached() && slot.has(Flag::Owing)));
            assert!(!is_left, "nobody knows of {at}: {slot:?}");
        }
        assert_eq!(used, self.slots.used());
        assert_eq!(strays, self.strays.count());
        self.is_list(Flag::Pending);
        let debts = [0, 1].map(|index| {
            let Some(mut channel) = self.channels[index].take() else { return 0 };
            let count = turned(&mut self.slots, &mut channel.debts, Flag::Owing);
            self.channels[index] = Some(channel);
            count
        });
        self.is_whole(Flag::Owing, debts[0] + debts[1]);
        for _ in 0..self.ready.count() {
            let at = self.ready.first();
            assert!(self.slots.is_ready(at) && self.slots.at(at).set != 0);
            self.slots.remove_ready(&mut self.ready, at);
            self.slots.push_ready(&mut self.ready, at);
        }
        let ready = (1..SLOTS as u32).filter(|at| self.slots.is_ready(*at)).count();
        assert_eq!(ready, self.ready.count() as usize);
    }

    fn is_list(&mut self, note: Flag) {
        let mut list = self.pending;
        let count = turned(&mut self.slots, &mut list, note);
        self.pending = list;
        self.is_whole(note, count);
    }

    /// So many have it.
    fn is_whole(&mut self, note: Flag, count: u32) {
        let having = (1..SLOTS as u32).filter(|at| self.slots.at(*at).has(note)).count();
        assert_eq!(having, count as usize, "{note:?}");
    }

    /// All is closed, by us and by the others.
    fn end(mut self) {
        self.listens = false;
        self.unlisten();
        while let Some(at) = self.numbers.pop() {
            self.slots.at(at).fd_count = 0;
            self.close(at);
            self.look();
        }
        (0..2).for_each(|index| self.lose(index));
        self.look();
        self.move_strays(0, false);
        self.look();
        assert_eq!(self.slots.used(), 0, "slots are missing");
        let mut queue = ByteQueue::default();
        assert!(
            queue.push((&mut self.pool, BlockOwner::OWN), (BLOCKS - 1) * PAYLOAD, |_, _| {}),
            "blocks are missing"
        );
        for _ in 1..SLOTS {
            assert!(self.slots.allocate(0, Endpoints::default()).is_some());
        }
    }
}

/// How many are in a list, each of which is in it once, and says so.
fn turned(slots: &mut SlotTable<'_>, list: &mut List, note: Flag) -> u32 {
    let (count, mut seen) = (list.count(), [false; SLOTS]);
    for _ in 0..count {
        let at = slots.pop(list).expect("there are fewer");
        assert!(slots.at(at).has(note) && !std::mem::replace(&mut seen[at as usize], true));
        slots.append(list, at);
    }
    assert_eq!(list.count(), count);
    count
}
