//! Trunks that were given: between whom there is one.
//!
//! Two processes have one at most, until one of them says that it has ended, or goes. Nothing of it
//! is kept but that: it goes on by itself.

use crate::limits::{TRUNKS, TRUNKS_OF_NAMESPACE};
use crate::listeners::Process;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One of them: who has asked, and who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trunk {
    namespace: u64,
    sides: [u64; 2],
}

impl Trunk {
    /// Whoever had asked.
    fn pair(&self) -> [u64; 2] {
        let [one, other] = self.sides;
        [one.min(other), one.max(other)]
    }
}

/// Whether two processes may have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// They have one, of this name.
    Known(u64),
    /// One of them, or their network namespace, has too many.
    None,
    /// They have none, and there may be one more.
    Free,
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(crate) struct Trunks {
    all: BTreeMap<u64, Trunk>,
    between: HashMap<[u64; 2], u64>,
    of: BTreeMap<Process, BTreeSet<u64>>,
    /// How many there are in a network namespace.
    here: HashMap<u64, usize>,
}

impl Trunks {
    /// Between who asks and another process of his network namespace.
    pub(crate) fn room(&self, asks: Process, listens: u64) -> Room {
        let (namespace, number) = asks;
        let pair = Trunk { namespace, sides: [number, listens] }.pair();
        if let Some(name) = self.between.get(&pair) {
            return Room::Known(*name);
        }
        let has = |number| self.of.get(&(namespace, number)).map_or(0, BTreeSet::len);
        let is_full = self.here.get(&namespace).is_some_and(|count| *count >= TRUNKS_OF_NAMESPACE);
        match is_full || [number, listens].into_iter().any(|one| has(one) >= TRUNKS) {
            true => Room::None,
            false => Room::Free,
        }
    }

    /// There is one now, for whom there was room.
    pub(crate) fn add(&mut self, name: u64, asks: Process, listens: u64) {
        let trunk = Trunk { namespace: asks.0, sides: [asks.1, listens] };
        self.between.insert(trunk.pair(), name);
        for number in trunk.sides {
            self.of.entry((trunk.namespace, number)).or_default().insert(name);
        }
        *self.here.entry(trunk.namespace).or_default() += 1;
        self.all.insert(name, trunk);
    }

    /// One of the two says that it has ended. What somebody else says does not count.
    pub(crate) fn end(&mut self, name: u64, process: Process) {
        if !self.of.get(&process).is_some_and(|own| own.contains(&name)) {
            return;
        }
        let Some(trunk) = self.all.remove(&name) else { return };
        self.between.remove(&trunk.pair());
        for number in trunk.sides {
            let place = (trunk.namespace, number);
            if let Some(own) = self.of.get_mut(&place) {
                own.remove(&name);
                if own.is_empty() {
                    self.of.remove(&place);
                }
            }
        }
        if let Some(count) = self.here.get_mut(&trunk.namespace) {
            *count -= 1;
            if *count == 0 {
                self.here.remove(&trunk.namespace);
            }
        }
    }

    /// A process has gone.
    pub(crate) fn gone(&mut self, process: Process) {
        for name in self.of.get(&process).cloned().unwrap_or_default() {
            self.end(name, process);
        }
    }

    /// What a process has: names, which side it is, and who is the other one.
    pub(crate) fn of(&self, process: Process) -> impl Iterator<Item = (u64, usize, u64)> {
        let own = self.of.get(&process).into_iter().flatten();
        own.filter_map(move |name| {
            let [asks, listens] = self.all.get(name)?.sides;
            let is_asker = asks == process.1;
            Some(if is_asker { (*name, 0, listens) } else { (*name, 1, asks) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_empty(all: &Trunks) -> bool {
        all.all.is_empty() && all.between.is_empty() && all.of.is_empty() && all.here.is_empty()
    }

    #[test]
    fn two_processes_have_one_until_one_of_them_ends_it() {
        let mut all = Trunks::default();
        assert_eq!(all.room((5, 1), 2), Room::Free);
        all.add(70, (5, 1), 2);
        assert_eq!(all.room((5, 1), 2), Room::Known(70));
        assert_eq!(all.room((5, 2), 1), Room::Known(70), "whoever asks");
        assert_eq!(all.room((5, 1), 3), Room::Free);
        assert_eq!(all.of((5, 1)).collect::<Vec<_>>(), [(70, 0, 2)]);
        assert_eq!(all.of((5, 2)).collect::<Vec<_>>(), [(70, 1, 1)]);
        all.end(70, (5, 3));
        all.end(70, (6, 1));
        all.end(71, (5, 1));
        assert_eq!(all.room((5, 1), 2), Room::Known(70), "who has it not does not end it");
        for ends in [1, 2] {
            all.end(70, (5, ends));
            assert_eq!(all.room((5, 1), 2), Room::Free);
            assert!(is_empty(&all));
            all.add(70, (5, 1), 2);
        }
        all.add(71, (5, 3), 1);
        all.add(72, (5, 3), 2);
        all.gone((5, 1));
        assert_eq!(all.of((5, 3)).collect::<Vec<_>>(), [(72, 0, 2)]);
        all.gone((5, 3));
        assert!(is_empty(&all));
    }

    #[test]
    fn a_process_and_a_namespace_have_so_many() {
        let mut all = Trunks::default();
        let fill = |all: &mut Trunks, asks: u64, from: u64| {
            let many = (from..).take_while(|listens| {
                let is_free = all.room((5, asks), *listens) == Room::Free;
                if is_free {
                    all.add(asks << 32 | listens, (5, asks), *listens);
                }
                is_free
            });
            many.count()
        };
        assert_eq!(fill(&mut all, 1, 1000), TRUNKS);
        assert_eq!(all.room((5, 2), 1), Room::None, "nor with who has too many");
        let more = (2..).take_while(|asks| fill(&mut all, *asks, asks * 1000) == TRUNKS).count();
        assert_eq!(more, TRUNKS_OF_NAMESPACE / TRUNKS - 1);
        assert_eq!(all.room((5, 500_001), 500_002), Room::None);
        assert_eq!(all.room((6, 500_001), 500_002), Room::Free, "another namespace has its own");
        all.gone((5, 1));
        assert_eq!(all.room((5, 500_001), 500_002), Room::Free);
    }
}
