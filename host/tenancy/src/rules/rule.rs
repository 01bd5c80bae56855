//! Describes one rule.

use omniverb_terms::Operations;
use std::net::IpAddr;

/// The priority of a rule that names none.
pub const DEFAULT_PRIORITY: u16 = 100;

/// The direction of a rule, as the *requester* sees it: a READ is egress for the queue pair that
/// posts it, although the bytes come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Requests of the vNIC to others.
    Egress,
    /// Requests of others to the vNIC.
    Ingress,
}

/// Whether a rule denies or accepts its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleAction {
    /// They are refused. Decides before an `Accept` of the same priority.
    Deny,
    /// They are allowed.
    Accept,
}

/// A range of addresses, with the bits behind the prefix zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    pub(super) address: IpAddr,
    pub(super) bits: u8,
}

impl Prefix {
    /// The range of all addresses that share the first `bits` bits of one.
    ///
    /// `None`: the address has fewer bits, or has bits set behind them.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Option<Prefix> {
        let prefix = Prefix { address, bits };
        let (value, width) = value(address);
        let behind = u128::MAX.checked_shr(u32::from(bits) + (128 - width)).unwrap_or(0);
        (u32::from(bits) <= width && value & behind == 0).then_some(prefix)
    }

    /// Whether an address is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let ((own, width), (other, its)) = (value(self.address), value(address.to_canonical()));
        let behind = u128::MAX.checked_shr(u32::from(self.bits) + (128 - width)).unwrap_or(0);
        width == its && (own ^ other) & !behind & mask(width) == 0
    }
}

/// An address as a number in the low bits, and how many bits it has.
fn value(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (u32::from(v4).into(), 32),
        IpAddr::V6(v6) => (v6.into(), 128),
    }
}

fn mask(width: u32) -> u128 {
    u128::MAX >> (128 - width)
}

/// The peers that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerMatch {
    /// The rule is about all peers of the tenant.
    Any,
    /// Peers whose address on the link is in this range.
    Prefix(Prefix),
    /// The vNIC of this name, on this host.
    Vnic(String),
    /// vNICs of this host that have the policy of this name.
    Policy(String),
}

/// One rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The side whose requests it is about.
    pub direction: Direction,
    /// Whether it denies or accepts them.
    pub action: RuleAction,
    /// Which of them.
    pub operations: Operations,
    /// The other end.
    pub peer: PeerMatch,
    /// Only links that rdma_cm made to this port, and its requests for them.
    pub port: Option<u16>,
    /// Rules with a lower number decide first.
    pub priority: u16,
}

/// The other end of a link, as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct PeerFacts<'a> {
    /// The address that the link uses.
    pub address: IpAddr,
    /// Its names, if it is a vNIC of this host.
    pub names: Option<&'a VnicNames>,
}

/// Names by which rules know a vNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnicNames {
    /// Its own names.
    pub vnic: Vec<String>,
    /// Names of the policies that it has.
    pub policies: Vec<String>,
}

impl PeerMatch {
    /// Whether a peer is meant.
    #[must_use]
    pub fn matches(&self, peer: &PeerFacts<'_>) -> bool {
        let is_named = |of: fn(&VnicNames) -> &Vec<String>, name: &String| {
            peer.names.is_some_and(|names| of(names).contains(name))
        };
        match self {
            PeerMatch::Any => true,
            PeerMatch::Prefix(prefix) => prefix.contains(peer.address),
            PeerMatch::Vnic(name) => is_named(|names| &names.vnic, name),
            PeerMatch::Policy(name) => is_named(|names| &names.policies, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_addresses_with_their_first_bits() {
        let prefix = |text: &str, bits| Prefix::new(text.parse().unwrap(), bits);
        let has = |prefix: Prefix, text: &str| prefix.contains(text.parse().unwrap());
        let ten = prefix("10.0.0.0", 8).unwrap();
        assert!(has(ten, "10.255.1.2") && has(ten, "::ffff:10.1.1.1"));
        assert!(!has(ten, "11.0.0.0") && !has(ten, "::10.0.0.1") && !has(ten, "fd00::1"));
        let all = prefix("0.0.0.0", 0).unwrap();
        assert!(has(all, "1.2.3.4") && has(all, "255.255.255.255") && !has(all, "::1"));
        let every = prefix("::", 0).unwrap();
        assert!(has(every, "fe80::1") && !has(every, "1.2.3.4"));
        let one = prefix("10.0.0.7", 32).unwrap();
        assert!(has(one, "10.0.0.7") && !has(one, "10.0.0.6"));
        let six = prefix("fd00::", 8).unwrap();
        assert!(has(six, "fd12::1") && !has(six, "fe80::1"));
        let host = prefix("fd00::1", 128).unwrap();
        assert!(has(host, "fd00::1") && !has(host, "fd00::2"));
        for (text, bits) in [("10.0.0.1", 8), ("10.0.0.0", 33), ("fd00::1", 64), ("::", 129)] {
            assert_eq!(prefix(text, bits), None, "{text}/{bits}");
        }
    }
}
