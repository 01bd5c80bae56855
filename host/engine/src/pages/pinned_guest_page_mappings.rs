//! Maps pages that stay in many places of a machine's memory, some in each iteration.
//!
//! In: rows that are granted to links, with the grants that wait for them. Out: holds of their
//! mappings, at once or when all places are mapped, for all waiting grants.

use crate::command::Row;
use crate::pages::mapped_memory_budget::{Remains, Share};
use crate::pages::shared_extent_mappings::{Hold, RowName, SharedMappings};
use omniverb_sys::{Access, SideBySide};
use omniverb_terms::VnicId;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Places that are mapped in a turn: some tens of microseconds.
const PER_TURN: usize = 32;

/// One that is being mapped. `T`: what waits for it.
struct Making<T> {
    name: RowName,
    row: Arc<Row>,
    /// So far, and how many of its places.
    mapping: SideBySide,
    places: usize,
    share: Share,
    waiting: Vec<T>,
}

/// All that are being mapped by a packet thread, in the order in which they were asked for.
pub(crate) struct Rows<T> {
    making: VecDeque<Making<T>>,
}

impl<T> Default for Rows<T> {
    fn default() -> Rows<T> {
        Rows { making: VecDeque::new() }
    }
}

/// The state of a row.
pub(crate) enum MappingState<T> {
    /// It is mapped.
    Mapped(Hold, T),
    /// It is not yet; what waits for it comes out of [`Rows::turn`].
    Later,
    /// It cannot be, or would be too much.
    Never(T),
}

impl<T> Rows<T> {
    /// Whether some are being mapped.
    pub(crate) fn are_made(&self) -> bool {
        !self.making.is_empty()
    }

    /// The mapping of a row for a vNIC, which all its links have together. `share` takes for so
    /// many mappings and bytes.
    pub(crate) fn hold(
        &mut self,
        together: &SharedMappings,
        vnic: VnicId,
        (row, access): (&Arc<Row>, Access),
        waits: T,
        share: impl FnOnce(usize, usize) -> Option<Share>,
    ) -> MappingState<T> {
        // A row that is mapped, or being mapped, is there, and no other is in its place.
        let name = (vnic, Arc::as_ptr(row).addr(), access);
        if let Some(hold) = together.row(&name) {
            return MappingState::Mapped(hold, waits);
        }
        if let Some(making) = self.making.iter_mut().find(|making| making.name == name) {
            making.waiting.push(waits);
            return MappingState::Later;
        }
        let bytes = usize::try_from(row.bytes()).unwrap_or(usize::MAX);
        let Some(share) = share(row.parts.len(), bytes) else { return MappingState::Never(waits) };
        let Ok(mapping) = SideBySide::begin(bytes, access) else {
            return MappingState::Never(waits);
        };
        let (row, waiting) = (row.clone(), vec![waits]);
        self.making.push_back(Making { name, row, mapping, places: 0, share, waiting });
        MappingState::Later
    }

    /// Maps some more places. Returns rows that are done, or failed, with the grants that waited:
    /// the hold is to be kept until all of these have theirs.
    pub(crate) fn turn(
        &mut self,
        together: &mut SharedMappings,
    ) -> Option<(io::Result<Hold>, Vec<T>)> {
        let first = self.making.front_mut()?;
        let left = first.row.parts.get(first.places..).unwrap_or(&[]);
        let mut result = Ok(());
        for part in left.iter().take(PER_TURN) {
            result = first.mapping.map(part);
            first.places += 1;
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() && left.len() > PER_TURN {
            return None;
        }
        let Making { name, row, mapping, share, waiting, .. } = self.making.pop_front()?;
        let window = match result {
            Ok(()) => mapping.finish(row),
            Err(error) => {
                together.bury_remains(Remains::Unfinished(mapping, share));
                return Some((Err(error), waiting));
            }
        };
        Some((window.map(|window| together.add_row(name, window, share)), waiting))
    }

    /// A row is granted no longer. Returns the grants that waited for it.
    pub(crate) fn withdraw(&mut self, together: &SharedMappings, row: &Row) -> Vec<T> {
        let row = std::ptr::from_ref(row).addr();
        let mut waited = Vec::new();
        for making in std::mem::take(&mut self.making) {
            if making.name.1 != row {
                self.making.push_back(making);
                continue;
            }
            let Making { mapping, share, waiting, .. } = making;
            together.bury_remains(Remains::Unfinished(mapping, share));
            waited.extend(waiting);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::mapped_memory_budget::{Budget, Mappings};
    use omniverb_ring::WordMemory;
    use omniverb_ring::shared_atomics::Ordering;
    use omniverb_sys::{Extent, memfd};
    use std::os::fd::OwnedFd;

    struct Bench {
        rows: Rows<u32>,
        together: SharedMappings,
        budget: Budget,
        file: Arc<OwnedFd>,
    }

    fn bench() -> Bench {
        let file = Arc::new(memfd::create("test", 1024 * 4096).unwrap());
        let (rows, together) = (Rows::default(), SharedMappings::default());
        Bench { rows, together, budget: Mappings::default().budget(), file }
    }

    impl Bench {
        fn row(&self, pages: impl Iterator<Item = u64>) -> Arc<Row> {
            let parts = pages.map(|at| Extent::new(self.file.clone(), at * 4096, 4096));
            Arc::new(Row { parts: parts.collect(), keep: None })
        }

        fn hold(&mut self, row: &Arc<Row>, waits: u32) -> MappingState<u32> {
            let Bench { rows, together, budget, .. } = self;
            let share = |mappings, bytes| budget.share_of_row(mappings, bytes);
            rows.hold(together, VnicId(1), (row, Access::ReadWrite), waits, share)
        }

        /// Turns until something is done, and how many.
        fn turns(&mut self) -> (usize, io::Result<Hold>, Vec<u32>) {
            for turn in 1..100 {
                if let Some((result, waiting)) = self.rows.turn(&mut self.together) {
                    return (turn, result, waiting);
                }
            }
            panic!("never")
        }
    }

    #[test]
    fn pages_that_stay_are_kept_until_the_last_mapping_is_gone() {
        let mut bench = bench();
        let row = bench.row([4, 1, 2, 7].into_iter());
        assert!(matches!(bench.hold(&row, 1), MappingState::Later) && bench.rows.are_made());
        assert!(matches!(bench.hold(&row, 2), MappingState::Later));
        let (turns, one, waiting) = bench.turns();
        let one = one.unwrap();
        assert_eq!((turns, waiting), (1, vec![1, 2]));
        assert!(!bench.rows.are_made() && bench.rows.turn(&mut bench.together).is_none());
        let MappingState::Mapped(other, 3) = bench.hold(&row, 3) else { panic!("it is mapped") };
        assert_eq!(one.window().address(), other.window().address());
        assert_eq!((one.window().len(), bench.budget.mappings()), (4 * 4096, 4));
        let all = Extent::new(bench.file.clone(), 0, 8 * 4096).map(Access::ReadOnly).unwrap();
        for (page, at) in [4, 1, 2, 7].into_iter().enumerate() {
            one.window().store(page * 4096 + 8, page as u64 + 1, Ordering::Relaxed);
            assert_eq!(all.load(at * 4096 + 8, Ordering::Relaxed), page as u64 + 1);
        }
        let left = Arc::downgrade(&row);
        drop(row);
        one.release();
        assert!(left.strong_count() > 0, "it is mapped still");
        other.release();
        assert_eq!((left.strong_count(), bench.budget.mappings()), (0, 0));
    }

    #[test]
    fn a_turn_maps_some_places_only() {
        let mut bench = bench();
        let (large, small) = (bench.row((0..480).map(|page| 2 * page)), bench.row(0..1));
        assert!(matches!(bench.hold(&large, 1), MappingState::Later));
        assert!(matches!(bench.hold(&small, 2), MappingState::Later));
        let (turns, hold, waiting) = bench.turns();
        assert_eq!((turns, waiting), (480_usize.div_ceil(PER_TURN), vec![1]));
        assert_eq!(hold.unwrap().window().len(), 480 * 4096);
        assert!(matches!(bench.turns(), (1, Ok(_), waiting) if waiting == [2]));
    }

    #[test]
    fn a_failed_mapping_is_reported_and_not_charged() {
        let mut bench = bench();
        let outside = bench.row(1020..1030);
        assert!(matches!(bench.hold(&outside, 1), MappingState::Later));
        assert!(matches!(bench.turns(), (1, Err(_), waiting) if waiting == [1]));
        let many = bench.row(std::iter::repeat_n(0, 1 << 16));
        assert!(matches!(bench.hold(&many, 2), MappingState::Never(2)), "more than there may be");
        assert_eq!((bench.budget.mappings(), Arc::strong_count(&outside)), (0, 1));
    }

    #[test]
    fn pages_withdrawn_meanwhile_are_not_granted() {
        let mut bench = bench();
        let [one, other] = [0..100, 200..201].map(|pages| bench.row(pages));
        assert!(matches!(bench.hold(&one, 1), MappingState::Later));
        assert!(matches!(bench.hold(&other, 2), MappingState::Later));
        assert!(bench.rows.turn(&mut bench.together).is_none());
        assert_eq!(bench.rows.withdraw(&bench.together, &one), [1]);
        assert_eq!((Arc::strong_count(&one), bench.budget.mappings()), (1, 1));
        assert!(matches!(bench.turns(), (1, Ok(_), waiting) if waiting == [2]));
    }
}
