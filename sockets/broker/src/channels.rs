//! Keeps the channels that were given: between which processes, and at which addresses.
//!
//! Two processes of one namespace have one channel at most, until one of them says that it has
//! ended, or goes. Processes of two network namespaces have one for each pair of their addresses,
//! which lives by what the daemon says of that pair. A channel goes on by itself, and for one of
//! the two also where the other one has said that it has ended: that may not be true. So it counts
//! for the process that has not said so.

use crate::broker_daemon_messages::NamespaceAddress;
use crate::limits::{CHANNELS, CHANNELS_OF_NAMESPACE, CHANNELS_WITH_NAMESPACE};
use crate::listeners::Process;
use omniverb_formats::channel_layout::PORTS_ALLOWED;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// The two processes of a channel: the client first, the listener second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessPair {
    pub(crate) processes: [Process; 2],
    /// Between which ends, in the same order.
    pub(crate) ends: Ends,
}

/// Between which ends a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ends {
    /// Of one network namespace, at any address of that.
    Within,
    /// In two network namespaces.
    Across([NamespaceAddress; 2]),
    /// On two hosts: one of the two processes is a gateway.
    Far([IpAddr; 2]),
}

impl Ends {
    /// As the other one sees it.
    pub(crate) fn swapped(self) -> Ends {
        match self {
            Ends::Within => Ends::Within,
            Ends::Across([one, other]) => Ends::Across([other, one]),
            Ends::Far([one, other]) => Ends::Far([other, one]),
        }
    }

    /// Those that live by what the daemon says.
    pub(crate) fn places(self) -> Option<[NamespaceAddress; 2]> {
        if let Ends::Across(places) = self { Some(places) } else { None }
    }

    /// Which addresses, if it is for these only.
    pub(crate) fn addresses(self) -> Option<[IpAddr; 2]> {
        match self {
            Ends::Within => None,
            Ends::Across(places) => Some(places.map(|place| place.address)),
            Ends::Far(addresses) => Some(addresses),
        }
    }
}

impl ProcessPair {
    /// The pair in an order that does not depend on which of the two asks.
    fn either_way(self) -> ProcessPair {
        let [one, other] = self.processes;
        if one <= other {
            return self;
        }
        ProcessPair { processes: [other, one], ends: self.ends.swapped() }
    }

    /// The network namespaces, each once.
    fn namespaces(&self) -> impl Iterator<Item = u64> {
        let [(one, _), (other, _)] = self.processes;
        [Some(one), (one != other).then_some(other)].into_iter().flatten()
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

/// One that was given.
#[derive(Debug)]
struct ChannelRecord {
    two: ProcessPair,
    /// Which sides still have it.
    has: [bool; 2],
    /// For each side as a listener, the ports that the other side may connect to, and until when.
    ways: [BTreeMap<u16, u64>; 2],
    /// What both share, if it is kept: it is only shown.
    memory: Option<OwnedFd>,
}

impl ChannelRecord {
    /// Which side a process is.
    fn side(&self, process: Process) -> usize {
        usize::from(self.two.processes[0] != process)
    }
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    all: BTreeMap<u64, ChannelRecord>,
    /// Those that both have.
    between: HashMap<ProcessPair, u64>,
    /// What each process has.
    of: BTreeMap<Process, BTreeSet<u64>>,
    /// How many there are in a network namespace.
    here: HashMap<u64, usize>,
}

impl Channels {
    /// Whether there may be a channel between a client and another process.
    pub(crate) fn room(&self, two: ProcessPair) -> Room {
        if let Some(name) = self.between.get(&two.either_way()) {
            return Room::Known(*name);
        }
        if self.has_room(two) { Room::Free } else { Room::None }
    }

    /// Both may have one more, that they have had before.
    pub(crate) fn has_places(&self, two: ProcessPair) -> bool {
        two.processes.iter().all(|process| self.of(*process).count() < CHANNELS)
    }

    /// Both may have one more.
    fn has_room(&self, two: ProcessPair) -> bool {
        let [one, other] = two.processes;
        if let Ends::Far([first, second]) = two.ends
            && !(self.has_room_with(one, second) && self.has_room_with(other, first))
        {
            return false;
        }
        [(one, other), (other, one)].into_iter().all(|(process, other)| {
            let own = self.of.get(&process);
            let here = self.here.get(&process.0).copied().unwrap_or(0);
            own.is_none_or(|own| own.len() < CHANNELS && self.has_room_for(own, process, other.0))
                && here < CHANNELS_OF_NAMESPACE
        })
    }

    /// A process that has these may have one more with another network namespace, which does not
    /// take its places from all others.
    fn has_room_for(&self, own: &BTreeSet<u64>, process: Process, namespace: u64) -> bool {
        let is_with = |name: &&u64| {
            let given = self.all.get(*name);
            given.is_some_and(|given| given.two.processes[1 - given.side(process)].0 == namespace)
        };
        process.0 == namespace || own.iter().filter(is_with).count() < CHANNELS_WITH_NAMESPACE
    }

    /// A process may have one more with an address of another host, which does not take its places
    /// from all others.
    fn has_room_with(&self, process: Process, others: IpAddr) -> bool {
        let is_with = |name: &&u64| {
            let ends = self.all.get(*name).map(|given| given.two.ends);
            matches!(ends, Some(Ends::Far(ends)) if ends.contains(&others))
        };
        let own = self.of.get(&process).into_iter().flatten();
        own.filter(is_with).count() < CHANNELS_WITH_NAMESPACE
    }

    /// A process has one of this name; `None`: there is none.
    pub(crate) fn has(&self, name: u64, process: Process) -> Option<bool> {
        self.all.get(&name)?;
        Some(self.of.get(&process).is_some_and(|own| own.contains(&name)))
    }

    /// Adds a channel for which there was room. Of several between the same two the first one is
    /// found.
    pub(crate) fn add(&mut self, name: u64, two: ProcessPair, memory: Option<OwnedFd>) {
        self.between.entry(two.either_way()).or_insert(name);
        for process in two.processes {
            self.of.entry(process).or_default().insert(name);
        }
        for namespace in two.namespaces() {
            *self.here.entry(namespace).or_default() += 1;
        }
        self.all
            .insert(name, ChannelRecord { two, has: [true; 2], ways: Default::default(), memory });
    }

    /// By one others may come to a port of a process's until then, if it is told so with `tell`,
    /// unless it knows that already. `false`: it is not told, or may come to too many ports.
    pub(crate) fn may_come(
        &mut self,
        name: u64,
        (process, port, until): (Process, u16, u64),
        now: u64,
        tell: impl FnOnce() -> bool,
    ) -> bool {
        let Some(given) = self.all.get_mut(&name) else { return false };
        let side = given.side(process);
        let ways = &mut given.ways[side];
        ways.retain(|_, until| *until > now);
        let is_known = ways.get(&port).is_some_and(|known| *known >= until);
        let has_room = ways.contains_key(&port) || ways.len() < PORTS_ALLOWED;
        if is_known || !has_room {
            return is_known;
        }
        let is_told = tell();
        if is_told {
            ways.insert(port, until);
        }
        is_told
    }

    /// Ends a channel for one of its two processes. Returns both once both have ended it. The word
    /// of another process does not count. The other process may keep it, and is told if it is over.
    pub(crate) fn end(&mut self, name: u64, process: Process) -> Option<ProcessPair> {
        let own = self.of.get_mut(&process)?;
        if !own.remove(&name) {
            return None;
        }
        if own.is_empty() {
            self.of.remove(&process);
        }
        let given = self.all.get_mut(&name)?;
        let side = given.side(process);
        given.has[side] = false;
        (given.memory, given.ways[side]) = (None, BTreeMap::new());
        let (two, has) = (given.two, given.has);
        self.forget_between(two, name);
        if has == [false; 2] {
            self.all.remove(&name);
        }
        if two.processes[0].0 != two.processes[1].0 || has == [false; 2] {
            self.leave_namespace(process.0);
        }
        (has == [false; 2]).then_some(two)
    }

    fn forget_between(&mut self, two: ProcessPair, name: u64) {
        if self.between.get(&two.either_way()) == Some(&name) {
            self.between.remove(&two.either_way());
        }
    }

    /// Removes a channel that is over. Returns the processes that still have it.
    pub(crate) fn remove(&mut self, name: u64) -> Option<Vec<Process>> {
        let ChannelRecord { two, has, .. } = self.all.remove(&name)?;
        self.forget_between(two, name);
        for process in two.processes {
            if let Some(own) = self.of.get_mut(&process) {
                own.remove(&name);
                if own.is_empty() {
                    self.of.remove(&process);
                }
            }
        }
        let holders = two.processes.into_iter().zip(has).filter(|(_, has)| *has);
        let holders: Vec<Process> = holders.map(|(process, _)| process).collect();
        let namespaces: BTreeSet<u64> = holders.iter().map(|(namespace, _)| *namespace).collect();
        namespaces.into_iter().for_each(|namespace| self.leave_namespace(namespace));
        Some(holders)
    }

    fn leave_namespace(&mut self, namespace: u64) {
        if let Some(count) = self.here.get_mut(&namespace) {
            *count -= 1;
            if *count == 0 {
                self.here.remove(&namespace);
            }
        }
    }

    /// Removes a process. Returns the channels that no process has any more, each with its two.
    pub(crate) fn gone(&mut self, process: Process) -> Vec<(u64, ProcessPair)> {
        let names = self.of.get(&process).cloned().unwrap_or_default();
        names.into_iter().filter_map(|name| Some((name, self.end(name, process)?))).collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The memory of one, which is kept.
    pub(crate) fn memory(&self, name: u64) -> Option<OwnedFd> {
        self.all.get(&name)?.memory.as_ref()?.try_clone().ok()
    }

    /// The channels of a process: name, the side that it is, the other process, and whether that
    /// one is in another network namespace.
    pub(crate) fn of(&self, process: Process) -> impl Iterator<Item = (u64, usize, u64, bool)> {
        let own = self.of.get(&process).into_iter().flatten();
        own.filter_map(move |name| {
            let given = self.all.get(name)?;
            let (side, two) = (given.side(process), &given.two);
            Some((*name, side, two.processes[1 - side].1, two.ends != Ends::Within))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_empty(all: &Channels) -> bool {
        all.all.is_empty() && all.between.is_empty() && all.of.is_empty() && all.here.is_empty()
    }

    fn two(namespace: u64, asks: u64, listens: u64) -> ProcessPair {
        ProcessPair { processes: [(namespace, asks), (namespace, listens)], ends: Ends::Within }
    }

    /// From an address of one network namespace to one of another.
    fn across([from, to]: [(u64, u64, u8); 2]) -> ProcessPair {
        let place =
            |(namespace, _, last)| NamespaceAddress { namespace, address: [10, 0, 0, last].into() };
        ProcessPair {
            processes: [(from.0, from.1), (to.0, to.1)],
            ends: Ends::Across([place(from), place(to)]),
        }
    }

    #[test]
    fn two_processes_have_one_until_one_of_them_ends_it() {
        let mut all = Channels::default();
        assert_eq!(all.room(two(5, 1, 2)), Room::Free);
        all.add(70, two(5, 1, 2), None);
        assert_eq!(all.room(two(5, 1, 2)), Room::Known(70));
        assert_eq!((all.has(70, (5, 1)), all.has(70, (5, 3))), (Some(true), Some(false)));
        assert_eq!(all.has(71, (5, 1)), None);
        assert_eq!(all.room(two(5, 2, 1)), Room::Known(70), "whoever asks");
        assert_eq!(all.room(two(5, 1, 3)), Room::Free);
        assert_eq!(all.of((5, 1)).collect::<Vec<_>>(), [(70, 0, 2, false)]);
        assert_eq!(all.of((5, 2)).collect::<Vec<_>>(), [(70, 1, 1, false)]);
        for (name, stranger) in [(70, (5, 3)), (70, (6, 1)), (71, (5, 1))] {
            assert_eq!(all.end(name, stranger), None);
        }
        assert_eq!(all.room(two(5, 1, 2)), Room::Known(70), "who has it not does not end it");
        for (ends, other) in [(1, 2), (2, 1)] {
            assert_eq!(all.end(70, (5, ends)), None);
            assert_eq!(all.room(two(5, 1, 2)), Room::Free);
            // It is the other's still.
            assert_eq!(all.of((5, ends)).count(), 0);
            assert_eq!(all.of((5, other)).count(), 1);
            assert_eq!(all.end(70, (5, ends)), None, "once more");
            assert_eq!(all.end(70, (5, other)), Some(two(5, 1, 2)));
            assert!(is_empty(&all));
            all.add(70, two(5, 1, 2), None);
        }
        all.add(71, two(5, 3, 1), None);
        all.add(72, two(5, 3, 2), None);
        assert_eq!(all.gone((5, 1)), []);
        assert_eq!(all.of((5, 3)).count(), 2);
        assert_eq!(all.gone((5, 2)), [(70, two(5, 1, 2))]);
        assert_eq!(all.gone((5, 3)), [(71, two(5, 3, 1)), (72, two(5, 3, 2))]);
        assert!(is_empty(&all));
    }

    #[test]
    fn those_of_two_namespaces_have_one_for_each_pair_of_addresses() {
        let mut all = Channels::default();
        let [one, other] = [(5, 1, 1), (6, 2, 2)];
        all.add(70, across([one, other]), None);
        assert_eq!(all.room(across([one, other])), Room::Known(70));
        assert_eq!(all.room(across([other, one])), Room::Known(70), "whoever asks");
        for two in [[(5, 1, 3), other], [one, (6, 2, 4)], [one, (6, 3, 2)], [one, (7, 2, 2)]] {
            assert_eq!(all.room(across(two)), Room::Free);
        }
        assert_eq!(all.of((6, 2)).collect::<Vec<_>>(), [(70, 1, 1, true)]);
        assert_eq!((all.here[&5], all.here[&6]), (1, 1));
        all.add(71, across([(6, 2, 4), one]), None);
        assert_eq!((all.here[&5], all.of((5, 1)).count()), (2, 2));
        assert!(all.has_places(across([one, other])));
        all.add(72, across([(6, 2, 5), one]), None);
        assert_eq!((all.end(72, (6, 2)), all.here[&6], all.here[&5]), (None, 2, 3));
        assert_eq!(all.remove(72), Some(vec![(5, 1)]), "who has it still");
        assert_eq!((all.here[&6], all.here[&5]), (2, 2));
        assert_eq!(all.remove(71), Some(vec![(6, 2), (5, 1)]), "both had it");
        assert_eq!((all.gone((6, 2)), all.of((5, 1)).count()), (vec![], 1));
        assert_eq!(all.remove(70), Some(vec![(5, 1)]), "who has it still");
        assert!(is_empty(&all));
    }

    #[test]
    fn a_listener_is_told_of_a_port_once_and_of_a_bounded_number() {
        let mut all = Channels::default();
        let [one, other] = [(5, 1, 1), (6, 2, 2)];
        all.add(70, across([one, other]), None);
        let mut told = Vec::new();
        let mut come = |all: &mut Channels, way: (Process, u16, u64), now, is_told| {
            all.may_come(70, way, now, || {
                told.push(way.1);
                is_told
            })
        };
        assert!(!come(&mut all, ((6, 2), 80, 9), 1, false));
        assert!(come(&mut all, ((6, 2), 80, 9), 1, true));
        assert!(come(&mut all, ((6, 2), 80, 9), 1, false), "it knows");
        assert!(come(&mut all, ((6, 2), 80, 10), 1, true), "for longer");
        assert!(come(&mut all, ((6, 2), 80, 9), 1, false), "it is not told of less");
        let ports = 81..80 + PORTS_ALLOWED as u16;
        assert!(ports.clone().all(|port| come(&mut all, ((6, 2), port, 10), 1, true)));
        assert!(!come(&mut all, ((6, 2), 7, 10), 1, true));
        assert!(come(&mut all, ((5, 1), 7, 10), 1, true), "the other one listens, too");
        assert!(come(&mut all, ((6, 2), 8, 20), 10, true), "those are over");
        assert!(!all.may_come(71, ((6, 2), 80, 20), 1, || true));
        let expected = [80, 80, 80].into_iter().chain(ports).chain([7, 8]);
        assert_eq!(told, expected.collect::<Vec<u16>>());
    }

    #[test]
    fn another_host_takes_a_few_of_a_process_s_places() {
        let mut all = Channels::default();
        let far = |worker: u64, host: u8| {
            let ends = [[10, 0, 0, host], [10, 0, 0, 1]].map(IpAddr::from);
            ProcessPair { processes: [(5, worker), (5, 1)], ends: Ends::Far(ends) }
        };
        let mut fill = |host: u8| {
            let workers = u64::from(host) * 100..;
            let taken = workers.take_while(|worker| {
                let is_free = all.room(far(*worker, host)) == Room::Free;
                if is_free {
                    all.add(*worker, far(*worker, host), None);
                }
                is_free
            });
            taken.count()
        };
        assert_eq!([2, 3].map(&mut fill), [CHANNELS_WITH_NAMESPACE; 2]);
        // The same limit holds for a client.
        let goes = |worker: u64, to: u8| {
            let ends = [[10, 0, 0, 1], [10, 0, 0, to]].map(IpAddr::from);
            ProcessPair { processes: [(5, 9), (5, worker)], ends: Ends::Far(ends) }
        };
        for worker in 1000..1000 + CHANNELS_WITH_NAMESPACE as u64 {
            assert_eq!(all.room(goes(worker, 2)), Room::Free);
            all.add(worker, goes(worker, 2), None);
        }
        assert_eq!((all.room(goes(2000, 2)), all.room(goes(2000, 3))), (Room::None, Room::Free));
    }

    #[test]
    fn a_process_and_a_namespace_have_so_many() {
        let mut all = Channels::default();
        let fill = |all: &mut Channels, asks: u64, from: u64| {
            let many = (from..).take_while(|listens| {
                let is_free = all.room(two(5, asks, *listens)) == Room::Free;
                if is_free {
                    all.add(asks << 32 | listens, two(5, asks, *listens), None);
                }
                is_free
            });
            many.count()
        };
        assert_eq!(fill(&mut all, 1, 1000), CHANNELS);
        assert_eq!(all.room(two(5, 2, 1)), Room::None, "nor with who has too many");
        let more = (2..).take_while(|asks| fill(&mut all, *asks, asks * 1000) == CHANNELS).count();
        assert_eq!(more, CHANNELS_OF_NAMESPACE / CHANNELS - 1);
        assert_eq!(all.room(two(5, 500_001, 500_002)), Room::None);
        assert_eq!(all.room(two(6, 500_001, 500_002)), Room::Free, "another one has its own");
        assert_eq!(all.room(across([(6, 500_001, 1), (5, 500_002, 2)])), Room::None);
        // The processes at the other ends still have theirs.
        all.gone((5, 1));
        assert_eq!(all.room(two(5, 500_001, 500_002)), Room::None);
        (1000..1000 + CHANNELS as u64).for_each(|one| _ = all.gone((5, one)));
        assert_eq!(all.room(two(5, 500_001, 500_002)), Room::Free);
    }

    #[test]
    fn another_namespace_takes_a_few_of_a_process_s_places() {
        let mut all = Channels::default();
        let (listens, few) = ((6, 2, 2), CHANNELS_WITH_NAMESPACE as u64);
        for asks in 0..few {
            assert_eq!(all.room(across([(5, asks, 1), listens])), Room::Free);
            all.add(70 + asks, across([(5, asks, 1), listens]), None);
        }
        assert_eq!(all.room(across([(5, few, 1), listens])), Room::None);
        assert_eq!(all.room(across([(7, few, 1), listens])), Room::Free);
        assert_eq!(all.room(two(6, 2, 3)), Room::Free, "nor those of its own");
        // A process that gives its channel up leaves it to the other one.
        all.gone((5, 0));
        assert_eq!(all.room(across([(5, few, 1), listens])), Room::None);
        assert_eq!(all.end(70, (6, 2)), Some(across([(5, 0, 1), listens])));
        assert_eq!(all.room(across([(5, few, 1), listens])), Room::Free);
    }
}
