//! The transfers that a connection's device has, each by a small number, and what is counted of
//! them.
//!
//! In: transfers that begin, numbers of those that end. Out: the same transfers, once each. What
//! is counted follows from what is there, and from nothing else.

/// What is counted of a transfer.
pub(crate) trait Transfer {
    /// It is a READ: WRITEs after it wait for it.
    fn reads(&self) -> bool;
    /// The program is called back for it.
    fn calls(&self) -> bool;
}

/// See the file's head.
pub(crate) struct Slots<T> {
    /// The index is the transfer's number; `None` is free.
    under_way: Vec<Option<T>>,
    free: Vec<usize>,
    reads: usize,
    calling: usize,
}

impl<T: Transfer> Slots<T> {
    /// Room for so many.
    pub(crate) fn new(room: usize) -> Self {
        let under_way = (0..room).map(|_| None).collect();
        Self { under_way, free: (0..room).collect(), reads: 0, calling: 0 }
    }

    /// How many more can begin.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// One begins. Its number; none if there is no room.
    pub(crate) fn begin(&mut self, it: T) -> Option<usize> {
        let number = self.free.pop()?;
        self.reads += usize::from(it.reads());
        self.calling += usize::from(it.calls());
        *self.under_way.get_mut(number)? = Some(it);
        Some(number)
    }

    /// One is over; none if there is none of that number.
    pub(crate) fn end(&mut self, number: usize) -> Option<T> {
        let it = self.under_way.get_mut(number)?.take()?;
        self.free.push(number);
        self.reads -= usize::from(it.reads());
        self.calling -= usize::from(it.calls());
        Some(it)
    }

    /// Whether some are READs.
    pub(crate) fn any_reads(&self) -> bool {
        self.reads > 0
    }

    /// Whether the program is to be called back for some.
    pub(crate) fn any_calls(&self) -> bool {
        self.calling > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct One {
        serial: u32,
        reads: bool,
        calls: bool,
    }

    impl Transfer for One {
        fn reads(&self) -> bool {
            self.reads
        }

        fn calls(&self) -> bool {
            self.calls
        }
    }

    #[test]
    fn whatever_begins_and_ends_they_are_a_map_of_numbers_and_what_is_counted_is_in_it() {
        const ROOM: usize = 8;
        let mut slots = Slots::new(ROOM);
        let mut model = BTreeMap::<usize, One>::new();
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let (mut was_full, mut was_empty) = (0, 0);
        for serial in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Phases in which more begin than end, and the other way round.
            let growing = serial / 100 % 2;
            if (random >> 8) % 3 < 1 + u64::from(growing) {
                let one = One { serial, reads: random & 1 != 0, calls: random & 2 != 0 };
                match slots.begin(one) {
                    Some(number) => assert_eq!(model.insert(number, one), None, "given twice"),
                    None => assert_eq!(model.len(), ROOM),
                }
            } else {
                // One that is there, or not, or that cannot be.
                let number = (random >> 16) as usize % (ROOM + 2);
                assert_eq!(slots.end(number), model.remove(&number));
            }
            assert!(model.keys().all(|number| *number < ROOM));
            assert_eq!(slots.room(), ROOM - model.len());
            assert_eq!(slots.any_reads(), model.values().any(|one| one.reads));
            assert_eq!(slots.any_calls(), model.values().any(|one| one.calls));
            was_full += usize::from(model.len() == ROOM);
            was_empty += usize::from(model.is_empty());
        }
        assert!(was_full > 100 && was_empty > 100, "{was_full}, {was_empty}");
    }
}
