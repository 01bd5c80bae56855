//! Keeps what the daemon has said of pairs of addresses in two network namespaces.
//!
//! Few questions of one namespace are under way at a time, and few answers are kept for it: no
//! process stops others by asking. A pair that is not answered stays undecided.

use crate::broker_daemon_messages::{Denial, NamespaceAddress};
use crate::limits::{
    ADDRESS_PAIR_KEPT, ADDRESS_PAIRS, ADDRESS_PAIRS_OF_NAMESPACE, ASKED_OF_NAMESPACE,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// How long it is not asked again what was denied, in nanoseconds.
const DENIED: u64 = 1_000_000_000;
/// The longest time after which it is asked again for those that wait still, in nanoseconds: it
/// doubles with each answer.
const DENIED_MOST: u64 = 60 * DENIED;
/// Pairs that are asked about again at a time.
const PER_PASS: usize = 64;

/// Both places, the smaller one first.
type PairKey = [NamespaceAddress; 2];

fn pair_key(one: NamespaceAddress, other: NamespaceAddress) -> PairKey {
    [one.min(other), one.max(other)]
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The daemon has not answered yet.
    Asked,
    /// It has said yes. These links live by it.
    Allowed(BTreeSet<u64>),
    /// It has said no.
    Denied(Denial),
}

#[derive(Debug)]
struct PairRecord {
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
pub(crate) enum PairDecision {
    /// The daemon is to be asked, with this number.
    Ask(u64),
    /// It was, or cannot be now.
    Wait,
    /// The daemon says that they may.
    Allowed,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct AddressPairs {
    by_pair: HashMap<PairKey, PairRecord>,
    by_number: BTreeMap<u64, PairKey>,
    /// Pairs that the daemon still keeps and may forget, to be announced to it.
    unneeded: VecDeque<u64>,
    last: u64,
}

impl AddressPairs {
    /// What is known of two places; if that is nothing it is to be asked now.
    pub(crate) fn decide(
        &mut self,
        one: NamespaceAddress,
        other: NamespaceAddress,
        now: u64,
    ) -> PairDecision {
        let pair = pair_key(one, other);
        match self.by_pair.get_mut(&pair) {
            Some(record) => match record.state {
                State::Asked => return PairDecision::Wait,
                State::Allowed(_) => {
                    record.until = now.saturating_add(ADDRESS_PAIR_KEPT);
                    return PairDecision::Allowed;
                }
                State::Denied(_) if record.since.saturating_add(DENIED) > now => {
                    return PairDecision::Wait;
                }
                State::Denied(_) => {}
            },
            None => {
                if !self.has_room(pair) {
                    return PairDecision::Wait;
                }
            }
        }
        self.ask(pair, now)
    }

    /// It is to be asked; if too much is, a while later.
    fn ask(&mut self, pair: PairKey, now: u64) -> PairDecision {
        let may = pair.iter().all(|place| self.count(place.namespace).1 < ASKED_OF_NAMESPACE);
        let before = self.by_pair.get(&pair).map(|record| (record.number, record.denials));
        let (number, denials) = before.unwrap_or_default();
        self.by_number.remove(&number);
        let mut next = PairRecord {
            number: 0,
            state: State::Denied(Denial::Busy),
            until: now.saturating_add(DENIED),
            since: now,
            denials,
        };
        if may {
            self.last += 1;
            self.by_number.insert(self.last, pair);
            next.number = self.last;
            next.state = State::Asked;
            next.until = now.saturating_add(ADDRESS_PAIR_KEPT);
        }
        self.by_pair.insert(pair, next);
        if may { PairDecision::Ask(self.last) } else { PairDecision::Wait }
    }

    /// For one more, in each of its namespaces.
    fn has_room(&self, pair: PairKey) -> bool {
        // As many as the daemon has.
        self.by_pair.len() + self.unneeded.len() < ADDRESS_PAIRS
            && pair.iter().all(|place| self.count(place.namespace).0 < ADDRESS_PAIRS_OF_NAMESPACE)
    }

    /// Pairs of a namespace: all, and those that the daemon is being asked about.
    fn count(&self, namespace: u64) -> (usize, usize) {
        let is_of = |pair: &PairKey| pair.iter().any(|one| one.namespace == namespace);
        let of = self.by_pair.iter().filter(|(pair, _)| is_of(pair));
        of.fold((0, 0), |(all, asked), (_, one)| {
            (all + 1, asked + usize::from(one.state == State::Asked))
        })
    }

    /// Some denied pairs whose time to be asked about again has come, if an offer still waits.
    pub(crate) fn due_denials(&self, now: u64) -> Vec<[NamespaceAddress; 2]> {
        let is_due = |one: &PairRecord| matches!(one.state, State::Denied(_)) && one.until <= now;
        let due = self.by_pair.iter().filter(|(_, record)| is_due(record));
        due.map(|(pair, _)| *pair).take(PER_PASS).collect()
    }

    /// Asks again about a denied pair for which an offer waits.
    pub(crate) fn ask_again(&mut self, pair: [NamespaceAddress; 2], now: u64) -> PairDecision {
        let is_denied = |one: &PairRecord| matches!(one.state, State::Denied(_));
        match self.by_pair.get(&pair).is_some_and(is_denied) {
            true => self.ask(pair, now),
            false => PairDecision::Wait,
        }
    }

    /// Forgets a denied pair for which no offer waits.
    pub(crate) fn forget(&mut self, pair: [NamespaceAddress; 2]) {
        if self.by_pair.get(&pair).is_some_and(|one| matches!(one.state, State::Denied(_))) {
            self.remove(&pair);
        }
    }

    fn remove(&mut self, pair: &PairKey) {
        if let Some(record) = self.by_pair.remove(pair) {
            self.by_number.remove(&record.number);
        }
    }

    /// The daemon says yes: the places.
    pub(crate) fn allow(&mut self, number: u64) -> Option<[NamespaceAddress; 2]> {
        let pair = self.by_number.get(&number)?;
        let record = self.by_pair.get_mut(pair)?;
        (record.state == State::Asked).then(|| {
            record.state = State::Allowed(BTreeSet::new());
            record.denials = 0;
            *pair
        })
    }

    /// The daemon says no: the links that lived by what it said before.
    pub(crate) fn deny(&mut self, number: u64, why: Denial, now: u64) -> BTreeSet<u64> {
        let pair = self.by_number.get(&number);
        let Some(record) = pair.and_then(|pair| self.by_pair.get_mut(pair)) else {
            return BTreeSet::new();
        };
        let wait = (DENIED << record.denials.min(6)).min(DENIED_MOST);
        record.denials += 1;
        record.since = now;
        record.until = now.saturating_add(wait);
        match std::mem::replace(&mut record.state, State::Denied(why)) {
            State::Allowed(links) => links,
            _ => BTreeSet::new(),
        }
    }

    /// A link is about to be given to two places. `false`: they may not have it any more.
    pub(crate) fn add_link(
        &mut self,
        one: NamespaceAddress,
        other: NamespaceAddress,
        link: u64,
    ) -> bool {
        match self.by_pair.get_mut(&pair_key(one, other)).map(|record| &mut record.state) {
            Some(State::Allowed(links)) => links.insert(link),
            _ => false,
        }
    }

    /// The daemon has said that they may, and nothing else since.
    pub(crate) fn is_allowed(&self, one: NamespaceAddress, other: NamespaceAddress) -> bool {
        let record = self.by_pair.get(&pair_key(one, other));
        record.is_some_and(|record| matches!(record.state, State::Allowed(_)))
    }

    /// It has been asked, and has not answered yet.
    pub(crate) fn is_asked(&self, one: NamespaceAddress, other: NamespaceAddress) -> bool {
        let record = self.by_pair.get(&pair_key(one, other));
        record.is_some_and(|record| record.state == State::Asked)
    }

    /// A link lives by what the daemon says of two places.
    pub(crate) fn has_link(
        &self,
        one: NamespaceAddress,
        other: NamespaceAddress,
        link: u64,
    ) -> bool {
        let record = self.by_pair.get(&pair_key(one, other));
        record.is_some_and(|record| match &record.state {
            State::Allowed(links) => links.contains(&link),
            _ => false,
        })
    }

    /// A link is no more.
    pub(crate) fn remove_link(
        &mut self,
        one: NamespaceAddress,
        other: NamespaceAddress,
        link: u64,
        now: u64,
    ) {
        if let Some(record) = self.by_pair.get_mut(&pair_key(one, other))
            && let State::Allowed(links) = &mut record.state
        {
            links.remove(&link);
            record.until = now.saturating_add(ADDRESS_PAIR_KEPT);
        }
    }

    /// Why two places have no links.
    pub(crate) fn denial(&self, one: NamespaceAddress, other: NamespaceAddress) -> Option<Denial> {
        match self.by_pair.get(&pair_key(one, other))?.state {
            State::Denied(why) => Some(why),
            _ => None,
        }
    }

    /// What is of no use any more goes; that the daemon is to be told of it waits.
    pub(crate) fn sweep(&mut self, now: u64) {
        let is_over = |record: &PairRecord| {
            let is_used = match &record.state {
                State::Asked => false,
                State::Allowed(links) => !links.is_empty(),
                // The caller looks first whether an offer waits for it.
                State::Denied(_) => true,
            };
            record.until <= now && !is_used
        };
        let over = self.by_pair.iter().filter(|(_, record)| is_over(record));
        let over: Vec<PairKey> = over.map(|(pair, _)| *pair).collect();
        for pair in over {
            self.unneeded.extend(self.by_pair.get(&pair).map(|one| one.number));
            self.remove(&pair);
        }
    }

    /// Tells the daemon which pairs are not needed any more, until `say` cannot. Whether all are
    /// told.
    pub(crate) fn announce_unneeded(&mut self, mut say: impl FnMut(u64) -> bool) -> bool {
        while let Some(number) = self.unneeded.front() {
            if !say(*number) {
                return false;
            }
            self.unneeded.pop_front();
        }
        true
    }

    /// Nothing is kept, and nothing is to be said.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_pair.is_empty() && self.unneeded.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker_daemon_messages::{BYTES, ToDaemon};
    use omniverb_sys::seqpacket;
    use std::os::fd::AsFd;

    fn place(namespace: u64, last: u8) -> NamespaceAddress {
        NamespaceAddress { namespace, address: [10, 0, 0, last].into() }
    }

    #[test]
    fn a_pair_is_asked_for_once_and_links_live_by_what_was_said() {
        let mut all = AddressPairs::default();
        let (one, other) = (place(1, 1), place(2, 2));
        let PairDecision::Ask(number) = all.decide(one, other, 5) else { panic!("not asked") };
        assert_eq!(all.decide(other, one, 5), PairDecision::Wait);
        assert!(all.is_asked(other, one) && !all.is_asked(one, place(3, 1)));
        assert!(!all.add_link(one, other, 70));
        assert_eq!(all.allow(number), Some([one, other]));
        assert_eq!(all.allow(number), None);
        assert_eq!(all.decide(other, one, 5), PairDecision::Allowed);
        assert!(
            all.add_link(other, one, 70)
                && all.has_link(one, other, 70)
                && !all.has_link(one, other, 71)
        );
        assert!(all.is_allowed(other, one) && !all.is_allowed(one, place(3, 2)));
        // The same addresses elsewhere are another pair.
        assert!(matches!(all.decide(place(3, 1), place(2, 2), 5), PairDecision::Ask(_)));
        assert!(!all.add_link(place(3, 1), place(2, 2), 71));
        assert_eq!(all.deny(number, Denial::Policy, 5), BTreeSet::from([70]));
        assert!(!all.has_link(one, other, 70));
        assert_eq!(
            (all.denial(one, other), all.decide(one, other, 6)),
            (Some(Denial::Policy), PairDecision::Wait)
        );
        assert!(!all.is_allowed(one, other));
        assert!(matches!(all.decide(one, other, 2_000_000_000), PairDecision::Ask(_)));
    }

    #[test]
    fn many_questions_stop_no_other() {
        let mut all = AddressPairs::default();
        let asked = |all: &mut AddressPairs, namespace, from: u64| {
            let is_asked = |last: &u64| {
                let other = place(1000 + last, 2);
                matches!(all.decide(place(namespace, 1), other, 5), PairDecision::Ask(_))
            };
            (from..from + 1000).filter(is_asked).count()
        };
        assert_eq!(asked(&mut all, 1, 0), ASKED_OF_NAMESPACE);
        assert_eq!(asked(&mut all, 2, 2000), ASKED_OF_NAMESPACE);
        for number in 1..=ASKED_OF_NAMESPACE as u64 {
            assert!(all.allow(number).is_some());
        }
        assert_eq!(asked(&mut all, 1, 4000), 0, "many wait to be asked about");
        let forget = |all: &mut AddressPairs| {
            while let Some(pair) = all.due_denials(u64::MAX).pop() {
                all.forget(pair);
            }
        };
        forget(&mut all);
        assert_eq!(asked(&mut all, 1, 4000), ASKED_OF_NAMESPACE);
        // An unused pair goes, and the daemon is told.
        all.sweep(5);
        assert_eq!(all.unneeded.len(), 0);
        all.sweep(u64::MAX);
        assert_eq!(all.unneeded.len(), 3 * ASKED_OF_NAMESPACE);
        assert!(all.by_number.is_empty());
        assert!(
            all.due_denials(u64::MAX).len() == PER_PASS
                && all.count(1).0 <= ADDRESS_PAIRS_OF_NAMESPACE
        );
        forget(&mut all);
        assert!(all.by_pair.is_empty());
    }

    #[test]
    fn denied_pairs_are_asked_again_less_and_less_often() {
        let mut all = AddressPairs::default();
        let (one, other) = (place(1, 1), place(2, 2));
        let PairDecision::Ask(mut number) = all.decide(one, other, 0) else { panic!("not asked") };
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..9 {
            all.deny(number, Denial::Busy, now);
            let since = now;
            while all.due_denials(now).is_empty() {
                now += DENIED / 2;
                all.sweep(now);
            }
            waits.push((now - since) / DENIED);
            assert_eq!(all.denial(one, other), Some(Denial::Busy));
            let PairDecision::Ask(next) = all.ask_again([one, other], now) else {
                panic!("not again")
            };
            assert!(next > number && all.allow(number).is_none(), "by another number");
            number = next;
            assert_eq!(all.ask_again([one, other], now), PairDecision::Wait);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        // A later offer waits for less time.
        all.deny(number, Denial::Busy, now);
        let PairDecision::Ask(number) = all.decide(one, other, now + DENIED) else {
            panic!("not asked")
        };
        assert!(all.allow(number).is_some());
        all.forget([one, other]);
        assert_eq!(all.decide(one, other, now), PairDecision::Allowed);
        all.deny(number, Denial::Policy, now);
        assert_eq!(all.due_denials(now + DENIED), [[one, other]], "from the beginning");
        all.forget([one, other]);
        assert!(all.is_empty() && all.by_number.is_empty());
    }

    /// The daemon keeps what it has not been told of, and what that is about.
    #[test]
    fn what_there_was_no_room_for_is_said_later() {
        let mut all = AddressPairs::default();
        for namespace in 0..700 {
            let asked = all.decide(place(1000 + namespace, 1), place(5000 + namespace, 2), 5);
            assert!(matches!(asked, PairDecision::Ask(_)));
        }
        all.sweep(u64::MAX);
        let (ours, theirs) = seqpacket::pair().unwrap();
        let say = |number: u64| {
            seqpacket::try_send(ours.as_fd(), &ToDaemon::Release { number }.encode(), &[]).is_ok()
        };
        assert!(!all.announce_unneeded(say) && !all.is_empty(), "it fits");
        let mut said = Vec::new();
        while said.len() < 700 {
            let mut bytes = [0; BYTES];
            match seqpacket::receive(
                theirs.as_fd(),
                &mut bytes,
                seqpacket::BlockingMode::NonBlocking,
            ) {
                Ok((length, _)) => said.push(ToDaemon::decode(&bytes[..length]).unwrap()),
                Err(_) => _ = all.announce_unneeded(say),
            }
        }
        assert!(all.is_empty());
        let numbers = (1..=700).map(|number| ToDaemon::Release { number });
        said.sort_by_key(|one| match one {
            ToDaemon::Release { number } | ToDaemon::Ask { number, .. } => *number,
            ToDaemon::Idle { .. } => 0,
        });
        assert!(said.into_iter().eq(numbers), "each once");
    }
}
