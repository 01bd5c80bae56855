//! Shows objects, and what this host has of virtual networks, as rows.
//!
//! In: all objects. Out: rows from a place on, for answers in pieces. One piece costs as much as it
//! has rows, and a step of an iterator for each row before it.

use super::{Objects, Set, object_set::ObjectKind, problem_at};
use omniverb_tenancy::VnicPlace;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Objects {
    /// The rows of objects in the order of kinds and names, without the first `from`.
    pub(crate) fn rows(&self, from: usize) -> impl Iterator<Item = Value> {
        let Set { tenant, policy, vnic, address, .. } = &self.all;
        let policies = from.saturating_sub(tenant.len());
        let vnics = policies.saturating_sub(policy.len());
        let addresses = vnics.saturating_sub(vnic.len());
        let tenants = self.rows_of(ObjectKind::Tenant, tenant, |set| &set.tenant, from);
        let policies = self.rows_of(ObjectKind::Policy, policy, |set| &set.policy, policies);
        let vnics = self.rows_of(ObjectKind::Vnic, vnic, |set| &set.vnic, vnics);
        let vnics = vnics.map(|(name, row)| self.with_place(name, row));
        let addresses = self.rows_of(ObjectKind::Address, address, |set| &set.address, addresses);
        let others = tenants.chain(policies).map(|(_, row)| row);
        others.chain(vnics).chain(addresses.map(|(_, row)| row))
    }

    /// The row of a vNIC, with where it is.
    fn with_place(&self, name: &str, mut row: Value) -> Value {
        let given = self.given.first_vnic(name);
        row["attached"] = given.map(|vnic| vnic.0).into();
        if let Some((_, place)) = self.places.place(name) {
            row["gid"] =
                self.places.gid(&self.all, name, &self.keys).map(|gid| gid.to_string()).into();
            row["qpn_offset"] = place.range.offset().number().into();
            row["underlay"] = place.underlay.to_string().into();
        }
        let path = || self.all.vnic.get(name)?.path(name);
        if let (None, Some(problem)) = (given, path().and_then(problem_at)) {
            row["problem"] = problem.into();
        }
        row
    }

    /// What this host has of virtual networks: the tenants that have one, then the vNICs that other
    /// hosts can reach. The rows and their kinds, without the first `from`.
    pub(crate) fn network_rows(&self, from: usize) -> impl Iterator<Item = (&'static str, Value)> {
        let networks =
            self.all.tenant.iter().filter_map(|(name, tenant)| Some((name, tenant.underlay?)));
        let count = networks.clone().count();
        let networks = networks
            .skip(from)
            .map(|(name, underlay)| ("network", json!({ "tenant": name, "underlay": underlay })));
        let reachable = self.places.reachable(from.saturating_sub(count));
        let places = reachable.map(|(name, tenant, place)| {
            let VnicPlace { virtual_ip, underlay, range } = place;
            let gid = self.places.gid(&self.all, name, &self.keys).map(|gid| gid.to_string());
            let row = json!({
                "tenant": tenant, "address": virtual_ip, "vnic": name, "vgid": gid,
                "underlay": underlay, "qpn_offset": range.offset().number(),
                "qpns": range.count(), "proof": self.places.proof(name, &self.keys),
            });
            ("place", row)
        });
        networks.chain(places)
    }

    /// The rows of one kind, and the names of the objects.
    fn rows_of<'a, T: serde::Serialize>(
        &'a self,
        kind: ObjectKind,
        objects: &'a BTreeMap<String, T>,
        of_kind: impl Fn(&Set) -> &BTreeMap<String, T>,
        from: usize,
    ) -> impl Iterator<Item = (&'a str, Value)> {
        objects.iter().skip(from).map(move |(name, object)| {
            let by_rule = kind == ObjectKind::Vnic && self.containers.has_object(name);
            let is_in = [&self.set, &self.cluster].map(|set| of_kind(set).contains_key(name));
            let source = match (is_in, by_rule) {
                ([true, _], _) => "command",
                ([false, true], _) => "cluster",
                ([false, false], true) => "container",
                ([false, false], false) => "configuration",
            };
            let mut row =
                json!({ "kind": kind.word(), "name": name, "source": source, "fields": object });
            if is_in == [true, true] {
                row["hides"] = "cluster".into();
            }
            (name.as_str(), row)
        })
    }
}
