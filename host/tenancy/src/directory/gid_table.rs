//! Makes a vNIC's GID table from the addresses of its namespace, ordered alike in all containers.

use omniverb_session::body::GidEntry;
use omniverb_session::limits::GIDS_MAX;
use omniverb_terms::Gid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How far an address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Beyond the link.
    Global,
    /// This link only.
    Link,
    /// This host only.
    Host,
}

/// An address of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnicAddress {
    /// The address in the underlay.
    pub ip: IpAddr,
    /// The number of its interface in the network namespace.
    pub interface: u32,
    /// How far the kernel says it reaches.
    pub reach: Reach,
    /// Its interface is a loopback.
    pub is_loopback: bool,
    /// The interface's MTU in bytes.
    pub mtu: u32,
}

/// Index of the loopback interface in every namespace.
pub(crate) const LOOPBACK_INTERFACE: u32 = 1;

/// Its default MTU: packets to oneself need not care.
const LOOPBACK_MTU: u32 = 65536;

/// Addresses of a vNIC that are remembered beside its table. A vNIC with more may send probes from
/// an unknown one, and so gets no direct links.
const ADDRESSES_MAX: usize = 4096;

/// All addresses, to be searched.
pub(crate) fn sorted(addresses: &[VnicAddress]) -> Vec<IpAddr> {
    let mut sorted: Vec<_> =
        addresses.iter().take(ADDRESSES_MAX).map(|a| a.ip.to_canonical()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// The dense table: link-local first (index 0, where programs expect it), then IPv4 (index 1, where
/// nearly all of them look), then the rest. The first two are of one interface, if that has a
/// link-local one: programs that look at one entry take its interface for the device's.
///
/// Loopback addresses are in it only if the vNIC has no others: RoCE devices list those of their
/// netdev (`roce_gid_mgmt.c` in Linux), and programs that rank the entries took 127.0.0.1. They
/// lead to the vNIC itself all the same.
pub(crate) fn table(addresses: &[VnicAddress], node_guid: [u8; 8]) -> Vec<GidEntry> {
    let entry =
        |a: &VnicAddress| GidEntry { gid: Gid::from(a.ip), ifindex: a.interface, mtu: a.mtu };
    let outside = || addresses.iter().filter(|a| !a.is_loopback && !Gid::from(a.ip).is_loopback());
    let is_local = |a: &&VnicAddress| Gid::from(a.ip).is_link_local();
    let global = |a: &&VnicAddress| !is_local(a) && a.reach != Reach::Host;

    let mut link_locals: Vec<_> = outside().filter(is_local).map(entry).collect();
    let fours = outside().filter(|a| a.ip.is_ipv4() && global(a)).map(entry);
    let sixes = outside().filter(|a| a.ip.is_ipv6() && global(a)).map(entry);
    let mut globals = fours.chain(sixes).peekable();
    let main = globals.peek().map(|entry| entry.ifindex);
    let of_main = link_locals.iter().position(|entry| Some(entry.ifindex) == main);
    let first = (!link_locals.is_empty()).then(|| link_locals.remove(of_main.unwrap_or(0)));
    let mut rest = globals.chain(link_locals).peekable();

    // Without a link-local address (IPv6 switched off) the node GUID makes one up: the entry keeps
    // its place, and reaches this vNIC itself.
    let (interface, mtu) = match rest.peek() {
        Some(entry) => (entry.ifindex, entry.mtu),
        None => (LOOPBACK_INTERFACE, LOOPBACK_MTU),
    };
    let is_alone = first.is_none() && rest.peek().is_none();
    let first = first.unwrap_or_else(|| made_up(node_guid, interface, mtu));
    let mut table: Vec<GidEntry> = Vec::new();
    for entry in std::iter::once(first).chain(rest) {
        let known = table.iter().any(|e| e.gid == entry.gid && e.ifindex == entry.ifindex);
        if !known && table.len() < GIDS_MAX {
            table.push(entry);
        }
    }
    if is_alone {
        table.extend(loopbacks().map(|gid| GidEntry { gid, ifindex: interface, mtu }));
    }
    table
}

/// Names of the loopback addresses, which every vNIC has, in its table or not.
pub(crate) fn loopbacks() -> [Gid; 2] {
    [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
}

fn made_up(node_guid: [u8; 8], ifindex: u32, mtu: u32) -> GidEntry {
    let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    gid[8..].copy_from_slice(&node_guid);
    gid[8] ^= 2; // an interface identifier has the universal/local bit the other way round
    GidEntry { gid: Gid::new(gid), ifindex, mtu }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str, interface: u32, reach: Reach) -> VnicAddress {
        VnicAddress {
            ip: ip.parse().unwrap(),
            interface,
            reach,
            is_loopback: interface == 1,
            mtu: 1500,
        }
    }

    fn shown(table: &[GidEntry]) -> Vec<String> {
        table.iter().map(|e| format!("{}%{}", e.gid, e.ifindex)).collect()
    }

    #[test]
    fn the_gid_order_does_not_depend_on_the_kernels() {
        let addresses = [
            address("127.0.0.1", 1, Reach::Host),
            address("::1", 1, Reach::Host),
            address("2001:db8::5", 3, Reach::Global),
            address("fe80::3", 3, Reach::Link),
            address("10.1.0.5", 2, Reach::Global),
            address("fe80::2", 2, Reach::Link),
            address("10.2.0.5", 3, Reach::Global),
            address("10.1.0.5", 2, Reach::Global),
        ];
        let found = shown(&table(&addresses, [2, 0, 0, 0, 0, 0, 0, 9]));
        let expected =
            ["fe80::2%2", "::ffff:10.1.0.5%2", "::ffff:10.2.0.5%3", "2001:db8::5%3", "fe80::3%3"];
        assert_eq!(found, expected);
        // The first interface may have none.
        let found = shown(&table(&addresses[..5], [2, 0, 0, 0, 0, 0, 0, 9]));
        assert_eq!(found, ["fe80::3%3", "::ffff:10.1.0.5%2", "2001:db8::5%3"]);
    }

    #[test]
    fn loopback_alone_is_enough() {
        let found = shown(&table(&[], [2, 0, 0, 0, 0, 0, 0, 9]));
        assert_eq!(found, ["fe80::9%1", "::ffff:127.0.0.1%1", "::1%1"]);
    }

    #[test]
    fn loopback_is_not_listed_beside_others() {
        let home = [address("127.0.0.1", 1, Reach::Host), address("::1", 1, Reach::Host)];
        let list = |ip, reach| {
            let addresses = [home[0], home[1], address(ip, 2, reach)];
            shown(&table(&addresses, [2, 0, 0, 0, 0, 0, 0, 9]))
        };
        // The substitute for a link-local address has the index of the only interface.
        assert_eq!(list("10.1.0.5", Reach::Global), ["fe80::9%2", "::ffff:10.1.0.5%2"]);
        assert_eq!(list("2001:db8::5", Reach::Global), ["fe80::9%2", "2001:db8::5%2"]);
        assert_eq!(list("fe80::2", Reach::Link), ["fe80::2%2"]);
        // An address for this host only is none of the device's.
        let alone = ["fe80::9%1", "::ffff:127.0.0.1%1", "::1%1"];
        assert_eq!(list("10.1.0.5", Reach::Host), alone);
    }

    #[test]
    fn a_crowded_namespace_still_fits() {
        let many: Vec<_> =
            (0..200u8).map(|n| address(&format!("10.0.0.{n}"), 2, Reach::Global)).collect();
        let found = table(&many, [0; 8]);
        assert_eq!(found.len(), GIDS_MAX);
        assert!(!found.iter().any(|entry| entry.gid.is_loopback()));
    }
}
