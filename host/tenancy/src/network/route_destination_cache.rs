//! Knows which vNIC or host is at the end of which route, and what is being asked.
//!
//! Every question under way has one number, and every number one question; all waiters for its
//! answer are kept here.

use crate::accounts::Receipt;
use crate::row_keys::ProbeId;
use omniverb_terms::{Gid, Qpn, RouteKey, VnicId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;

/// Answers kept before those that have run out are thrown away.
const SWEEP_AT: usize = 1024;

/// Asks which vNIC or host is at the end of a route, seen from a vNIC, and expects it to have a
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Question {
    pub(crate) from: VnicId,
    /// Seen from this address of it; `None`: from any.
    pub(crate) local: Option<IpAddr>,
    /// Zero unless the address needs one.
    pub(crate) interface: u32,
    /// The name of the route: the vNIC at its end must have it.
    pub(crate) gid: Gid,
    /// The address that is asked.
    pub(crate) remote: IpAddr,
    /// In which of several networks with such addresses; `None`: in the vNIC's own.
    pub(crate) key: Option<RouteKey>,
}

/// Continues when a question has been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiter {
    /// A wish of a queue pair.
    Wish { qpn: Qpn, peer: Qpn },
    /// Links that rest on the answer.
    Consent,
    /// Sockets that are to be brought together.
    Relation(u64),
}

/// The network's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is this vNIC's.
    Is(VnicId),
    /// It is that of a vNIC of this host with another tenant: packets to it are lost.
    Foreign(VnicId),
    /// It is another Omniverb's, which has these features.
    Omniverb(u32),
    /// None: no host there knows the question.
    Silence,
    /// Nothing, and an answer may have been lost in front of us: a receive queue overflowed.
    Unheard,
    /// The question could not be sent: there is no route, or no socket.
    NoAccess,
}

/// A question under way.
#[derive(Debug)]
struct OpenQuestion {
    id: ProbeId,
    /// From whichever vNIC had it asked first.
    receipt: Receipt,
    waiters: BTreeSet<Waiter>,
}

/// Known answers, and questions under way.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    known: BTreeMap<Question, (Answer, u64)>,
    /// Questions whose answer is a vNIC of this host.
    leads_to: BTreeSet<(VnicId, Question)>,
    asked: BTreeMap<Question, OpenQuestion>,
    ids: HashMap<ProbeId, Question>,
    sweep_at: usize,
}

impl Neighbours {
    /// No probe is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.ids.is_empty()
    }

    /// The receipts of the questions under way.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = &Receipt> {
        self.asked.values().map(|asked| &asked.receipt)
    }

    /// The answer that is known now.
    pub(crate) fn recall(&self, question: &Question, now: u64) -> Option<Answer> {
        self.known.get(question).filter(|(_, until)| *until > now).map(|(answer, _)| *answer)
    }

    /// Keeps an answer.
    pub(crate) fn learn(&mut self, question: Question, answer: Answer, until: u64, now: u64) {
        if self.known.len() >= self.sweep_at.max(SWEEP_AT) {
            self.known.retain(|_, (_, until)| *until > now);
            let known = &self.known;
            self.leads_to.retain(|(_, question)| known.contains_key(question));
            self.sweep_at = self.known.len() * 2;
        }
        self.unlearn(&question);
        self.known.insert(question, (answer, until));
        if let Answer::Is(vnic) | Answer::Foreign(vnic) = answer {
            self.leads_to.insert((vnic, question));
        }
    }

    fn unlearn(&mut self, question: &Question) {
        if let Some((Answer::Is(vnic) | Answer::Foreign(vnic), _)) = self.known.remove(question) {
            self.leads_to.remove(&(vnic, *question));
        }
    }

    /// Forgets the answers seen from a vNIC, and those about it.
    pub(crate) fn forget(&mut self, vnic: VnicId) {
        let from = from(&self.known, vnic).map(|(question, _)| *question);
        let all = (vnic, Question::first(VnicId(0)))..=(vnic, Question::last(VnicId(u64::MAX)));
        let to = self.leads_to.range(all).map(|(_, question)| *question);
        for question in from.chain(to).collect::<Vec<_>>() {
            self.unlearn(&question);
        }
    }

    /// A question is under way.
    pub(crate) fn is_asked(&self, question: &Question) -> bool {
        self.asked.contains_key(question)
    }

    /// One more waits for a question that is under way.
    pub(crate) fn join(&mut self, question: &Question, waiter: Option<Waiter>) {
        if let Some(asked) = self.asked.get_mut(question) {
            asked.waiters.extend(waiter);
        }
    }

    /// A question is under way from now on, paid for by this.
    pub(crate) fn begin(
        &mut self,
        question: Question,
        id: ProbeId,
        receipt: Receipt,
        waiter: Option<Waiter>,
    ) {
        let waiters = waiter.into_iter().collect();
        self.ids.insert(id, question);
        self.asked.insert(question, OpenQuestion { id, receipt, waiters });
    }

    /// The question that this is the number of.
    pub(crate) fn question(&self, id: ProbeId) -> Option<Question> {
        self.ids.get(&id).copied()
    }

    /// The question that this is the number of, and one of those that wait for its answer.
    pub(crate) fn waiter(&self, id: ProbeId) -> Option<(Question, Option<Waiter>)> {
        let question = self.question(id)?;
        let waiters = self.asked.get(&question).map(|asked| &asked.waiters);
        Some((question, waiters.and_then(|waiters| waiters.first().copied())))
    }

    /// Ends a question and returns its charge: its number, and its waiters.
    pub(crate) fn end(&mut self, question: &Question) -> Option<(ProbeId, BTreeSet<Waiter>)> {
        let OpenQuestion { id, waiters, receipt: _ } = self.asked.remove(question)?;
        self.ids.remove(&id);
        Some((id, waiters))
    }

    /// Questions under way from a vNIC.
    pub(crate) fn of(&self, vnic: VnicId) -> Vec<Question> {
        from(&self.asked, vnic).map(|(question, _)| *question).collect()
    }
}

/// Those of questions that are asked from a vNIC.
fn from<T>(rows: &BTreeMap<Question, T>, vnic: VnicId) -> impl Iterator<Item = (&Question, &T)> {
    rows.range(Question::first(vnic)..=Question::last(vnic))
}

impl Question {
    /// The least and the greatest of a vNIC's.
    fn first(from: VnicId) -> Question {
        let remote = IpAddr::from([0; 4]);
        Question { from, local: None, interface: 0, gid: Gid::ZERO, remote, key: None }
    }

    fn last(from: VnicId) -> Question {
        let remote = IpAddr::from([u16::MAX; 8]);
        let (local, interface, gid) = (Some(remote), u32::MAX, Gid::MAX);
        Question { from, local, interface, gid, remote, key: Some(RouteKey(NonZeroU32::MAX)) }
    }
}
