//! Queues events from packet threads to the control plane: one queue for each vNIC, served in turn.
//!
//! Events caused by strangers wait apart from answers to our questions and events of links, so
//! neither pushes the other out. A vNIC may have as many waiting as there is room left: a vNIC
//! whose events pile up takes half of the room, a second one a third, and there is always some for
//! one that has none waiting. An event without room is lost: all of them are about packets that
//! come again.

use crate::command::Event;
use omniverb_sys::lock;
use omniverb_terms::VnicId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

/// Budget: events of one class that wait to be taken, of all vNICs.
const EVENTS_MAX: usize = 4096;

/// Why an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// We asked, or a link of ours is concerned.
    Own,
    /// Something came that was not asked for.
    Strange,
}

impl Event {
    /// Why it happened: so it waits among others of its kind.
    fn class(&self) -> Class {
        match self {
            Event::Management { is_answer: false, .. }
            | Event::Stranger { .. }
            | Event::PortNotice { .. } => Class::Strange,
            Event::Management { is_answer: true, .. }
            | Event::Answered { .. }
            | Event::Wanted { .. }
            | Event::NotMapped { .. }
            | Event::PortOver { .. }
            | Event::Encryption { .. }
            | Event::LimitRefused { .. }
            | Event::NotServed { .. }
            | Event::Failed { .. } => Class::Own,
        }
    }
}

/// Whether an event is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Posted {
    Sent,
    /// There is too much to be told.
    Lost,
}

/// Events that wait to be taken.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Classes>>);

#[derive(Default)]
struct Classes {
    own: Queues<Event>,
    strange: Queues<Event>,
    /// Whether the strangers' queue is next.
    strange_next: bool,
}

impl Events {
    /// One more, on account of this vNIC.
    pub(crate) fn post(&self, vnic: VnicId, event: Event) -> Posted {
        let mut classes = lock(&self.0);
        match event.class() {
            Class::Own => classes.own.add(vnic, event),
            Class::Strange => classes.strange.add(vnic, event),
        }
    }

    /// The next one: of both classes, and in each of all vNICs, in turns.
    pub(crate) fn take(&self) -> Option<Event> {
        let mut classes = lock(&self.0);
        classes.strange_next = !classes.strange_next;
        let Classes { own, strange, strange_next } = &mut *classes;
        match *strange_next {
            false => strange.take().or_else(|| own.take()),
            true => own.take().or_else(|| strange.take()),
        }
    }
}

/// A queue for each vNIC that has something waiting.
struct Queues<T> {
    queues: HashMap<VnicId, VecDeque<T>>,
    /// vNICs with a queue, the next first.
    order: VecDeque<VnicId>,
    count: usize,
}

impl<T> Default for Queues<T> {
    fn default() -> Queues<T> {
        Queues { queues: HashMap::new(), order: VecDeque::new(), count: 0 }
    }
}

impl<T> Queues<T> {
    fn add(&mut self, vnic: VnicId, item: T) -> Posted {
        let own = self.queues.get(&vnic).map_or(0, VecDeque::len);
        if own >= EVENTS_MAX - self.count {
            return Posted::Lost;
        }
        if own == 0 {
            self.order.push_back(vnic);
        }
        self.queues.entry(vnic).or_default().push_back(item);
        self.count += 1;
        Posted::Sent
    }

    fn take(&mut self) -> Option<T> {
        let vnic = self.order.pop_front()?;
        let queue = self.queues.get_mut(&vnic)?;
        let item = queue.pop_front();
        self.count -= 1;
        match queue.is_empty() {
            true => drop(self.queues.remove(&vnic)),
            false => self.order.push_back(vnic),
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vnic_whose_events_pile_up_costs_others_neither_room_nor_turns() {
        let mut queues = Queues::default();
        let flooded = 5;
        for round in 0..2 * EVENTS_MAX {
            for vnic in 0..flooded {
                let _ = queues.add(VnicId(vnic), (vnic, round));
            }
        }
        assert!(queues.count < EVENTS_MAX);
        for vnic in 100..200 {
            assert_eq!(queues.add(VnicId(vnic), (vnic, 0)), Posted::Sent);
        }
        // Each that has something comes within a round.
        let first: Vec<u64> =
            (0..flooded + 100).map(|_| queues.take().map(|(vnic, _)| vnic).unwrap()).collect();
        let mut sorted = first.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), first.len());
        let mut of_one = Vec::new();
        while let Some((vnic, round)) = queues.take() {
            if vnic == 3 {
                of_one.push(round);
            }
        }
        assert!(of_one.is_sorted() && of_one.len() > 500, "{}", of_one.len());
        assert!(queues.count == 0 && queues.queues.is_empty() && queues.order.is_empty());
    }

    #[test]
    fn one_vnic_alone_has_half_of_the_room() {
        let mut queues = Queues::default();
        let taken = (0..2 * EVENTS_MAX).filter(|n| queues.add(VnicId(1), *n) == Posted::Sent);
        assert_eq!(taken.count(), EVENTS_MAX / 2);
    }

    #[test]
    fn events_of_strangers_push_out_none_of_ours() {
        let events = Events::default();
        let management = || Event::Management {
            vnic: VnicId(1),
            source: omniverb_terms::Qpn::GENERAL_SERVICES,
            underlay: omniverb_terms::UnderlayRoute::plain(
                [10, 0, 0, 1].into(),
                [10, 0, 0, 2].into(),
                0,
            ),
            datagram: Vec::new(),
            is_answer: false,
        };
        while events.post(VnicId(1), management()) == Posted::Sent {}
        assert_eq!(events.post(VnicId(1), Event::PortOver { vnic: VnicId(1) }), Posted::Sent);
        let first = [events.take(), events.take()];
        assert!(first.iter().any(|event| matches!(event, Some(Event::PortOver { .. }))));
    }
}
