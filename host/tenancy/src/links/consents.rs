//! What rests on which answer of the network, and how often that failed to come; `consent.rs` asks.

use crate::directory::neighbours::Question;
use crate::ids::{LinkKey, RemotePeer};
use omniverb_terms::{Qpn, VnicId};
use std::collections::{BTreeMap, BTreeSet};

/// Periods without an answer, each of several tries, after which links end.
const MISSES_MAX: u32 = 2;

/// A probe that cannot be sent because too many are under way is tried again after this part of a
/// period; after as many of these the period counts as one without an answer.
const DELAYS: u32 = 8;

/// Something that lives by an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rest {
    /// A direct link.
    Link(LinkKey),
    /// A queue pair's link to the engine.
    Engine(Qpn, RemotePeer),
}

#[derive(Debug, Default)]
struct Consent {
    /// What lives by it; never empty in the table.
    rests: BTreeSet<Rest>,
    /// Periods without an answer since the last one.
    misses: u32,
    /// Times it could not be asked since it was answered, or was not.
    delays: u32,
}

/// All answers that something rests on.
#[derive(Debug, Default)]
pub(crate) struct Consents {
    by_question: BTreeMap<Question, Consent>,
}

impl Consents {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_question.is_empty()
    }

    /// Something rests on an answer.
    pub(crate) fn is_asked(&self, question: &Question) -> bool {
        self.by_question.contains_key(question)
    }

    /// A link rests on this answer from now on.
    pub(crate) fn join(&mut self, question: Question, rest: Rest) {
        self.by_question.entry(question).or_default().rests.insert(rest);
    }

    /// A link rests on this answer no longer.
    pub(crate) fn leave(&mut self, question: &Question, rest: Rest) {
        let Some(consent) = self.by_question.get_mut(question) else { return };
        consent.rests.remove(&rest);
        if consent.rests.is_empty() {
            self.by_question.remove(question);
        }
    }

    /// There was no room for the question: it is asked a little later.
    pub(crate) fn delay(&mut self, question: &Question) {
        if let Some(consent) = self.by_question.get_mut(question) {
            consent.delays += 1;
        }
    }

    /// It could not be asked so often that it counts as not answered.
    pub(crate) fn is_overdue(&self, question: &Question) -> bool {
        self.by_question.get(question).is_some_and(|consent| consent.delays >= DELAYS)
    }

    /// It was answered with this vNIC, or with none. What rests on it, unless that may go on for
    /// now whoever it leads to.
    pub(crate) fn answered(&mut self, question: &Question, at: Option<VnicId>) -> Vec<Rest> {
        let Some(consent) = self.by_question.get_mut(question) else { return Vec::new() };
        consent.delays = 0;
        consent.misses = if at.is_some() { 0 } else { consent.misses + 1 };
        if at.is_none() && consent.misses < MISSES_MAX {
            return Vec::new();
        }
        consent.rests.iter().copied().collect()
    }
}
