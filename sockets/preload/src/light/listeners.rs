//! Keeps listening sockets of the kernel's to which light connections come as well.

use core::ffi::c_int;

use omniverb_connection::light::Endpoints;
use omniverb_connection::light::frame::Endpoint;

use super::accept_queue::Pending;
use super::supported_socket_options::Inherited;
use crate::descriptor_tables;

/// Budget: listening sockets that light connections come to; at others there are those of the
/// kernel's.
const MOST: usize = 64;

/// Budget: sets that tell of edges, of which it is known how much they were told.
const TOLD: usize = 64;

/// That a set was told of all that had come to a listening socket until then.
#[derive(Clone, Copy)]
struct SetReport {
    listener: u32,
    set: u32,
    arrived: u64,
}

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Listener {
    /// What all its descriptors are called together ([`crate::descriptor_tables`]); 0: none.
    pub id: u32,
    /// One of them.
    pub fd: c_int,
    /// What it listens at, and whether it is a socket of IPv6.
    pub name: Endpoint,
    pub is_six: bool,
    /// None of IPv4 come to it (`IPV6_V6ONLY`).
    pub is_six_only: bool,
    /// Connections that wait to be accepted, and how many may, as the kernel counts them: one more.
    pub pending: Pending,
    pub backlog: u32,
    /// This process has accepted there, or waited for a connection: a fork does not leave it to the
    /// child alone.
    pub is_used: bool,
    /// By which connection the broker was told of it; 0: it was not.
    pub said: u64,
    /// The broker has refused it: no client comes there.
    pub is_refused: bool,
    /// The broker has a duplicate of it.
    pub is_under_way: bool,
    /// How many have come.
    pub arrived: u64,
    /// What those that are accepted have of it.
    pub inherited: Inherited,
}

/// All of them.
pub(super) struct Listeners {
    all: [Listener; MOST],
    /// How many connections wait, at all of them.
    pub waiting: u32,
    count: u32,
    told: [SetReport; TOLD],
    next_told: usize,
}

const NONE: Listener = Listener {
    id: 0,
    fd: -1,
    name: Endpoint { address: [0; 16], port: 0 },
    is_six: false,
    is_six_only: false,
    pending: Pending::new(),
    backlog: 0,
    is_used: false,
    said: 0,
    is_refused: false,
    is_under_way: false,
    arrived: 0,
    inherited: Inherited { profile: 0, times: [0; 2], least: 0, is_abrupt: false },
};
const NOBODY: SetReport = SetReport { listener: 0, set: 0, arrived: 0 };

/// Whether one more may wait to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    There,
    /// If one of this channel does not, which has the most.
    InsteadOf(usize),
    Full,
}

impl Listener {
    /// There is one that may be accepted.
    pub(super) fn has_some(&self) -> bool {
        self.id != 0 && self.pending.count() > 0
    }

    /// Whether there is room for one more of a channel. The largest holder yields, so no channel is
    /// kept out by others.
    pub(super) fn admission(&self, channel: usize) -> Admission {
        if self.pending.count() <= self.backlog {
            return Admission::There;
        }
        let largest = self.pending.largest();
        match self.pending.of(largest) > self.pending.of(channel) + 1 {
            true => Admission::InsteadOf(largest),
            false => Admission::Full,
        }
    }
}

impl Listeners {
    pub(super) const fn new() -> Self {
        let told = [NOBODY; TOLD];
        Self { all: [NONE; MOST], waiting: 0, count: 0, told, next_told: 0 }
    }

    /// The one of a descriptor, by whichever of them it listens.
    pub(super) fn of(&mut self, fd: c_int) -> Option<&mut Listener> {
        if self.count == 0 || fd < 0 {
            return None;
        }
        self.of_id(descriptor_tables::look(fd).id())
    }

    /// The one of an id.
    pub(super) fn of_id(&mut self, id: u32) -> Option<&mut Listener> {
        if self.count == 0 || id == 0 {
            return None;
        }
        self.all.iter_mut().find(|one| one.id == id)
    }

    /// A new one, or the same again.
    pub(super) fn add(&mut self, fd: c_int) -> Option<&mut Listener> {
        let id = Some(descriptor_tables::look(fd).id()).filter(|id| *id != 0)?;
        let place = match self.all.iter().position(|one| one.id == id) {
            Some(place) => place,
            None => {
                let free = self.all.iter().position(|one| one.id == 0)?;
                self.all[free] = Listener { id, fd, ..NONE };
                self.count += 1;
                free
            }
        };
        Some(&mut self.all[place])
    }

    /// It listens no more: connections that wait there.
    pub(super) fn remove(&mut self, fd: c_int) -> Option<Pending> {
        let one = self.of(fd)?;
        let (pending, id) = (one.pending, one.id);
        *one = NONE;
        self.told.iter_mut().filter(|one| one.listener == id).for_each(|one| *one = NOBODY);
        self.count -= 1;
        self.waiting -= pending.count();
        Some(pending)
    }

    /// One that has not been used so far.
    pub(super) fn unused(&self) -> Option<c_int> {
        self.all.iter().find(|one| one.id != 0 && !one.is_used).map(|one| one.fd)
    }

    /// The listener for connections to a name, the one for that address before one for all; of
    /// several that share it the one that has served the fewest.
    pub(super) fn hearing(&mut self, names: &Endpoints) -> Option<&mut Listener> {
        let is_four = names.to.is_v4();
        let hears = |one: &&mut Listener| {
            let is_kind = !(one.is_six_only && is_four);
            one.id != 0 && !one.is_refused && is_kind && one.name.hears(&names.to)
        };
        let is_far =
            |one: &Listener| (one.name.is_any(), one.name.is_v4() != names.to.is_v4(), one.arrived);
        self.all.iter_mut().filter(hears).min_by_key(|one| is_far(one))
    }

    /// Calls with the combination of options of each.
    pub(super) fn each_profile(&self, mut with: impl FnMut(u8)) {
        let all = self.all.iter().filter(|one| one.id != 0);
        all.for_each(|one| with(one.inherited.profile));
    }

    /// How many wait of a channel, or of one that was in its place.
    pub(super) fn waiting_of(&self, channel: usize) -> u32 {
        self.all.iter().map(|one| one.pending.of(channel)).sum()
    }

    /// Places that there may be something at.
    pub(super) fn end(&self) -> usize {
        if self.count == 0 { 0 } else { MOST }
    }

    /// The descriptor and the id of what is at a place.
    pub(super) fn known_at(&self, place: usize) -> Option<(c_int, u32)> {
        let one = &self.all[place];
        (one.id != 0).then_some((one.fd, one.id))
    }

    /// The same if connections wait there.
    pub(super) fn ready_at(&self, place: usize) -> Option<(c_int, u32)> {
        self.known_at(place).filter(|_| self.all[place].has_some())
    }

    /// A set was told of all that has come there.
    pub(super) fn was_told(&self, place: usize, set: u32) -> bool {
        let one = &self.all[place];
        self.told
            .iter()
            .any(|told| (told.listener, told.set, told.arrived) == (one.id, set, one.arrived))
    }

    /// It is told of that now.
    pub(super) fn tells(&mut self, place: usize, set: u32) {
        let (listener, arrived) = (self.all[place].id, self.all[place].arrived);
        let found = self.told.iter().position(|one| (one.listener, one.set) == (listener, set));
        let at = found.unwrap_or_else(|| {
            self.next_told = (self.next_told + 1) % TOLD;
            self.next_told
        });
        self.told[at] = SetReport { listener, set, arrived };
    }

    /// A set has asked anew what there is.
    pub(super) fn asks(&mut self, id: u32, set: u32) {
        let its = self.told.iter_mut().filter(|one| (one.listener, one.set) == (id, set));
        its.for_each(|one| *one = NOBODY);
    }

    /// A descriptor of one is closed, which another descriptor is still for.
    pub(super) fn set_descriptor(&mut self, id: u32, fd: c_int) {
        if let Some(one) = self.of_id(id) {
            one.fd = fd;
        }
    }
}
