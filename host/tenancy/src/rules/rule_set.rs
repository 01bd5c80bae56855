//! Sorts the rules of a vNIC, and decides what they allow with one peer.

use super::rule::{Direction, PeerFacts, Rule, RuleAction};
use omniverb_terms::Operations;
use std::sync::Arc;

/// The place of a rule, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleOrigin {
    /// The name of the policy that has the rule.
    pub policy: Arc<str>,
    /// Its number there, from 1.
    pub number: usize,
}

/// The rules of one vNIC, from all of its policies.
///
/// Without rules in a direction everything is allowed there. With some, what none of them accepts
/// is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// As they decide: by priority, and `Deny` before `Accept`.
    egress: Vec<(Rule, RuleOrigin)>,
    ingress: Vec<(Rule, RuleOrigin)>,
}

impl RuleSet {
    /// Sorts rules of one policy without a name; see [`RuleSet::of_policies`].
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> RuleSet {
        let numbered = (1..).zip(rules);
        let origin = |number| RuleOrigin { number, ..RuleOrigin::default() };
        RuleSet::of_policies(numbered.map(|(number, rule)| (rule, origin(number))))
    }

    /// Sorts rules by priority; of equal ones those that deny come first.
    #[must_use]
    pub fn of_policies(rules: impl IntoIterator<Item = (Rule, RuleOrigin)>) -> RuleSet {
        let rules = rules.into_iter();
        let (mut egress, mut ingress): (Vec<_>, Vec<_>) =
            rules.partition(|(rule, _)| rule.direction == Direction::Egress);
        for side in [&mut egress, &mut ingress] {
            side.sort_by_key(|(rule, _)| (rule.priority, rule.action));
        }
        RuleSet { egress, ingress }
    }

    /// Whether there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.egress.is_empty() && self.ingress.is_empty()
    }

    fn side(&self, direction: Direction) -> &[(Rule, RuleOrigin)] {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }

    /// Operations allowed with a peer in one direction. `port`: the port that rdma_cm connected to.
    #[must_use]
    pub fn allowed(
        &self,
        direction: Direction,
        peer: &PeerFacts<'_>,
        port: Option<u16>,
    ) -> Operations {
        let rules = self.side(direction);
        if rules.is_empty() {
            return Operations::ALL;
        }
        let (mut accepted, mut open) = (Operations::NONE, Operations::ALL);
        for (rule, _) in rules.iter().filter(|(rule, _)| is_meant(rule, peer, port)) {
            if rule.action == RuleAction::Accept {
                accepted = accepted.with(rule.operations.in_both(open));
            }
            open = open.without(rule.operations);
            if open.is_empty() {
                break;
            }
        }
        accepted
    }

    /// What denies one operation with a peer, if it is denied; `Some(None)`: there are rules, and
    /// none of them accepts it.
    #[must_use]
    pub fn denial(
        &self,
        direction: Direction,
        peer: &PeerFacts<'_>,
        port: Option<u16>,
        operation: Operations,
    ) -> Option<Option<&(Rule, RuleOrigin)>> {
        let rules = self.side(direction);
        let decides = |rule: &Rule| rule.operations.contains(operation);
        let first = rules.iter().find(|(rule, _)| decides(rule) && is_meant(rule, peer, port));
        match first {
            _ if rules.is_empty() => None,
            Some((rule, _)) if rule.action == RuleAction::Accept => None,
            first => Some(first),
        }
    }
}

fn is_meant(rule: &Rule, peer: &PeerFacts<'_>, port: Option<u16>) -> bool {
    rule.port.is_none_or(|of| port == Some(of)) && rule.peer.matches(peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rule::VnicNames;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn set(rules: &[&str]) -> RuleSet {
        RuleSet::new(rules.iter().map(|rule| rule.parse().unwrap()))
    }

    fn names() -> VnicNames {
        VnicNames { vnic: vec!["web".into()], policies: vec!["gold".into()] }
    }

    fn ingress(rules: &[&str], address: &str, port: Option<u16>) -> String {
        let names = names();
        let peer = PeerFacts { address: address.parse().unwrap(), names: Some(&names) };
        set(rules).allowed(Direction::Ingress, &peer, port).to_string()
    }

    #[test]
    fn without_a_rule_in_a_direction_everything_is_allowed_there() {
        assert_eq!(ingress(&[], "10.0.0.1", None), "all");
        assert_eq!(ingress(&["egress deny all"], "10.0.0.1", None), "all");
        assert_eq!(ingress(&["ingress deny read"], "10.0.0.1", None), "");
        assert_eq!(ingress(&["ingress accept send from 11.0.0.0/8"], "10.0.0.1", None), "");
    }

    #[test]
    fn priorities_decide_and_deny_beats_accept() {
        let all = ["ingress accept all", "ingress deny read"];
        assert_eq!(ingress(&all, "10.0.0.1", None), "connect,datagram,send,write,atomic");
        let first = ["ingress accept read priority 1", "ingress deny all priority 2"];
        assert_eq!(ingress(&first, "10.0.0.1", None), "read");
        let later = ["ingress accept read priority 3", "ingress deny all priority 2"];
        assert_eq!(ingress(&later, "10.0.0.1", None), "");
    }

    #[test]
    fn peers_are_prefixes_vnics_and_policies() {
        for peer in ["10.0.0.0/8", "10.0.0.1", "vnic web", "policy gold", "any"] {
            let rule = format!("ingress accept read from {peer}");
            assert_eq!(ingress(&[&rule], "10.0.0.1", None), "read", "{peer}");
        }
        for peer in ["11.0.0.0/8", "10.0.0.2", "vnic gold", "policy web", "fd00::/8"] {
            let rule = format!("ingress accept read from {peer}");
            assert_eq!(ingress(&[&rule], "10.0.0.1", None), "", "{peer}");
        }
        // Of a peer on another host only the address is known.
        let far = PeerFacts { address: "10.0.0.1".parse().unwrap(), names: None };
        let rules = set(&["ingress accept all from vnic web", "ingress accept read"]);
        assert_eq!(rules.allowed(Direction::Ingress, &far, None), Operations::READ);
    }

    #[test]
    fn a_rule_with_a_port_is_about_connections_to_that_port() {
        let rules = ["ingress accept connect,send port 7471"];
        assert_eq!(ingress(&rules, "10.0.0.1", Some(7471)), "connect,send");
        assert_eq!(ingress(&rules, "10.0.0.1", Some(7472)), "");
        assert_eq!(ingress(&rules, "10.0.0.1", None), "");
    }

    /// For each operation the matching rule of the lowest priority, of these a denying one.
    fn model(rules: &[Rule], direction: Direction, peer: &PeerFacts<'_>, port: Option<u16>) -> u32 {
        let side: Vec<&Rule> = rules.iter().filter(|rule| rule.direction == direction).collect();
        if side.is_empty() {
            return Operations::ALL.bits();
        }
        let mut allowed = 0;
        for (_, operation) in Operations::WORDS {
            let of: Vec<&&Rule> = side
                .iter()
                .filter(|rule| rule.operations.contains(operation))
                .filter(|rule| rule.port.is_none() || rule.port == port)
                .filter(|rule| rule.peer.matches(peer))
                .collect();
            let Some(least) = of.iter().map(|rule| rule.priority).min() else { continue };
            let mut best = of.iter().filter(|rule| rule.priority == least);
            if best.all(|rule| rule.action == RuleAction::Accept) {
                allowed |= operation.bits();
            }
        }
        allowed
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let peers = ["any", "10.0.0.0/8", "10.0.0.1", "vnic web", "vnic db", "policy gold"];
        let peer = proptest::sample::select(peers.to_vec());
        let fields = (any::<bool>(), any::<bool>(), 1..64_u32, peer, 0..3_u16, 0..3_u16);
        fields.prop_map(|(inward, accepts, bits, peer, port, priority)| Rule {
            direction: if inward { Direction::Ingress } else { Direction::Egress },
            action: if accepts { RuleAction::Accept } else { RuleAction::Deny },
            operations: Operations::from_bits(bits),
            peer: peer.parse().unwrap(),
            port: Some(port).filter(|port| *port > 0),
            priority,
        })
    }

    proptest! {
        #[test]
        fn verdicts_are_those_of_the_model(
            rules in proptest::collection::vec(rule(), 0..12),
            last in 0..3_u8,
            named: bool,
            port in 0..3_u16,
        ) {
            let names = names();
            let address = IpAddr::from([10, 0, 0, last]);
            let peer = PeerFacts { address, names: named.then_some(&names) };
            let port = Some(port).filter(|port| *port > 0);
            let set = RuleSet::new(rules.clone());
            for direction in [Direction::Egress, Direction::Ingress] {
                let found = set.allowed(direction, &peer, port).bits();
                prop_assert_eq!(found, model(&rules, direction, &peer, port));
                for (_, operation) in Operations::WORDS {
                    let denial = set.denial(direction, &peer, port, operation);
                    prop_assert_eq!(denial.is_none(), found & operation.bits() != 0);
                    if let Some(Some((rule, origin))) = denial {
                        prop_assert_eq!(&rules[origin.number - 1], rule);
                        prop_assert_eq!(rule.action, RuleAction::Deny);
                    }
                }
            }
        }

        #[test]
        fn the_order_of_rules_does_not_matter(
            rules in proptest::collection::vec(rule(), 0..12),
            port in 0..3_u16,
        ) {
            let names = names();
            let peer = PeerFacts { address: IpAddr::from([10, 0, 0, 1]), names: Some(&names) };
            let (one, mut other) = (RuleSet::new(rules.clone()), rules);
            other.reverse();
            let other = RuleSet::new(other);
            for direction in [Direction::Egress, Direction::Ingress] {
                let verdict = |set: &RuleSet| set.allowed(direction, &peer, Some(port));
                prop_assert_eq!(verdict(&one), verdict(&other));
            }
        }
    }
}
