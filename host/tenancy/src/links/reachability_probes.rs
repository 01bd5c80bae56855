//! Repeats probes while links live that rest on their answers.
//!
//! A link between two vNICs exists because the network let a probe pass; packets on it no longer
//! pass the network. So the probe is repeated as long as links rest on its answer: one for all of
//! them. While it is not answered it is repeated sooner. When it has not been for so many times in
//! a row, or comes out at another vNIC, the links end, as connections end when a network goes away.
//!
//! A question without result for the network is no miss: one that could not be asked, since the
//! account that pays for it is used up, or one that was not answered while a receive queue of ours
//! overflowed. Such ones are asked again as soon as others, and how long that goes on is bounded
//! (`reachability_table.rs`): a filter that appears ends links within ten periods, under any flood.
//! Links that a vNIC did not ask for are paid by the vNIC that opened them.
//!
//! Only links that leave the network out need this: links between processes, and links to the
//! engine that lead to another vNIC of this host. Within one vNIC no network is asked.

use super::reachability_table::{ConsentAnswer, ConsentUser};
use super::socket_relation_refusal::RelationRefusal;
use crate::accounts::Kind;
use crate::decision_context::Context;
use crate::links::Links;
use crate::links::Pairing;
use crate::network::Network;
use crate::network::route_destination_cache::{Answer, Question, Waiter};
use crate::network::route_destination_probes::Resolved;
use crate::timers::Timer;
use crate::vnics_and_policies::Tenants;
use omniverb_session::body::CLOSED_BY_NETWORK;
use omniverb_terms::{Gid, VnicId};

/// An unanswered question is asked again after this part of a period.
const SOONER: u64 = 8;

impl Network {
    /// The question that the network answers again for a link from one vNIC to another.
    pub(crate) fn question(
        &self,
        tenants: &Tenants,
        from: VnicId,
        to: VnicId,
        sgid: Gid,
        dgid: Gid,
    ) -> Option<Question> {
        if from == to { None } else { self.question_of(tenants, from, sgid, dgid) }
    }
}

impl Links {
    /// Something new that lives by an answer which has just been given. `payer`: the vNIC that
    /// wants it to live.
    pub(crate) fn rely_on(
        &mut self,
        context: &mut Context,
        question: Question,
        rest: ConsentUser,
        payer: VnicId,
        now: u64,
    ) {
        if context.limits().consent_time_ns == 0 {
            return;
        }
        if !self.consents.is_asked(&question) {
            let due = self.next_consent(context, &question, now);
            context.timers.set(Timer::Consent(question), due);
        }
        self.consents.join(question, rest, payer);
    }

    pub(crate) fn stop_relying(
        &mut self,
        context: &mut Context,
        question: Question,
        rest: ConsentUser,
    ) {
        self.consents.leave(&question, rest);
        if !self.consents.is_asked(&question) {
            context.timers.clear(Timer::Consent(question));
        }
    }

    /// When a period from now is over: three quarters of it to the whole, so that what began
    /// together does not stay together.
    fn next_consent(&self, context: &Context, question: &Question, now: u64) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325 ^ now ^ question.from.0.rotate_left(32);
        for byte in question.gid.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let period = context.limits().consent_time_ns;
        now.saturating_add((period - (hash >> 24) % (period / 4).max(1)).max(1))
    }

    /// Where a question has led that something rests on.
    pub(crate) fn led_to(&self, question: &Question) -> Option<VnicId> {
        self.far_end(question.from, self.consents.some_rest(question)?)
    }

    /// The vNIC that something leads to.
    fn far_end(&self, from: VnicId, rest: ConsentUser) -> Option<VnicId> {
        match rest {
            ConsentUser::Link(key) => {
                let [first, second] = self.direct(key)?.vnics;
                Some(if first == from { second } else { first })
            }
            ConsentUser::Engine(qpn, peer) => self.engine.get(qpn, peer)?.within,
            ConsentUser::Relation(number) => {
                let [first, second] = self.relations.vnics(number)?;
                Some(if first == from { second } else { first })
            }
        }
    }

    /// The other end of a relation.
    pub(crate) fn related_with(&self, from: VnicId, number: u64) -> Option<VnicId> {
        self.far_end(from, ConsentUser::Relation(number))
    }
}

impl Pairing<'_> {
    /// Asks the network again for the answer that a question's links rest on.
    pub(crate) fn consent_due(&mut self, question: Question, now: u64) {
        let payer = self.links.consents.payer(&question);
        match self.network.ask(
            self.context,
            self.tenants,
            question,
            payer,
            Kind::Consent,
            Some(Waiter::Consent),
        ) {
            Resolved::Asking => {
                let due = self.links.next_consent(self.context, &question, now);
                self.context.timers.set(Timer::Consent(question), due);
            }
            Resolved::Busy => self.consent_heard(question, ConsentAnswer::Unknown, now),
            Resolved::To(_) => self.consent_heard(question, ConsentAnswer::Nothing, now),
        }
    }

    /// The network has, or has not, answered a probe that links rest on.
    pub(crate) fn consent_answered(
        &mut self,
        question: Question,
        answer: Option<Answer>,
        now: u64,
    ) {
        let heard = match answer {
            Some(Answer::Is(vnic)) => ConsentAnswer::At(vnic),
            Some(Answer::Unheard) => ConsentAnswer::Unknown,
            _ => ConsentAnswer::Nothing,
        };
        self.consent_heard(question, heard, now);
    }

    /// Takes the result of a question; without an answer it is asked again sooner.
    fn consent_heard(&mut self, question: Question, heard: ConsentAnswer, now: u64) {
        let at = match heard {
            ConsentAnswer::At(vnic) => Some(vnic),
            ConsentAnswer::Nothing | ConsentAnswer::Unknown => None,
        };
        if at.is_none() && self.links.consents.is_asked(&question) {
            let due = now.saturating_add((self.context.limits().consent_time_ns / SOONER).max(1));
            self.context.timers.set(Timer::Consent(question), due);
        }
        let times = (now, self.context.limits().consent_time_ns);
        for rest in self.links.consents.answered(&question, heard, times) {
            if at.is_none() || at != self.links.far_end(question.from, rest) {
                self.withdraw(rest);
            }
        }
    }

    fn withdraw(&mut self, rest: ConsentUser) {
        match rest {
            ConsentUser::Link(key) => self.unlinker().part_link(key),
            ConsentUser::Relation(number) => {
                self.relater().end_relation(number, RelationRefusal::NotThere)
            }
            ConsentUser::Engine(qpn, (peer, _)) => {
                self.unlinker().end_engine_links(qpn, peer, Some(CLOSED_BY_NETWORK));
            }
        }
    }
}
