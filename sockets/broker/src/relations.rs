//! Pairs of addresses in two network namespaces: what the daemon was asked, and has said.
//!
//! Of what is asked little is under way for one namespace at a time, and little is kept for it:
//! nobody stops others by asking. What is not answered stays as it is without us.

use crate::daemon::{Place, WhyApart};
use crate::limits::{ASKED_OF_NAMESPACE, RELATION_KEPT, RELATIONS, RELATIONS_OF_NAMESPACE};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// How long it is not asked again what was denied, in nanoseconds.
const DENIED: u64 = 1_000_000_000;
/// The longest time after which it is asked again for those that wait still, in nanoseconds: it
/// doubles with each answer.
const DENIED_MOST: u64 = 60 * DENIED;
/// Pairs that are asked about again at a time.
const PER_TURN: usize = 64;

/// Both places, the smaller one first.
type Pair = [Place; 2];

fn pair(one: Place, other: Place) -> Pair {
    [one.min(other), one.max(other)]
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The daemon has not answered yet.
    Asked,
    /// It has said yes. These links live by it.
    Together(BTreeSet<u64>),
    /// It has said no.
    Apart(WhyApart),
}

#[derive(Debug)]
struct Relation {
    number: u64,
    state: State,
    /// When it is of no use any more, unless it has links; what was denied: when it is to be asked
    /// again. In nanoseconds.
    until: u64,
    /// When it was denied last, and how often in a row.
    since: u64,
    denials: u32,
}

/// What is known of a pair.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The daemon is to be asked, with this number.
    Ask(u64),
    /// It was, or cannot be now.
    Wait,
    /// The daemon says that they may.
    Together,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Relations {
    by_pair: HashMap<Pair, Relation>,
    by_number: BTreeMap<u64, Pair>,
    /// Those that the daemon has still, and is to be told that nobody needs.
    unsaid: VecDeque<u64>,
    last: u64,
}

impl Relations {
    /// What is known of two places; if that is nothing it is to be asked now.
    pub(crate) fn of(&mut self, one: Place, other: Place, now: u64) -> Known {
        let pair = pair(one, other);
        match self.by_pair.get_mut(&pair) {
            Some(relation) => match relation.state {
                State::Asked => return Known::Wait,
                State::Together(_) => {
                    relation.until = now.saturating_add(RELATION_KEPT);
                    return Known::Together;
                }
                State::Apart(_) if relation.since.saturating_add(DENIED) > now => {
                    return Known::Wait;
                }
                State::Apart(_) => {}
            },
            None => {
                if !self.has_room(pair) {
                    return Known::Wait;
                }
            }
        }
        self.ask(pair, now)
    }

    /// It is to be asked; if too much is, a while later.
    fn ask(&mut self, pair: Pair, now: u64) -> Known {
        let may = pair.iter().all(|place| self.count(place.namespace).1 < ASKED_OF_NAMESPACE);
        let before = self.by_pair.get(&pair).map(|relation| (relation.number, relation.denials));
        let (number, denials) = before.unwrap_or_default();
        self.by_number.remove(&number);
        let mut next = Relation {
            number: 0,
            state: State::Apart(WhyApart::Busy),
            until: now.saturating_add(DENIED),
            since: now,
            denials,
        };
        if may {
            self.last += 1;
            self.by_number.insert(self.last, pair);
            next.number = self.last;
            next.state = State::Asked;
            next.until = now.saturating_add(RELATION_KEPT);
        }
        self.by_pair.insert(pair, next);
        if may { Known::Ask(self.last) } else { Known::Wait }
    }

    /// For one more, in each of its namespaces.
    fn has_room(&self, pair: Pair) -> bool {
        // As many as the daemon has.
        self.by_pair.len() + self.unsaid.len() < RELATIONS
            && pair.iter().all(|place| self.count(place.namespace).0 < RELATIONS_OF_NAMESPACE)
    }

    /// Pairs of a namespace: all, and those that the daemon is being asked about.
    fn count(&self, namespace: u64) -> (usize, usize) {
        let is_of = |pair: &Pair| pair.iter().any(|one| one.namespace == namespace);
        let of = self.by_pair.iter().filter(|(pair, _)| is_of(pair));
        of.fold((0, 0), |(all, asked), (_, one)| {
            (all + 1, asked + usize::from(one.state == State::Asked))
        })
    }

    /// Some of those that were denied, and that it is time to ask about again if somebody waits.
    pub(crate) fn denied(&self, now: u64) -> Vec<[Place; 2]> {
        let is_due = |one: &Relation| matches!(one.state, State::Apart(_)) && one.until <= now;
        let due = self.by_pair.iter().filter(|(_, relation)| is_due(relation));
        due.map(|(pair, _)| *pair).take(PER_TURN).collect()
    }

    /// Somebody waits for one of these.
    pub(crate) fn again(&mut self, pair: [Place; 2], now: u64) -> Known {
        let is_denied = |one: &Relation| matches!(one.state, State::Apart(_));
        match self.by_pair.get(&pair).is_some_and(is_denied) {
            true => self.ask(pair, now),
            false => Known::Wait,
        }
    }

    /// Nobody waits for one of these.
    pub(crate) fn forget(&mut self, pair: [Place; 2]) {
        if self.by_pair.get(&pair).is_some_and(|one| matches!(one.state, State::Apart(_))) {
            self.remove(&pair);
        }
    }

    fn remove(&mut self, pair: &Pair) {
        if let Some(relation) = self.by_pair.remove(pair) {
            self.by_number.remove(&relation.number);
        }
    }

    /// The daemon says yes: the places.
    pub(crate) fn together(&mut self, number: u64) -> Option<[Place; 2]> {
        let pair = self.by_number.get(&number)?;
        let relation = self.by_pair.get_mut(pair)?;
        (relation.state == State::Asked).then(|| {
            relation.state = State::Together(BTreeSet::new());
            relation.denials = 0;
            *pair
        })
    }

    /// The daemon says no: the links that lived by what it said before.
    pub(crate) fn apart(&mut self, number: u64, why: WhyApart, now: u64) -> BTreeSet<u64> {
        let pair = self.by_number.get(&number);
        let Some(relation) = pair.and_then(|pair| self.by_pair.get_mut(pair)) else {
            return BTreeSet::new();
        };
        let wait = (DENIED << relation.denials.min(6)).min(DENIED_MOST);
        relation.denials += 1;
        relation.since = now;
        relation.until = now.saturating_add(wait);
        match std::mem::replace(&mut relation.state, State::Apart(why)) {
            State::Together(links) => links,
            _ => BTreeSet::new(),
        }
    }

    /// A link is about to be given to two places. `false`: they may not have it any more.
    pub(crate) fn join(&mut self, one: Place, other: Place, link: u64) -> bool {
        match self.by_pair.get_mut(&pair(one, other)).map(|relation| &mut relation.state) {
            Some(State::Together(links)) => links.insert(link),
            _ => false,
        }
    }

    /// The daemon has said that they may, and nothing else since.
    pub(crate) fn are_together(&self, one: Place, other: Place) -> bool {
        let relation = self.by_pair.get(&pair(one, other));
        relation.is_some_and(|relation| matches!(relation.state, State::Together(_)))
    }

    /// It has been asked, and has not answered yet.
    pub(crate) fn is_asked(&self, one: Place, other: Place) -> bool {
        let relation = self.by_pair.get(&pair(one, other));
        relation.is_some_and(|relation| relation.state == State::Asked)
    }

    /// A link lives by what the daemon says of two places.
    pub(crate) fn has(&self, one: Place, other: Place, link: u64) -> bool {
        let relation = self.by_pair.get(&pair(one, other));
        relation.is_some_and(|relation| match &relation.state {
            State::Together(links) => links.contains(&link),
            _ => false,
        })
    }

    /// A link is no more.
    pub(crate) fn leave(&mut self, one: Place, other: Place, link: u64, now: u64) {
        if let Some(relation) = self.by_pair.get_mut(&pair(one, other))
            && let State::Together(links) = &mut relation.state
        {
            links.remove(&link);
            relation.until = now.saturating_add(RELATION_KEPT);
        }
    }

    /// Why two places have no links.
    pub(crate) fn why(&self, one: Place, other: Place) -> Option<WhyApart> {
        match self.by_pair.get(&pair(one, other))?.state {
            State::Apart(why) => Some(why),
            _ => None,
        }
    }

    /// What is of no use any more goes; that the daemon is to be told of it waits.
    pub(crate) fn sweep(&mut self, now: u64) {
        let is_over = |relation: &Relation| {
            let is_used = match &relation.state {
                State::Asked => false,
                State::Together(links) => !links.is_empty(),
                // Who waits for it is looked for first.
                State::Apart(_) => true,
            };
            relation.until <= now && !is_used
        };
        let over = self.by_pair.iter().filter(|(_, relation)| is_over(relation));
        let over: Vec<Pair> = over.map(|(pair, _)| *pair).collect();
        for pair in over {
            self.unsaid.extend(self.by_pair.get(&pair).map(|one| one.number));
            self.remove(&pair);
        }
    }

    /// Has the daemon told of those that nobody needs, until `say` cannot. Whether all are said.
    pub(crate) fn say_no_more(&mut self, mut say: impl FnMut(u64) -> bool) -> bool {
        while let Some(number) = self.unsaid.front() {
            if !say(*number) {
                return false;
            }
            self.unsaid.pop_front();
        }
        true
    }

    /// Nothing is kept, and nothing is to be said.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_pair.is_empty() && self.unsaid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{BYTES, ToDaemon};
    use omniverb_sys::socket;
    use std::os::fd::AsFd;

    fn place(namespace: u64, last: u8) -> Place {
        Place { namespace, address: [10, 0, 0, last].into() }
    }

    #[test]
    fn a_pair_is_asked_for_once_and_links_live_by_what_was_said() {
        let mut all = Relations::default();
        let (one, other) = (place(1, 1), place(2, 2));
        let Known::Ask(number) = all.of(one, other, 5) else { panic!("not asked") };
        assert_eq!(all.of(other, one, 5), Known::Wait);
        assert!(all.is_asked(other, one) && !all.is_asked(one, place(3, 1)));
        assert!(!all.join(one, other, 70));
        assert_eq!(all.together(number), Some([one, other]));
        assert_eq!(all.together(number), None);
        assert_eq!(all.of(other, one, 5), Known::Together);
        assert!(all.join(other, one, 70) && all.has(one, other, 70) && !all.has(one, other, 71));
        assert!(all.are_together(other, one) && !all.are_together(one, place(3, 2)));
        // The same addresses elsewhere are another pair.
        assert!(matches!(all.of(place(3, 1), place(2, 2), 5), Known::Ask(_)));
        assert!(!all.join(place(3, 1), place(2, 2), 71));
        assert_eq!(all.apart(number, WhyApart::Policy, 5), BTreeSet::from([70]));
        assert!(!all.has(one, other, 70));
        assert_eq!(
            (all.why(one, other), all.of(one, other, 6)),
            (Some(WhyApart::Policy), Known::Wait)
        );
        assert!(!all.are_together(one, other));
        assert!(matches!(all.of(one, other, 2_000_000_000), Known::Ask(_)));
    }

    #[test]
    fn who_asks_a_lot_stops_nobody() {
        let mut all = Relations::default();
        let asked = |all: &mut Relations, namespace, from: u64| {
            let is_asked = |last: &u64| {
                let other = place(1000 + last, 2);
                matches!(all.of(place(namespace, 1), other, 5), Known::Ask(_))
            };
            (from..from + 1000).filter(is_asked).count()
        };
        assert_eq!(asked(&mut all, 1, 0), ASKED_OF_NAMESPACE);
        assert_eq!(asked(&mut all, 2, 2000), ASKED_OF_NAMESPACE);
        for number in 1..=ASKED_OF_NAMESPACE as u64 {
            assert!(all.together(number).is_some());
        }
        assert_eq!(asked(&mut all, 1, 4000), 0, "many wait to be asked about");
        let forget = |all: &mut Relations| {
            while let Some(pair) = all.denied(u64::MAX).pop() {
                all.forget(pair);
            }
        };
        forget(&mut all);
        assert_eq!(asked(&mut all, 1, 4000), ASKED_OF_NAMESPACE);
        // What nobody uses goes, and the daemon is told.
        all.sweep(5);
        assert_eq!(all.unsaid.len(), 0);
        all.sweep(u64::MAX);
        assert_eq!(all.unsaid.len(), 3 * ASKED_OF_NAMESPACE);
        assert!(all.by_number.is_empty());
        assert!(all.denied(u64::MAX).len() == PER_TURN && all.count(1).0 <= RELATIONS_OF_NAMESPACE);
        forget(&mut all);
        assert!(all.by_pair.is_empty());
    }

    #[test]
    fn for_who_waits_it_is_asked_again_and_again_less_often() {
        let mut all = Relations::default();
        let (one, other) = (place(1, 1), place(2, 2));
        let Known::Ask(mut number) = all.of(one, other, 0) else { panic!("not asked") };
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..9 {
            all.apart(number, WhyApart::Busy, now);
            let since = now;
            while all.denied(now).is_empty() {
                now += DENIED / 2;
                all.sweep(now);
            }
            waits.push((now - since) / DENIED);
            assert_eq!(all.why(one, other), Some(WhyApart::Busy));
            let Known::Ask(next) = all.again([one, other], now) else { panic!("not again") };
            assert!(next > number && all.together(number).is_none(), "by another number");
            number = next;
            assert_eq!(all.again([one, other], now), Known::Wait);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        // Whoever comes does not wait as long.
        all.apart(number, WhyApart::Busy, now);
        let Known::Ask(number) = all.of(one, other, now + DENIED) else { panic!("not asked") };
        assert!(all.together(number).is_some());
        all.forget([one, other]);
        assert_eq!(all.of(one, other, now), Known::Together);
        all.apart(number, WhyApart::Policy, now);
        assert_eq!(all.denied(now + DENIED), [[one, other]], "from the beginning");
        all.forget([one, other]);
        assert!(all.is_empty() && all.by_number.is_empty());
    }

    /// The daemon keeps what it has not been told of, and what that is about.
    #[test]
    fn what_there_was_no_room_for_is_said_later() {
        let mut all = Relations::default();
        for namespace in 0..700 {
            let asked = all.of(place(1000 + namespace, 1), place(5000 + namespace, 2), 5);
            assert!(matches!(asked, Known::Ask(_)));
        }
        all.sweep(u64::MAX);
        let (ours, theirs) = socket::pair().unwrap();
        let say = |number: u64| {
            socket::try_send(ours.as_fd(), &ToDaemon::NoMore { number }.encode(), &[]).is_ok()
        };
        assert!(!all.say_no_more(say) && !all.is_empty(), "it fits");
        let mut said = Vec::new();
        while said.len() < 700 {
            let mut bytes = [0; BYTES];
            match socket::receive(theirs.as_fd(), &mut bytes, socket::Mode::NonBlocking) {
                Ok((length, _)) => said.push(ToDaemon::decode(&bytes[..length]).unwrap()),
                Err(_) => _ = all.say_no_more(say),
            }
        }
        assert!(all.is_empty());
        let numbers = (1..=700).map(|number| ToDaemon::NoMore { number });
        said.sort_by_key(|one| match one {
            ToDaemon::NoMore { number } | ToDaemon::Ask { number, .. } => *number,
            ToDaemon::Alone { .. } => 0,
        });
        assert!(said.into_iter().eq(numbers), "each once");
    }
}
