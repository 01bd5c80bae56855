//! Chooses the virtual addresses that `[[container]]` rules give.

use super::Objects;
use super::container_rules::{Container, ContainerRule, Interface};
use super::object_set::{ObjectSet, VnicObject};
use super::remote_vnic::parse_name;
use super::rule_virtual_address::{VirtualAddress, usable};
use crate::fnv_hash::{BASIS, fnv1a};
use omniverb_tenancy::VnicId;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

impl ObjectSet {
    /// The problem with what a rule gives, if there is one.
    pub(super) fn problem_of_rule(&self, rule: &ContainerRule) -> Option<String> {
        // As if it was one that is described, with each of the addresses that it may have.
        let object = VnicObject { is_by_rule: false, ..VnicObject::of_rule(rule) };
        let with = |address: u32| {
            let address = Some(Ipv4Addr::from_bits(address));
            self.problem_of_place(&VnicObject { address, ..object.clone() })
        };
        let tenant = self.network_of(&object).and_then(|(name, _)| self.tenant.get(name));
        match (tenant, rule.virtual_address) {
            (Some(_), None) => Some(
                "its tenant has an underlay: say a virtual_address, \"own\" or a prefix to choose \
                 from"
                    .into(),
            ),
            (None, Some(_)) => Some("virtual_address needs a tenant with an underlay".into()),
            (None, None) => self.problem_of_place(&object),
            (Some(_), Some(VirtualAddress::OfPrefix(prefix))) => {
                let (first, count) = usable(prefix)?;
                with(first).or_else(|| with(first.saturating_add((count - 1) as u32)))
            }
            (Some(tenant), Some(VirtualAddress::Own)) => {
                let any = tenant.address_prefix.and_then(usable);
                with(any.map_or(0x0a00_0001, |(first, _)| first))
            }
        }
    }

    /// Whether a vNIC of a virtual network can have this address there.
    pub(super) fn may_have_address(&self, vnic: &VnicObject, address: Ipv4Addr) -> bool {
        let network = self.network_of(vnic);
        network.and_then(|(name, host)| Some((self.tenant.get(name)?, host))).is_some_and(
            |(tenant, host)| {
                tenant.problem_of_addresses(Some(address), self.underlay_of(vnic, host)).is_none()
            },
        )
    }

    /// The virtual addresses of a tenant's vNICs, of other hosts, too, but for one object.
    fn addresses_in<'a>(
        &'a self,
        tenant: &'a str,
        but_of: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = Ipv4Addr> + 'a {
        let is_other = move |(name, vnic): &(&String, &VnicObject)| {
            vnic.tenant.as_deref() == Some(tenant) && !but_of(name)
        };
        let here = self.vnic.iter().filter(is_other).filter_map(|(_, vnic)| vnic.address);
        let remote = self.address.keys().filter_map(move |name| {
            let (of, address) = parse_name(name)?;
            (of == tenant).then_some(address)
        });
        here.chain(remote)
    }
}

impl Objects {
    /// The virtual address that a rule gives a container, if its tenant has a virtual network.
    /// From the name of its vNIC the same address of a prefix follows again after a restart, as far
    /// as that is free.
    pub(super) fn virtual_address_for(
        &self,
        rule: &ContainerRule,
        (container, interface): (&Container, Option<&Interface>),
        (vnic, name): (VnicId, &str),
    ) -> Option<Ipv4Addr> {
        let object = VnicObject::of_rule(rule);
        let (tenant, _) = self.all.network_of(&object)?;
        let is_its = |object: &str| self.containers.is_of(object, vnic);
        let taken: BTreeSet<Ipv4Addr> = self.all.addresses_in(tenant, is_its).collect();
        let chosen = match rule.virtual_address? {
            VirtualAddress::Own => rule.own_address(container, interface),
            VirtualAddress::OfPrefix(prefix) => {
                let (first, count) = usable(prefix)?;
                let begin = fnv1a(BASIS, name.as_bytes()) % count;
                // One of so many is free, if any is.
                let tries = count.min(taken.len() as u64 + 1);
                let mut all = (0..tries).map(|n| {
                    Ipv4Addr::from_bits(first.saturating_add(((begin + n) % count) as u32))
                });
                all.find(|address| !taken.contains(address))
            }
        };
        let fits = |address: &Ipv4Addr| self.all.may_have_address(&object, *address);
        chosen.filter(|address| !taken.contains(address) && fits(address))
    }
}
