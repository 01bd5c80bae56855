//! Queues connections that wait to be accepted at a listening socket.
//!
//! In the order in which they came, and those of each channel together, so that the channel with
//! the most is found without a search when the backlog is full.

use omniverb_connection::light::{List, Slot, SlotTable};

use super::mmap_buffers::CHANNELS;

const _: () = assert!(CHANNELS <= u64::BITS as usize);

/// All that wait at one. Until it is accepted a slot's `data` is how many came before it.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    lists: [List; CHANNELS],
    /// Which of them have any.
    occupied: u64,
    count: u32,
}

impl Pending {
    pub(super) const fn new() -> Self {
        Self { lists: [List::new(); CHANNELS], occupied: 0, count: 0 }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// How many there are of a channel.
    pub(super) fn of(&self, channel: usize) -> u32 {
        self.lists[channel].count()
    }

    /// The channel of which there are the most.
    pub(super) fn largest(&self) -> usize {
        self.channels().max_by_key(|channel| self.of(*channel)).unwrap_or(0)
    }

    fn channels(&self) -> impl Iterator<Item = usize> {
        let occupied = self.occupied;
        (0..CHANNELS).filter(move |channel| occupied & 1 << channel != 0)
    }

    /// One more, behind so many.
    pub(super) fn push(&mut self, slots: &mut SlotTable<'_>, at: u32, before: u64) {
        let slot = slots.at(at);
        slot.data = before;
        let channel = usize::from(slot.channel);
        slots.push_ready(&mut self.lists[channel], at);
        self.occupied |= 1 << channel;
        self.count += 1;
    }

    /// The one that came first; 0: none.
    pub(super) fn first(&self, slots: &mut SlotTable<'_>) -> u32 {
        let heads = self.channels().map(|channel| self.lists[channel].first());
        heads.min_by_key(|at| slots.at(*at).data).unwrap_or(0)
    }

    /// The same of a channel.
    pub(super) fn first_of(&self, channel: usize) -> u32 {
        self.lists[channel].first()
    }

    /// One waits no more.
    pub(super) fn remove(&mut self, slots: &mut SlotTable<'_>, at: u32) {
        let slot: &mut Slot = slots.at(at);
        slot.data = 0;
        let channel = usize::from(slot.channel);
        slots.remove_ready(&mut self.lists[channel], at);
        if self.of(channel) == 0 {
            self.occupied &= !(1 << channel);
        }
        self.count -= 1;
    }
}
