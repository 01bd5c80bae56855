//! Consent while a link lives. A link between two vNICs exists because the network let a probe
//! pass; what travels on it no longer asks the network. So the probe is repeated as long as links
//! rest on its answer: one for all of them. While it is not answered it is repeated sooner. When it
//! has not been for so many times in a row, or comes out at another vNIC, the links end, as
//! connections end when a network goes away.
//!
//! Only what leaves the network out needs this: links between processes, and links to the engine
//! that lead to another vNIC of this host. Within one vNIC there is nobody to ask.

use super::consents::Rest;
use super::unrelated::Unrelated;
use crate::accounts::Kind;
use crate::directory::asking::Resolved;
use crate::directory::neighbours::{Answer, Question, Waiter};
use crate::tenancy::Tenancy;
use crate::timers::Timer;
use omniverb_session::body::CLOSED_BY_NETWORK;
use omniverb_terms::{Gid, VnicId};

/// What was not answered is asked again after this part of a period.
const SOONER: u64 = 8;
/// And what could not be asked, after this one.
const LATER: u64 = 4;

impl Tenancy {
    /// What the network is to be asked again for a link from one vNIC to another.
    pub(crate) fn question(
        &self,
        from: VnicId,
        to: VnicId,
        sgid: Gid,
        dgid: Gid,
    ) -> Option<Question> {
        if from == to { None } else { self.question_of(from, sgid, dgid) }
    }

    /// Something new that lives by an answer which has just been given.
    pub(crate) fn rest_on(&mut self, question: Question, rest: Rest, now: u64) {
        if self.limits().consent_time_ns == 0 {
            return;
        }
        if !self.links.consents.is_asked(&question) {
            let due = self.next_consent(&question, now);
            self.timers.set(Timer::Consent(question), due);
        }
        self.links.consents.join(question, rest);
    }

    pub(crate) fn rest_no_more(&mut self, question: Question, rest: Rest) {
        self.links.consents.leave(&question, rest);
        if !self.links.consents.is_asked(&question) {
            self.timers.clear(Timer::Consent(question));
        }
    }

    /// When a period from now is over: three quarters of it to the whole, so that what began
    /// together does not stay together.
    fn next_consent(&self, question: &Question, now: u64) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325 ^ now ^ question.from.0.rotate_left(32);
        for byte in question.gid.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let period = self.limits().consent_time_ns;
        now.saturating_add((period - (hash >> 24) % (period / 4).max(1)).max(1))
    }

    /// The network is to be asked again what a question's links rest on.
    pub(crate) fn consent_due(&mut self, question: Question, now: u64) {
        match self.ask(question, question.from, Kind::Consent, Some(Waiter::Consent)) {
            Resolved::Asking => {
                let due = self.next_consent(&question, now);
                self.timers.set(Timer::Consent(question), due);
            }
            Resolved::To(_) | Resolved::Busy => {
                // Nobody was asked: that is more patient.
                self.consent_heard(question, None, now, LATER);
            }
        }
    }

    /// The network has, or has not, answered a probe that links rest on.
    pub(crate) fn consent_answered(
        &mut self,
        question: Question,
        answer: Option<Answer>,
        now: u64,
    ) {
        let at = match answer {
            Some(Answer::Is(vnic)) => Some(vnic),
            _ => None,
        };
        self.consent_heard(question, at, now, SOONER);
    }

    /// Where the answer leads to. If there is none it is asked again after this part of a period.
    fn consent_heard(&mut self, question: Question, at: Option<VnicId>, now: u64, part: u64) {
        if at.is_none() && self.links.consents.is_asked(&question) {
            let due = now.saturating_add((self.limits().consent_time_ns / part).max(1));
            self.timers.set(Timer::Consent(question), due);
        }
        for rest in self.links.consents.answered(&question, at) {
            if at.is_none() || at != self.far_end(question.from, rest) {
                self.withdraw(rest);
            }
        }
    }

    /// The vNIC that something leads to.
    fn far_end(&self, from: VnicId, rest: Rest) -> Option<VnicId> {
        match rest {
            Rest::Link(key) => {
                let [first, second] = self.links.direct(key)?.vnics;
                Some(if first == from { second } else { first })
            }
            Rest::Engine(qpn, peer) => self.links.engine.get(qpn, peer)?.within,
            Rest::Relation(number) => {
                let [first, second] = self.links.relations.vnics(number)?;
                Some(if first == from { second } else { first })
            }
        }
    }

    fn withdraw(&mut self, rest: Rest) {
        match rest {
            Rest::Link(key) => self.part_link(key),
            Rest::Relation(number) => self.end_relation(number, Unrelated::NotThere),
            Rest::Engine(qpn, (peer, _)) => {
                self.end_engine_links(qpn, peer, Some(CLOSED_BY_NETWORK));
            }
        }
    }
}
