//! Sockets of the kernel's that listen, to which light connections come as well.

use core::ffi::c_int;

use omniverb_stream::light::frame::Name;
use omniverb_stream::light::{List, Names};

use super::room::TRUNKS;

/// Budget: listening sockets that light connections come to; at others there are those of the
/// kernel's.
const MOST: usize = 64;

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Listener {
    /// Its number; -1: none. One that is duplicated is known by the number that `listen` was
    /// called with.
    pub number: c_int,
    /// What it listens at, and whether it is a socket of IPv6.
    pub name: Name,
    pub is_six: bool,
    /// None of IPv4 come to it (`IPV6_V6ONLY`).
    pub is_six_only: bool,
    /// Connections that wait to be accepted, and how many may, as the kernel counts them: one more.
    pub pending: List,
    pub backlog: u32,
    /// How many there are of each trunk.
    pub by_trunk: [u32; TRUNKS],
    /// The set of epoll that it is in, what that is to tell, and with which data.
    pub set: c_int,
    pub events: u32,
    pub data: u64,
    /// This process has accepted there, or waited for somebody to come: a fork does not leave it to
    /// the child alone.
    pub is_used: bool,
    /// By which connection the broker was told of it; 0: it was not.
    pub said: u64,
    /// Nobody is to come there: the broker has refused it.
    pub is_refused: bool,
    /// The broker has a duplicate of it.
    pub is_under_way: bool,
    /// One has come since that was told of, for sets that tell of edges.
    pub has_news: bool,
}

/// All of them.
pub(super) struct Listeners {
    all: [Listener; MOST],
    /// How many connections wait, at all of them.
    pub waiting: u32,
    count: u32,
}

const NONE: Listener = Listener {
    number: -1,
    name: Name { address: [0; 16], port: 0 },
    is_six: false,
    is_six_only: false,
    pending: List::new(),
    backlog: 0,
    by_trunk: [0; TRUNKS],
    set: -1,
    events: 0,
    data: 0,
    is_used: false,
    said: 0,
    is_refused: false,
    is_under_way: false,
    has_news: false,
};

/// Whether one more may wait to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    There,
    /// If one of this trunk does not, which has the most.
    InsteadOf(usize),
    Full,
}

impl Listener {
    /// There is one that may be accepted.
    pub(super) fn has_some(&self) -> bool {
        self.number >= 0 && self.pending.count() > 0
    }

    /// Whether there is room for one more of a trunk. The largest holder yields, so nobody is kept
    /// out by others.
    pub(super) fn admission(&self, trunk: usize) -> Admission {
        if self.pending.count() <= self.backlog {
            return Admission::There;
        }
        let largest = (0..TRUNKS).max_by_key(|trunk| self.by_trunk[*trunk]).unwrap_or(trunk);
        match self.by_trunk[largest] > self.by_trunk[trunk] + 1 {
            true => Admission::InsteadOf(largest),
            false => Admission::Full,
        }
    }
}

impl Listeners {
    pub(super) const fn new() -> Self {
        Self { all: [NONE; MOST], waiting: 0, count: 0 }
    }

    /// The one of a number.
    pub(super) fn of(&mut self, number: c_int) -> Option<&mut Listener> {
        if self.count == 0 || number < 0 {
            return None;
        }
        self.all.iter_mut().find(|one| one.number == number)
    }

    /// A new one, or the same again.
    pub(super) fn add(&mut self, number: c_int) -> Option<&mut Listener> {
        let place = match self.all.iter().position(|one| one.number == number) {
            Some(place) => place,
            None => {
                let free = self.all.iter().position(|one| one.number == -1)?;
                self.all[free] = Listener { number, ..NONE };
                self.count += 1;
                free
            }
        };
        Some(&mut self.all[place])
    }

    /// It listens no more: connections that wait there.
    pub(super) fn remove(&mut self, number: c_int) -> Option<List> {
        let one = self.of(number)?;
        let pending = one.pending;
        *one = NONE;
        self.count -= 1;
        self.waiting -= pending.count();
        Some(pending)
    }

    /// One that nobody has used so far.
    pub(super) fn unused(&self) -> Option<c_int> {
        self.all.iter().find(|one| one.number >= 0 && !one.is_used).map(|one| one.number)
    }

    /// Who hears those that connect to a name, the one for that address before one for all.
    pub(super) fn hearing(&mut self, names: &Names) -> Option<&mut Listener> {
        let is_four = names.to.is_v4();
        let hears = |one: &&mut Listener| {
            let is_kind = !(one.is_six_only && is_four);
            one.number >= 0 && !one.is_refused && is_kind && one.name.hears(&names.to)
        };
        let is_far = |one: &Listener| (one.name.is_any(), one.name.is_v4() != names.to.is_v4());
        self.all.iter_mut().filter(hears).min_by_key(|one| is_far(one))
    }

    /// How many wait of a trunk, or of one that was in its place.
    pub(super) fn waiting_of(&self, trunk: usize) -> u32 {
        self.all.iter().map(|one| one.by_trunk[trunk]).sum()
    }

    /// Those that have connections waiting and are in a set.
    pub(super) fn in_set(&mut self, set: c_int) -> impl Iterator<Item = &mut Listener> {
        let is_there = move |one: &&mut Listener| one.set == set && one.has_some();
        self.all.iter_mut().filter(is_there)
    }

    /// A set is closed.
    pub(super) fn leave(&mut self, set: c_int) {
        self.all.iter_mut().filter(|one| one.set == set).for_each(|one| one.set = -1);
    }
}
