//! Keeps which links rest on which answer of the network, and how often that failed to come;
//! `reachability_probes.rs` asks.

use crate::network::route_destination_cache::Question;
use crate::row_keys::{LinkKey, RemotePeer};
use omniverb_terms::{Qpn, VnicId};
use std::collections::BTreeMap;

/// Budget: unanswered questions in a row, each of several tries: links end after these. A busy
/// machine may be late for one and the next.
const MISSES_MAX: u32 = 7;
/// Budget: periods without an answer after which links end whatever the reason is: questions may
/// not have been asked, since the account that pays for them was used up, or not heard, since a
/// receive queue of ours overflowed.
///
/// A flood that loses nine of ten datagrams loses all tries of so long a time once in 10^15 times,
/// one that loses 99 of a hundred once in thirty. An attacker that floods, or keeps its own
/// questions busy, to hide a filter that has appeared keeps a link alive for so long and no longer.
const SILENT_PERIODS_MAX: u64 = 8;

/// Something that lives by an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConsentUser {
    /// A direct link.
    Link(LinkKey),
    /// A queue pair's link to the engine.
    Engine(Qpn, RemotePeer),
    /// A relation of sockets.
    Relation(u64),
}

#[derive(Debug, Default)]
struct Consent {
    /// The links and relations that rest on it, never empty in the table, each with the vNIC that
    /// pays for the question.
    rests: BTreeMap<ConsentUser, VnicId>,
    /// Of these, those for which the vNIC that asks pays itself.
    own: usize,
    /// Questions since the last answer that were not answered, although they were asked and an
    /// answer would have been heard.
    misses: u32,
    /// Since when there was none.
    silent_since: Option<u64>,
}

/// The result of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsentAnswer {
    /// It leads to this vNIC.
    At(VnicId),
    /// No answer, although one would have been heard; or another vNIC's answer.
    Nothing,
    /// It could not be asked, or an answer may have been lost in front of us.
    Unknown,
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

    /// A link rests on this answer from now on, and this vNIC pays for asking.
    pub(crate) fn join(&mut self, question: Question, rest: ConsentUser, payer: VnicId) {
        let consent = self.by_question.entry(question).or_default();
        let before = consent.rests.insert(rest, payer);
        consent.own += usize::from(payer == question.from);
        consent.own -= usize::from(before == Some(question.from));
    }

    /// The vNIC that pays for asking: the asking one, if a link of its own rests on the answer.
    pub(crate) fn payer(&self, question: &Question) -> VnicId {
        let consent = self.by_question.get(question).filter(|consent| consent.own == 0);
        let payer = consent.and_then(|consent| consent.rests.values().next());
        payer.copied().unwrap_or(question.from)
    }

    /// Something that rests on the answer.
    pub(crate) fn some_rest(&self, question: &Question) -> Option<ConsentUser> {
        self.by_question.get(question)?.rests.keys().next().copied()
    }

    /// A link rests on this answer no longer.
    pub(crate) fn leave(&mut self, question: &Question, rest: ConsentUser) {
        let Some(consent) = self.by_question.get_mut(question) else { return };
        let payer = consent.rests.remove(&rest);
        consent.own -= usize::from(payer == Some(question.from));
        if consent.rests.is_empty() {
            self.by_question.remove(question);
        }
    }

    /// Takes the result of a question, with the `period` between questions. Returns the links and
    /// relations that rest on it, unless they may go on for now.
    pub(crate) fn answered(
        &mut self,
        question: &Question,
        heard: ConsentAnswer,
        (now, period): (u64, u64),
    ) -> Vec<ConsentUser> {
        let Some(consent) = self.by_question.get_mut(question) else { return Vec::new() };
        if let ConsentAnswer::At(_) = heard {
            (consent.misses, consent.silent_since) = (0, None);
            return consent.rests.keys().copied().collect();
        }
        consent.misses += u32::from(heard == ConsentAnswer::Nothing);
        let silent = now.saturating_sub(*consent.silent_since.get_or_insert(now));
        let longest = period.saturating_mul(SILENT_PERIODS_MAX);
        if consent.misses < MISSES_MAX && silent < longest {
            return Vec::new();
        }
        consent.rests.keys().copied().collect()
    }
}
