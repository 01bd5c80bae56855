//! Finds the addresses that packets of a policy's vNICs carry between hosts.
//!
//! Such an address belongs to vNICs of one tenant on a host. It comes before the tenant's own, and
//! is one of this host: the interface with the tenant's address gets it (`host/netns`).

use super::Objects;
use super::object_set::{ObjectSet, VnicObject};
use omniverb_netns::{Presence, UNDERLAY_ADDRESSES_MAX, is_of_a_host};
use omniverb_tenancy::VnicId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

impl ObjectSet {
    /// The addresses of this host that policies say.
    pub(super) fn policy_addresses(&self) -> BTreeSet<IpAddr> {
        self.policy.values().filter_map(|policy| policy.underlay).collect()
    }

    /// The policy whose address a vNIC has, and that address: the last of its policies with one.
    pub(super) fn policy_with_address<'a>(
        &self,
        vnic: &'a VnicObject,
    ) -> Option<(&'a String, IpAddr)> {
        let policies = vnic.policies.iter().rev();
        let mut said = policies.filter_map(|name| Some((name, self.policy.get(name)?.underlay?)));
        said.next()
    }

    /// Whether a vNIC has a policy with this address.
    pub(super) fn has_policy_with(&self, vnic: &VnicObject, address: IpAddr) -> bool {
        let mut policies = vnic.policies.iter().filter_map(|name| self.policy.get(name));
        policies.any(|policy| policy.underlay == Some(address))
    }

    /// The address of its host that a vNIC's packets carry. `tenant`: that of its tenant here.
    pub(super) fn underlay_of(&self, vnic: &VnicObject, tenant: IpAddr) -> IpAddr {
        let policy = || self.policy_with_address(vnic).map(|(_, address)| address);
        vnic.underlay.or_else(policy).unwrap_or(tenant)
    }

    /// The problem with addresses of policies, if there is one, and the policy.
    pub(crate) fn problem_of_policy_addresses(&self) -> Option<(&String, String)> {
        let mut all = BTreeSet::new();
        for (name, policy) in &self.policy {
            let Some(address) = policy.underlay else { continue };
            let problem = (!is_of_a_host(address))
                .then(|| format!("underlay {address} is no address of an interface"));
            all.insert(address);
            let many = || {
                let most = UNDERLAY_ADDRESSES_MAX;
                (all.len() > most).then(|| format!("policies have more than {most} addresses"))
            };
            if let Some(problem) = problem.or_else(many) {
                return Some((name, problem));
            }
        }
        None
    }

    /// The address of this host that a vNIC's packets carry if that is a policy's and not its
    /// tenant's own, and the tenant's: the interface with that one has both.
    pub(crate) fn added_address(&self, vnic: &VnicObject) -> Option<(IpAddr, IpAddr)> {
        let (_, tenant) = self.network_of(vnic)?;
        let address = self.underlay_of(vnic, tenant);
        (address != tenant && !self.is_elsewhere(vnic)).then_some((address, tenant))
    }

    /// The problem with who has addresses of policies, if there is one: what acts on packets of an
    /// address acts on those of one tenant of this host.
    pub(super) fn problem_of_shared_addresses(&self) -> Option<String> {
        let policies = self.policy_addresses();
        let of_tenants = self.tenant.iter().filter_map(|(name, it)| Some((it.underlay?, name)));
        let mut owners: BTreeMap<IpAddr, &String> =
            of_tenants.filter(|(address, _)| policies.contains(address)).collect();
        let described = self.vnic.iter().map(|(name, vnic)| (name.clone(), vnic.clone()));
        let by_rules = (1..)
            .zip(&self.container)
            .map(|(number, rule)| (format!("[[container]] {number}"), VnicObject::of_rule(rule)));
        for (name, vnic) in described.chain(by_rules) {
            let Some((tenant, host)) = self.network_of(&vnic) else { continue };
            let address = self.underlay_of(&vnic, host);
            if !policies.contains(&address) {
                continue;
            }
            if self.is_elsewhere(&vnic) {
                return Some(format!(
                    "vnic {name:?}: its underlay {address} is a policy's of this host: give it \
                     that policy, or the address of its own host"
                ));
            }
            let owner = *owners.entry(address).or_insert(tenant);
            if owner != tenant {
                return Some(format!(
                    "vnic {name:?}: its packets would carry {address}, which is of tenant \
                     {owner:?}: give tenant {tenant:?} a policy with another underlay"
                ));
            }
        }
        None
    }
}

impl Objects {
    /// The addresses of this host on the underlay, of all tenants and policies: those of policies
    /// are added.
    pub(crate) fn underlay_addresses(&self) -> BTreeMap<IpAddr, Presence> {
        let of_tenants = self.all.tenant.values().filter_map(|tenant| tenant.underlay);
        let of_tenants = of_tenants.filter(|address| is_of_a_host(*address));
        let mut all: BTreeMap<_, _> =
            of_tenants.map(|address| (address, Presence::Present)).collect();
        // One that is a tenant's, too, is added if the tenant gets another.
        let of_policies = self.all.policy_addresses().into_iter();
        all.extend(of_policies.map(|address| (address, Presence::Added)));
        all
    }

    /// Whether packets at an underlay address may be in plain: those of an encrypted tenant pass by
    /// another port.
    pub(crate) fn is_plain_at(&self, address: IpAddr) -> bool {
        let is_of_policy = self.policy_of(address).is_some();
        let mut tenants = self.all.tenant.values().filter(|tenant| !tenant.is_encrypted());
        tenants.any(|tenant| {
            tenant.underlay == Some(address) || is_of_policy && tenant.underlay.is_some()
        })
    }

    /// The address of a policy that a vNIC's packets carry, and the one of its tenant that the same
    /// interface has.
    pub(crate) fn added_address(&self, vnic: VnicId) -> Option<(IpAddr, IpAddr)> {
        self.all.added_address(self.all.vnic.get(self.given.get(vnic)?)?)
    }

    /// A policy with this address.
    pub(crate) fn policy_of(&self, address: IpAddr) -> Option<&str> {
        let mut all = self.all.policy.iter();
        all.find(|(_, policy)| policy.underlay == Some(address)).map(|(name, _)| name.as_str())
    }

    /// Whether policies have addresses.
    pub(crate) fn has_policy_addresses(&self) -> bool {
        self.all.policy.values().any(|policy| policy.underlay.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::super::virtual_network_placement::VirtualPlaces;
    use super::*;

    /// Two tenants; vNICs with policies as `a` and `b` say.
    fn set(gold: &str, a: &str, b: &str) -> ObjectSet {
        let text = r#"{ "tenant": {
                "blue": { "key_file": "/b", "underlay": "192.0.2.1" },
                "red": { "key_file": "/r", "underlay": "192.0.2.1" }, "green": {},
                "alone": { "key_file": "/a", "underlay": "127.0.0.1" } },
            "policy": { "gold": { "underlay": "GOLD" }, "plain": { "rate": "1gbit" },
                        "silver": { "underlay": "192.0.2.51" } },
            "vnic": { "a": { "tenant": "blue", "address": "10.0.0.1" A },
                      "b": { "tenant": "red", "address": "10.0.0.2" B } } }"#;
        let text = text.replace("GOLD", gold).replace(" A }", a).replace(" B }", b);
        serde_json::from_str(&text).unwrap()
    }

    fn places(set: &ObjectSet) -> Result<VirtualPlaces, String> {
        set.check().map_err(|error| error.to_string())?;
        VirtualPlaces::of(set, &VirtualPlaces::default())
    }

    const GOLD: &str = "192.0.2.50";
    const WITH: &str = r#", "policies": ["gold"] }"#;
    const WITHOUT: &str = " }";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_last_policy_with_an_address_decides_before_the_tenant() {
        let gold = (ip(GOLD), ip("192.0.2.1"));
        let silver = (ip("192.0.2.51"), ip("192.0.2.1"));
        for (a, expected) in [
            (WITHOUT, None),
            (r#", "policies": ["plain"] }"#, None),
            (WITH, Some(gold)),
            (r#", "policies": ["gold", "plain"] }"#, Some(gold)),
            (r#", "policies": ["gold", "silver"] }"#, Some(silver)),
            // What the vNIC itself says decides before its policies.
            (r#", "policies": ["gold", "silver"], "underlay": "192.0.2.50" }"#, Some(gold)),
            (r#", "policies": ["gold"], "underlay": "192.0.2.1" }"#, None),
        ] {
            let set = set(GOLD, a, WITHOUT);
            let places = places(&set).unwrap();
            let address = expected.map_or(ip("192.0.2.1"), |(address, _)| address);
            assert_eq!(places.place("a").unwrap().1.underlay, address, "{a}");
            assert_eq!(set.added_address(&set.vnic["a"]), expected, "{a}");
            assert_eq!(places.reachable(0).count(), 2, "it is announced with that address: {a}");
        }
    }

    #[test]
    fn a_vnic_of_another_host_has_the_address_that_it_is_described_with() {
        let there = r#", "policies": ["gold"], "underlay": "192.0.2.77", "qpn_offset": 4194304 }"#;
        let set = set(GOLD, there, WITHOUT);
        let places = places(&set).unwrap();
        assert_eq!(places.place("a").unwrap().1.underlay, ip("192.0.2.77"));
        assert!(set.is_elsewhere(&set.vnic["a"]));
        assert_eq!(set.added_address(&set.vnic["a"]), None);
        assert_eq!(places.reachable(0).count(), 1);
    }

    #[test]
    fn addresses_that_cannot_be_are_refused() {
        let refused = |set: ObjectSet, words: &str| {
            let problem = places(&set).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        };
        for address in ["127.0.0.2", "0.0.0.0", "224.0.0.1", "255.255.255.255"] {
            refused(set(address, WITHOUT, WITHOUT), "no address of an interface");
        }
        assert!(places(&set("2001:db8::1", WITHOUT, WITHOUT)).is_ok(), "no vNIC has it");
        refused(set("2001:db8::1", WITH, WITHOUT), "of the tenant is of IPv4");
        refused(set(GOLD, WITH, WITH), "is of tenant \"blue\"");
        // The tenant's own, which another tenant's vNIC would have.
        let mut other = set("192.0.2.2", WITHOUT, WITH);
        other.tenant.get_mut("blue").unwrap().underlay = Some(ip("192.0.2.2"));
        refused(other, "is of tenant \"blue\"");
        let flat = r#", "policies": ["gold"] }, "c": { "tenant": "green", "policies": ["gold"] }"#;
        refused(set(GOLD, flat, WITHOUT), "the vNIC's tenant needs one, too");
        let alone = r#" }, "c": { "tenant": "alone", "address": "10.0.0.3",
                                  "policies": ["gold"] }"#;
        refused(set(GOLD, alone, WITHOUT), "is of one host");
        // It is neither of this vNIC nor of another host.
        let wrong = r#", "underlay": "192.0.2.50", "qpn_offset": 4194304 }"#;
        refused(set(GOLD, WITHOUT, wrong), "is a policy's of this host");
    }

    #[test]
    fn there_are_only_so_many() {
        let mut many = set(GOLD, WITHOUT, WITHOUT);
        for number in 0..UNDERLAY_ADDRESSES_MAX as u32 {
            let policy = many.policy.entry(format!("p{number}")).or_default();
            policy.underlay = Some(std::net::Ipv4Addr::from(0x0a00_0000 + number + 1).into());
        }
        assert!(places(&many).unwrap_err().contains("more than 256 addresses"));
        many.policy.retain(|name, _| name.starts_with('p'));
        assert!(places(&many).is_ok());
    }
}
