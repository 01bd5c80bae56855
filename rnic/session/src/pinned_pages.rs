//! Pages of a virtual machine's processes that stay where they are, in the machine's own memory
//! (decision 0045): how they are named between guest and host.
//!
//! In: numbers of physical pages, as the guest says, and where the machine has its memory, as
//! whoever started it knows. Out: parts of the file that this memory is, or why not. A guest that
//! lies names its own memory, or nothing.

use crate::body::Extent;
use crate::message_macros::bodies;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a page, here and there.
const PAGE: u64 = 4096;
/// Bits of a run that say how many pages it has.
const COUNT_BITS: u32 = 12;
/// Pages of the longest run.
const RUN_MAX: u64 = 1 << COUNT_BITS;

/// Addresses that are no memory for programs in any PC, though there is memory behind: of the
/// firmware and of its management mode (SMRAM), and shadows of ROMs.
const FIRMWARE: Range<u64> = 0xa_0000..0x10_0000;

/// Runs that go into one message. Of pages that lie apart from each other in the guest's memory as
/// many, 2 MiB less a few; where the guest has large pages that is no bound.
pub const RUNS_MAX: usize = 480;

/// Pins that one message names.
pub const PINS_MAX: usize = 480;

bodies! {
    /// Pages that follow each other in the guest's physical memory: the number of the first, and
    /// below that how many more there are.
    Run { word: u64 }
    /// Where a machine has its memory, which is a file: so much of it from address 0 on, the rest
    /// from another address on.
    Layout {
        /// Bytes from address 0 on.
        below: u64,
        /// The address of the rest; not lower.
        above: u64,
        /// Bytes in all.
        bytes: u64,
    }
}

/// Why runs name no memory that could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRuns {
    /// There are none, or more than there can be.
    Count,
    /// They have other pages, in number, than were asked for.
    Length,
    /// The machine has no memory there that is for programs, or not all of it.
    Outside,
    /// A page is named twice.
    Overlap,
}

impl Run {
    /// So many pages from this one on; `None`: too many for one run, or no such page.
    #[must_use]
    pub fn new(first: u64, pages: u64) -> Option<Run> {
        let fits = (1..=RUN_MAX).contains(&pages) && first >> (u64::BITS - COUNT_BITS) == 0;
        fits.then(|| Run { word: first << COUNT_BITS | (pages - 1) })
    }

    /// The number of the first page.
    #[must_use]
    pub fn first(self) -> u64 {
        self.word >> COUNT_BITS
    }

    /// How many pages there are.
    #[must_use]
    pub fn pages(self) -> u64 {
        (self.word & (RUN_MAX - 1)) + 1
    }
}

/// Runs of pages, as they follow each other in a process's memory; `None`: more than a message has
/// room for, or a number that no page has.
#[must_use]
pub fn runs(pages: impl IntoIterator<Item = u64>) -> Option<Vec<Run>> {
    let mut runs = Vec::<Run>::new();
    for page in pages {
        let last = runs.last().copied();
        let longer = last.filter(|run| run.first() + run.pages() == page);
        match longer.and_then(|run| Run::new(run.first(), run.pages() + 1)) {
            Some(run) => _ = runs.pop().map(|_| runs.push(run)),
            None if runs.len() < RUNS_MAX => runs.push(Run::new(page, 1)?),
            None => return None,
        }
    }
    Some(runs)
}

impl Layout {
    /// Whether there can be such memory, in a file of so many bytes.
    #[must_use]
    pub fn is_sound(&self, file_bytes: u64) -> bool {
        let Layout { below, above, bytes } = *self;
        let whole = [below, above, bytes].iter().all(|value| value.is_multiple_of(PAGE));
        let ends = bytes.checked_sub(below).and_then(|rest| above.checked_add(rest));
        whole && bytes > 0 && bytes == file_bytes && below <= above && ends.is_some()
    }

    /// Where in the file a run is.
    fn place(&self, run: Run) -> Option<Extent> {
        let address = run.first().checked_mul(PAGE)?;
        let length = run.pages() * PAGE;
        let end = address.checked_add(length)?;
        if address < FIRMWARE.end && end > FIRMWARE.start {
            return None;
        }
        if end <= self.below {
            return Some(Extent { offset: address, length });
        }
        let beyond = address.checked_sub(self.above)?;
        let rest = self.bytes.checked_sub(self.below)?;
        let inside = beyond.checked_add(length).is_some_and(|end| end <= rest);
        inside.then(|| Extent { offset: self.below + beyond, length })
    }

    /// The parts of the file that have these pages, so many bytes in all, in the order in which
    /// they are named. What lies side by side is one part.
    ///
    /// # Errors
    /// [`InvalidRuns`] says why they are not to be used.
    pub fn places(&self, runs: &[Run], length: u64) -> Result<Vec<Extent>, InvalidRuns> {
        if runs.is_empty() || runs.len() > RUNS_MAX {
            return Err(InvalidRuns::Count);
        }
        let mut places = Vec::<Extent>::with_capacity(runs.len());
        for run in runs {
            let place = self.place(*run).ok_or(InvalidRuns::Outside)?;
            match places.last_mut().filter(|last| last.offset + last.length == place.offset) {
                Some(last) => last.length += place.length,
                None => places.push(place),
            }
        }
        if places.iter().map(|place| place.length).sum::<u64>() != length {
            return Err(InvalidRuns::Length);
        }
        let mut sorted: Vec<(u64, u64)> =
            places.iter().map(|place| (place.offset, place.offset + place.length)).collect();
        sorted.sort_unstable();
        match sorted.windows(2).all(|two| two[0].1 <= two[1].0) {
            true => Ok(places),
            false => Err(InvalidRuns::Overlap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const LAYOUT: Layout = Layout { below: 2 * GIB, above: 4 * GIB, bytes: 3 * GIB };

    fn run(address: u64, pages: u64) -> Run {
        Run::new(address / PAGE, pages).unwrap()
    }

    fn places(runs: &[Run]) -> Result<Vec<Extent>, InvalidRuns> {
        LAYOUT.places(runs, runs.iter().map(|run| run.pages() * PAGE).sum())
    }

    #[test]
    fn pages_are_found_on_both_sides_of_the_hole() {
        let around = [run(0x9_f000, 1), run(0x10_0000, 1)];
        assert!(around.iter().all(|run| places(&[*run]).is_ok()));
        let found = places(&[run(0x5000, 2), run(4 * GIB, 1), run(5 * GIB - PAGE, 1)]).unwrap();
        let expected = [(0x5000, 2 * PAGE), (2 * GIB, PAGE), (3 * GIB - PAGE, PAGE)];
        assert_eq!(found, expected.map(|(offset, length)| Extent { offset, length }));
        // What ends where the hole begins, and what begins behind it, are side by side in the file.
        let found = places(&[run(2 * GIB - PAGE, 1), run(4 * GIB, 3)]).unwrap();
        assert_eq!(found, [Extent { offset: 2 * GIB - PAGE, length: 4 * PAGE }]);
    }

    #[test]
    fn what_is_no_memory_of_the_machine_is_refused() {
        let outside = [
            run(2 * GIB, 1),
            run(2 * GIB - PAGE, 2),
            run(4 * GIB - PAGE, 1),
            run(4 * GIB - PAGE, 2),
            run(5 * GIB, 1),
            run(5 * GIB - PAGE, 2),
            run(3 * GIB, RUN_MAX),
            run(0xa_0000, 1),
            run(0xf_f000, 1),
            run(0x9_f000, 2),
            run(0xf_f000, 2),
            run(0, 0x100),
            Run { word: u64::MAX },
            Run { word: u64::MAX << COUNT_BITS },
            Run { word: 1 << 63 },
        ];
        for run in outside {
            assert_eq!(places(&[run]), Err(InvalidRuns::Outside), "{run:?}");
            assert_eq!(places(&[self::run(0, 1), run]), Err(InvalidRuns::Outside), "{run:?}");
        }
    }

    #[test]
    fn nothing_is_named_twice_and_as_much_as_was_asked_for() {
        for twice in [[run(0, 4), run(0x3000, 1)], [run(0x3000, 1), run(0, 4)]] {
            assert_eq!(places(&twice), Err(InvalidRuns::Overlap), "{twice:?}");
        }
        assert_eq!(places(&[run(PAGE, 1), run(PAGE, 1)]), Err(InvalidRuns::Overlap));
        for length in [0, 2 * PAGE, 4 * PAGE, u64::MAX] {
            assert_eq!(LAYOUT.places(&[run(0, 3)], length), Err(InvalidRuns::Length), "{length}");
        }
        assert_eq!(LAYOUT.places(&[], 0), Err(InvalidRuns::Count));
        let many: Vec<Run> = (0..=RUNS_MAX as u64).map(|n| run(GIB + n * 2 * PAGE, 1)).collect();
        assert_eq!(places(&many), Err(InvalidRuns::Count));
        assert!(places(&many[1..]).is_ok());
    }

    #[test]
    fn a_layout_is_that_of_its_file() {
        assert!(LAYOUT.is_sound(3 * GIB));
        for (wrong, file) in [
            (LAYOUT, 3 * GIB - PAGE),
            (Layout { bytes: 0, below: 0, ..LAYOUT }, 0),
            (Layout { above: GIB, ..LAYOUT }, 3 * GIB),
            (Layout { below: 4 * GIB, ..LAYOUT }, 3 * GIB),
            (Layout { below: 8, ..LAYOUT }, 3 * GIB),
            (Layout { above: u64::MAX - PAGE + 1, ..LAYOUT }, 3 * GIB),
        ] {
            assert!(!wrong.is_sound(file), "{wrong:?}");
        }
    }

    #[test]
    fn pages_side_by_side_are_one_run() {
        let found = runs([7, 8, 9, 4, 5, 6, 100]).unwrap();
        let expected = [(7, 3), (4, 3), (100, 1)].map(|(first, n)| Run::new(first, n).unwrap());
        assert_eq!(found, expected);
        let many = runs(0..RUN_MAX + 5).unwrap();
        assert_eq!(many.iter().map(|run| run.pages()).collect::<Vec<_>>(), [RUN_MAX, 5]);
        assert_eq!(runs((0..=RUNS_MAX as u64).map(|page| 2 * page)), None);
        assert_eq!(runs([u64::MAX]), None);
        assert_eq!(runs([]), Some(Vec::new()));
        assert!(Run::new(0, 0).is_none() && Run::new(0, RUN_MAX + 1).is_none());
    }
}
