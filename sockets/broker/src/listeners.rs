//! Keeps the listening sockets of processes that can be reached by a channel.
//!
//! By the socket's cookie, not by its address: the kernel says to which socket a connection would
//! come ([`crate::channel_requests`]). Several processes may have the same one, by `fork`: they are
//! taken in turn. A closed socket is never found again, whether its process said so or not.

use crate::limits::{LISTENERS, LISTENERS_OF_ALL, LISTENERS_OF_NAMESPACE};
use omniverb_sys::tcp_listener_state::TcpListenerInfo;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::{Bound, RangeBounds};

/// A process: its network namespace and its number.
pub(crate) type Process = (u64, u64);
/// A socket: its network namespace and its cookie.
type Place = (u64, u64);

/// Whether others may listen at a socket's port, too (`SO_REUSEPORT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Port {
    #[default]
    Exclusive,
    Shared,
}

/// All of them: by network namespace and cookie; and each process's.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    at: HashMap<Place, SocketSharers>,
    of: BTreeMap<Process, ProcessListeners>,
    count: usize,
    last: u64,
}

/// A socket: the processes that have it, each with what it calls it.
#[derive(Debug, Default)]
struct SocketSharers {
    tags: BTreeMap<u64, u64>,
    port: Port,
    /// The process that was chosen last.
    last: u64,
}

/// A process's: what they are, by their tags, and those in their order.
#[derive(Debug, Default)]
struct ProcessListeners {
    all: BTreeMap<u64, (u64, TcpListenerInfo)>,
    ages: BTreeMap<u64, u64>,
}

impl Listeners {
    /// Adds a listener of a process under a tag. Removes an earlier one of this tag, and an earlier
    /// tag of this one. A process with too many gives up its oldest.
    pub(crate) fn add(&mut self, process: Process, tag: u64, listening: TcpListenerInfo) {
        self.remove(process, tag);
        let place = (process.0, listening.cookie);
        let before = self.at.get(&place).and_then(|spot| spot.tags.get(&process.1).copied());
        if let Some(before) = before {
            self.remove(process, before);
        }
        self.last += 1;
        self.count += 1;
        let own = self.of.entry(process).or_default();
        own.all.insert(tag, (self.last, listening));
        own.ages.insert(self.last, tag);
        let spot = self.at.entry(place).or_default();
        spot.tags.insert(process.1, tag);
        spot.port = if listening.is_shared { Port::Shared } else { Port::Exclusive };
        self.limit(process..=process, LISTENERS);
        self.limit((process.0, 0)..=(process.0, u64::MAX), LISTENERS_OF_NAMESPACE);
        if self.count > LISTENERS_OF_ALL {
            self.limit(.., LISTENERS_OF_ALL);
        }
    }

    /// Of so many processes the one with the most gives up its oldest if all have more than that.
    fn limit(&mut self, processes: impl RangeBounds<Process>, most: usize) {
        let mut count = 0;
        let of = self.of.range(processes).inspect(|(_, own)| count += own.all.len());
        let largest = of.max_by_key(|(_, own)| own.all.len());
        let oldest =
            largest.and_then(|(process, own)| Some((*process, *own.ages.values().next()?)));
        if let Some((process, tag)) = oldest.filter(|_| count > most) {
            self.remove(process, tag);
        }
    }

    /// A process has one no more.
    pub(crate) fn remove(&mut self, process: Process, tag: u64) {
        let Some(own) = self.of.get_mut(&process) else { return };
        let Some((age, listening)) = own.all.remove(&tag) else { return };
        own.ages.remove(&age);
        if own.all.is_empty() {
            self.of.remove(&process);
        }
        self.count -= 1;
        let place = (process.0, listening.cookie);
        if let Some(spot) = self.at.get_mut(&place) {
            spot.tags.remove(&process.1);
            if spot.tags.is_empty() {
                self.at.remove(&place);
            }
        }
    }

    /// A process's tag for the listener that serves connections to an address.
    pub(crate) fn hears(&self, process: Process, to: SocketAddr) -> Option<u64> {
        let hears = |one: &TcpListenerInfo| {
            let is_there = one.local.ip().is_unspecified() || one.local.ip() == to.ip();
            one.local.port() == to.port() && is_there
        };
        let own = self.of.get(&process)?;
        own.all.iter().find(|(_, (_, one))| hears(one)).map(|(tag, _)| *tag)
    }

    /// A process has gone.
    pub(crate) fn gone(&mut self, process: Process) {
        let tags: Vec<u64> = self.of(process).map(|(tag, _)| tag).collect();
        tags.into_iter().for_each(|tag| self.remove(process, tag));
    }

    /// Chooses among the processes that have a socket, but for the asking one, by turns. Returns
    /// the process and its tag.
    pub(crate) fn next(&mut self, place: Place, asks: u64) -> Option<(u64, u64)> {
        let spot = self.at.get_mut(&place)?;
        let behind = (Bound::Excluded(spot.last), Bound::Unbounded);
        let others = spot.tags.range(behind).chain(&spot.tags);
        let found = others.map(|(number, tag)| (*number, *tag)).find(|one| one.0 != asks)?;
        spot.last = found.0;
        Some(found)
    }

    /// Whether others may listen at a socket's port, too.
    pub(crate) fn port(&self, place: Place) -> Port {
        self.at.get(&place).map_or(Port::Exclusive, |spot| spot.port)
    }

    /// A process has one that it calls so.
    pub(crate) fn has(&self, process: Process, tag: u64) -> bool {
        self.of.get(&process).is_some_and(|own| own.all.contains_key(&tag))
    }

    /// Some process has this socket.
    pub(crate) fn have(&self, place: Place) -> bool {
        self.at.contains_key(&place)
    }

    /// What a process has, with what it calls them.
    pub(crate) fn of(&self, process: Process) -> impl Iterator<Item = (u64, TcpListenerInfo)> {
        let own = self.of.get(&process).into_iter().flat_map(|own| &own.all);
        own.map(|(tag, (_, listening))| (*tag, *listening))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(cookie: u64) -> TcpListenerInfo {
        let local = ([127, 0, 0, 1], 80).into();
        TcpListenerInfo { local, cookie, namespace: 5, is_bound: false, is_shared: cookie == 9 }
    }

    #[test]
    fn sharers_are_chosen_in_turn_and_never_the_client_itself() {
        let mut all = Listeners::default();
        for process in 1..=3 {
            all.add((5, process), 10 + process, listening(7));
        }
        let turns = |all: &mut Listeners, asks| -> Vec<u64> {
            (0..4).filter_map(|_| all.next((5, 7), asks)).map(|(process, _)| process).collect()
        };
        assert_eq!(turns(&mut all, 9), [1, 2, 3, 1]);
        assert_eq!(turns(&mut all, 2), [3, 1, 3, 1]);
        assert_eq!(all.next((5, 7), 1), Some((2, 12)), "as it calls it");
        assert_eq!((all.next((6, 7), 9), all.next((5, 8), 9)), (None, None), "elsewhere");
        assert!(all.have((5, 7)) && !all.have((6, 7)) && !all.have((5, 8)));
        all.remove((5, 3), 13);
        all.gone((5, 1));
        assert_eq!(all.next((5, 7), 2), None);
        assert_eq!(turns(&mut all, 1), [2; 4]);
        all.gone((5, 2));
        assert!(all.at.is_empty() && all.of.is_empty() && all.count == 0);
        all.add((5, 1), 1, listening(9));
        all.add((5, 1), 2, listening(8));
        let ports = [(5, 9), (5, 8), (6, 9)].map(|place| all.port(place));
        assert_eq!(ports, [Port::Shared, Port::Exclusive, Port::Exclusive]);
    }

    #[test]
    fn a_tag_is_one_socket_and_a_socket_has_one_tag() {
        let mut all = Listeners::default();
        let own = |all: &Listeners| -> Vec<(u64, u64)> {
            all.of((5, 1)).map(|(tag, listening)| (tag, listening.cookie)).collect()
        };
        all.add((5, 1), 1, listening(7));
        all.add((5, 1), 1, listening(8));
        assert_eq!((own(&all), all.next((5, 7), 2)), (vec![(1, 8)], None));
        all.add((5, 1), 2, listening(8));
        assert_eq!((own(&all), all.next((5, 8), 2)), (vec![(2, 8)], Some((1, 2))));
        all.remove((5, 1), 1);
        all.remove((5, 2), 2);
        assert_eq!(own(&all), [(2, 8)], "who has none takes nothing away");
    }

    #[test]
    fn the_largest_holder_gives_up_its_oldest() {
        let mut all = Listeners::default();
        all.add((5, 1), 1, listening(1));
        let each = LISTENERS as u64;
        for process in 2..30 {
            (0..each + 5)
                .for_each(|tag| all.add((5, process), tag, listening(process << 32 | tag)));
        }
        assert_eq!(all.count, LISTENERS_OF_NAMESPACE);
        assert_eq!(all.next((5, 1), 2), Some((1, 1)), "who has few keeps them");
        assert!((2..30).all(|process| all.of((5, process)).count() > LISTENERS / 4));
        all.add((6, 40), 1, listening(1));
        assert_eq!(all.count, LISTENERS_OF_NAMESPACE + 1);
        (0..each + 5).for_each(|tag| all.add((7, 50), tag, listening(tag)));
        assert_eq!(all.of((7, 50)).map(|(tag, _)| tag).min(), Some(5), "the oldest");
        for process in (1..30).map(|process| (5, process)).chain([(6, 40), (7, 50)]) {
            all.gone(process);
        }
        assert!(all.at.is_empty() && all.of.is_empty() && all.count == 0);
    }
}
