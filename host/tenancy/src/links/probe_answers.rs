//! Continues wishes, relations and links that wait for an answer of the network.

use super::Pairing;
use super::socket_relation_refusal::RelationRefusal;
use crate::action::Action;
use crate::network::route_destination_cache::{Answer, Question, Waiter};
use crate::row_keys::ProbeId;
use omniverb_terms::VnicId;
use std::net::IpAddr;

impl Pairing<'_> {
    /// A probe came out at a vNIC.
    pub(crate) fn probe_at(&mut self, id: ProbeId, (from, at): (IpAddr, VnicId), now: u64) {
        let Some(question) = self.network.neighbours.question(id) else { return };
        let arrived = self.tenants.owns(at, question.gid);
        let sent = match question.local {
            Some(local) => local == from.to_canonical(),
            None => self.tenants.has(question.from, from),
        };
        if arrived && sent {
            let answer = match self.tenants.share_tenant(question.from, at) {
                true => Answer::Is(at),
                false => Answer::Foreign(at),
            };
            return self.answered(question, answer, now);
        }
        // Not the owner of the address: the network carried it elsewhere. Or not from the prober:
        // an attacker repeated it, or an address was translated on the way. Or the owner has the
        // address only since a moment; then the next try of this probe finds it.
        if !arrived {
            self.tenants.read_addresses(self.context, at, None);
        }
        if !sent {
            self.tenants.read_addresses(self.context, question.from, None);
        }
    }

    /// A reply to a probe came from an address to a vNIC.
    pub(crate) fn reply_from(
        &mut self,
        id: ProbeId,
        (from, at): (IpAddr, VnicId),
        features: u32,
        now: u64,
    ) {
        let Some(question) = self.network.neighbours.question(id) else { return };
        if question.from == at && question.remote == from.to_canonical() {
            self.answered(question, Answer::Omniverb(features), now);
        }
    }

    /// A probe is over.
    pub(crate) fn probe_over(&mut self, id: ProbeId, answer: Answer, now: u64) {
        if let Some(question) = self.network.neighbours.question(id) {
            self.answered(question, answer, now);
        }
    }

    fn answered(&mut self, question: Question, answer: Answer, now: u64) {
        let kept = match answer {
            Answer::Is(_) | Answer::Omniverb(_) => self.context.limits().neighbour_time_ns,
            Answer::Silence | Answer::Unheard | Answer::NoAccess | Answer::Foreign(_) => {
                self.context.limits().stranger_time_ns
            }
        };
        self.network.neighbours.learn(question, answer, now.saturating_add(kept), now);
        self.settle(question, now);
    }

    /// A question needs no more asking: its waiters go on.
    fn settle(&mut self, question: Question, now: u64) {
        // The waiters may ask anew.
        let Some((id, waiters)) = self.network.neighbours.end(&question) else { return };
        self.context.act(Action::ForgetProbe { id });
        for waiter in waiters {
            match waiter {
                Waiter::Wish { qpn, peer } => self.advance_wish(qpn, peer, now),
                Waiter::Relation(number) => self.relater().advance_relation(number, now),
                Waiter::Consent => {
                    let answer = self.network.neighbours.recall(&question, now);
                    self.consent_answered(question, answer, now);
                }
            }
        }
    }

    /// A vNIC is gone: what was known of it, and what was asked from it, is void.
    pub(crate) fn forget_vnic(&mut self, key: VnicId, now: u64) {
        self.network.forget_answers(key);
        self.relater().end_relations(key, RelationRefusal::Gone);
        for question in self.network.neighbours.of(key) {
            self.settle(question, now);
        }
    }
}
