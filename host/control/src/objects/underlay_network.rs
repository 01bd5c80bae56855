//! Says which addresses vNICs of a tenant may have, virtual and on the underlay, and makes what
//! reads the vGIDs of these.
//!
//! A vGID has 72 bits of an underlay address. So IPv6 addresses of all hosts begin alike, as the
//! tenant's `underlay_prefix` says, and the longer that is the sooner a forged vGID shows. What an
//! `address_prefix` says of virtual addresses counts as well.

use super::object_set::Tenant;
use omniverb_netns::is_of_a_host;
use omniverb_vgid::{Codec, TenantKey, UnderlayNetwork, VirtualNetwork, check_networks};
use std::net::{IpAddr, Ipv4Addr};

/// Bits of an IPv6 address that a vGID does not have.
const LEFT_OUT: u8 = 56;

impl Tenant {
    /// The virtual addresses that its vNICs may have.
    fn virtual_network(&self) -> Option<VirtualNetwork> {
        let Some(prefix) = self.address_prefix else { return Some(VirtualNetwork::ANY) };
        let (first, bits) = prefix.ipv4()?;
        VirtualNetwork::new(first, bits)
    }

    /// The addresses that its hosts may have on the underlay.
    fn underlay_network(&self) -> Option<UnderlayNetwork> {
        match (self.underlay?, self.underlay_prefix) {
            (IpAddr::V4(_), None) => Some(UnderlayNetwork::Ipv4),
            (IpAddr::V6(_), Some(prefix)) => {
                let (first, bits) = prefix.ipv6()?;
                UnderlayNetwork::ipv6(first, bits)
            }
            _ => None,
        }
    }

    /// Whether a host of the tenant can have this address on the underlay.
    fn has_underlay(&self, address: IpAddr) -> bool {
        self.underlay_network().is_some_and(|network| network.contains(address))
    }

    /// The problem with what it says of addresses. `underlay`: its address here.
    pub(super) fn problem_of_networks(&self, underlay: IpAddr) -> Option<String> {
        if !is_of_a_host(underlay) && !underlay.is_loopback() {
            return Some(format!("underlay {underlay} is no address of an interface"));
        }
        let Some(virtual_network) = self.virtual_network() else {
            return Some("address_prefix is a prefix of IPv4 addresses, as 10.0.0.0/8".into());
        };
        match (underlay, self.underlay_prefix) {
            (IpAddr::V4(_), Some(_)) => {
                return Some("underlay_prefix is for an IPv6 underlay".into());
            }
            (IpAddr::V6(_), None) => {
                return Some(format!(
                    "an IPv6 underlay needs an underlay_prefix, in which the underlay addresses \
                     of all hosts are: {LEFT_OUT} bits or more"
                ));
            }
            _ => {}
        }
        let Some(network) = self.underlay_network() else {
            return Some(format!(
                "underlay_prefix is a prefix of IPv6 addresses of {LEFT_OUT} bits or more, as \
                 2001:db8:0:1::/64"
            ));
        };
        if !network.contains(underlay) {
            return Some(format!("underlay {underlay} is not in underlay_prefix"));
        }
        check_networks(virtual_network, network).err().map(|error| {
            format!("underlay_prefix and address_prefix leave forged vGIDs unnoticed: {error}")
        })
    }

    /// The problem with the addresses of a vNIC of the tenant: its virtual one, and that of its
    /// host.
    pub(super) fn problem_of_addresses(
        &self,
        address: Option<Ipv4Addr>,
        underlay: IpAddr,
    ) -> Option<String> {
        let network = self.virtual_network().unwrap_or(VirtualNetwork::ANY);
        if let Some(address) = address.filter(|address| !network.contains(*address)) {
            return Some(format!("address {address} is not in the tenant's address_prefix"));
        }
        match self.underlay_prefix {
            _ if self.has_underlay(underlay) => None,
            None => Some(format!(
                "underlay {underlay} is an IPv6 address, and that of the tenant is of IPv4"
            )),
            Some(prefix) => {
                Some(format!("underlay {underlay} is not in the tenant's underlay_prefix {prefix}"))
            }
        }
    }

    /// What makes and reads its vGIDs with these keys, of which the newest comes first.
    pub(super) fn codec(&self, keys: &[TenantKey]) -> Option<Codec> {
        let (virtual_network, underlay) = (self.virtual_network()?, self.underlay_network()?);
        let made = |key| Codec::new(key, virtual_network, underlay).ok();
        match keys {
            [] => None,
            [current] => made(current),
            [current, previous, ..] => {
                let mut codec = made(previous)?;
                codec.rotate(current);
                Some(codec)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::object_set::ObjectSet;
    use super::super::virtual_network_placement::VirtualPlaces;
    use omniverb_vgid::{TenantKey, VnicAddress};

    fn problem(tenant: &str, vnic: &str) -> Option<String> {
        let text = r#"{ "tenant": { "blue": { "key_file": "/k", TENANT } },
                        "vnic": { "a": { "tenant": "blue", VNIC } } }"#;
        let set: ObjectSet =
            serde_json::from_str(&text.replace("TENANT", tenant).replace("VNIC", vnic)).unwrap();
        match set.check() {
            Err(error) => Some(error.to_string()),
            Ok(()) => VirtualPlaces::of(&set, &VirtualPlaces::default()).err(),
        }
    }

    const SIX: &str = r#""underlay": "2001:db8:0:1::1", "underlay_prefix": "2001:db8:0:1::/64""#;
    const ONE: &str = r#""address": "10.0.0.1""#;

    #[test]
    fn an_ipv6_underlay_has_a_prefix_that_makes_forgeries_show() {
        let narrow = format!(r#"{SIX}, "address_prefix": "10.0.0.0/24""#);
        assert_eq!(problem(&narrow, ONE), None);
        let alone = r#""underlay": "2001:db8::1", "underlay_prefix": "2001:db8::/88""#;
        assert_eq!(problem(alone, ONE), None);
        let one_host = r#""underlay": "::1", "underlay_prefix": "::1/128""#;
        assert_eq!(problem(one_host, ONE), None);
        for (tenant, vnic, words) in [
            (r#""underlay": "2001:db8::1""#, ONE, "needs an underlay_prefix"),
            (SIX, ONE, "16 bits of redundancy of the 40"),
            (
                r#""underlay": "2001:db8::1", "underlay_prefix": "2001:db8::/55""#,
                ONE,
                "56 bits or more",
            ),
            (
                r#""underlay": "2001:db8::1", "underlay_prefix": "10.0.0.0/8""#,
                ONE,
                "prefix of IPv6",
            ),
            (
                r#""underlay": "2001:db9::1", "underlay_prefix": "2001:db8::/88""#,
                ONE,
                "is not in underlay_prefix",
            ),
            (r#""underlay": "fe80::1", "underlay_prefix": "fe80::/88""#, ONE, "no address of an"),
            (r#""underlay": "ff02::1", "underlay_prefix": "ff02::/88""#, ONE, "no address of an"),
            (r#""underlay": "0.0.0.0""#, ONE, "no address of an"),
            (
                r#""underlay": "192.0.2.1", "underlay_prefix": "2001:db8::/88""#,
                ONE,
                "for an IPv6 underlay",
            ),
            (r#""underlay": "192.0.2.1", "address_prefix": "fd00::/8""#, ONE, "prefix of IPv4"),
            (r#""address_prefix": "10.0.0.0/8""#, r#""policies": []"#, "need an underlay"),
            (&narrow, r#""address": "10.0.1.1""#, "not in the tenant's address_prefix"),
            (
                alone,
                r#""address": "10.0.0.1", "underlay": "2001:db9::1", "qpn_offset": 4194304"#,
                "not in the tenant's underlay_prefix",
            ),
            (
                alone,
                r#""address": "10.0.0.1", "underlay": "192.0.2.1", "qpn_offset": 4194304"#,
                "not in the tenant's underlay_prefix",
            ),
            (
                r#""underlay": "192.0.2.1""#,
                r#""address": "10.0.0.1", "underlay": "2001:db8::1", "qpn_offset": 4194304"#,
                "of the tenant is of IPv4",
            ),
        ] {
            let found = problem(tenant, vnic).unwrap_or_default();
            assert!(found.contains(words), "{tenant}, {vnic}: {found:?}");
        }
    }

    #[test]
    fn hosts_that_say_prefixes_of_other_lengths_read_the_same_vgid() {
        let tenant = |prefix: &str| {
            let text = format!(
                r#"{{ "tenant": {{ "blue": {{ "key_file": "/k", "underlay": "2001:db8::1",
                      "underlay_prefix": "{prefix}" }} }} }}"#
            );
            let set: ObjectSet = serde_json::from_str(&text).unwrap();
            set.tenant["blue"].clone()
        };
        let keys = [TenantKey::new([1; 16]), TenantKey::new([2; 16])];
        let [one, other] = ["2001:db8::/88", "2001:db8::/96"].map(tenant);
        let (one, other) = (one.codec(&keys).unwrap(), other.codec(&keys).unwrap());
        let vnic = VnicAddress {
            virtual_ip: [10, 0, 0, 1].into(),
            offset: omniverb_vgid::QpnOffset::new(0x40_0000).unwrap(),
            underlay: "2001:db8::7".parse().unwrap(),
        };
        let gid = one.encipher(vnic).unwrap();
        assert_eq!(other.decipher(gid).unwrap().address, vnic);
    }
}
