//! Places vNICs of tenants with keys in virtual networks, and gives each vNIC of this host QPNs.
//!
//! In: objects. Out: the place of each vNIC, and what makes vGIDs. A vNIC that is described as on
//! another host has no QPNs here, but a place. QPNs without a `qpn_offset` come from the vNIC's
//! address in its network, so that the next daemon gives the same. If two vNICs would have the
//! same, the one that comes first keeps them.
//!
//! vNICs of other hosts that the cluster's agents announce come last. One that is in the way of
//! another is left out, so that nothing that was described depends on them.

use super::object_set::{DEFAULT_TENANT, ObjectSet, Tenant, VnicObject};
use super::remote_vnic::{RemoteVnic, parse_name, place_proof};
use super::tenant_key_file_reader::TenantKeys;
use super::vnic_qpn_ranges::{NUMBERS, QPNS, chosen};
use crate::engine::ENCRYPTION_BYTES;
use omniverb_netns::is_of_a_host;
use omniverb_tenancy::{TenantNetwork, VnicPlace};
use omniverb_vgid::{QpnOffset, QpnRange, VnicAddress};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

/// Bytes of the largest packet on an underlay: those of Ethernet unless the tenant says otherwise.
/// A tenant of one host has no network between its vNICs.
const MTU: u32 = 1500;
const MTU_OF_ONE_HOST: u32 = 9000;
const MTUS: RangeInclusive<u32> = 576..=65535;

/// Bytes that encryption adds to a packet.
const ENCRYPTION: u32 = ENCRYPTION_BYTES as u32;

/// Ranges of QPNs, each with its end and vNIC, by host and beginning.
type Taken<'a> = BTreeMap<(IpAddr, u32), (u32, &'a str)>;

/// Places of vNICs, by their tenants and objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct VirtualPlaces {
    /// All vNICs of these tenants, here and elsewhere, by their objects.
    places: BTreeMap<String, (String, VnicPlace)>,
    /// Those that other hosts' agents announce, by their names.
    remote: BTreeMap<String, (String, VnicPlace)>,
    /// Why others of these have no place.
    left_out: BTreeMap<String, String>,
    /// Objects of the vNICs of this host that others can reach, in order.
    reachable: Vec<String>,
}

impl ObjectSet {
    /// The tenant of a vNIC and its underlay address here, if it has a virtual network.
    pub(super) fn network_of(&self, vnic: &VnicObject) -> Option<(&String, IpAddr)> {
        let (name, tenant) = self.tenant.get_key_value(vnic.tenant.as_ref()?)?;
        Some((name, tenant.underlay?))
    }

    /// The tenant of a vNIC, if that has a virtual network.
    pub(crate) fn network_name(&self, vnic: &VnicObject) -> Option<&str> {
        self.network_of(vnic).map(|(name, _)| name.as_str())
    }

    /// Whether a vNIC is described as one of another host.
    pub(crate) fn is_elsewhere(&self, vnic: &VnicObject) -> bool {
        let host = self.network_of(vnic).map(|(_, host)| host);
        host.zip(vnic.underlay)
            .is_some_and(|(host, said)| host != said && !self.has_policy_with(vnic, said))
    }

    /// The problem with a tenant's virtual network, if there is one.
    pub(crate) fn problem_of_tenant(name: &str, tenant: &Tenant) -> Option<String> {
        let Some(underlay) = tenant.underlay else {
            let is_prefix = tenant.underlay_prefix.is_some() || tenant.address_prefix.is_some();
            return match (tenant.mtu, is_prefix) {
                (Some(_), _) => Some("mtu needs an underlay: elsewhere interfaces have it".into()),
                (None, true) => Some("underlay_prefix and address_prefix need an underlay".into()),
                (None, false) => None,
            };
        };
        if tenant.mtu.is_some_and(|mtu| !MTUS.contains(&mtu)) {
            return Some(format!("mtu is {} to {} bytes", MTUS.start(), MTUS.end()));
        }
        if name == DEFAULT_TENANT {
            return Some(
                "vNICs that are not described have no virtual address: name a tenant".into(),
            );
        }
        if tenant.key_file.is_none() {
            return Some("an underlay needs a key_file: without a key GIDs are addresses".into());
        }
        tenant.problem_of_networks(underlay)
    }

    /// The problem with a vNIC's place in a virtual network, if there is one.
    pub(crate) fn problem_of_place(&self, vnic: &VnicObject) -> Option<String> {
        let VnicObject { address, underlay, qpn_offset, qpns, .. } = vnic;
        let policy = self.policy_with_address(vnic);
        let Some((tenant, host)) = self.network_of(vnic) else {
            let says =
                [address.is_some(), underlay.is_some(), qpn_offset.is_some(), qpns.is_some()];
            if says.contains(&true) {
                let text = "address, underlay, qpn_offset and qpns need a tenant with an underlay";
                return Some(text.into());
            }
            return policy.map(|(policy, _)| {
                format!("policy {policy:?} has an underlay: the vNIC's tenant needs one, too")
            });
        };
        if let Some((policy, _)) = policy.filter(|_| host.is_loopback()) {
            return Some(format!(
                "policy {policy:?} has an underlay, and tenant {tenant:?} is of one host by its \
                 own, {host}: give the tenant an address of an interface"
            ));
        }
        if address.is_none() {
            return Some(format!(
                "tenant {tenant:?} has an underlay: say the vNIC's address in it"
            ));
        }
        let of_tenant = self.tenant.get(tenant);
        let problem = of_tenant
            .and_then(|of| of.problem_of_addresses(*address, self.underlay_of(vnic, host)));
        if problem.is_some() {
            return problem;
        }
        let count = qpns.unwrap_or(QPNS);
        if !(QPNS..=QpnRange::COUNT_MAX).contains(&count) || !count.is_multiple_of(QPNS) {
            let most = QpnRange::COUNT_MAX;
            return Some(format!("qpns = {count} is no multiple of {QPNS} up to {most}"));
        }
        match qpn_offset {
            Some(offset) if chosen(*offset, count).is_none() => Some(format!(
                "qpn_offset = {offset:#x} does not fit: multiples of {:#x} from {:#x} to {:#x} do",
                QpnOffset::GRANULE,
                NUMBERS.start,
                NUMBERS.end - count
            )),
            None if self.is_elsewhere(vnic) => Some(
                "it is of another host: say its qpn_offset, which `vnic show` says there".into(),
            ),
            _ => None,
        }
    }
}

impl VirtualPlaces {
    /// Of these objects. `before`: ranges that vNICs have already, which they keep.
    ///
    /// # Errors
    /// Two vNICs have one address or some QPNs in common, there are no QPNs left, or vNICs of two
    /// tenants have an address of a policy.
    pub(crate) fn of(all: &ObjectSet, before: &VirtualPlaces) -> Result<VirtualPlaces, String> {
        if let Some(problem) = all.problem_of_shared_addresses() {
            return Err(problem);
        }
        let mut found = VirtualPlaces::default();
        let mut addresses = BTreeMap::new();
        let mut taken = Taken::new();
        let mut later = Vec::new();
        // Those that were chosen come first: others may have other ones.
        let mut vnics: Vec<_> = all.vnic.iter().collect();
        // Those of containers have what others leave.
        vnics.sort_by_key(|(_, vnic)| (vnic.is_by_rule, vnic.qpn_offset.is_none()));
        for (name, vnic) in vnics {
            let Some((tenant, host)) = all.network_of(vnic) else { continue };
            let Some(virtual_ip) = vnic.address else { continue };
            let is_taken = addresses.contains_key(&(tenant, virtual_ip));
            if vnic.is_by_rule && (is_taken || !all.may_have_address(vnic, virtual_ip)) {
                continue;
            }
            if let Some(other) = addresses.insert((tenant, virtual_ip), name) {
                return Err(format!("vnic {name:?}: vnic {other:?} has the address {virtual_ip}"));
            }
            let underlay = all.underlay_of(vnic, host);
            let count = vnic.qpns.unwrap_or(QPNS);
            let kept = before.places.get(name).filter(|(of, place)| {
                let same = (place.virtual_ip, place.underlay, place.range.count());
                of == tenant && same == (virtual_ip, underlay, count)
            });
            let range = match vnic.qpn_offset {
                Some(offset) => chosen(offset, count),
                None => kept.map(|(_, place)| place.range),
            };
            let Some(range) = range else {
                later.push((name, tenant, (virtual_ip, underlay, count)));
                continue;
            };
            if let Some(other) = claim(&mut taken, underlay, range, name) {
                // One that was given them may have others.
                if vnic.qpn_offset.is_none() {
                    later.push((name, tenant, (virtual_ip, underlay, count)));
                    continue;
                }
                return Err(format!("vnic {name:?}: vnic {other:?} has some of its QPNs"));
            }
            let place = VnicPlace { virtual_ip, underlay, range };
            found.places.insert(name.clone(), (tenant.clone(), place));
        }
        for (name, tenant, (virtual_ip, underlay, count)) in later {
            let steps = (NUMBERS.end - NUMBERS.start) / QPNS;
            let first = hash(tenant, virtual_ip) % steps;
            let offsets = (0..steps).map(|n| NUMBERS.start + (first + n) % steps * QPNS);
            let mut ranges = offsets.filter_map(|offset| chosen(offset, count));
            let range = ranges.find(|range| claim(&mut taken, underlay, *range, name).is_none());
            let range = match range {
                Some(range) => range,
                None if all.vnic.get(name).is_some_and(|vnic| vnic.is_by_rule) => continue,
                None => return Err(format!("vnic {name:?}: there are no QPNs left")),
            };
            let place = VnicPlace { virtual_ip, underlay, range };
            found.places.insert(name.clone(), (tenant.clone(), place));
        }
        found.reachable = found.local(all).cloned().collect();
        found.add_remote(all, before, &addresses);
        Ok(found)
    }

    /// Adds those that other hosts' agents announce. `addresses`: of the others.
    ///
    /// QPNs are found within a tenant. So a host with the key of one takes nothing from others:
    /// ranges are apart from those of the same tenant only.
    fn add_remote(
        &mut self,
        all: &ObjectSet,
        before: &VirtualPlaces,
        addresses: &BTreeMap<(&String, Ipv4Addr), &String>,
    ) {
        let mut taken: BTreeMap<&String, Taken<'_>> = BTreeMap::new();
        for (name, (tenant, VnicPlace { underlay, range, .. })) in &self.places {
            claim(taken.entry(tenant).or_default(), *underlay, *range, name);
        }
        let mut ours = all.policy_addresses();
        ours.extend(all.tenant.values().filter_map(|tenant| tenant.underlay));
        let place_of = |name: &str, remote: &RemoteVnic| {
            let (tenant, virtual_ip) = parse_name(name)?;
            let (tenant, of) = all.tenant.get_key_value(tenant)?;
            of.underlay?;
            Some((tenant, remote.place(virtual_ip)?))
        };
        // The first keeps what it has.
        let mut remotes: Vec<_> = all.address.iter().collect();
        remotes.sort_by_cached_key(|(name, remote)| {
            let before = before.remote.get(*name).map(|(tenant, place)| (tenant, *place));
            before.is_none() || before != place_of(name, remote)
        });
        for (name, remote) in remotes {
            let Some((tenant, place)) = place_of(name, remote) else {
                let problem = "this host has no tenant of that name with an underlay";
                self.left_out.insert(name.clone(), problem.into());
                continue;
            };
            let VnicPlace { virtual_ip, underlay, range } = place;
            let of = all.tenant.get(tenant);
            let problem = of.and_then(|of| of.problem_of_addresses(Some(virtual_ip), underlay));
            if let Some(problem) = problem {
                self.left_out.insert(name.clone(), problem);
            } else if let Some(other) = addresses.get(&(tenant, virtual_ip)) {
                let is_same = self.places.get(*other).is_some_and(|(_, it)| *it == place);
                if !is_same {
                    let problem = format!("vnic {other:?} of this host has the address");
                    self.left_out.insert(name.clone(), problem);
                }
            } else if ours.contains(&underlay) {
                let problem = format!("its underlay {underlay} is this host's");
                self.left_out.insert(name.clone(), problem);
            } else if let Some(other) =
                claim(taken.entry(tenant).or_default(), underlay, range, name)
            {
                let problem = format!("{other:?} has some of its QPNs");
                self.left_out.insert(name.clone(), problem);
            } else {
                self.remote.insert(name.clone(), (tenant.clone(), place));
            }
        }
    }

    /// The problem of a vNIC that another host's agent announces, if it has one. Without the key
    /// that its vGID and its proof are made with it cannot be announced.
    pub(crate) fn problem_of_remote(
        &self,
        all: &ObjectSet,
        name: &str,
        remote: &RemoteVnic,
        keys: &TenantKeys,
    ) -> Option<String> {
        if let Some(problem) = self.left_out.get(name) {
            return Some(problem.clone());
        }
        let (tenant, virtual_ip) = parse_name(name)?;
        let place = remote.place(virtual_ip)?;
        let VnicPlace { underlay, range, .. } = place;
        let address = VnicAddress { virtual_ip, offset: range.offset(), underlay };
        let keys = keys.keys(tenant);
        let codec = all.tenant.get(tenant).and_then(|tenant| tenant.codec(&keys));
        let found = codec.and_then(|codec| codec.decipher(remote.gid()));
        let wrong = match found.map(|found| found.address) == Some(address) {
            true if remote.is_proven(&place, &keys) => return None,
            true => "proof",
            false => "vGID",
        };
        Some(format!(
            "its {wrong} was not made with a key that this host has of tenant {tenant:?}, or for \
             another place: give both hosts one key"
        ))
    }

    /// The vNICs of this host that others can reach, without the first `from`: objects, tenants and
    /// places.
    pub(crate) fn reachable(&self, from: usize) -> impl Iterator<Item = (&str, &str, &VnicPlace)> {
        self.reachable.get(from..).into_iter().flatten().filter_map(|name| {
            let (tenant, place) = self.places.get(name)?;
            Some((name.as_str(), tenant.as_str(), place))
        })
    }

    /// Objects of vNICs of this host that others can reach.
    fn local<'a>(&'a self, all: &'a ObjectSet) -> impl Iterator<Item = &'a String> {
        let is_here = |name: &String| all.vnic.get(name).is_some_and(|v| !all.is_elsewhere(v));
        let is_reached = |place: &VnicPlace| is_of_a_host(place.underlay);
        let all = self.places.iter();
        all.filter(move |(name, (_, place))| is_here(name) && is_reached(place))
            .map(|(name, _)| name)
    }

    /// The place of the vNIC that an object describes, and its tenant.
    pub(crate) fn place(&self, object: &str) -> Option<&(String, VnicPlace)> {
        self.places.get(object)
    }

    /// The virtual networks of all tenants that have one, by their names. `features`: what engines
    /// can do.
    pub(crate) fn networks(
        &self,
        all: &ObjectSet,
        keys: &TenantKeys,
        features: u32,
    ) -> BTreeMap<String, TenantNetwork> {
        let with_network = all.tenant.iter().filter(|(_, tenant)| tenant.underlay.is_some());
        let mut networks: BTreeMap<String, TenantNetwork> = with_network
            .map(|(name, tenant)| {
                let codec = tenant.codec(&keys.keys(name));
                let vnics = BTreeMap::new();
                let is_of_one_host = tenant.underlay.is_some_and(|address| address.is_loopback());
                let usual = if is_of_one_host { MTU_OF_ONE_HOST } else { MTU };
                let mtu = tenant.mtu.unwrap_or(usual);
                // What encryption adds has to fit, too.
                let added = if tenant.is_encrypted() && !is_of_one_host { ENCRYPTION } else { 0 };
                let mtu = mtu.saturating_sub(added);
                (name.clone(), TenantNetwork { codec, vnics, qpns: QPNS, mtu, features })
            })
            .collect();
        for (tenant, place) in self.places.values().chain(self.remote.values()) {
            if let Some(network) = networks.get_mut(tenant) {
                network.vnics.insert(place.virtual_ip, *place);
            }
        }
        networks
    }

    /// The vGID that an object's vNIC has.
    pub(crate) fn gid(
        &self,
        all: &ObjectSet,
        object: &str,
        keys: &TenantKeys,
    ) -> Option<omniverb_terms::Gid> {
        let (tenant, place) = self.places.get(object)?;
        let VnicPlace { virtual_ip, underlay, range } = *place;
        let codec = all.tenant.get(tenant)?.codec(&keys.keys(tenant))?;
        codec.encipher(VnicAddress { virtual_ip, offset: range.offset(), underlay })
    }

    /// What proves the place of an object's vNIC to other hosts.
    pub(crate) fn proof(&self, object: &str, keys: &TenantKeys) -> Option<String> {
        let (tenant, place) = self.places.get(object)?;
        Some(place_proof(keys.keys(tenant).first()?, place))
    }
}

/// Claims QPNs of a host for a vNIC. Returns the vNIC that has some of them already, if one has.
fn claim<'a>(
    taken: &mut Taken<'a>,
    host: IpAddr,
    range: QpnRange,
    name: &'a str,
) -> Option<&'a str> {
    let start = range.offset().number();
    let end = start + range.count();
    let before = taken.range((host, 0)..(host, end)).next_back();
    if let Some((_, (until, other))) = before
        && *until > start
    {
        return Some(*other);
    }
    taken.insert((host, start), (end, name));
    None
}

/// A hash that every daemon computes alike (FNV-1a, 32 bits).
fn hash(tenant: &str, address: Ipv4Addr) -> u32 {
    let bytes = tenant.bytes().chain([0]).chain(address.octets());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> ObjectSet {
        serde_json::from_str(text).unwrap()
    }

    const BLUE: &str = r#"{ "tenant": { "blue": { "key_file": "/k", "underlay": "192.0.2.1" } },
        "vnic": { "a": { "tenant": "blue", "address": "10.0.0.1" },
                  "b": { "tenant": "blue", "address": "10.0.0.2" OTHER } } }"#;

    fn problem(other: &str) -> String {
        let set = set(&BLUE.replace("OTHER", other));
        match set.check() {
            Err(error) => error.to_string(),
            Ok(()) => VirtualPlaces::of(&set, &VirtualPlaces::default()).unwrap_err(),
        }
    }

    #[test]
    fn ranges_are_the_same_for_every_daemon_and_kept_while_others_come() {
        let one = set(&BLUE.replace("OTHER", ""));
        one.check().unwrap();
        let first = VirtualPlaces::of(&one, &VirtualPlaces::default()).unwrap();
        let again = VirtualPlaces::of(&one, &VirtualPlaces::default()).unwrap();
        assert_eq!(first.places, again.places);
        let (_, a) = first.place("a").unwrap();
        assert_eq!((a.range.count(), a.underlay.to_string()), (QPNS, "192.0.2.1".into()));
        assert_ne!(a.range, first.place("b").unwrap().1.range);
        // One that wants the same numbers is given others, whatever its name.
        let taken = format!(r#", "qpn_offset": {}"#, a.range.offset().number());
        let both = set(&BLUE.replace("OTHER", &taken));
        let moved = VirtualPlaces::of(&both, &first).unwrap();
        assert_eq!(moved.place("b").unwrap().1.range, a.range);
        assert_ne!(moved.place("a").unwrap().1.range, a.range);
        let networks = first.networks(&one, &TenantKeys::default(), 7);
        assert!(networks["blue"].codec.is_none(), "no key was read");
        assert_eq!(networks["blue"].mtu, 1500);
        for (text, mtu) in [
            (BLUE.replace("192.0.2.1", "127.0.0.1"), 9000),
            (BLUE.replace(r#""underlay""#, r#""mtu": 4200, "underlay""#), 4200),
        ] {
            let set = set(&text.replace("OTHER", ""));
            set.check().unwrap();
            let places = VirtualPlaces::of(&set, &VirtualPlaces::default()).unwrap();
            assert_eq!(places.networks(&set, &TenantKeys::default(), 7)["blue"].mtu, mtu);
        }
        assert_eq!(networks["blue"].vnics.len(), 2);
    }

    #[test]
    fn impossible_places_are_refused() {
        assert!(problem(r#", "qpn_offset": 5"#).contains("qpn_offset = 0x5 does not fit"));
        assert!(problem(r#", "qpns": 100"#).contains("no multiple of 1024"));
        assert!(problem(r#", "underlay": "192.0.2.2""#).contains("say its qpn_offset"));
        let text = BLUE.replace("OTHER", "").replace("10.0.0.2", "10.0.0.1");
        let same = VirtualPlaces::of(&set(&text), &VirtualPlaces::default());
        assert!(same.unwrap_err().contains("has the address 10.0.0.1"));
        let flat = set(&text.replace(r#", "underlay": "192.0.2.1""#, ""));
        assert!(flat.check().unwrap_err().to_string().contains("a tenant with an underlay"));
        let small = set(&text.replace(r#""underlay""#, r#""mtu": 575, "underlay""#));
        assert!(small.check().unwrap_err().to_string().contains("mtu is 576 to 65535"));
        let everywhere = set(r#"{ "tenant": { "blue": { "mtu": 9000 } } }"#);
        assert!(everywhere.check().unwrap_err().to_string().contains("mtu needs an underlay"));
        let keyless = set(&text.replace(r#""key_file": "/k", "#, ""));
        assert!(keyless.check().unwrap_err().to_string().contains("needs a key_file"));
        let nowhere = set(&BLUE.replace("OTHER", "").replace(r#", "address": "10.0.0.1""#, ""));
        assert!(nowhere.check().unwrap_err().to_string().contains("say the vNIC's address"));
    }
}
