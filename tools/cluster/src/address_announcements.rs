//! Keeps the addresses of virtual networks that hosts announce in etcd, and says which of them this
//! host's daemon is told of, and which this host announces itself.
//!
//! In: entries of etcd as bytes, which another host's agent has written, and what the daemon says
//! of its own virtual networks. Out: objects for the daemon, entries for etcd, and problems. What a
//! field means only the daemon knows: it refuses a vGID that was not made with the tenant's key.

use crate::etcd_key_layout::Key;
use crate::etcd_value;
use crate::object_name::{Fields, Kind, ObjectId, Wanted, WantedObjects, is_name};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Addresses that are kept of a tenant, and that a daemon is told of: as many as it keeps.
pub const ANNOUNCED_MAX: usize = 16384;
/// Addresses that are kept of all tenants: those that a host does not have are among them.
pub const ENTRIES_MAX: usize = 4 * ANNOUNCED_MAX;
/// Bytes of the longest value of one.
pub const ANNOUNCED_BYTES_MAX: usize = 1024;

/// A tenant, and an address in its virtual network.
pub type VirtualAddress = (String, IpAddr);

/// The addresses that a cluster's hosts announce.
#[derive(Clone, Debug, Default)]
pub struct Announcements {
    entries: BTreeMap<VirtualAddress, Result<Fields, String>>,
    /// How many there are of each tenant.
    counts: BTreeMap<String, usize>,
    /// Tenants of which some were left out, since these had too many.
    excess_of: BTreeSet<String>,
    /// Some were left out, since all had too many together.
    has_excess: bool,
}

impl Announcements {
    /// An address is announced, or has another place.
    pub fn put(&mut self, tenant: &str, ip: IpAddr, bytes: &[u8]) {
        let at = (tenant.to_owned(), ip);
        if !self.entries.contains_key(&at) {
            if self.count(tenant) >= ANNOUNCED_MAX {
                self.excess_of.insert(at.0);
                return;
            }
            if self.entries.len() >= ENTRIES_MAX {
                self.has_excess = true;
                return;
            }
            *self.counts.entry(at.0.clone()).or_default() += 1;
        }
        self.entries.insert(at, announced(bytes));
    }

    /// An address is announced no more.
    pub fn delete(&mut self, tenant: &str, ip: IpAddr) {
        if self.entries.remove(&(tenant.to_owned(), ip)).is_none() {
            return;
        }
        match self.counts.get_mut(tenant) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.counts.remove(tenant)),
        }
    }

    fn count(&self, tenant: &str) -> usize {
        self.counts.get(tenant).copied().unwrap_or(0)
    }

    /// Whether some were left out for which there is room now: all have to be read again.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let has_room = |tenant: &String| self.count(tenant) < ANNOUNCED_MAX;
        self.has_excess && self.entries.len() < ENTRIES_MAX || self.excess_of.iter().any(has_room)
    }

    /// The addresses of other hosts that a daemon with these networks is told of; `host`: its own.
    #[must_use]
    pub fn wanted(&self, host: &str, networks: &Networks) -> WantedObjects {
        let of_others = self.of_networks(networks).filter(|(_, entry)| {
            let is_ours = |fields: &Fields| fields.get("host").is_some_and(|name| name == host);
            !entry.as_ref().is_ok_and(is_ours)
        });
        let share = self.share(networks).unwrap_or(usize::MAX);
        let mut told: BTreeMap<&String, usize> = BTreeMap::new();
        let objects = of_others.filter_map(|((tenant, ip), entry)| {
            let count = told.entry(tenant).or_default();
            *count += 1;
            let object = entry.clone().map_or(Wanted::Held, Wanted::Fields);
            let id = ObjectId::new(Kind::Address, &format!("{tenant}/{ip}"));
            (*count <= share).then_some((id, object))
        });
        objects.collect()
    }

    /// How many addresses of each tenant a daemon with these networks is told of, if it cannot keep
    /// all: a tenant that has fewer than others loses none for these.
    fn share(&self, networks: &Networks) -> Option<usize> {
        let mut counts: Vec<usize> =
            networks.tenants.iter().map(|tenant| self.count(tenant)).collect();
        counts.sort_unstable();
        let (mut room, mut left) = (ANNOUNCED_MAX, counts.len());
        for count in counts {
            let share = room / left;
            if count > share {
                return Some(share);
            }
            (room, left) = (room - count, left - 1);
        }
        None
    }

    /// Faults of entries that concern these networks, by their keys.
    #[must_use]
    pub fn problems(&self, networks: &Networks) -> BTreeMap<String, String> {
        let bad = self.of_networks(networks).filter_map(|((tenant, ip), entry)| {
            let problem = entry.as_ref().err()?;
            let key = Key::Address { tenant: tenant.clone(), ip: *ip }.text();
            Some((key, format!("{problem}; the address stays as it is")))
        });
        let text = |most: usize| format!("etcd has more than {most}: the others are unknown here");
        let of_tenants = self.excess_of.intersection(&networks.tenants);
        let of_tenants = of_tenants
            .map(|tenant| (format!("addresses of tenant {tenant:?}"), text(ANNOUNCED_MAX)));
        let most = match (self.has_excess, self.share(networks)) {
            (true, _) => Some(ENTRIES_MAX),
            (false, Some(_)) => Some(ANNOUNCED_MAX),
            (false, None) => None,
        };
        let of_all = most.map(|most| ("addresses of virtual networks".to_owned(), text(most)));
        bad.chain(of_tenants).chain(of_all).collect()
    }

    fn of_networks<'a>(
        &'a self,
        networks: &'a Networks,
    ) -> impl Iterator<Item = (&'a VirtualAddress, &'a Result<Fields, String>)> {
        // Of two hosts with one address the first keeps it; ours keeps its own for itself.
        let concerns = |at: &VirtualAddress| {
            networks.tenants.contains(&at.0) && !networks.places.contains_key(at)
        };
        self.entries.iter().filter(move |(at, _)| concerns(at))
    }
}

/// The fields of an entry.
fn announced(bytes: &[u8]) -> Result<Fields, String> {
    if bytes.len() > ANNOUNCED_BYTES_MAX {
        return Err(format!("{} bytes are more than {ANNOUNCED_BYTES_MAX}", bytes.len()));
    }
    let fields = etcd_value::parse(bytes)?;
    match host_of(&fields) {
        Some(_) => Ok(fields),
        None => Err("there is no host in it".into()),
    }
}

/// The host that an entry is of.
#[must_use]
pub fn host_of(fields: &Fields) -> Option<&str> {
    fields.get("host")?.as_str().filter(|name| is_name(name))
}

/// The virtual networks that a daemon has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// Tenants that have one.
    tenants: BTreeSet<String>,
    /// The daemon's own vNICs in them that other hosts can reach.
    places: BTreeMap<VirtualAddress, Fields>,
}

impl Networks {
    /// A row of the daemon's: a network, or the place of a vNIC.
    ///
    /// # Errors
    /// The row is none of these.
    pub fn add(&mut self, kind: &str, row: Value) -> Result<(), String> {
        let bad = || format!("a {kind} of the daemon's cannot be read");
        let Value::Object(mut fields) = row else { return Err(bad()) };
        let tenant = match fields.remove("tenant") {
            Some(Value::String(tenant)) if is_name(&tenant) => tenant,
            _ => return Err(bad()),
        };
        if kind == "network" {
            self.tenants.insert(tenant);
            return Ok(());
        }
        let address = fields.remove("address");
        let ip = address.as_ref().and_then(Value::as_str).and_then(|text| text.parse().ok());
        self.places.insert((tenant, ip.ok_or_else(bad)?), fields);
        Ok(())
    }

    /// The entries that this host has in etcd: keys and values. A vNIC without a vGID, whose
    /// tenant's key could not be read, has none.
    #[must_use]
    pub fn entries(&self, host: &str) -> BTreeMap<String, String> {
        let named = self
            .places
            .iter()
            .filter(|(_, fields)| fields.get("vgid").is_some_and(Value::is_string));
        let entries = named.map(|((tenant, ip), fields)| {
            let mut fields = fields.clone();
            fields.insert("host".into(), host.into());
            (Key::Address { tenant: tenant.clone(), ip: *ip }.text(), etcd_value::text(&fields))
        });
        entries.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn networks() -> Networks {
        let mut networks = Networks::default();
        networks.add("network", json!({ "tenant": "blue", "underlay": "192.0.2.1" })).unwrap();
        let place = json!({ "tenant": "blue", "address": "10.0.0.1", "vnic": "web",
            "vgid": "2::7", "underlay": "192.0.2.1", "qpn_offset": 0x40_0000, "qpns": 1024 });
        networks.add("place", place).unwrap();
        networks
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn addresses_of_other_hosts_in_networks_that_are_here_are_wanted() {
        let mut all = Announcements::default();
        for (tenant, last, host) in
            [("blue", 1, "h2"), ("blue", 2, "h2"), ("blue", 3, "h1"), ("red", 2, "h2")]
        {
            all.put(tenant, ip(last), format!("{{\"host\": \"{host}\"}}").as_bytes());
        }
        let wanted = all.wanted("h1", &networks());
        let id = ObjectId::new(Kind::Address, "blue/10.0.0.2");
        assert_eq!(wanted.keys().collect::<Vec<_>>(), [&id]);
        assert_eq!(wanted[&id], Wanted::Fields(json!({"host": "h2"}).as_object().unwrap().clone()));
        all.delete("blue", ip(2));
        assert!(all.wanted("h1", &networks()).is_empty());
        assert!(all.wanted("h3", &Networks::default()).is_empty());
    }

    #[test]
    fn a_bad_entry_holds_its_address_and_no_other() {
        let mut all = Announcements::default();
        let long = format!("{{\"host\": \"{}\"}}", "h".repeat(ANNOUNCED_BYTES_MAX));
        for (last, bytes, word) in [
            (2, &b"{"[..], "EOF"),
            (3, b"{}", "no host"),
            (4, br#"{"host": 7}"#, "no host"),
            (5, br#"{"host": "a/b"}"#, "no host"),
            (6, br#"{"host": "h2", "host": "h3"}"#, "twice"),
            (7, b"\xff", "no text"),
            (8, long.as_bytes(), "more than 1024"),
        ] {
            all.put("blue", ip(last), bytes);
            all.put("red", ip(last), bytes);
            let problem =
                &all.problems(&networks())[&format!("/omniverb/v1/address/blue/{}", ip(last))];
            assert!(problem.contains(word), "{problem}");
        }
        all.put("blue", ip(9), br#"{"host": "h2"}"#);
        assert_eq!(all.problems(&networks()).len(), 7, "other networks' are not our concern");
        let wanted = all.wanted("h1", &networks());
        assert_eq!(wanted.values().filter(|object| **object == Wanted::Held).count(), 7);
        assert_eq!(wanted.len(), 8);
    }

    #[test]
    fn too_many_leave_those_that_are_known() {
        let mut all = Announcements::default();
        let address = |n: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(n));
        let most = u32::try_from(ANNOUNCED_MAX).unwrap();
        (0..most + 5).for_each(|n| all.put("blue", address(n), br#"{"host": "h2"}"#));
        all.put("blue", address(7), br#"{"host": "h3"}"#);
        assert_eq!(all.wanted("h1", &networks()).len(), ANNOUNCED_MAX);
        assert_eq!(all.problems(&networks()).len(), 1);
        assert!(!all.is_stale());
        all.delete("blue", address(7));
        assert!(all.is_stale());
    }

    #[test]
    fn one_tenants_addresses_leave_room_for_those_of_others() {
        let mut all = Announcements::default();
        let address =
            |n: usize| IpAddr::from(std::net::Ipv4Addr::from_bits(u32::try_from(n).unwrap()));
        let put = |all: &mut Announcements, tenant: &str, count: usize| {
            (0..count).for_each(|n| all.put(tenant, address(n), br#"{"host": "h2"}"#));
        };
        let told = |all: &Announcements, networks: &Networks, tenant: &str| {
            let wanted = all.wanted("h1", networks);
            wanted.keys().filter(|id| id.name.starts_with(tenant)).count()
        };
        // Of a tenant that is not here: no affair of this host's.
        put(&mut all, "alien", ANNOUNCED_MAX + 1);
        put(&mut all, "blue", 10);
        assert_eq!((told(&all, &networks(), "blue"), all.problems(&networks()).len()), (10, 0));
        // Of one that is: it takes what others leave.
        let mut both = networks();
        both.add("network", json!({ "tenant": "red" })).unwrap();
        put(&mut all, "red", ANNOUNCED_MAX);
        assert_eq!(told(&all, &both, "blue"), 10);
        assert_eq!(told(&all, &both, "red"), ANNOUNCED_MAX - 10);
        assert!(all.problems(&both)["addresses of virtual networks"].contains("16384"));
        all.delete("red", address(1));
        assert!(!all.is_stale(), "none of red was left out");
        // Whatever tenants there are, memory has an end.
        for tenant in ["t1", "t2", "t3"] {
            put(&mut all, tenant, ANNOUNCED_MAX);
        }
        assert_eq!(all.entries.len(), ENTRIES_MAX);
        assert!(all.problems(&networks())["addresses of virtual networks"].contains("65536"));
        all.delete("t1", address(0));
        assert!(all.is_stale());
        all.entries
            .keys()
            .cloned()
            .collect::<Vec<_>>()
            .iter()
            .for_each(|(of, ip)| all.delete(of, *ip));
        assert!(all.counts.is_empty());
    }

    #[test]
    fn what_the_daemon_has_is_announced() {
        let entries = networks().entries("h1");
        let value = &entries["/omniverb/v1/address/blue/10.0.0.1"];
        let fields = etcd_value::parse(value.as_bytes()).unwrap();
        let expected = json!({ "vgid": "2::7", "host": "h1", "vnic": "web",
            "underlay": "192.0.2.1", "qpn_offset": 0x40_0000, "qpns": 1024 });
        assert_eq!(Value::Object(fields), expected);
        assert!(value.len() <= ANNOUNCED_BYTES_MAX && entries.len() == 1);
        let mut keyless = Networks::default();
        let place = json!({ "tenant": "blue", "address": "10.0.0.1", "vgid": null });
        keyless.add("place", place).unwrap();
        assert!(keyless.entries("h1").is_empty());
        for row in [
            json!({}),
            json!([]),
            json!({ "tenant": "a/b", "address": "10.0.0.1" }),
            json!({ "tenant": "blue", "address": "x" }),
        ] {
            assert!(Networks::default().add("place", row).is_err());
        }
    }
}
