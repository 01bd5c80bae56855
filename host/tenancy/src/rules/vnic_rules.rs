//! Keeps the rules of all vNICs, and verdicts about pairs of them.

use super::rule::{Direction, PeerFacts, VnicNames};
use super::rule_set::{RuleOrigin, RuleSet};
use omniverb_terms::{Operations, VnicId};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Budget: verdicts that are kept. They are found again in a moment, so all go when there are more.
pub(crate) const VERDICTS_MAX: usize = 4096;

/// The rules of one vNIC, and the names by which they know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnicRules {
    /// Its own rules. vNICs with the same policies share them.
    pub rules: Arc<RuleSet>,
    /// Names by which rules of others mean it.
    pub names: VnicNames,
}

/// One end of a judged link: its vNIC, if it is on this host, and the address that it uses.
pub(crate) type RuleEnd = (Option<VnicId>, IpAddr);

/// Requester, target, and the port that rdma_cm connected to.
type Judged = (RuleEnd, RuleEnd, Option<u16>);

/// The rules of all vNICs.
#[derive(Debug, Default)]
pub(crate) struct RuleTable {
    of: BTreeMap<VnicId, VnicRules>,
    /// How many vNICs have rules.
    ruled: usize,
    verdicts: RefCell<HashMap<Judged, Operations>>,
    /// Something changed since links were last compared with it.
    changed: bool,
}

/// What refuses an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The vNIC whose rules refuse.
    pub vnic: VnicId,
    /// The direction, as that vNIC sees it.
    pub direction: Direction,
    /// The rule that denies, and its text; `None`: no rule accepts.
    pub rule: Option<(RuleOrigin, String)>,
}

/// Whether a vNIC may have links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Possible,
    None,
}

impl RuleTable {
    /// Sets the rules of a vNIC. Its links, if there may be some, are to be compared with them.
    pub(crate) fn set(&mut self, vnic: VnicId, rules: VnicRules, links: Links) {
        let before = self.of.get(&vnic);
        if before == Some(&rules) {
            return;
        }
        let counted = |rules: &VnicRules| usize::from(!rules.rules.is_empty());
        let were_some = self.are_some();
        self.ruled = self.ruled + counted(&rules) - before.map_or(0, counted);
        self.of.insert(vnic, rules);
        self.verdicts.get_mut().clear();
        self.changed |= links == Links::Possible && (were_some || self.are_some());
    }

    /// A vNIC is no more.
    pub(crate) fn forget(&mut self, vnic: VnicId) {
        self.set(vnic, VnicRules::default(), Links::None);
        self.of.remove(&vnic);
    }

    /// Whether links have to be compared with what changed. Asked once.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Whether some vNIC has rules.
    pub(crate) fn are_some(&self) -> bool {
        self.ruled > 0
    }

    /// Operations that `from` may request of `to`: those that the egress rules of the one and the
    /// ingress rules of the other allow.
    pub(crate) fn allowed(&self, from: RuleEnd, to: RuleEnd, port: Option<u16>) -> Operations {
        // Traffic within a vNIC is its own.
        if !self.are_some() || (from.0.is_some() && from.0 == to.0) {
            return Operations::ALL;
        }
        let judged = (from, to, port);
        if let Some(known) = self.verdicts.borrow().get(&judged) {
            return *known;
        }
        let egress = self.side(Direction::Egress, from, to, port);
        let allowed = egress.in_both(self.side(Direction::Ingress, to, from, port));
        let mut verdicts = self.verdicts.borrow_mut();
        if verdicts.len() >= VERDICTS_MAX {
            verdicts.clear();
        }
        verdicts.insert(judged, allowed);
        allowed
    }

    /// Why `from` may not ask one operation of `to`, if it may not.
    pub(crate) fn refusal(
        &self,
        from: RuleEnd,
        to: RuleEnd,
        port: Option<u16>,
        operation: Operations,
    ) -> Option<Refusal> {
        if from.0.is_some() && from.0 == to.0 {
            return None;
        }
        let of = |direction: Direction, own: RuleEnd, peer: RuleEnd| {
            let vnic = own.0?;
            let names = peer.0.and_then(|vnic| self.of.get(&vnic)).map(|peer| &peer.names);
            let facts = PeerFacts { address: peer.1, names };
            let denial = self.of.get(&vnic)?.rules.denial(direction, &facts, port, operation)?;
            let rule = denial.map(|(rule, origin)| (origin.clone(), rule.to_string()));
            Some(Refusal { vnic, direction, rule })
        };
        of(Direction::Egress, from, to).or_else(|| of(Direction::Ingress, to, from))
    }

    fn side(
        &self,
        direction: Direction,
        own: RuleEnd,
        peer: RuleEnd,
        port: Option<u16>,
    ) -> Operations {
        let Some(own) = own.0.and_then(|vnic| self.of.get(&vnic)) else { return Operations::ALL };
        let names = peer.0.and_then(|vnic| self.of.get(&vnic)).map(|peer| &peer.names);
        own.rules.allowed(direction, &PeerFacts { address: peer.1, names }, port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(name: &str, rules: &[&str]) -> VnicRules {
        VnicRules {
            rules: Arc::new(RuleSet::new(rules.iter().map(|rule| rule.parse().unwrap()))),
            names: VnicNames { vnic: vec![name.into()], policies: Vec::new() },
        }
    }

    fn end(number: u64) -> RuleEnd {
        (Some(VnicId(number)), IpAddr::from([10, 0, 0, number as u8]))
    }

    #[test]
    fn both_ends_have_to_agree_and_the_requester_decides_the_direction() {
        let mut table = RuleTable::default();
        assert_eq!(table.allowed(end(1), end(2), None), Operations::ALL);
        table.set(VnicId(1), rules("a", &["egress accept read,write to vnic b"]), Links::Possible);
        table.set(
            VnicId(2),
            rules("b", &["ingress accept write,send from 10.0.0.0/8"]),
            Links::Possible,
        );
        assert!(table.take_change() && !table.take_change() && table.are_some());
        assert_eq!(table.allowed(end(1), end(2), None), Operations::WRITE);
        assert_eq!(table.allowed(end(2), end(1), None), Operations::ALL);
        assert_eq!(table.allowed(end(1), end(1), None), Operations::ALL, "within a vNIC");
        // A peer on another host has an address, and no rules of ours.
        let far = (None, IpAddr::from([11, 0, 0, 1]));
        assert_eq!(table.allowed(far, end(2), None), Operations::NONE);
        assert_eq!(table.allowed(end(2), far, None), Operations::ALL);
    }

    #[test]
    fn verdicts_are_forgotten_when_rules_or_names_change() {
        let mut table = RuleTable::default();
        table.set(VnicId(1), rules("a", &["egress accept read to vnic b"]), Links::Possible);
        assert_eq!(table.allowed(end(1), end(2), None), Operations::NONE);
        table.set(VnicId(2), rules("b", &[]), Links::Possible);
        assert_eq!(table.allowed(end(1), end(2), None), Operations::READ);
        table.take_change();
        table.set(VnicId(2), rules("b", &[]), Links::Possible);
        assert!(!table.take_change(), "it is as it was");
        table.set(VnicId(3), rules("c", &["ingress deny all"]), Links::None);
        assert!(!table.take_change(), "no vNIC is there");
        table.forget(VnicId(3));
        table.set(VnicId(1), rules("a", &[]), Links::Possible);
        assert!(table.take_change() && !table.are_some());
        table.set(VnicId(1), rules("b", &[]), Links::Possible);
        assert!(!table.take_change(), "names without rules mean nothing");
        assert_eq!(table.allowed(end(1), end(2), None), Operations::ALL);
    }

    #[test]
    fn only_so_many_verdicts_are_kept() {
        let mut table = RuleTable::default();
        table.set(VnicId(1), rules("a", &["ingress accept read"]), Links::Possible);
        for number in 0..2 * VERDICTS_MAX as u32 {
            let from = (None, IpAddr::from(number.to_be_bytes()));
            assert_eq!(table.allowed(from, end(1), None), Operations::READ);
            assert!(table.verdicts.borrow().len() <= VERDICTS_MAX);
        }
    }
}
