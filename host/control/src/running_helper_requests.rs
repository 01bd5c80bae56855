//! Limits the helper's running requests, for each kind and for each branch of cgroups.
//!
//! Running requests are counted in their table: there is no separate count that could be wrong. A
//! question that took too long counts until the helper has answered it.

use omniverb_fairness::Holder;
use omniverb_netns::{Kind, UnderlaySocket};
use omniverb_sys::netns::Namespace;
use omniverb_tenancy::{SessionId, VnicId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Questions of a kind that may be under way below a branch that is so many steps of cgroups (and
/// the user) from the root. Each step has half of what the one above has, since others must find
/// one free: a user gains nothing by cgroups of its own.
///
/// All kinds together are fewer than the helper's [`WORKERS`](omniverb_netns::WORKERS). The kernel
/// says at once which process is at the end of a connection, so a few such questions are enough,
/// and leave the processor to the daemon when many connect.
fn slots(kind: Kind, steps: usize) -> usize {
    let all: usize = match kind {
        Kind::Process => 4,
        Kind::Addresses | Kind::Port | Kind::PspPort => 16,
        Kind::Interfaces => 8,
        Kind::UnderlaySocket => 2,
        Kind::Watch => 1,
    };
    (all >> steps.min(all.ilog2() as usize)).max(1)
}

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// A connection whose process is to be identified.
    Arrival(SessionId),
    /// A process that this client has named.
    Named(SessionId),
    /// A vNIC: its addresses, or its sockets.
    Vnic(VnicId),
    /// The namespace of the underlay: its port of PSP.
    Underlay,
    /// A socket at an underlay address.
    UnderlaySocket(UnderlaySocket),
    /// Containers as a whole, which are watched.
    Containers,
    /// A process whose sockets are to be brought together with others: its network namespace.
    Sockets(u64),
}

/// What goes with a request.
#[derive(Clone, Debug)]
pub(crate) enum Enclosed {
    /// A process, by its descriptor.
    Process(Arc<OwnedFd>),
    /// A network namespace, which the helper is to enter.
    Namespace(Arc<Namespace>),
}

impl AsFd for Enclosed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Enclosed::Process(file) => file.as_fd(),
            Enclosed::Namespace(namespace) => namespace.as_fd(),
        }
    }
}

/// Something that the helper is asked.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) kind: Kind,
    pub(crate) subject: Subject,
    /// The holder that waits for it, in whose turn it is sent.
    pub(crate) holder: Holder,
    pub(crate) enclosed: Enclosed,
}

/// A question under way.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) question: Question,
    deadline: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A caller waits for the answer.
    Waited,
    /// The same, and a helper that was asked before has died.
    Again,
    /// No caller waits for it any more.
    Late,
}

impl PendingRequest {
    /// Whether no caller waits for the answer any more.
    pub(crate) fn is_late(&self) -> bool {
        self.state == State::Late
    }
}

/// All that the helper is doing, by numbers that no two have.
#[derive(Debug, Default)]
pub(crate) struct RunningHelperRequests {
    rows: BTreeMap<u64, PendingRequest>,
    /// Deadlines of requests with a waiting caller, in nanoseconds.
    deadlines: BTreeSet<(u64, u64)>,
}

impl RunningHelperRequests {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn questions(&self, kind: Kind) -> impl Iterator<Item = &Question> {
        let questions = self.rows.values().map(|asked| &asked.question);
        questions.filter(move |question| question.kind == kind)
    }

    /// One more of a kind may be under way.
    pub(crate) fn has_room(&self, kind: Kind) -> bool {
        self.questions(kind).count() < slots(kind, 0)
    }

    /// One more of a kind in each branch that leads to its holder.
    pub(crate) fn has_room_for(&self, Question { kind, holder, .. }: &Question) -> bool {
        let others = self.questions(*kind).map(|other| other.holder.shared_steps(holder));
        let shared: Vec<usize> = others.collect();
        (0..=holder.steps()).all(|steps| {
            let below = shared.iter().filter(|shared| **shared >= steps);
            below.count() < slots(*kind, steps)
        })
    }

    /// It was asked, and is waited for until `deadline`.
    pub(crate) fn begin(&mut self, id: u64, question: Question, deadline: u64) {
        self.deadlines.insert((deadline, id));
        self.rows.insert(id, PendingRequest { question, deadline, state: State::Waited });
    }

    /// What kind of question has this number.
    pub(crate) fn kind(&self, id: u64) -> Option<Kind> {
        self.rows.get(&id).map(|asked| asked.question.kind)
    }

    /// The numbers of all.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.rows.keys().copied().collect()
    }

    /// It is under way no more.
    pub(crate) fn end(&mut self, id: u64) -> Option<PendingRequest> {
        let asked = self.rows.remove(&id)?;
        self.deadlines.remove(&(asked.deadline, id));
        Some(asked)
    }

    /// The helper has died: the request is sent once more if a caller waits for it and it was not
    /// sent twice already.
    pub(crate) fn ask_again(&mut self, id: u64) -> Option<&Question> {
        let asked = self.rows.get_mut(&id).filter(|asked| asked.state == State::Waited)?;
        asked.state = State::Again;
        Some(&asked.question)
    }

    /// When the next of them has taken too long.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The next request that has taken too long; no caller waits for it from now on.
    pub(crate) fn next_late(&mut self, now: u64) -> Option<&Question> {
        let (deadline, id) = *self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.deadlines.remove(&(deadline, id));
        let asked = self.rows.get_mut(&id)?;
        asked.state = State::Late;
        Some(&asked.question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kind: Kind, user: u32) -> Question {
        question_of(kind, Holder::new("", user))
    }

    fn question_of(kind: Kind, holder: Holder) -> Question {
        let file = std::fs::File::open("/dev/null").unwrap();
        let enclosed = Enclosed::Process(Arc::new(file.into()));
        let subject = Subject::Arrival(SessionId(1));
        Question { kind, subject, holder, enclosed }
    }

    #[test]
    fn requests_of_one_user_and_kind_are_bounded() {
        let mut under_way = RunningHelperRequests::default();
        let (most, of_one) = (slots(Kind::Port, 0), slots(Kind::Port, 1));
        for id in 0..most {
            let user = (id / of_one) as u32;
            assert!(under_way.has_room(Kind::Port));
            assert!(under_way.has_room_for(&question(Kind::Port, user)));
            under_way.begin(id as u64, question(Kind::Port, user), 10);
        }
        assert!(!under_way.has_room(Kind::Port) && under_way.has_room(Kind::Addresses));
        assert!(!under_way.has_room_for(&question(Kind::Port, 0)));
        assert!(under_way.has_room_for(&question(Kind::Addresses, 0)));
        assert_eq!(under_way.end(0).map(|asked| asked.is_late()), Some(false));
        assert!(under_way.end(0).is_none());
        assert!(under_way.has_room(Kind::Port));
        assert!(under_way.has_room_for(&question(Kind::Port, 0)));
        (1..most).for_each(|id| _ = under_way.end(id as u64).unwrap());
        assert!(under_way.is_empty() && under_way.next_deadline().is_none());
    }

    #[test]
    fn cgroups_of_its_own_give_a_user_no_more() {
        let kinds = [(Kind::Process, 4), (Kind::Port, 16), (Kind::Addresses, 16)];
        for (kind, all) in kinds {
            let mut under_way = RunningHelperRequests::default();
            let mut id = 0;
            let mut fill = |under_way: &mut RunningHelperRequests, cgroup: &str, user| {
                let question = question_of(kind, Holder::new(cgroup, user));
                let has_room = under_way.has_room_for(&question);
                if has_room {
                    id += 1;
                    under_way.begin(id, question, 10);
                }
                has_room
            };
            // One tenant, whatever it splits into.
            for number in 0..64 {
                fill(&mut under_way, &format!("nasty/{}/{number}", number % 8), number % 3);
            }
            assert!(under_way.rows.len() <= all / 2, "{}", under_way.rows.len());
            assert!(under_way.has_room(kind));
            assert!(fill(&mut under_way, "good", 0), "{kind:?}");
            // The same below a branch that both share.
            let mut under_way = RunningHelperRequests::default();
            for number in 0..64 {
                fill(&mut under_way, &format!("all/nasty/{number}"), 0);
            }
            assert!(fill(&mut under_way, "all/good", 0), "{kind:?}");
        }
    }

    #[test]
    fn a_late_request_counts_until_it_ends_and_is_not_repeated() {
        let mut under_way = RunningHelperRequests::default();
        for (id, deadline) in [(1, 30), (2, 20)] {
            under_way.begin(id, question(Kind::Process, 0), deadline);
        }
        assert_eq!(under_way.next_deadline(), Some(20));
        assert!(under_way.next_late(19).is_none());
        assert!(under_way.next_late(20).is_some() && under_way.next_late(20).is_none());
        assert!(!under_way.has_room_for(&question(Kind::Process, 0)));
        assert!(under_way.ask_again(2).is_none(), "no caller waits for it");
        assert!(under_way.ask_again(1).is_some());
        assert!(under_way.ask_again(1).is_none(), "one helper has died of it, or two");
        assert!(under_way.end(2).unwrap().is_late());
        assert!(under_way.has_room_for(&question(Kind::Process, 0)));
    }
}
