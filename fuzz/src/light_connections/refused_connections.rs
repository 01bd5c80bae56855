//! Models connections that this end opens, and those that were refused before `accept`.

use super::*;

impl State<'_> {
    pub(super) fn connect(&mut self, index: usize) {
        self.pump(index);
        let Some(channel) = self.channels[index].as_mut() else { return };
        if channel.room < Frame::Open.takes() + FOR_ANSWERS {
            return;
        }
        let Some(at) = self.slots.allocate(index as u16, Endpoints::default()) else { return };
        let Some(id) = channel.ids.allocate(at) else { return self.slots.free(at) };
        let slot = self.slots.at(at);
        (slot.id, slot.fd_count) = (id, 1);
        slot.begin_connect();
        channel.put(Frame::Open);
        self.numbers.push(at);
    }

    /// Whether it goes elsewhere.
    pub(super) fn leaves(&mut self, at: u32, is_lost: bool) -> bool {
        let slot = self.slots.at(at);
        if !slot.is_unaccepted() && !slot.is_moving() {
            return false;
        }
        let may = if is_lost { slot.lose_unaccepted() } else { slot.refuse() };
        if !may {
            slot.settle_acceptance(&mut self.pool);
        }
        may
    }

    /// All that stray go by a channel, or are given up.
    pub(super) fn move_strays(&mut self, index: usize, has_somewhere: bool) {
        for _ in 0..self.strays.count() {
            let Some(at) = self.slots.pop(&mut self.strays) else { return };
            let slot = self.slots.at(at);
            let kept = slot.queue.len();
            let least = Frame::Open.takes() + kept + kept.div_ceil(DATA_MAX) * 2 * HEADER;
            let channel = self.channels[index].as_mut();
            let Some(channel) = channel.filter(|_| has_somewhere && !slot.has(Flag::ResetOnClose))
            else {
                slot.give_up(&mut self.pool);
                self.news(at);
                self.settle(at);
                continue;
            };
            if channel.room < least + 2 * HEADER + FOR_ANSWERS {
                self.slots.append(&mut self.strays, at);
                continue;
            }
            let Some(id) = channel.ids.allocate(at) else {
                slot.give_up(&mut self.pool);
                self.settle(at);
                continue;
            };
            slot.reopen(index as u16, id);
            channel.put(Frame::Open);
            let mut done = 0;
            while done < kept {
                let bytes = (kept - done).min(DATA_MAX);
                channel.put(Frame::Data(bytes as u32));
                let seen = slot.queue.look_from(&self.pool, done, bytes, |_, piece| {
                    assert!(piece.iter().all(|byte| *byte == 3), "what was kept");
                });
                assert_eq!(seen, bytes);
                done += bytes;
            }
            if slot.next_owed().is_some() {
                self.owe(at);
                self.pay(index);
            }
            self.news(at);
        }
    }

    pub(super) fn loses(&mut self, at: u32, how: Closing) {
        let was_asked = self.slots.at(at).is_unaccepted();
        let may = self.slots.at(at).is_moving() || how == Closing::Orderly && was_asked;
        if may && self.leaves(at, true) {
            return self.settle(at);
        }
        let slot = self.slots.at(at);
        slot.settle_acceptance(&mut self.pool);
        slot.lost_channel(if was_asked { Closing::Reset } else { how });
        slot.clear_flag(Flag::NoRoom);
        self.news(at);
        self.settle(at);
    }
}
