//! Keeps the entries of a CQ in their order, in an array that may be the program's.
//!
//! An array in lent memory has room for all it will ever hold, since no memory is allocated while
//! requests are on their way. One of our own begins with less, and grows.

use omniverb_ring::{FixedArray, MemoryLender, NoMemory};
use zerocopy::FromBytes;

/// Elements that one of our own has room for before it grows.
const BEGINNING: usize = 4096;

/// Elements in the order in which they came.
pub(crate) struct Fifo<T: Copy + FromBytes> {
    /// As many as a power of two, or none.
    places: FixedArray<T>,
    /// Where the oldest is, counted up for ever.
    first: usize,
    length: usize,
}

impl<T: Copy + FromBytes> Default for Fifo<T> {
    /// An empty one, without room.
    fn default() -> Self {
        Fifo { places: FixedArray::default(), first: 0, length: 0 }
    }
}

impl<T: Copy + FromBytes> Fifo<T> {
    /// For so many elements, in our own memory.
    pub(crate) fn own(capacity: usize) -> Fifo<T> {
        let places = FixedArray::own(capacity.min(BEGINNING).next_power_of_two());
        Fifo { places, first: 0, length: 0 }
    }

    /// For so many elements, in lent memory if there is a lender.
    ///
    /// # Errors
    /// The lender has none.
    pub(crate) fn new(capacity: usize, lending: &MemoryLender) -> Result<Fifo<T>, NoMemory> {
        match lending {
            None => Ok(Fifo::own(capacity)),
            Some(_) => {
                let places = FixedArray::new(capacity.next_power_of_two(), lending)?;
                Ok(Fifo { places, first: 0, length: 0 })
            }
        }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Where the element is that so many are older than.
    #[inline(always)]
    fn place(&self, index: usize) -> usize {
        self.first.wrapping_add(index) & self.places.len().wrapping_sub(1)
    }

    /// The element that so many are older than.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index < self.length { self.places.get(self.place(index)) } else { None }
    }

    /// All of them, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.length).filter_map(|index| self.get(index))
    }

    /// Adds the youngest.
    #[inline(always)]
    pub(crate) fn push(&mut self, element: T) {
        if self.length == self.places.len() {
            self.grow();
        }
        let place = self.place(self.length);
        if let Some(place) = self.places.get_mut(place) {
            *place = element;
            self.length += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut other =
            Fifo { places: FixedArray::own((2 * self.length).max(1)), first: 0, length: 0 };
        other.append(self);
        *self = other;
    }

    /// Adds those of another, which keeps them.
    pub(crate) fn append(&mut self, other: &Fifo<T>) {
        other.iter().for_each(|element| self.push(*element));
    }

    /// Takes the oldest.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let oldest = *self.get(0)?;
        self.pass(1);
        Some(oldest)
    }

    /// Done with the oldest, so many.
    #[inline(always)]
    pub(crate) fn pass(&mut self, count: usize) {
        let count = count.min(self.length);
        self.first = self.first.wrapping_add(count);
        self.length -= count;
    }

    /// Puts another in the place of one.
    pub(crate) fn replace(&mut self, index: usize, element: T) {
        let place = self.place(index);
        if index < self.length
            && let Some(place) = self.places.get_mut(place)
        {
            *place = element;
        }
    }

    /// Forgets all but the oldest, so many.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_in_order_across_every_growth() {
        let mut fifo = Fifo::own(3);
        let (mut next, mut oldest) = (0u64, 0u64);
        for turn in 0..200u64 {
            for _ in 0..turn % 7 {
                fifo.push(next);
                next += 1;
            }
            assert!(fifo.iter().copied().eq(oldest..next));
            for _ in 0..turn % 5 {
                let taken = fifo.pop();
                assert_eq!(taken, (oldest < next).then_some(oldest));
                oldest = (oldest + 1).min(next);
            }
            assert_eq!(fifo.len() as u64, next - oldest);
        }
        assert!(fifo.len() > BEGINNING.min(64), "it has grown");
    }

    #[test]
    fn some_may_be_taken_out_of_the_middle() {
        let mut fifo = Fifo::own(8);
        (0..8u32).for_each(|element| fifo.push(element));
        fifo.pass(3);
        (8..11).for_each(|element| fifo.push(element));
        let kept = [4, 9];
        for (index, element) in kept.into_iter().enumerate() {
            fifo.replace(index, element);
        }
        fifo.replace(8, 77);
        fifo.truncate(kept.len());
        assert!(fifo.iter().eq(&kept));
        fifo.pass(5);
        assert_eq!((fifo.len(), fifo.pop(), fifo.get(0)), (0, None, None));
    }

    #[test]
    fn one_without_room_takes_elements_all_the_same() {
        let mut fifo = Fifo::default();
        assert_eq!(fifo.pop(), None);
        fifo.push(5u8);
        fifo.push(6);
        assert!(fifo.iter().eq(&[5, 6]));
    }
}
