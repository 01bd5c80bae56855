//! Keeps the epoll sets that have light connections, and their ready lists.
//!
//! For the kernel light connections are in no set. A set is known by its id, which all its
//! descriptors share ([`crate::descriptor_tables`]).

use core::sync::atomic::{AtomicBool, Ordering};

use omniverb_connection::light::List;

/// Some set has light members, or had some.
static ARE_ANY: AtomicBool = AtomicBool::new(false);

/// Sets have to be looked at: when they are closed, or waited for as members.
pub(super) fn are_any() -> bool {
    ARE_ANY.load(Ordering::Relaxed)
}

/// Some listening socket is in a set that tells of it once.
static ARE_ONE_SHOT: AtomicBool = AtomicBool::new(false);

/// A listening socket is in a set that tells of it once.
pub(super) fn has_one_shot() {
    ARE_ONE_SHOT.store(true, Ordering::Relaxed);
}

/// There may be such listening sockets.
#[inline]
pub(super) fn are_one_shot() -> bool {
    ARE_ONE_SHOT.load(Ordering::Relaxed)
}

/// Budget: sets at a time that have such members.
const MOST: usize = 256;
/// Budget: sets that one of these is in itself, as far as light connections are told of there.
const OUTER: usize = 4;

/// That a set is a member of another one.
#[derive(Clone, Copy)]
pub(super) struct SetMembership {
    /// The id of the other one; 0: none.
    pub set: u32,
    pub events: u32,
    pub data: u64,
    /// It was told of what is ready, and nothing new is since (`EPOLLET`).
    pub is_told: bool,
}

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Set {
    /// Its id; 0: none.
    pub id: u32,
    /// Members that may be ready.
    pub ready: List,
    pub members: u32,
    /// The sets that it is in.
    pub outer: [SetMembership; OUTER],
}

/// All of them.
pub(super) struct Sets {
    all: [Set; MOST],
    /// No place from here on ever had one.
    end: usize,
    /// How often one was put into another one.
    pub nestings: usize,
}

const NOWHERE: SetMembership = SetMembership { set: 0, events: 0, data: 0, is_told: false };
const NONE: Set = Set { id: 0, ready: List::new(), members: 0, outer: [NOWHERE; OUTER] };

impl Sets {
    pub(super) const fn new() -> Self {
        Self { all: [NONE; MOST], end: 0, nestings: 0 }
    }

    /// The place of a set that has members, or had some.
    pub(super) fn find(&self, id: u32) -> Option<usize> {
        if id == 0 {
            return None;
        }
        self.all[..self.end].iter().position(|one| one.id == id)
    }

    /// The same, of a set that has none so far.
    pub(super) fn find_or_add(&mut self, id: u32) -> Option<usize> {
        if let Some(found) = self.find(id) {
            return Some(found);
        }
        let free = self.all.iter().position(|one| one.id == 0).filter(|_| id != 0)?;
        ARE_ANY.store(true, Ordering::Relaxed);
        self.all[free] = Set { id, ..NONE };
        self.end = self.end.max(free + 1);
        Some(free)
    }

    pub(super) fn at(&mut self, place: usize) -> &mut Set {
        &mut self.all[place]
    }

    /// The sets that are members of that one, with what it is told of each.
    pub(super) fn inner(&self, id: u32) -> impl Iterator<Item = (usize, SetMembership)> {
        let all = self.all[..self.end].iter().enumerate();
        all.flat_map(|(place, set)| set.outer.iter().map(move |one| (place, *one)))
            .filter(move |(_, one)| one.set == id && id != 0)
    }

    /// The id of the set of a place.
    pub(super) fn id_at(&self, place: usize) -> Option<u32> {
        Some(self.all[place].id).filter(|id| *id != 0)
    }

    /// Something in a set may be ready, which sets that it is in are to hear.
    #[inline]
    pub(super) fn clear_outer_told(&mut self, place: usize) {
        if self.nestings > 0 {
            self.all[place].outer.iter_mut().for_each(|one| one.is_told = false);
        }
    }

    /// One that it is in is told of that now: `false` if it was.
    pub(super) fn tells(&mut self, place: usize, set: u32) -> bool {
        let found = self.all[place].outer.iter_mut().find(|one| one.set == set);
        found.is_some_and(|one| !core::mem::replace(&mut one.is_told, true))
    }

    /// Puts one into another one, or changes that: `false` if it is in too many.
    pub(super) fn nest(&mut self, place: usize, within: SetMembership) -> bool {
        let outer = &mut self.all[place].outer;
        let found = outer.iter().position(|one| one.set == within.set);
        let Some(at) = found.or_else(|| outer.iter().position(|one| one.set == 0)) else {
            return false;
        };
        outer[at] = within;
        self.nestings += 1;
        true
    }

    /// Takes one out of another one.
    pub(super) fn unnest(&mut self, place: usize, set: u32) {
        let all = self.all[place].outer.iter_mut();
        all.filter(|one| one.set == set).for_each(|one| *one = NOWHERE);
    }

    /// It is closed.
    pub(super) fn remove(&mut self, place: usize) {
        let id = self.all[place].id;
        self.all[place] = NONE;
        for inner in 0..self.end {
            self.unnest(inner, id);
        }
    }
}
