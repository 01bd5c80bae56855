//! What rests on which answer of the network, and how often that failed to come; `consent.rs` asks.

use crate::directory::neighbours::Question;
use crate::ids::{LinkKey, RemotePeer};
use omniverb_terms::{Qpn, VnicId};
use std::collections::{BTreeMap, BTreeSet};

/// Questions in a row, each of several tries, that nobody has answered, or that could not be asked
/// since too many were under way: links end after these. A machine that has other things to do may
/// be late for one and the next.
const MISSES_MAX: u32 = 7;

/// Something that lives by an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rest {
    /// A direct link.
    Link(LinkKey),
    /// A queue pair's link to the engine.
    Engine(Qpn, RemotePeer),
    /// A relation of sockets.
    Relation(u64),
}

#[derive(Debug, Default)]
struct Consent {
    /// What lives by it; never empty in the table.
    rests: BTreeSet<Rest>,
    /// Questions since the last answer.
    misses: u32,
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

    /// It was answered with this vNIC, or with none. What rests on it, unless that may go on for
    /// now whoever it leads to.
    pub(crate) fn answered(&mut self, question: &Question, at: Option<VnicId>) -> Vec<Rest> {
        let Some(consent) = self.by_question.get_mut(question) else { return Vec::new() };
        consent.misses = if at.is_some() { 0 } else { consent.misses + 1 };
        if at.is_none() && consent.misses < MISSES_MAX {
            return Vec::new();
        }
        consent.rests.iter().copied().collect()
    }
}
