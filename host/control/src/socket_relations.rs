//! Keeps pairs of network namespaces whose sockets may share memory, and pending questions.
//!
//! A namespace with such sockets is a vNIC for as long, with or without an RDMA device: its
//! addresses are read, and the network is asked for the vNICs of its peers' addresses. So it is
//! found by a process in it, opened, and has a session of its own in the tables.

use crate::vnic_references::Hold;
use omniverb_broker::broker_daemon_messages::NamespaceAddress;
use omniverb_tenancy::{RelationEnd, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

/// Budget: pairs that are kept: as many as the broker keeps.
const MOST: usize = 4096;
/// Processes that are kept for a namespace: as many as the broker asks about at a time.
const OTHERS: usize = 16;

/// How far a namespace is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The helper looks for it.
    Sought,
    /// It has been opened; its addresses are read.
    Opened(SessionId, Hold),
    /// It is one of the tables' vNICs.
    Known(SessionId, Hold),
}

/// A network namespace that is in some pair.
#[derive(Debug)]
struct Entry {
    stage: Stage,
    /// By which the helper's answer is known.
    number: u64,
    /// The user that it is sought for.
    user: u32,
    /// The pair whose process it is sought by.
    by: u64,
    /// The pairs that it is in.
    pairs: BTreeSet<u64>,
    /// Some pairs whose process was not needed so far, with their processes and users: until the
    /// namespace is known, since the first process may have ended, or its user have too many
    /// already.
    others: BTreeMap<u64, (u32, OwnedFd)>,
}

#[derive(Debug)]
struct Pair {
    places: [NamespaceAddress; 2],
    /// The tables have been asked.
    is_asked: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct SocketRelations {
    /// By their cookies.
    namespaces: BTreeMap<u64, Entry>,
    /// The namespaces of these sessions.
    sessions: BTreeMap<SessionId, u64>,
    pairs: BTreeMap<u64, Pair>,
    /// Sessions that are to end.
    leaving: VecDeque<(SessionId, Hold)>,
    /// The namespace of the one that ends now.
    ending: Option<Hold>,
    last: u64,
}

/// A namespace that is to be sought.
#[derive(Debug)]
pub(crate) struct ToSeek {
    /// By which the helper's answer is known.
    pub(crate) number: u64,
    /// The user in whose turn it is sought.
    pub(crate) user: u32,
    /// A process in it.
    pub(crate) process: OwnedFd,
}

/// Objects to release.
#[derive(Debug, Default)]
pub(crate) struct ForgottenRelation {
    /// The tables are to forget these pairs.
    pub(crate) pairs: Vec<u64>,
    /// These sessions are to end.
    pub(crate) sessions: Vec<(SessionId, Hold)>,
}

impl SocketRelations {
    /// One more pair. `false` if there are too many, or there is one of that number.
    pub(crate) fn add(&mut self, number: u64, places: [NamespaceAddress; 2]) -> bool {
        let is_new = self.pairs.len() < MOST && !self.pairs.contains_key(&number);
        let [one, other] = places.map(|place| place.namespace);
        if is_new && one != other {
            self.pairs.insert(number, Pair { places, is_asked: false });
        }
        is_new && one != other
    }

    /// The same pair is of this namespace, in which this process is.
    pub(crate) fn join(
        &mut self,
        pair: u64,
        namespace: u64,
        user: u32,
        process: OwnedFd,
    ) -> Option<ToSeek> {
        if let Some(entry) = self.namespaces.get_mut(&namespace) {
            entry.pairs.insert(pair);
            if !matches!(entry.stage, Stage::Known(..)) && entry.others.len() < OTHERS {
                entry.others.insert(pair, (user, process));
            }
            return None;
        }
        self.last += 1;
        let (stage, pairs, number) = (Stage::Sought, BTreeSet::from([pair]), self.last);
        let entry = Entry { stage, number, user, by: pair, pairs, others: BTreeMap::new() };
        self.namespaces.insert(namespace, entry);
        Some(ToSeek { number, user, process })
    }

    /// A namespace was not found by a process, or its user has no room: it is sought by the next
    /// process, if there is one. The pair that it was sought for before comes with that.
    pub(crate) fn next(&mut self, namespace: u64) -> Option<(u64, ToSeek)> {
        let entry = self.namespaces.get_mut(&namespace)?;
        let (pair, (user, process)) = entry.others.pop_first()?;
        self.last += 1;
        let number = self.last;
        (entry.number, entry.user) = (number, user);
        let before = std::mem::replace(&mut entry.by, pair);
        match std::mem::replace(&mut entry.stage, Stage::Sought) {
            Stage::Opened(session, hold) | Stage::Known(session, hold) => {
                self.sessions.remove(&session);
                self.leaving.push_back((session, hold));
            }
            Stage::Sought => {}
        }
        Some((before, ToSeek { number, user, process }))
    }

    /// The namespace that is sought by this number, and its user.
    pub(crate) fn sought(&self, number: u64) -> Option<(u64, u32)> {
        let is_it = |entry: &Entry| entry.number == number && matches!(entry.stage, Stage::Sought);
        let found = self.namespaces.iter().find(|(_, entry)| is_it(entry));
        found.map(|(namespace, entry)| (*namespace, entry.user))
    }

    /// It has been opened.
    pub(crate) fn opened(&mut self, namespace: u64, session: SessionId, hold: Hold) {
        if let Some(entry) = self.namespaces.get_mut(&namespace) {
            entry.stage = Stage::Opened(session, hold);
            self.sessions.insert(session, namespace);
        }
    }

    /// The namespace of a session of ours.
    pub(crate) fn of(&self, session: SessionId) -> Option<u64> {
        self.sessions.get(&session).copied()
    }

    /// It is one of ours.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The tables know a namespace now: pairs that they can be asked about.
    pub(crate) fn known(&mut self, namespace: u64) -> Vec<u64> {
        let Some(entry) = self.namespaces.get_mut(&namespace) else { return Vec::new() };
        entry.others.clear();
        match std::mem::replace(&mut entry.stage, Stage::Sought) {
            Stage::Opened(session, hold) => entry.stage = Stage::Known(session, hold),
            other => entry.stage = other,
        }
        entry.pairs.iter().copied().collect()
    }

    /// The ends of a pair, if the tables know both and have not been asked: they are now.
    pub(crate) fn ends(&mut self, number: u64) -> Option<[RelationEnd; 2]> {
        let pair = self.pairs.get_mut(&number).filter(|pair| !pair.is_asked)?;
        let end = |place: NamespaceAddress| match &self.namespaces.get(&place.namespace)?.stage {
            Stage::Known(_, hold) => Some((hold.vnic(), place.address)),
            _ => None,
        };
        let [one, other] = pair.places.map(end);
        let ends = [one?, other?];
        pair.is_asked = true;
        Some(ends)
    }

    /// Removes a pair, and the namespaces that are in no other. Returns the objects to release.
    pub(crate) fn remove(&mut self, number: u64) -> Option<ForgottenRelation> {
        let pair = self.pairs.remove(&number)?;
        let mut left = ForgottenRelation::default();
        if pair.is_asked {
            left.pairs.push(number);
        }
        for place in pair.places {
            let Some(entry) = self.namespaces.get_mut(&place.namespace) else { continue };
            entry.pairs.remove(&number);
            entry.others.remove(&number);
            if entry.pairs.is_empty() {
                left.sessions.extend(self.lose(place.namespace));
            }
        }
        Some(left)
    }

    /// A namespace cannot be known, or is no more: the pairs that it was in.
    pub(crate) fn pairs_of(&self, namespace: u64) -> Vec<u64> {
        let entry = self.namespaces.get(&namespace);
        entry.map_or(Vec::new(), |entry| entry.pairs.iter().copied().collect())
    }

    /// Nothing is kept of a namespace.
    fn lose(&mut self, namespace: u64) -> Option<(SessionId, Hold)> {
        match self.namespaces.remove(&namespace)?.stage {
            Stage::Opened(session, hold) | Stage::Known(session, hold) => {
                self.sessions.remove(&session);
                Some((session, hold))
            }
            Stage::Sought => None,
        }
    }

    /// Sessions are to end.
    pub(crate) fn leave(&mut self, sessions: Vec<(SessionId, Hold)>) {
        self.leaving.extend(sessions);
    }

    /// The next one of these; its namespace is kept until it has ended.
    pub(crate) fn end_next(&mut self) -> Option<SessionId> {
        let (session, hold) = self.leaving.pop_front()?;
        self.ending = Some(hold);
        Some(session)
    }

    /// That one has ended: its namespace is to be let go of.
    pub(crate) fn ended(&mut self) -> Option<Hold> {
        self.ending.take()
    }

    /// The numbers of all pairs.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.pairs.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vnic_references;
    use omniverb_tenancy::VnicId;

    fn places(one: u64, other: u64) -> [NamespaceAddress; 2] {
        [one, other].map(|namespace| NamespaceAddress { namespace, address: [10, 0, 0, 1].into() })
    }

    fn process() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    /// The first has ended when it is looked for, the second has too many vNICs.
    #[test]
    fn a_namespace_is_sought_by_the_next_process() {
        let (mut related, left) =
            (SocketRelations::default(), vnic_references::UnusedVnics::default());
        for number in 1..=4 {
            assert!(related.add(number, places(7, 7 + number)));
        }
        let first = related.join(1, 7, 5, process()).unwrap();
        for number in 2..=4 {
            assert!(related.join(number, 7, 5 + number as u32, process()).is_none());
        }
        let (by, second) = related.next(7).unwrap();
        assert_eq!((by, second.user), (1, 7));
        assert!(related.sought(first.number).is_none(), "what it answers is too late");
        assert_eq!(related.sought(second.number), Some((7, 7)));
        // No pair needs this one any more.
        related.remove(3).unwrap();
        related.opened(7, SessionId(1), left.hold(VnicId(1)).0);
        let (by, third) = related.next(7).unwrap();
        assert_eq!((by, third.user, related.has(SessionId(1))), (2, 9, false));
        assert_eq!(related.end_next(), Some(SessionId(1)));
        drop(related.ended());
        assert_eq!(left.take(), [VnicId(1)]);
        assert!(related.next(7).is_none());
        related.opened(7, SessionId(2), left.hold(VnicId(1)).0);
        assert_eq!(related.known(7), [1, 2, 4]);
        assert!(related.add(5, places(7, 20)) && related.join(5, 7, 5, process()).is_none());
        assert!(related.next(7).is_none(), "a known namespace needs no other process");
    }

    #[test]
    fn a_namespace_is_sought_once_and_released_with_its_last_pair() {
        let (mut related, left) =
            (SocketRelations::default(), vnic_references::UnusedVnics::default());
        assert!(related.add(1, places(7, 8)) && !related.add(1, places(7, 8)));
        assert!(!related.add(2, places(7, 7)), "within one none is asked");
        let first = related.join(1, 7, 5, process()).unwrap().number;
        let second = related.join(1, 8, 6, process()).unwrap().number;
        assert!(related.add(2, places(7, 9)) && related.join(2, 7, 5, process()).is_none());
        assert_eq!((related.sought(first), related.sought(99)), (Some((7, 5)), None));
        for (number, namespace) in [(1, 7), (2, 8)] {
            let (hold, _) = left.hold(VnicId(number));
            related.opened(namespace, SessionId(number), hold);
        }
        assert!(related.sought(second).is_none() && related.has(SessionId(2)));
        assert_eq!((related.known(7), related.ends(1)), (vec![1, 2], None));
        assert_eq!(related.known(8), [1]);
        let ends = related.ends(1).unwrap();
        assert_eq!(ends.map(|(vnic, _)| vnic), [VnicId(1), VnicId(2)]);
        assert!(related.ends(1).is_none(), "once");
        let gone = related.remove(1).unwrap();
        assert_eq!((gone.pairs, gone.sessions.len()), (vec![1], 1), "one is in another pair");
        assert!(related.pairs_of(8).is_empty() && related.pairs_of(7) == [2]);
        let gone = related.remove(2).unwrap();
        assert_eq!((gone.pairs, gone.sessions.len()), (vec![], 1));
        assert!(related.namespaces.is_empty() && related.sessions.is_empty());
        assert!(related.numbers().is_empty());
    }
}
