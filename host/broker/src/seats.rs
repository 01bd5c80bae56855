//! Whose turn it is: how many are attended to, and that nobody takes the places of others.
//!
//! A seat is taken before there is a thread, and given back when that is about to end. What a seat
//! is counted by stands here, beside the way to its process: nobody has to hold that to count.

use crate::client::Client;
use crate::limits;
use omniverb_sys::clock;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// For whom a seat is counted, by what the kernel says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) user: u32,
    /// The network namespace of the socket that was connected, which is to be the one of all that
    /// it offers.
    pub(crate) namespace: u64,
}

#[derive(Debug)]
struct Seat {
    holder: Holder,
    /// It has said hello.
    is_welcome: bool,
    client: Weak<Client>,
}

/// All of them, by the numbers of processes.
#[derive(Debug)]
pub(crate) struct Seats {
    all: BTreeMap<u64, Seat>,
    /// When the last one was given back, or this began.
    left: u64,
}

impl Default for Seats {
    fn default() -> Seats {
        Seats { all: BTreeMap::new(), left: clock::now() }
    }
}

impl Seats {
    /// Takes one. `false` if there is none for that holder.
    pub(crate) fn take(&mut self, number: u64, holder: Holder, client: Weak<Client>) -> bool {
        let count =
            |fits: &dyn Fn(&Seat) -> bool| self.all.values().filter(|one| fits(one)).count();
        let is_here = |one: &Seat| one.holder.namespace == holder.namespace;
        let has_room = self.all.len() < limits::PROCESSES
            && count(&|one| one.holder.user == holder.user) < limits::PROCESSES_OF_USER
            && count(&is_here) < limits::PROCESSES_OF_NAMESPACE
            && count(&|one| one.holder == holder && !one.is_welcome) < limits::SILENT;
        if has_room {
            self.all.insert(number, Seat { holder, is_welcome: false, client });
        }
        has_room
    }

    /// Who has this one has said hello.
    pub(crate) fn welcome(&mut self, number: u64) {
        if let Some(seat) = self.all.get_mut(&number) {
            seat.is_welcome = true;
        }
    }

    /// Gives one back.
    pub(crate) fn leave(&mut self, number: u64) {
        self.all.remove(&number);
        self.left = clock::now();
    }

    /// For how many nanoseconds nobody has one; `None`: somebody has.
    pub(crate) fn alone(&self, now: u64) -> Option<u64> {
        self.all.is_empty().then_some(now.saturating_sub(self.left))
    }

    /// Who has this one.
    pub(crate) fn client(&self, number: u64) -> Option<Arc<Client>> {
        self.all.get(&number)?.client.upgrade()
    }

    /// Who has one in a network namespace, or everywhere, by number; nobody is held by that.
    pub(crate) fn seen(&self, namespace: Option<u64>) -> Vec<Weak<Client>> {
        let is_here = |seat: &&Seat| namespace.is_none_or(|here| seat.holder.namespace == here);
        self.all.values().filter(is_here).map(|seat| seat.client.clone()).collect()
    }

    /// Who has one.
    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        self.all.values().filter_map(|seat| seat.client.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{PROCESSES, PROCESSES_OF_NAMESPACE, PROCESSES_OF_USER, SILENT};

    /// As many as can be had, up to a thousand; they say hello if they are polite.
    fn fill(
        seats: &mut Seats,
        first: u64,
        is_polite: bool,
        holder: impl Fn(u64) -> Holder,
    ) -> usize {
        let takes = |number: &u64| {
            let is_taken = seats.take(*number, holder(*number), Weak::new());
            if is_polite {
                seats.welcome(*number);
            }
            is_taken
        };
        (first..first + 2000).take_while(takes).count()
    }

    #[test]
    fn nobody_takes_the_places_of_others() {
        let mut seats = Seats::default();
        let of = |user, namespace| move |_: u64| Holder { user, namespace };
        assert_eq!(fill(&mut seats, 0, false, of(0, 1)), SILENT);
        // Others of the same user say hello, and have room to.
        assert_eq!(fill(&mut seats, 10_000, true, of(0, 2)), PROCESSES_OF_NAMESPACE);
        let rest = PROCESSES_OF_USER - PROCESSES_OF_NAMESPACE - SILENT;
        assert_eq!(fill(&mut seats, 20_000, true, of(0, 3)), rest);
        // A container with many users has a share.
        let many = |number: u64| Holder { user: number as u32, namespace: 4 };
        assert_eq!(fill(&mut seats, 30_000, true, many), PROCESSES_OF_NAMESPACE);
        let everywhere = |number: u64| Holder { user: number as u32, namespace: number };
        let rest = PROCESSES - PROCESSES_OF_USER - PROCESSES_OF_NAMESPACE;
        assert_eq!(fill(&mut seats, 40_000, true, everywhere), rest);
        // A place that is given back is had by the next.
        (0..10).for_each(|number| seats.leave(number));
        assert_eq!(fill(&mut seats, 50_000, true, everywhere), 10);
        assert_eq!(fill(&mut seats, 60_000, true, everywhere), 0);
        assert_eq!(seats.alone(clock::now()), None);
        seats.all.clear();
        let before = clock::now();
        seats.leave(7);
        assert_eq!(seats.alone(u64::MAX).map(|time| u64::MAX - time >= before), Some(true));
    }
}
