//! Holds all light connections of a process, and links them into lists.

use super::connection_slot::{Flag, Slot};
use super::frame::Endpoints;

/// Slots of a process, of which 0 stands for none.
pub struct SlotTable<'a> {
    slots: &'a mut [Slot],
    free: u32,
    /// Those from here on were never used, so the kernel has given no memory for them.
    end: u32,
    /// How many are connections.
    used: u32,
}

/// A list of slots by one of their links.
#[derive(Clone, Copy, Debug, Default)]
pub struct List {
    first: u32,
    last: u32,
    count: u32,
}

impl List {
    /// Nothing in it.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: 0, last: 0, count: 0 }
    }

    /// The first one, or 0.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl<'a> SlotTable<'a> {
    /// Of memory that is all zeros.
    pub fn new(slots: &'a mut [Slot]) -> Self {
        Self { slots, free: 0, end: 1, used: 0 }
    }

    /// How many are connections.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Calls with each that is a connection.
    pub fn each_used(&self, mut with: impl FnMut(&Slot)) {
        let all = &self.slots[..self.end as usize];
        all.iter().filter(|slot| slot.has(Flag::Used)).for_each(&mut with);
    }

    /// A slot that an index of ours names.
    #[inline(always)]
    pub fn at(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// A new connection by a channel.
    pub fn allocate(&mut self, channel: u16, names: Endpoints) -> Option<u32> {
        let index = match self.free {
            0 if (self.end as usize) < self.slots.len() => {
                self.end += 1;
                self.end - 1
            }
            0 => return None,
            index => {
                self.free = self.at(index).other;
                index
            }
        };
        self.at(index).begin(channel, names);
        self.used += 1;
        Some(index)
    }

    /// It is none any more, and in no list.
    pub fn free(&mut self, index: u32) {
        let free = self.free;
        let slot = self.at(index);
        let generation = slot.generation.wrapping_add(1);
        *slot = Slot::default();
        (slot.other, slot.generation) = (free, generation);
        self.free = index;
        self.used -= 1;
    }

    /// Puts one behind the others of a list of those that are ready, or wait to be accepted. One is
    /// in one such list at most.
    pub fn push_ready(&mut self, list: &mut List, index: u32) {
        if self.at(index).previous != 0 || list.first == index {
            return;
        }
        let last = list.last;
        // The first one is behind itself: so who is in a list is known by that.
        self.at(index).previous = if last == 0 { index } else { last };
        self.at(index).next = 0;
        match last {
            0 => list.first = index,
            last => self.at(last).next = index,
        }
        list.last = index;
        list.count += 1;
    }

    /// It is in such a list.
    #[must_use]
    pub fn is_ready(&mut self, index: u32) -> bool {
        self.at(index).previous != 0
    }

    /// Takes it out of the list.
    pub fn remove_ready(&mut self, list: &mut List, index: u32) {
        let (next, previous) = (self.at(index).next, self.at(index).previous);
        if previous == 0 {
            return;
        }
        if list.first == index {
            list.first = next;
            if next != 0 {
                self.at(next).previous = next;
            }
        } else {
            self.at(previous).next = next;
            if next != 0 {
                self.at(next).previous = previous;
            }
        }
        if list.last == index {
            list.last = if list.first == 0 { 0 } else { previous };
        }
        (self.at(index).next, self.at(index).previous) = (0, 0);
        list.count -= 1;
    }

    /// Puts one behind those of a list that is of a channel's, or of a listener's.
    pub fn append(&mut self, list: &mut List, index: u32) {
        self.at(index).other = 0;
        match list.last {
            0 => list.first = index,
            last => self.at(last).other = index,
        }
        list.last = index;
        list.count += 1;
    }

    /// Takes out the first one.
    pub fn pop(&mut self, list: &mut List) -> Option<u32> {
        let index = list.first;
        if index == 0 {
            return None;
        }
        list.first = self.at(index).other;
        if list.first == 0 {
            list.last = 0;
        }
        self.at(index).other = 0;
        list.count -= 1;
        Some(index)
    }

    /// It has something to say: puts it into its channel's list, unless it is there.
    pub fn push_owing(&mut self, list: &mut List, index: u32) {
        if !self.at(index).has(Flag::Owing) && !self.at(index).has(Flag::Pending) {
            self.at(index).set_flag(Flag::Owing);
            self.append(list, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_list_is_a_list(steps in proptest::collection::vec((0..2, 1..8_u32), 1..100)) {
            let mut memory = [Slot::default(); 9];
            let mut slots = SlotTable::new(&mut memory);
            (1..9).for_each(|at| assert_eq!(slots.allocate(0, Endpoints::default()), Some(at)));
            assert_eq!(slots.allocate(0, Endpoints::default()), None);
            let (mut list, mut model) = (List::new(), Vec::new());
            for (what, index) in steps {
                if what == 0 {
                    slots.push_ready(&mut list, index);
                    if !model.contains(&index) {
                        model.push(index);
                    }
                } else {
                    slots.remove_ready(&mut list, index);
                    model.retain(|one| *one != index);
                }
                let mut found = Vec::new();
                let mut next = list.first();
                while next != 0 {
                    found.push(next);
                    next = slots.at(next).next;
                }
                assert_eq!(found, model);
                assert_eq!(list.count() as usize, model.len());
                (1..9).for_each(|at| assert_eq!(slots.is_ready(at), model.contains(&at)));
            }
        }
    }

    #[test]
    fn a_slot_that_is_free_is_used_again() {
        let mut memory = [Slot::default(); 3];
        let mut slots = SlotTable::new(&mut memory);
        let (one, two) =
            (slots.allocate(0, Endpoints::default()), slots.allocate(0, Endpoints::default()));
        assert_eq!((one, two, slots.used()), (Some(1), Some(2), 2));
        let mut list = List::new();
        slots.append(&mut list, 2);
        slots.append(&mut list, 1);
        assert_eq!([slots.pop(&mut list), slots.pop(&mut list)], [Some(2), Some(1)]);
        assert_eq!(slots.pop(&mut list), None);
        slots.free(1);
        assert_eq!(slots.allocate(0, Endpoints::default()), Some(1));
    }
}
