//! The receive queue: a ring of posted receives with a flat array of their entries.

use crate::gather::{Sge, total};
use omniverb_terms::Lkey;

/// A ring of receive work requests. Positions count up for ever; the application's slot is freed
/// when the completion is polled, as on hardware, so that a full queue says so.
pub struct ReceiveQueue {
    capacity: u32,
    sge_max: u32,
    slots: Box<[Slot]>,
    sges: Box<[Sge]>,
    posted: u64,
    taken: u64,
    /// Receives whose completions went straight to the application.
    released: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    wr_id: u64,
    count: u32,
}

/// A receive taken off the queue.
#[derive(Clone, Debug, Default)]
pub struct Receive {
    /// The application's number, which its completion bears.
    pub wr_id: u64,
    /// The entries that the message goes into, in their order.
    pub sges: SgeList,
    /// How many receives were taken off the queue with it.
    pub position: u64,
}

/// A short list of entries, without allocation for the usual one or two.
#[derive(Clone, Debug)]
pub enum SgeList {
    /// At most two entries, and how many.
    Few([Sge; 2], u8),
    /// Three or more.
    Many(Box<[Sge]>),
}

impl Default for SgeList {
    fn default() -> Self {
        Self::Few([Sge::default(); 2], 0)
    }
}

impl SgeList {
    /// Copies a list.
    #[inline(always)]
    pub fn new(list: &[Sge]) -> Self {
        match *list {
            [] => Self::default(),
            [a] => Self::Few([a, Sge::default()], 1),
            [a, b] => Self::Few([a, b], 2),
            _ => Self::Many(list.into()),
        }
    }

    /// The entries, as they were posted.
    #[inline(always)]
    pub fn as_slice(&self) -> &[Sge] {
        match self {
            Self::Few(list, count) => &list[..usize::from(*count)],
            Self::Many(list) => list,
        }
    }
}

impl ReceiveQueue {
    /// Room for `capacity` receives of `sge_max` entries each.
    pub fn new(capacity: u32, sge_max: u32) -> Self {
        let ring = (capacity.max(1)).next_power_of_two() as usize;
        Self {
            capacity,
            sge_max,
            slots: vec![Slot::default(); ring].into(),
            sges: vec![Sge::default(); ring * sge_max.max(1) as usize].into(),
            posted: 0,
            taken: 0,
            released: 0,
        }
    }

    /// Receives it may hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Entries per receive.
    pub fn sge_max(&self) -> u32 {
        self.sge_max
    }

    /// Receives ever posted.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Receives waiting for a message.
    #[inline(always)]
    pub fn waiting(&self) -> u64 {
        self.posted - self.taken
    }

    /// Adds one. `released`: how many receives' completions came out of a CQ, to which those are
    /// added that [`Self::release`] told of. Returns the capacity in bytes, or `None` when the
    /// queue is full.
    #[inline(always)]
    pub fn post(&mut self, wr_id: u64, list: &[Sge], released: u64) -> Option<u64> {
        if self.posted - (self.released + released) >= u64::from(self.capacity) {
            return None;
        }
        let index = self.posted as usize & (self.slots.len() - 1);
        self.slots[index] = Slot { wr_id, count: list.len() as u32 };
        let at = index * self.sge_max.max(1) as usize;
        self.sges[at..at + list.len()].copy_from_slice(list);
        self.posted += 1;
        Some(total(list))
    }

    /// Changes how many it may hold; `released` as for [`Self::post`]. Says whether that was done:
    /// not if more are held.
    pub fn resize(&mut self, capacity: u32, released: u64) -> bool {
        if self.posted - (self.released + released) > u64::from(capacity) {
            return false;
        }
        let mut other = ReceiveQueue::new(capacity, self.sge_max);
        let width = self.sge_max.max(1) as usize;
        for position in self.taken..self.posted {
            let from = position as usize & (self.slots.len() - 1);
            let to = position as usize & (other.slots.len() - 1);
            other.slots[to] = self.slots[from];
            let entries = &self.sges[from * width..(from + 1) * width];
            other.sges[to * width..(to + 1) * width].copy_from_slice(entries);
        }
        (other.posted, other.taken, other.released) = (self.posted, self.taken, self.released);
        *self = other;
        true
    }

    /// The oldest, which stays: its number and its entries.
    #[inline(always)]
    pub fn oldest(&self) -> Option<(u64, &[Sge])> {
        if self.taken == self.posted {
            return None;
        }
        let index = self.taken as usize & (self.slots.len() - 1);
        let slot = self.slots[index];
        let at = index * self.sge_max.max(1) as usize;
        Some((slot.wr_id, &self.sges[at..at + slot.count as usize]))
    }

    /// Done with the oldest.
    #[inline(always)]
    pub fn pass(&mut self) {
        self.taken += 1;
    }

    /// The application has the completions of `count` receives, which were in no CQ.
    #[inline(always)]
    pub fn release(&mut self, count: u64) {
        self.released += count;
    }

    /// Takes the oldest.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Receive> {
        if self.taken == self.posted {
            return None;
        }
        let index = self.taken as usize & (self.slots.len() - 1);
        let slot = self.slots[index];
        let at = index * self.sge_max.max(1) as usize;
        self.taken += 1;
        Some(Receive {
            wr_id: slot.wr_id,
            sges: SgeList::new(&self.sges[at..at + slot.count as usize]),
            position: self.taken,
        })
    }

    /// Whether a receive that waits names this key.
    pub fn names(&self, lkey: Lkey) -> bool {
        let width = self.sge_max.max(1) as usize;
        (self.taken..self.posted).any(|position| {
            let index = position as usize & (self.slots.len() - 1);
            let count = self.slots[index].count as usize;
            self.sges[index * width..][..count].iter().any(|sge| sge.lkey == lkey)
        })
    }

    /// Puts the receive that was taken last back to the front.
    pub fn put_back(&mut self) {
        self.taken -= 1;
    }

    /// Forgets all receives, the counts of posted ones too; nothing completes.
    pub fn clear(&mut self) {
        self.posted = 0;
        self.taken = 0;
        self.released = 0;
    }
}
