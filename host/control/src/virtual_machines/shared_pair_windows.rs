//! Finds pair windows that two machines have plugged in (decision 0042), by the owner's ledger.
//!
//! In: the machines that want one. Out: its owner, the machine that it is offered to, and where
//! links can be in it. Offers are not stored: a window that a machine may have and has not plugged
//! in is offered whenever its supervisor waits, by any daemon.

use super::{Machines, Record};
use crate::vm_window_allocator::PieceRange;
use omniverb_sys::extent::FileId;
use omniverb_tenancy::{Neighbour, SessionId};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A window that is to be plugged into another machine, with the call that it answers.
pub(crate) struct Offer {
    pub(crate) operator: SessionId,
    pub(crate) tag: u64,
    pub(crate) file: Arc<OwnedFd>,
}

/// Where a link of two machines' processes can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InBoth {
    /// Which of the two has the window of its own.
    pub(crate) end: usize,
    /// The other one.
    pub(crate) neighbour: Neighbour,
    /// Where that one has the window.
    pub(crate) place: PieceRange,
}

impl Machines {
    /// These two want a window in common, until one of them is gone or has it.
    pub(crate) fn want_shared(&mut self, both: [SessionId; 2]) {
        self.wants.insert(both);
        self.changed.extend(both);
    }

    /// Gives windows to the machines that want one and can have it now.
    pub(super) fn share(&mut self) {
        let wants = std::mem::take(&mut self.wants);
        for both in wants {
            let concerned = both.iter().any(|id| self.changed.contains(id));
            if !concerned || !self.share_between(both) {
                self.wants.insert(both);
            }
        }
    }

    /// Whether there is nothing left to be done.
    fn share_between(&mut self, both: [SessionId; 2]) -> bool {
        let [Some(one), Some(other)] = both.map(|id| self.all.get(&id)) else { return true };
        let [Some(of_one), Some(of_other)] = [one, other].map(|record| record.pairs.this()) else {
            return true;
        };
        if one.pairs.is_given(&of_other) || other.pairs.is_given(&of_one) {
            return true;
        }
        // The machine with more windows left owns it.
        let mut ways = [(both[0], both[1]), (both[1], both[0])];
        if other.pairs.free() > one.pairs.free() {
            ways.swap(0, 1);
        }
        for (owner, guest) in ways {
            let Some(there) = self.all.get(&guest).filter(|there| there.pairs.takes_others())
            else {
                continue;
            };
            let (neighbour, name) = (there.pairs.this(), format!("vm-{}", there.machine.name));
            let given = neighbour.zip(self.all.get_mut(&owner)).is_some_and(|(neighbour, here)| {
                // What cannot be noted is not given.
                here.pairs.give(neighbour, &name).unwrap_or(false)
            });
            if given {
                self.changed.extend(both);
                return true;
            }
        }
        false
    }

    /// The offers to machines that have changed: windows that they may have and have not plugged in
    /// yet.
    pub(super) fn offers(&mut self) -> Vec<Offer> {
        let mut offers = Vec::new();
        for id in &self.changed {
            let Some(record) = self.all.get(id).filter(|record| record.pairs.takes_others()) else {
                continue;
            };
            let Some(this) = record.pairs.this() else { continue };
            let others = self.all.iter().filter(|(other, _)| *other != id);
            let all = others.flat_map(|(_, other)| other.pairs.given_to(this));
            let missing = |(file, _): &(FileId, Arc<OwnedFd>)| {
                record.pairs.joined().place_of(*file).is_none()
            };
            let Some((_, file)) = all.into_iter().find(missing) else { continue };
            if let Some((operator, tag)) =
                self.all.get_mut(id).and_then(|record| record.pairs.take_call())
            {
                offers.push(Offer { operator, tag, file });
            }
        }
        offers
    }

    /// Those that have a window in common with one that has changed have changed, too.
    pub(super) fn spread_changes(&mut self) {
        let of = |id| self.all.get(id).and_then(|record: &Record| record.pairs.this());
        let neighbours: BTreeSet<Neighbour> = self.changed.iter().filter_map(of).collect();
        let concerned =
            |record: &Record| neighbours.iter().any(|neighbour| record.pairs.is_given(neighbour));
        if !neighbours.is_empty() {
            let more = self.all.iter().filter(|(_, record)| concerned(record)).map(|(id, _)| *id);
            self.changed.extend(more.collect::<Vec<_>>());
        }
    }

    /// Whether a machine has that window of another one's, and has found it.
    pub(super) fn is_in(&self, neighbour: &Neighbour, file: FileId) -> bool {
        let mut all = self.all.values();
        let record = all.find(|record| record.pairs.this() == Some(*neighbour));
        record.is_some_and(|record| record.pairs.place_of_found(file).is_some())
    }

    /// The window that is in both of these, if one is.
    pub(crate) fn in_both(&self, both: [SessionId; 2]) -> Option<InBoth> {
        let records = both.map(|id| self.all.get(&id));
        let [Some(one), Some(other)] = records else { return None };
        let way = |end: usize| {
            let (here, there) = if end == 0 { (one, other) } else { (other, one) };
            let neighbour = there.pairs.this()?;
            let mut files = here.pairs.given_to(neighbour).into_iter().map(|(file, _)| file);
            let place = files.find_map(|file| there.pairs.place_of_found(file))?;
            Some(InBoth { end, neighbour, place })
        };
        way(0).or_else(|| way(1))
    }

    /// The names of the machines whose windows this one has plugged in.
    pub(crate) fn whose_joined(&self, record: &Record) -> Vec<String> {
        let joined: BTreeSet<FileId> = record.pairs.joined().files().collect();
        let this = record.pairs.this();
        let has = |other: &&Record| {
            let given = this.map(|this| other.pairs.given_to(this)).unwrap_or_default();
            given.iter().any(|(file, _)| joined.contains(file))
        };
        let all = self.all.values().filter(has);
        all.map(|other| format!("vm-{}", other.machine.name)).collect()
    }
}
