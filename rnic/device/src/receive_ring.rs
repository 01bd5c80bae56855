//! Keeps posted receives in a ring, each with its entries behind it, in an array that may be the
//! program's.

use crate::scatter_gather::{Sge, total};
use omniverb_ring::{FixedArray, MemoryLender, NoMemory};
use omniverb_terms::Lkey;

/// A ring of receive work requests. Positions count up for ever; the application's slot is freed
/// when the completion is polled, as on hardware, so that a full queue says so.
pub struct ReceiveQueue {
    capacity: u32,
    sge_max: u32,
    /// How many receives the ring has room for, less one: all ones in binary.
    last: u64,
    /// For each of them a row: its [`head`], and places for its entries.
    rows: FixedArray<Sge>,
    posted: u64,
    taken: u64,
    /// Receives whose completions went straight to the application.
    released: u64,
}

/// What stands in front of the entries of a receive: its number, and how many they are. In the form
/// of an entry, so that a row is an array of those.
#[inline(always)]
fn head(wr_id: u64, count: usize) -> Sge {
    Sge { address: wr_id, length: count as u32, lkey: Lkey(0) }
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
    /// Room for `capacity` receives of `sge_max` entries each, in lent memory if there is a lender
    /// and any room.
    ///
    /// # Errors
    /// The lender has none.
    pub fn new(capacity: u32, sge_max: u32, lending: &MemoryLender) -> Result<Self, NoMemory> {
        let ring = (capacity.max(1)).next_power_of_two() as usize;
        let length = ring * (1 + sge_max.max(1) as usize);
        let rows =
            if capacity > 0 { FixedArray::new(length, lending)? } else { FixedArray::own(length) };
        let last = ring as u64 - 1;
        Ok(Self { capacity, sge_max, last, rows, posted: 0, taken: 0, released: 0 })
    }

    /// One for nothing.
    pub fn none() -> Self {
        let rows = FixedArray::default();
        Self { capacity: 0, sge_max: 0, last: 0, rows, posted: 0, taken: 0, released: 0 }
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
        let at = self.row(self.posted);
        let [first, entries @ ..] = self.rows.get_mut(at..=at + list.len())? else { return None };
        *first = head(wr_id, list.len());
        entries.copy_from_slice(list);
        self.posted += 1;
        Some(total(list))
    }

    /// Entries in a row: the head, and those of the receive.
    #[inline(always)]
    fn width(&self) -> usize {
        1 + self.sge_max.max(1) as usize
    }

    /// Where the row of a receive begins.
    #[inline(always)]
    fn row(&self, position: u64) -> usize {
        (position & self.last) as usize * self.width()
    }

    /// The number of a receive and its entries. None of them if the row says what cannot be, since
    /// the program wrote there.
    #[inline(always)]
    fn at(&self, position: u64) -> (u64, &[Sge]) {
        let at = self.row(position);
        let Some(head) = self.rows.get(at) else { return (0, &[]) };
        let list = self.rows.get(at + 1..at + 1 + head.length as usize);
        (head.address, list.unwrap_or_default())
    }

    /// Goes on in `other`, which is new and has as many entries per receive, and gets the room that
    /// this one had; `released` as for [`Self::post`]. Says whether that was done: not if more
    /// receives are held than the other may.
    pub fn move_to(&mut self, other: &mut ReceiveQueue, released: u64) -> bool {
        if self.posted - (self.released + released) > u64::from(other.capacity) {
            return false;
        }
        let width = self.width();
        for position in self.taken..self.posted {
            let (from, to) = (self.row(position), other.row(position));
            other.rows[to..to + width].copy_from_slice(&self.rows[from..from + width]);
        }
        (other.posted, other.taken, other.released) = (self.posted, self.taken, self.released);
        std::mem::swap(self, other);
        true
    }

    /// The oldest, which stays: its number and its entries.
    #[inline(always)]
    pub fn oldest(&self) -> Option<(u64, &[Sge])> {
        if self.taken == self.posted {
            return None;
        }
        Some(self.at(self.taken))
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
        let (wr_id, list) = self.at(self.taken);
        let sges = SgeList::new(list);
        self.taken += 1;
        Some(Receive { wr_id, sges, position: self.taken })
    }

    /// Whether a receive that waits names this key.
    pub fn names(&self, lkey: Lkey) -> bool {
        self.lkeys().any(|other| other == lkey)
    }

    /// Keys that receives which wait name.
    pub fn lkeys(&self) -> impl Iterator<Item = Lkey> {
        let waiting = self.taken..self.posted;
        waiting.flat_map(|position| self.at(position).1.iter().map(|sge| sge.lkey))
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
