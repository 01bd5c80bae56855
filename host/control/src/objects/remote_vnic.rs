//! Defines vNICs of other hosts, as the cluster's agents announce them.
//!
//! The cluster has one for each address of a virtual network. It is made by another host's agent,
//! and comes by way of the network: everything in it is checked. It cannot be made without the
//! tenant's key, from which its vGID and its proof are made. What an operator describes decides
//! before it, so nothing that this host has depends on one.

use super::object_name_syntax::is_name;
use super::vnic_qpn_ranges::{QPNS, chosen};
use omniverb_netns::is_of_a_host;
use omniverb_tenancy::VnicPlace;
use omniverb_terms::Gid;
use omniverb_vgid::{QpnRange, TenantKey};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use subtle::ConstantTimeEq;

/// A vNIC of another host.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoteVnic {
    /// Its vGID, written as an IPv6 address.
    pub vgid: Ipv6Addr,
    /// The name of its host.
    pub host: String,
    /// The name of its object there.
    pub vnic: String,
    /// The address of its host that its packets carry.
    pub underlay: IpAddr,
    /// Where its QPNs begin.
    pub qpn_offset: u32,
    /// How many QPNs it has.
    pub qpns: u32,
    /// The proof of [its place](place_proof), made with the tenant's key.
    pub proof: String,
}

/// One of which nothing is known: it has no place.
impl Default for RemoteVnic {
    fn default() -> RemoteVnic {
        let (host, vnic) = (String::new(), String::new());
        let (vgid, underlay) = (Ipv6Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED.into());
        let proof = String::new();
        RemoteVnic { vgid, host, vnic, underlay, qpn_offset: 0, qpns: 0, proof }
    }
}

/// The tenant and the address that the name of a remote vNIC says: `TENANT/ADDRESS`.
pub(crate) fn parse_name(name: &str) -> Option<(&str, Ipv4Addr)> {
    let (tenant, address) = name.rsplit_once('/')?;
    let virtual_ip: Ipv4Addr = address.parse().ok()?;
    // One address has one name.
    let is_it = is_name(tenant) && virtual_ip.to_string() == address;
    is_it.then_some((tenant, virtual_ip))
}

impl RemoteVnic {
    /// The fault of what it says of itself.
    pub(crate) fn problem(&self) -> Option<String> {
        let RemoteVnic { host, vnic, underlay, qpn_offset, qpns, .. } = self;
        if !is_name(host) || !is_name(vnic) {
            return Some("host and vnic are no names".into());
        }
        if !is_of_a_host(*underlay) {
            return Some(format!("underlay {underlay} is no address of another host"));
        }
        if self.range().is_none() {
            return Some(format!(
                "qpn_offset = {qpn_offset:#x} and qpns = {qpns} are no range of QPNs"
            ));
        }
        None
    }

    /// Its QPNs, if they are some.
    pub(crate) fn range(&self) -> Option<QpnRange> {
        let is_count =
            (QPNS..=QpnRange::COUNT_MAX).contains(&self.qpns) && self.qpns.is_multiple_of(QPNS);
        chosen(self.qpn_offset, self.qpns).filter(|_| is_count)
    }

    /// Its place, if what it says of itself has no fault.
    pub(crate) fn place(&self, virtual_ip: Ipv4Addr) -> Option<VnicPlace> {
        let range = self.range().filter(|_| is_of_a_host(self.underlay))?;
        Some(VnicPlace { virtual_ip, underlay: self.underlay, range })
    }

    /// Whether what it says of this place was said with one of these keys.
    pub(crate) fn is_proven(&self, place: &VnicPlace, keys: &[TenantKey]) -> bool {
        // The time that it takes says nothing of where two differ.
        let is_it = |proof: String| proof.as_bytes().ct_eq(self.proof.as_bytes()).into();
        keys.iter().map(|key| place_proof(key, place)).any(is_it)
    }

    /// Its vGID as verbs have it.
    pub(crate) fn gid(&self) -> Gid {
        Gid::new(self.vgid.octets())
    }
}

/// The proof of a place: all that a host announces of it, as its vGID does not say how many QPNs
/// there are. 32 hexadecimal digits.
pub(crate) fn place_proof(key: &TenantKey, place: &VnicPlace) -> String {
    let VnicPlace { virtual_ip, underlay, range } = place;
    let numbers = [range.offset().number(), range.count()].map(u32::to_be_bytes);
    let [offset, count] = &numbers;
    let virtual_ip = virtual_ip.octets();
    let underlay = match underlay {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    };
    let proof = key.derive(&[b"announced place", &virtual_ip, &underlay, offset, count]);
    proof.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_tenant_and_an_address() {
        assert_eq!(parse_name("blue/10.0.0.1"), Some(("blue", Ipv4Addr::new(10, 0, 0, 1))));
        for name in ["blue", "blue/", "/10.0.0.1", "blue/10.0.0.01", "blue/fd00::1", "a/b/10.0.0.1"]
        {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_proof_holds_for_one_place_and_key() {
        let place = |virtual_ip: u8, underlay: u8, offset: u32, count: u32| VnicPlace {
            virtual_ip: Ipv4Addr::new(10, 0, 0, virtual_ip),
            underlay: IpAddr::from([192, 0, 2, underlay]),
            range: chosen(offset, count).unwrap(),
        };
        let [old, new] = [1, 2].map(|n| TenantKey::new([n; 16]));
        let its = place(1, 2, 0x40_0000, 1024);
        let proof = place_proof(&old, &its);
        let good = RemoteVnic { proof: proof.clone(), ..RemoteVnic::default() };
        assert!(good.is_proven(&its, &[new.clone(), old.clone()]));
        assert!(!good.is_proven(&its, &[new]) && !good.is_proven(&its, &[]));
        let six = VnicPlace { underlay: "2001:db8::2".parse().unwrap(), ..its };
        assert_ne!(place_proof(&old, &six), proof);
        for other in [
            six,
            place(3, 2, 0x40_0000, 1024),
            place(1, 3, 0x40_0000, 1024),
            place(1, 2, 0x40_0400, 1024),
            place(1, 2, 0x40_0000, 2048),
        ] {
            assert!(!good.is_proven(&other, std::slice::from_ref(&old)));
        }
        for proof in ["", &proof[1..], &format!("{proof}0")] {
            let bad = RemoteVnic { proof: proof.into(), ..RemoteVnic::default() };
            assert!(!bad.is_proven(&its, std::slice::from_ref(&old)), "{proof:?}");
        }
    }

    #[test]
    fn what_no_host_can_have_is_refused() {
        let good = RemoteVnic {
            host: "h2".into(),
            vnic: "web".into(),
            underlay: [192, 0, 2, 2].into(),
            qpn_offset: 0x40_0000,
            qpns: 1024,
            ..RemoteVnic::default()
        };
        assert_eq!(good.problem(), None);
        assert!(good.place(Ipv4Addr::new(10, 0, 0, 1)).is_some());
        let with = |change: fn(&mut RemoteVnic)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad
        };
        for (bad, word) in [
            (with(|v| v.host = "a/b".into()), "no names"),
            (with(|v| v.vnic = String::new()), "no names"),
            (with(|v| v.underlay = Ipv4Addr::LOCALHOST.into()), "127.0.0.1"),
            (with(|v| v.underlay = Ipv4Addr::UNSPECIFIED.into()), "0.0.0.0"),
            (with(|v| v.underlay = Ipv4Addr::BROADCAST.into()), "255."),
            (with(|v| v.underlay = [224, 0, 0, 1].into()), "224."),
            (with(|v| v.underlay = Ipv6Addr::LOCALHOST.into()), "::1"),
            (with(|v| v.underlay = "fe80::1".parse().unwrap()), "fe80::1"),
            (with(|v| v.qpn_offset = 5), "no range"),
            (with(|v| v.qpn_offset = 0xbf_ff00), "no range"),
            (with(|v| v.qpn_offset = u32::MAX - 255), "no range"),
            (with(|v| v.qpns = 0), "no range"),
            (with(|v| v.qpns = 1000), "no range"),
            (with(|v| v.qpns = u32::MAX), "no range"),
            (RemoteVnic::default(), "no names"),
        ] {
            let problem = bad.problem().unwrap();
            assert!(problem.contains(word), "{problem}");
        }
    }
}
