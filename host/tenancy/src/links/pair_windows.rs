//! The pair windows of all machines, as the tables know them (`pairs.rs` gives them away).
//!
//! What the daemon says is what is left, all that was decided before counted. What is decided after
//! that is charged to accounts which have that as their quota, until the daemon counts anew: so a
//! link that comes to nothing returns its place. A place that the daemon has counted comes back
//! when it was emptied, which the daemon says: its receipt is one of an account of before. In
//! between a link may end that the daemon has still to make, or has made: its place is kept until
//! the daemon has counted, so that no other link is promised memory that is not there.

use crate::accounts::{Account, Kind, Quotas, Receipt};
use omniverb_terms::{Errno, VnicId};
use std::collections::BTreeMap;

/// Who can be given a pair window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// Its vNIC: what no other one has ([`Identity::proof`](crate::Identity)).
    pub proof: [u64; 4],
    /// Its user, as the daemon sees it.
    pub uid: u32,
}

/// What the daemon says of a machine's pair windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairWindows {
    /// Those that nobody has, and somebody can be given.
    pub free: usize,
    /// How many links there is room for in each of these, at least.
    pub room: usize,
    /// Who has one, and how many more links there is room for in it.
    pub given: BTreeMap<Neighbour, usize>,
}

/// What a link in a pair window pays.
#[derive(Debug)]
pub(crate) struct PairReceipts {
    /// As a link between its machine and somebody else.
    pub(crate) link: Receipt,
    /// Its place in the window; of one that survived a restart the daemon knows it.
    pub(crate) place: Option<Receipt>,
}

/// Where there is room for a link with a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// In the window that is his.
    InHis,
    /// In one that is nobody's, and that he can be given.
    InFree,
    /// Nowhere: his is full.
    Full,
    /// Nowhere: none is his, and there is none for him.
    Taken,
}

/// A window that is somebody's.
#[derive(Debug)]
struct Window {
    /// Links in it that the daemon has not counted.
    places: Account,
    /// What it pays if the daemon has not heard of its being his.
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
}

impl Windows {
    fn new(said: PairWindows) -> Windows {
        let of = said.given.into_iter().map(|(whose, room)| (whose, Window::new(room, None)));
        let free = Account::new(Quotas::only(&[(Kind::PairWindow, said.free)]));
        Windows { free, room: said.room, of: of.collect(), left: Vec::new() }
    }

    /// Where there is room for somebody of a vNIC with this proof; of this user, if that is known.
    pub(super) fn room(&self, proof: [u64; 4], uid: Option<u32>) -> Room {
        let has_room = |window: &Window| window.places.full(&[Kind::PairPlace]).is_none();
        let his = match uid {
            Some(uid) => self.of.get(&Neighbour { proof, uid }).map(has_room),
            // Who it will be is seen when there is somebody.
            None => self.of_vnic(proof).any(has_room).then_some(true),
        };
        match his {
            Some(true) => Room::InHis,
            Some(false) => Room::Full,
            None if self.has_one_for(proof) => Room::InFree,
            None => Room::Taken,
        }
    }

    /// Those of a vNIC's users.
    fn of_vnic(&self, proof: [u64; 4]) -> impl Iterator<Item = &Window> {
        self.of.iter().filter(move |(whose, _)| whose.proof == proof).map(|(_, window)| window)
    }

    /// Whether somebody of this vNIC can be given another one. A vNIC has as many users as it
    /// likes, and windows never come back: its second one must not be the last that is free.
    fn has_one_for(&self, proof: [u64; 4]) -> bool {
        let has_some = self.of_vnic(proof).next().is_some();
        let free = self.free.quota(Kind::PairWindow) - self.free.count(Kind::PairWindow);
        free > usize::from(has_some)
    }

    /// A place for a link with a neighbour, in the window that is his or becomes it.
    ///
    /// # Errors
    /// `ENOMEM`: his is full, or there is none for him.
    pub(super) fn take(&mut self, neighbour: Neighbour) -> Result<Receipt, Errno> {
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

    /// The accounts of the places in them, and whose they are.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&Neighbour, &Account)> {
        self.of.iter().map(|(whose, window)| (whose, &window.places))
    }
}

/// Those of all machines.
#[derive(Debug, Default)]
pub(super) struct Pairs(BTreeMap<VnicId, Windows>);

impl Pairs {
    /// The daemon has counted a machine's.
    pub(super) fn set(&mut self, machine: VnicId, said: PairWindows) {
        self.0.insert(machine, Windows::new(said));
    }

    /// A machine has none any more.
    pub(super) fn forget(&mut self, machine: VnicId) {
        self.0.remove(&machine);
    }

    /// A link between these two has ended that had a place.
    pub(super) fn leave(&mut self, vnics: [VnicId; 2], place: Receipt) {
        let has = |machine: &VnicId| self.0.get(machine).is_some_and(|all| all.counts(&place));
        let machine = vnics.into_iter().find(has);
        if let Some(windows) = machine.and_then(|machine| self.0.get_mut(&machine)) {
            windows.left.push(place);
        }
    }

    pub(super) fn of(&self, machine: VnicId) -> Option<&Windows> {
        self.0.get(&machine)
    }

    pub(super) fn of_mut(&mut self, machine: VnicId) -> Option<&mut Windows> {
        self.0.get_mut(&machine)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&VnicId, &Windows)> {
        self.0.iter()
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
        let mut pairs = Pairs::default();
        let (machine, his) = (VnicId(2), neighbour(1, 0));
        pairs.set(machine, PairWindows { free: 1, room: 1, ..PairWindows::default() });
        let windows = pairs.of_mut(machine).unwrap();
        let place = windows.take(his).unwrap();
        assert_eq!(windows.take(his).unwrap_err(), Errno::ENOMEM);
        assert_eq!(windows.room(his.proof, Some(0)), Room::Full);
        assert_eq!(windows.room(neighbour(3, 0).proof, Some(0)), Room::Taken);
        drop(place);
        assert_eq!(windows.room(his.proof, Some(0)), Room::InHis);
        assert_eq!(windows.room(neighbour(3, 0).proof, Some(0)), Room::Taken);
        let place = windows.take(his).unwrap();
        pairs.set(machine, PairWindows { given: [(his, 0)].into(), ..PairWindows::default() });
        drop(place);
        assert_eq!(pairs.of(machine).unwrap().room(his.proof, Some(0)), Room::Full);
    }

    #[test]
    fn what_cannot_be_had_changes_nothing() {
        let mut windows = windows(1, 0);
        assert_eq!(windows.take(neighbour(1, 0)).unwrap_err(), Errno::ENOMEM);
        assert_eq!(windows.room(neighbour(3, 0).proof, None), Room::InFree);
        assert_eq!(windows.given().0.receipts(), 0);
    }

    #[test]
    fn the_last_one_is_nobodys_second() {
        let mut windows = windows(2, 4);
        let _first = windows.take(neighbour(1, 0)).unwrap();
        assert_eq!(windows.room(neighbour(1, 7).proof, Some(7)), Room::Taken);
        assert!(windows.take(neighbour(1, 7)).is_err());
        assert_eq!(windows.room(neighbour(1, 7).proof, None), Room::InHis);
        let _other = windows.take(neighbour(3, 7)).unwrap();
        assert_eq!(windows.given().1.count(), 2);
    }
}
