//! Reports light members of an epoll set that is itself waited for, by another set or by `poll`.

use core::ffi::c_int;

use omniverb_connection::descriptors::Kind;
use omniverb_connection::readiness::epoll_interest::{Interest, Next};

use super::epoll_sets::SetMembership;
use super::state::{State, with};
use crate::descriptor_tables;
use crate::user_memory::UserPtr;

/// Sets within sets, as deep as the kernel has it (`EP_MAX_NESTS`).
const DEEPEST: usize = 5;
/// Sets in one set, at most: all are looked at each time.
const INNER_MAX: usize = 16;
const IN: u32 = libc::EPOLLIN as u32;

/// The kernel has put a set into another one, or taken it out there. `false`: it is in too many for
/// light connections, or there are too many.
pub(super) fn changed(
    set: c_int,
    operation: c_int,
    inner: c_int,
    event: UserPtr<'_, libc::epoll_event>,
) -> bool {
    let (outer, inner) = (descriptor_tables::look(set), descriptor_tables::look(inner));
    if outer.kind() != Kind::Set || inner.kind() != Kind::Set {
        return true;
    }
    let is_done = with(|state| {
        if operation == libc::EPOLL_CTL_DEL {
            if let Some(place) = state.sets.find(inner.id()) {
                state.sets.unnest(place, outer.id());
            }
            return true;
        }
        let place = state.sets.find_or_add(outer.id()).and(state.sets.find_or_add(inner.id()));
        let Some(place) = place else { return false };
        let is_there = state.sets.inner(outer.id()).any(|(one, _)| one == place);
        if !is_there && state.sets.inner(outer.id()).count() >= INNER_MAX {
            return false;
        }
        // The kernel has just read it.
        let Some(event) = event.read() else { return true };
        let within = SetMembership {
            set: outer.id(),
            events: event.events,
            data: event.u64,
            is_told: false,
        };
        state.sets.nest(place, within)
    });
    is_done.unwrap_or(true)
}

impl State {
    /// A set has something to tell of light connections.
    pub(super) fn has_ready(&mut self, id: u32) -> bool {
        self.has_ready_within(id, DEEPEST)
    }

    fn has_ready_within(&mut self, id: u32, depth: usize) -> bool {
        let Some(place) = self.sets.find(id).filter(|_| depth > 0) else { return false };
        for _ in 0..self.sets.at(place).ready.count() {
            let at = self.sets.at(place).ready.first();
            if self.is_told_of(at) {
                return true;
            }
            let set = self.sets.at(place);
            self.slots.remove_ready(&mut set.ready, at);
        }
        if self.has_ready_listener(id) {
            return true;
        }
        if self.sets.nestings == 0 {
            return false;
        }
        let places = self.inner_of(id);
        places
            .into_iter()
            .flatten()
            .any(|(inner, one)| one.events & IN != 0 && self.has_ready_within(inner, depth - 1))
    }

    /// The ids of the first sets in a set.
    fn inner_of(&self, id: u32) -> [Option<(u32, SetMembership)>; INNER_MAX] {
        let mut found = [None; INNER_MAX];
        for (to, (place, one)) in found.iter_mut().zip(self.sets.inner(id)) {
            *to = self.sets.id_at(place).map(|id| (id, one));
        }
        found
    }

    /// Writes which sets in a set have something to tell: how many.
    pub(super) fn collect_sets(&mut self, id: u32, events: &mut [libc::epoll_event]) -> usize {
        if self.sets.nestings == 0 {
            return 0;
        }
        let mut count = 0;
        for (inner, one) in self.inner_of(id).into_iter().flatten() {
            let interest = Interest(one.events);
            let is_asked = interest.of(IN) != 0;
            if count == events.len() || !is_asked || !self.has_ready(inner) {
                continue;
            }
            let Some(place) = self.sets.find(inner) else { continue };
            if !self.sets.tells(place, id) && interest.is_edge() {
                continue;
            }
            events[count] = libc::epoll_event { events: IN, u64: one.data };
            count += 1;
            if let Next::Disarmed(next) = interest.next() {
                self.sets.nest(place, SetMembership { events: next.0, ..one });
            }
        }
        count
    }
}
