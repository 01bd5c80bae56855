//! What rests on which answer of the network, and how often that failed to come; `consent.rs` asks.

use crate::directory::neighbours::Question;
use crate::ids::{Far, LinkKey, VnicId};
use omniverb_terms::Qpn;
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
    Wire(Qpn, Far),
}

#[derive(Debug)]
struct Consent {
    rests: BTreeSet<Rest>,
    misses: u32,
    delays: u32,
}

/// All answers that something rests on.
#[derive(Debug, Default)]
pub(crate) struct Consents {
    held: BTreeMap<Question, Consent>,
}

impl Consents {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// One more rests on an answer, if any does already.
    pub(crate) fn join(&mut self, question: &Question, rest: Rest) -> bool {
        self.held.get_mut(question).is_some_and(|consent| {
            consent.rests.insert(rest);
            true
        })
    }

    /// The first that rests on an answer.
    pub(crate) fn begin(&mut self, question: Question, rest: Rest) {
        let consent = Consent { rests: BTreeSet::from([rest]), misses: 0, delays: 0 };
        self.held.insert(question, consent);
    }

    /// Something rests on an answer no more. True: it was the last.
    pub(crate) fn leave(&mut self, question: &Question, rest: Rest) -> bool {
        let Some(consent) = self.held.get_mut(question) else { return false };
        consent.rests.remove(&rest);
        let last = consent.rests.is_empty();
        if last {
            self.held.remove(question);
        }
        last
    }

    /// It could not be asked. True: so often that it counts as not answered.
    pub(crate) fn delayed(&mut self, question: &Question) -> bool {
        let Some(consent) = self.held.get_mut(question) else { return false };
        consent.delays += 1;
        consent.delays >= DELAYS
    }

    /// It was answered with this vNIC, or with none. What rests on it, unless that may go on for
    /// now whoever it leads to.
    pub(crate) fn answered(&mut self, question: &Question, at: Option<VnicId>) -> Vec<Rest> {
        let Some(consent) = self.held.get_mut(question) else { return Vec::new() };
        consent.delays = 0;
        consent.misses = if at.is_some() { 0 } else { consent.misses + 1 };
        if at.is_none() && consent.misses < MISSES_MAX {
            return Vec::new();
        }
        consent.rests.iter().copied().collect()
    }
}
