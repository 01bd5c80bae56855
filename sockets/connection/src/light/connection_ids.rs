//! Maps the ids by which two processes name the connections of a channel to slots.
//!
//! The side that opens a connection chooses its id: even numbers are of one side, odd ones of the
//! other. An id is used again when both have said that they have closed: nothing of the old
//! connection comes then any more.

/// Of a channel, by id: the slot of each connection, or what to use next.
pub struct ConnectionIds<'a> {
    slots: &'a mut [u32],
    side: u32,
    free: u32,
    /// Ids of ours that were never used begin here.
    end: u32,
    /// No id from here on was ever in use, by either side.
    known: u32,
    /// How many are in use.
    used: u32,
}

/// An entry that holds the next free one.
const FREE: u32 = 1 << 31;

impl<'a> ConnectionIds<'a> {
    /// Of memory that is all zeros, for side 0 or 1.
    pub fn new(slots: &'a mut [u32], side: u32) -> Self {
        Self { slots, side: side & 1, free: 0, end: side & 1, known: 0, used: 0 }
    }

    /// One for a connection that this side opens.
    pub fn allocate(&mut self, slot: u32) -> Option<u32> {
        let id = match self.free.checked_sub(1) {
            Some(id) => {
                self.free = *self.slots.get(id as usize)? & !FREE;
                id
            }
            None if (self.end as usize) < self.slots.len() => {
                self.end += 2;
                self.end - 2
            }
            None => return None,
        };
        self.slots[id as usize] = slot;
        self.used += 1;
        self.known = self.known.max(id + 1);
        Some(id)
    }

    /// The other side has opened one: `false` if it may not have this id.
    pub fn insert_remote(&mut self, id: u32, slot: u32) -> bool {
        let is_theirs = id & 1 != self.side;
        match self.slots.get_mut(id as usize) {
            Some(place) if is_theirs && *place == 0 => {
                *place = slot;
                self.used += 1;
                self.known = self.known.max(id + 1);
                true
            }
            _ => false,
        }
    }

    /// The other side may have this one for a new connection.
    #[must_use]
    pub fn may_open_remotely(&self, id: u32) -> bool {
        id & 1 != self.side && self.slots.get(id as usize) == Some(&0)
    }

    /// Which slot it is, if it is in use.
    #[must_use]
    #[inline(always)]
    pub fn slot(&self, id: u32) -> Option<u32> {
        let slot = *self.slots.get(id as usize)?;
        (slot != 0 && slot & FREE == 0).then_some(slot)
    }

    /// Both ends have closed.
    pub fn release(&mut self, id: u32) {
        if self.slot(id).is_none() {
            return;
        }
        self.used -= 1;
        if id & 1 == self.side {
            self.slots[id as usize] = FREE | self.free;
            self.free = id + 1;
        } else {
            self.slots[id as usize] = 0;
        }
    }

    /// How many are in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// All that may be in use are below this.
    #[must_use]
    pub fn upper_bound(&self) -> u32 {
        self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_its_own() {
        let (mut one, mut two) = ([0; 6], [0; 6]);
        let (mut even, mut odd) =
            (ConnectionIds::new(&mut one, 0), ConnectionIds::new(&mut two, 1));
        assert_eq!([even.allocate(7), odd.allocate(9)], [Some(0), Some(1)]);
        assert!(odd.insert_remote(0, 3) && even.insert_remote(1, 4));
        assert!(!odd.insert_remote(0, 5) && !odd.insert_remote(3, 5) && !odd.insert_remote(8, 5));
        assert_eq!([even.slot(0), even.slot(1), even.slot(2)], [Some(7), Some(4), None]);
        assert_eq!(
            [even.allocate(1), even.allocate(2), even.allocate(3)],
            [Some(2), Some(4), None]
        );
        even.release(2);
        even.release(0);
        even.release(0);
        assert_eq!(
            [even.allocate(5), even.allocate(6), even.allocate(7)],
            [Some(0), Some(2), None]
        );
        odd.release(0);
        assert!(odd.may_open_remotely(0) && odd.insert_remote(0, 8));
        assert_eq!((even.upper_bound(), even.used(), odd.used()), (5, 4, 2));
    }
}
