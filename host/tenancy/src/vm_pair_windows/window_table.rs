//! Keeps the pair windows of all machines for the tables (`window_assignment.rs` gives them away).
//!
//! The daemon reports the room that is left, after all earlier decisions. Later decisions are
//! charged to accounts with that room as their quota, until the daemon counts anew: so a link that
//! is not made returns its place. A place that the daemon has counted comes back when it was
//! emptied, by the daemon's report: its receipt belongs to an earlier account. In between a link
//! may end that the daemon has still to make, or has made: its place is kept until the daemon has
//! counted, so that no other link is promised memory that is not there.

use crate::accounts::{Account, Kind, Quotas, Receipt};
use omniverb_terms::{Errno, VnicId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Machines that a machine is known to want a window with: more than it can have.
const ASKED_MAX: usize = 64;

/// A possible holder of a pair window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// Its vNIC: what no other one has ([`Identity::proof`](crate::Identity)). Of a virtual machine
    /// what none has that is called the same later.
    pub proof: [u64; 4],
    /// Its user, as the daemon sees it; [`Neighbour::ALL_USERS`] of a virtual machine, whose kernel
    /// sees all of its users' memory.
    pub uid: u32,
}

impl Neighbour {
    /// No user of the host's has this number.
    pub const ALL_USERS: u32 = u32::MAX;
}

/// The daemon's report of a machine's pair windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairWindows {
    /// Windows without owner that can be given away.
    pub free: usize,
    /// How many links there is room for in each of these, at least.
    pub room: usize,
    /// The owners, and how many more links their windows have room for. Of machines those where the
    /// window is plugged in, too.
    pub given: BTreeMap<Neighbour, usize>,
    /// Machines that are to have one of these, where it is not plugged in yet.
    pub coming: BTreeSet<Neighbour>,
    /// The identity of this machine towards others, if known.
    pub this: Option<Neighbour>,
    /// Another machine's can be plugged in here.
    pub may_join: bool,
}

/// The receipts of a link in a pair window.
#[derive(Debug)]
pub(crate) struct PairReceipts {
    /// The end whose machine has the window.
    pub(crate) end: usize,
    /// As a link between its machine and a neighbour.
    pub(crate) link: Receipt,
    /// Like `link`, for the other end, if that is a machine, too.
    pub(crate) other: Option<Receipt>,
    /// Its place in the window; of one that survived a restart the daemon knows it.
    pub(crate) place: Option<Receipt>,
}

/// Where there is room for a link with a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowRoom {
    /// In the neighbour's window.
    InHis,
    /// In a free one that the neighbour can be given.
    InFree,
    /// Nowhere: the neighbour's window is full.
    Full,
    /// Nowhere: the neighbour has none, and none is free.
    Taken,
}

/// A window with an owner.
#[derive(Debug)]
struct Window {
    /// Links in it that the daemon has not counted.
    places: Account,
    /// Its receipt if the daemon has not noted its owner yet.
    given: Option<Receipt>,
}

impl Window {
    fn new(room: usize, given: Option<Receipt>) -> Window {
        Window { places: Account::new(Quotas::only(&[(Kind::PairPlace, room)])), given }
    }
}

/// A machine's windows: as the daemon has counted them, and what was decided since.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Windows that were given away and that the daemon has not counted.
    free: Account,
    /// Places in each of those that are free.
    room: usize,
    of: BTreeMap<Neighbour, Window>,
    /// Places of links that have ended since.
    left: Vec<Receipt>,
    /// As the daemon says ([`PairWindows`]).
    coming: BTreeSet<Neighbour>,
    this: Option<Neighbour>,
    may_join: bool,
}

impl Windows {
    fn new(said: PairWindows) -> Windows {
        let of = said.given.into_iter().map(|(owner, room)| (owner, Window::new(room, None)));
        let free = Account::new(Quotas::only(&[(Kind::PairWindow, said.free)]));
        let (of, left) = (of.collect(), Vec::new());
        let PairWindows { room, coming, this, may_join, .. } = said;
        Windows { free, room, of, left, coming, this, may_join }
    }

    /// The identity of this machine towards others.
    pub(crate) fn this(&self) -> Option<Neighbour> {
        self.this
    }

    /// Where there is room for a link with another machine, in the window that is in both.
    pub(crate) fn room_with(&self, machine: Neighbour) -> WindowRoom {
        match self.of.get(&machine).map(|window| window.places.full(&[Kind::PairPlace])) {
            Some(None) => WindowRoom::InHis,
            Some(Some(_)) => WindowRoom::Full,
            None => WindowRoom::Taken,
        }
    }

    /// Whether one of these is, or can be, plugged into that machine.
    fn can_be_in(&self, other: &Windows) -> bool {
        let has_free = self.free.quota(Kind::PairWindow) > self.free.count(Kind::PairWindow);
        other.this.is_some_and(|other| self.coming.contains(&other)) || has_free && other.may_join
    }

    /// Where there is room for a process of a vNIC with this proof; of this user, if that is known.
    pub(crate) fn room(&self, proof: [u64; 4], uid: Option<u32>) -> WindowRoom {
        let has_room = |window: &Window| window.places.full(&[Kind::PairPlace]).is_none();
        let his = match uid {
            Some(uid) => self.of.get(&Neighbour { proof, uid }).map(has_room),
            // The user is known once a process comes.
            None => self.of_vnic(proof).any(has_room).then_some(true),
        };
        match his {
            Some(true) => WindowRoom::InHis,
            Some(false) => WindowRoom::Full,
            None if self.has_one_for(proof) => WindowRoom::InFree,
            None => WindowRoom::Taken,
        }
    }

    /// Those of a vNIC's users.
    fn of_vnic(&self, proof: [u64; 4]) -> impl Iterator<Item = &Window> {
        self.of.iter().filter(move |(owner, _)| owner.proof == proof).map(|(_, window)| window)
    }

    /// Whether a process of this vNIC can be given another one. A vNIC has as many users as it
    /// likes, and windows never come back: its second one must not be the last that is free.
    fn has_one_for(&self, proof: [u64; 4]) -> bool {
        let has_some = self.of_vnic(proof).next().is_some();
        let free = self.free.quota(Kind::PairWindow) - self.free.count(Kind::PairWindow);
        free > usize::from(has_some)
    }

    /// A place for a link with a neighbour, in its window or one that becomes its.
    ///
    /// # Errors
    /// `ENOMEM`: its window is full, or there is none for it.
    pub(crate) fn take(&mut self, neighbour: Neighbour) -> Result<Receipt, Errno> {
        if let Some(window) = self.of.get(&neighbour) {
            return window.places.charge(&[Kind::PairPlace]);
        }
        if !self.has_one_for(neighbour.proof) {
            return Err(Errno::ENOMEM);
        }
        let window = Window::new(self.room, Some(self.free.charge(&[Kind::PairWindow])?));
        let place = window.places.charge(&[Kind::PairPlace])?;
        self.of.insert(neighbour, window);
        Ok(place)
    }

    /// Whether a place is one that the daemon has not counted.
    fn counts(&self, place: &Receipt) -> bool {
        self.of.values().any(|window| place.is_of(&window.places))
    }

    /// Places of links that have ended and that the daemon has not counted.
    pub(crate) fn left(&self) -> impl Iterator<Item = &Receipt> {
        self.left.iter()
    }

    /// The account that windows were given from since the daemon counted, and their receipts.
    pub(crate) fn given(&self) -> (&Account, impl Iterator<Item = &Receipt>) {
        (&self.free, self.of.values().filter_map(|window| window.given.as_ref()))
    }

    /// The accounts of the places in them, and their owners.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&Neighbour, &Account)> {
        self.of.iter().map(|(owner, window)| (owner, &window.places))
    }
}

/// The common windows of two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedWindow {
    /// Nothing, and one of them can share nothing with another.
    Nothing,
    /// Nothing now; a window may be in both later.
    Later,
    /// Nothing: there is no window for it.
    Taken,
}

/// Those of all machines.
#[derive(Debug, Default)]
pub(crate) struct MachineWindows {
    all: BTreeMap<VnicId, Windows>,
    /// Which other machines a machine's processes wanted links with, the last ones.
    asked: BTreeMap<VnicId, VecDeque<VnicId>>,
    /// Pairs of machines that both wanted a window since the last call.
    wanted: BTreeSet<[VnicId; 2]>,
}

impl MachineWindows {
    /// The daemon has counted a machine's.
    pub(crate) fn set(&mut self, machine: VnicId, said: PairWindows) {
        self.all.insert(machine, Windows::new(said));
    }

    /// A machine has none any more.
    pub(crate) fn forget(&mut self, machine: VnicId) {
        self.all.remove(&machine);
        self.asked.remove(&machine);
        self.asked.values_mut().for_each(|others| others.retain(|other| *other != machine));
        self.wanted.retain(|both| !both.contains(&machine));
    }

    /// The end whose machine's window is in both, if one is.
    pub(crate) fn end_of_shared(&self, machines: [VnicId; 2]) -> Option<usize> {
        let has = |end: &usize| {
            let windows = machines.map(|machine| self.all.get(&machine));
            let (ours, theirs) = (windows[*end], windows[1 - end].and_then(Windows::this));
            ours.zip(theirs).is_some_and(|(ours, theirs)| ours.of.contains_key(&theirs))
        };
        (0..2).find(has)
    }

    /// The possible windows between two machines that have none in common.
    pub(crate) fn between(&self, machines: [VnicId; 2]) -> SharedWindow {
        let windows = machines.map(|machine| self.all.get(&machine));
        let [Some(one), Some(other)] = windows else { return SharedWindow::Nothing };
        if one.this.is_none() || other.this.is_none() {
            return SharedWindow::Nothing;
        }
        match one.can_be_in(other) || other.can_be_in(one) {
            true => SharedWindow::Later,
            false if one.may_join || other.may_join => SharedWindow::Taken,
            false => SharedWindow::Nothing,
        }
    }

    /// A machine's process wants a link with another machine's.
    pub(crate) fn ask(&mut self, from: VnicId, to: VnicId) {
        let others = self.asked.entry(from).or_default();
        if !others.contains(&to) {
            if others.len() >= ASKED_MAX {
                others.pop_front();
            }
            others.push_back(to);
        }
        if self.asked.get(&to).is_some_and(|others| others.contains(&from)) {
            self.wanted.insert([from.min(to), from.max(to)]);
        }
    }

    /// Those that want a window in common, since this was asked last.
    pub(crate) fn take_wanted(&mut self) -> BTreeSet<[VnicId; 2]> {
        std::mem::take(&mut self.wanted)
    }

    /// A link between these two has ended that had a place.
    pub(crate) fn leave(&mut self, vnics: [VnicId; 2], place: Receipt) {
        let has = |machine: &VnicId| self.all.get(machine).is_some_and(|all| all.counts(&place));
        let machine = vnics.into_iter().find(has);
        if let Some(windows) = machine.and_then(|machine| self.all.get_mut(&machine)) {
            windows.left.push(place);
        }
    }

    pub(crate) fn of(&self, machine: VnicId) -> Option<&Windows> {
        self.all.get(&machine)
    }

    pub(crate) fn of_mut(&mut self, machine: VnicId) -> Option<&mut Windows> {
        self.all.get_mut(&machine)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&VnicId, &Windows)> {
        self.all.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(number: u64, uid: u32) -> Neighbour {
        Neighbour { proof: [1, 4, number, 9], uid }
    }

    fn windows(free: usize, room: usize) -> Windows {
        Windows::new(PairWindows { free, room, ..PairWindows::default() })
    }

    #[test]
    fn a_place_comes_back_until_the_daemon_counts_and_a_window_does_not() {
        let mut pairs = MachineWindows::default();
        let (machine, his) = (VnicId(2), neighbour(1, 0));
        pairs.set(machine, PairWindows { free: 1, room: 1, ..PairWindows::default() });
        let windows = pairs.of_mut(machine).unwrap();
        let place = windows.take(his).unwrap();
        assert_eq!(windows.take(his).unwrap_err(), Errno::ENOMEM);
        assert_eq!(windows.room(his.proof, Some(0)), WindowRoom::Full);
        assert_eq!(windows.room(neighbour(3, 0).proof, Some(0)), WindowRoom::Taken);
        drop(place);
        assert_eq!(windows.room(his.proof, Some(0)), WindowRoom::InHis);
        assert_eq!(windows.room(neighbour(3, 0).proof, Some(0)), WindowRoom::Taken);
        let place = windows.take(his).unwrap();
        pairs.set(machine, PairWindows { given: [(his, 0)].into(), ..PairWindows::default() });
        drop(place);
        assert_eq!(pairs.of(machine).unwrap().room(his.proof, Some(0)), WindowRoom::Full);
    }

    #[test]
    fn a_refused_window_changes_nothing() {
        let mut windows = windows(1, 0);
        assert_eq!(windows.take(neighbour(1, 0)).unwrap_err(), Errno::ENOMEM);
        assert_eq!(windows.room(neighbour(3, 0).proof, None), WindowRoom::InFree);
        assert_eq!(windows.given().0.receipts(), 0);
    }

    #[test]
    fn the_last_window_is_given_to_no_vnic_twice() {
        let mut windows = windows(2, 4);
        let _first = windows.take(neighbour(1, 0)).unwrap();
        assert_eq!(windows.room(neighbour(1, 7).proof, Some(7)), WindowRoom::Taken);
        assert!(windows.take(neighbour(1, 7)).is_err());
        assert_eq!(windows.room(neighbour(1, 7).proof, None), WindowRoom::InHis);
        let _other = windows.take(neighbour(3, 7)).unwrap();
        assert_eq!(windows.given().1.count(), 2);
    }

    #[test]
    fn a_machine_s_wants_are_limited() {
        let mut pairs = MachineWindows::default();
        let others = 2..=u64::try_from(ASKED_MAX).unwrap() + 9;
        others.clone().for_each(|other| pairs.ask(VnicId(1), VnicId(other)));
        others.clone().for_each(|other| pairs.ask(VnicId(other), VnicId(1)));
        let wanted = pairs.take_wanted();
        assert_eq!(wanted.len(), ASKED_MAX);
        assert!(wanted.contains(&[VnicId(1), VnicId(*others.end())]), "the last ones");
        pairs.forget(VnicId(1));
        assert!(pairs.asked.values().all(VecDeque::is_empty));
    }
}
