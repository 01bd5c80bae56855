//! Connections that wait to be accepted at a listening socket: in the order in which they came, and
//! those of each trunk together, so that none of a full backlog is looked for.

use omniverb_connection::light::{List, Row, Rows};

use super::room::TRUNKS;

const _: () = assert!(TRUNKS <= u64::BITS as usize);

/// All that wait at one. Until it is accepted a row's `data` is how many came before it.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    lists: [List; TRUNKS],
    /// Which of them have any.
    occupied: u64,
    count: u32,
}

impl Pending {
    pub(super) const fn new() -> Self {
        Self { lists: [List::new(); TRUNKS], occupied: 0, count: 0 }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// How many there are of a trunk.
    pub(super) fn of(&self, trunk: usize) -> u32 {
        self.lists[trunk].count()
    }

    /// The trunk of which there are the most.
    pub(super) fn largest(&self) -> usize {
        self.trunks().max_by_key(|trunk| self.of(*trunk)).unwrap_or(0)
    }

    fn trunks(&self) -> impl Iterator<Item = usize> {
        let occupied = self.occupied;
        (0..TRUNKS).filter(move |trunk| occupied & 1 << trunk != 0)
    }

    /// One more, behind so many.
    pub(super) fn push(&mut self, rows: &mut Rows<'_>, at: u32, before: u64) {
        let row = rows.at(at);
        row.data = before;
        let trunk = usize::from(row.trunk);
        rows.ready(&mut self.lists[trunk], at);
        self.occupied |= 1 << trunk;
        self.count += 1;
    }

    /// The one that came first; 0: none.
    pub(super) fn first(&self, rows: &mut Rows<'_>) -> u32 {
        let heads = self.trunks().map(|trunk| self.lists[trunk].first());
        heads.min_by_key(|at| rows.at(*at).data).unwrap_or(0)
    }

    /// The same of a trunk.
    pub(super) fn first_of(&self, trunk: usize) -> u32 {
        self.lists[trunk].first()
    }

    /// One waits no more.
    pub(super) fn remove(&mut self, rows: &mut Rows<'_>, at: u32) {
        let row: &mut Row = rows.at(at);
        row.data = 0;
        let trunk = usize::from(row.trunk);
        rows.unready(&mut self.lists[trunk], at);
        if self.of(trunk) == 0 {
            self.occupied &= !(1 << trunk);
        }
        self.count -= 1;
    }
}
