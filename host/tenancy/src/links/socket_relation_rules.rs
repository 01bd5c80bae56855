//! Relates two addresses of two vNICs whose TCP bytes may go through memory (docs/decisions/0046).
//!
//! A relation is to sockets what a link is to queue pairs.
//!
//! The rules are those of direct links: each address is its vNIC's, the network carries packets
//! from each to the other, and no administrator wants the traffic between the two to pass the
//! engine. The daemon's own broker asks for a relation, and it ends as links do: with a vNIC, an
//! address, a policy, or the network's consent.
//!
//! In a virtual network no network is asked. A vNIC there has the one address that the operator has
//! described, which no other vNIC of the tenant can claim; sockets with other addresses are not
//! related. The kernel's network has brought their connection. As long as a relation lives the
//! addresses of both namespaces are read now and then: it ends when an interface loses the address.

use super::reachability_table::ConsentUser;
use super::socket_relation_refusal::{RelationEnd, RelationRefusal};
use super::socket_relations::Relation;
use crate::action::Action;
use crate::links::Relater;
use crate::network::SharedMemory;
use crate::network::route_destination_cache::{Answer, Question, Waiter};
use crate::network::route_destination_probes::Resolved;
use crate::timers::Timer;
use omniverb_terms::{Gid, VnicId};

enum RelationVerdict {
    Asking,
    RelationRefusal(RelationRefusal),
    Together(Vec<Question>),
}

impl Relater<'_> {
    /// Asks whether two addresses of two vNICs may be brought together.
    pub(crate) fn begin_relation(&mut self, number: u64, ends: [RelationEnd; 2], now: u64) {
        self.links.relations.insert(number, Relation { ends, rests_on: None });
        for (vnic, _) in ends {
            if !self.tenants.virtual_networks.has(vnic) {
                self.tenants.open_port(self.context, vnic);
            }
        }
        self.advance_relation(number, now);
    }

    /// Ends a relation that is not needed any more.
    pub(crate) fn relate_no_more(&mut self, number: u64) {
        self.context.timers.clear(Timer::RelationAddresses(number));
        let relation = self.links.relations.remove(number);
        let questions = relation.and_then(|relation| relation.rests_on);
        for question in questions.into_iter().flatten() {
            self.links.stop_relying(self.context, question, ConsentUser::Relation(number));
        }
    }

    /// An answer that it waited for has come, or has not.
    pub(crate) fn advance_relation(&mut self, number: u64, now: u64) {
        let Some(relation) = self.links.relations.get(number) else { return };
        if relation.rests_on.is_some() {
            return;
        }
        match self.judge(number, relation.ends, now) {
            RelationVerdict::Asking => {}
            RelationVerdict::RelationRefusal(why) => self.end_relation(number, why),
            RelationVerdict::Together(questions) => {
                if let Some(relation) = self.links.relations.get_mut(number) {
                    relation.rests_on = Some(questions.clone());
                }
                if questions.len() < 2 {
                    self.set_address_timer(number, now);
                }
                for question in questions {
                    self.links.rely_on(
                        self.context,
                        question,
                        ConsentUser::Relation(number),
                        question.from,
                        now,
                    );
                }
                self.context.act(Action::Related { number, verdict: Ok(()) });
            }
        }
    }

    /// The rules that need no probe.
    fn forbids(&self, ends: [RelationEnd; 2]) -> Option<RelationRefusal> {
        let [one, other] = ends.map(|(vnic, _)| vnic);
        if !self.tenants.has_vnic(one) || !self.tenants.has_vnic(other) || one == other {
            return Some(RelationRefusal::Gone);
        }
        if !self.tenants.share_tenant(one, other) {
            return Some(RelationRefusal::NotThere);
        }
        if !self.tenants.may_connect(ends.map(|(vnic, address)| (Some(vnic), address))) {
            return Some(RelationRefusal::NotThere);
        }
        if self.network.common([one, other]) != SharedMemory::Any {
            return Some(RelationRefusal::NoMemory);
        }
        if let Some(why) = self.network.through_engine(self.tenants, one, other) {
            return Some(RelationRefusal::Policy(why));
        }
        let has = |(vnic, address): RelationEnd| {
            let name = self.network.name_of(self.tenants, vnic, address);
            let is_its = name.is_some_and(|name| self.tenants.owns(vnic, name));
            // A virtual address is described. A socket has it only if an interface has it, too.
            let is_virtual = self.tenants.virtual_networks.has(vnic);
            is_its && (!is_virtual || self.tenants.has(vnic, address))
        };
        (!ends.into_iter().all(has)).then_some(RelationRefusal::NotItsAddress)
    }

    fn judge(&mut self, number: u64, ends: [RelationEnd; 2], now: u64) -> RelationVerdict {
        if let Some(why) = self.forbids(ends) {
            if why == RelationRefusal::NotItsAddress {
                // It may have one since a moment.
                ends.into_iter()
                    .for_each(|(vnic, _)| self.tenants.read_addresses(self.context, vnic, None));
            }
            return RelationVerdict::RelationRefusal(why);
        }
        let [one, other] = ends;
        let mut questions = Vec::new();
        let mut is_asking = false;
        for (from, to) in [(one, other), (other, one)] {
            let name = |address| self.network.name_of(self.tenants, from.0, address);
            let names: Option<[Gid; 2]> = name(from.1).zip(name(to.1)).map(Into::into);
            let Some(names) = names else {
                return RelationVerdict::RelationRefusal(RelationRefusal::NotThere);
            };
            match self.network.question_of(self.tenants, from.0, names[0], names[1]) {
                Some(question) => questions.push(question),
                None if self.tenants.virtual_networks.has(from.0) => {}
                None => return RelationVerdict::RelationRefusal(RelationRefusal::NotThere),
            }
            let waiter = Some(Waiter::Relation(number));
            match self.network.resolve(
                self.context,
                self.tenants,
                (from.0, names[0], names[1]),
                from.0,
                waiter,
                now,
            ) {
                Resolved::To(Answer::Is(vnic)) if vnic == to.0 => {}
                Resolved::To(_) => {
                    return RelationVerdict::RelationRefusal(RelationRefusal::NotThere);
                }
                Resolved::Busy => return RelationVerdict::RelationRefusal(RelationRefusal::Busy),
                Resolved::Asking => is_asking = true,
            }
        }
        if is_asking { RelationVerdict::Asking } else { RelationVerdict::Together(questions) }
    }

    fn set_address_timer(&mut self, number: u64, now: u64) {
        let period = self.context.limits().consent_time_ns;
        if period > 0 {
            let due = now.saturating_add(period);
            self.context.timers.set(Timer::RelationAddresses(number), due);
        }
    }

    /// Reads the addresses of both ends of a relation that no question keeps alive. The relation
    /// is reviewed when they are known.
    pub(crate) fn read_addresses_again(&mut self, number: u64, now: u64) {
        let vnics = self.links.relations.vnics(number);
        for vnic in vnics.into_iter().flatten() {
            self.tenants.read_addresses(self.context, vnic, None);
        }
        if vnics.is_some() {
            self.set_address_timer(number, now);
        }
    }

    /// It ends, or never begins.
    pub(crate) fn end_relation(&mut self, number: u64, why: RelationRefusal) {
        if self.links.relations.get(number).is_some() {
            self.relate_no_more(number);
            self.context.act(Action::Related { number, verdict: Err(why) });
        }
    }

    /// All of a vNIC's end.
    pub(crate) fn end_relations(&mut self, key: VnicId, why: RelationRefusal) {
        for number in self.links.relations.of(key) {
            self.end_relation(number, why);
        }
    }

    /// A vNIC's policy or its addresses have changed: relations that are forbidden now end.
    pub(crate) fn review_relations(&mut self, key: VnicId) {
        for number in self.links.relations.of(key) {
            let ends = self.links.relations.get(number).map(|relation| relation.ends);
            if let Some(why) = ends.and_then(|ends| self.forbids(ends)) {
                self.end_relation(number, why);
            }
        }
    }
}
