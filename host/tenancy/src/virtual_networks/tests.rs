//! Tests of what vGIDs lead to, seen from vNICs of two tenants with the same addresses.

use super::*;
use omniverb_vgid::{TenantKey, UnderlayNetwork, VirtualNetwork};

const BLUE: TenantId = TenantId(1);
const RED: TenantId = TenantId(2);

fn place(last: u8, host: u8, offset: u32) -> VnicPlace {
    VnicPlace {
        virtual_ip: [10, 0, 0, last].into(),
        underlay: [192, 0, 2, host].into(),
        range: QpnRange::new(QpnOffset::new(offset).unwrap(), 1024).unwrap(),
    }
}

fn network(key: u8, vnics: &[VnicPlace]) -> TenantNetwork {
    let key = TenantKey::new([key; 16]);
    let codec = Codec::new(&key, VirtualNetwork::ANY, UnderlayNetwork::Ipv4).ok();
    let vnics = vnics.iter().map(|place| (place.virtual_ip, *place)).collect();
    TenantNetwork { codec, vnics, qpns: 1024, mtu: 1500, features: 7 }
}

/// vNICs 1 and 2 are blue, 11 and 12 red, all of host 1; .3 of host 2 is known to both.
fn two_tenants() -> VirtualNetworks {
    let mut networks = VirtualNetworks::default();
    let remote = place(3, 2, 0x50_0000);
    networks.describe(BTreeMap::from([
        (BLUE, network(1, &[place(1, 1, 0x40_0000), place(2, 1, 0x40_0400), remote])),
        (RED, network(2, &[place(1, 1, 0x40_0800), place(2, 1, 0x40_0c00), remote])),
    ]));
    for (tenant, first, offset) in [(BLUE, 1, 0x40_0000), (RED, 11, 0x40_0800)] {
        for n in 0..2 {
            let at = place(1 + n, 1, offset + 0x400 * u32::from(n));
            assert!(networks.seat(VnicId(first + u64::from(n)), Some((tenant, at))));
        }
    }
    networks
}

fn gid(networks: &VirtualNetworks, vnic: u64) -> Gid {
    networks.seats[&VnicId(vnic)].gid.unwrap()
}

#[test]
fn the_same_address_is_another_vnic_for_each_tenant() {
    let networks = two_tenants();
    let second: IpAddr = [10, 0, 0, 2].into();
    let blue = networks.name(VnicId(1), second).unwrap();
    let red = networks.name(VnicId(11), second).unwrap();
    assert_ne!(blue, red);
    let lead = |from, gid| networks.destination(VnicId(from), gid);
    assert_eq!(lead(1, blue), Some(Destination::Here(VnicId(2))));
    assert_eq!(lead(11, red), Some(Destination::Here(VnicId(12))));
    assert_eq!(lead(11, blue), Some(Destination::Nowhere), "another tenant's");
    assert_eq!(lead(5, blue), None, "a flat vNIC");
    assert_eq!(networks.address(VnicId(1), blue), Some(second));
    assert_eq!(networks.address(VnicId(11), blue), None);
    assert!(networks.is_own(VnicId(2), blue) && !networks.is_own(VnicId(12), blue));
    assert_eq!(networks.route(VnicId(11), blue).unwrap().remote, IpAddr::from([0, 0, 0, 0]));
    assert_eq!(networks.name(VnicId(1), [10, 0, 0, 9].into()), None);
}

#[test]
fn a_vnic_of_another_host_is_reached_there_and_heard_from_there_only() {
    let networks = two_tenants();
    let remote = networks.name(VnicId(1), [10, 0, 0, 3].into()).unwrap();
    let there = Destination::There([192, 0, 2, 2].into());
    assert_eq!(networks.destination(VnicId(1), remote), Some(there));
    assert_eq!(networks.physical(VnicId(1), remote, Qpn(5)), Some(Qpn(0x50_0005)));
    assert_eq!(networks.physical(VnicId(1), remote, Qpn(1024)), None, "of the next range");
    assert_eq!(networks.shown(VnicId(1), remote, Qpn(0x50_0005)), Some(Qpn(5)));
    assert_eq!(networks.services(VnicId(1), remote), Some(Qpn(0x50_0001)));
    let names = |source, host: u8| {
        let underlay = UnderlayRoute::plain([192, 0, 2, 1].into(), [192, 0, 2, host].into(), 0);
        networks.names(VnicId(1), Qpn(source), &underlay)
    };
    assert_eq!(names(0x50_0005, 2), Some((gid(&networks, 1), remote)));
    assert_eq!((names(0x50_0005, 3), names(0x50_0400, 2), names(5, 2)), (None, None, None));
}

#[test]
fn over_ipv6_both_addresses_of_every_route_are_of_ipv6() {
    let host = |n: u8| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(n)]);
    let six = |last, at| VnicPlace { underlay: host(at), ..place(last, at, 0x40_0000) };
    let prefix = UnderlayNetwork::ipv6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0].into(), 88).unwrap();
    let codec = Codec::new(&TenantKey::new([1; 16]), VirtualNetwork::ANY, prefix).ok();
    let mut networks = VirtualNetworks::default();
    let blue = TenantNetwork { codec, ..network(1, &[six(1, 1), six(3, 2)]) };
    networks.describe(BTreeMap::from([(BLUE, blue)]));
    networks.seat(VnicId(1), Some((BLUE, six(1, 1))));
    let remote = networks.name(VnicId(1), [10, 0, 0, 3].into()).unwrap();
    assert_eq!(networks.destination(VnicId(1), remote), Some(Destination::There(host(2))));
    let forged = Gid::from(IpAddr::from([9; 16]));
    let group = Gid::from(IpAddr::from([239, 1, 2, 3]));
    let mapped = "ff0e::ffff:239.1.2.3".parse().unwrap();
    for (gid, to) in [(remote, host(2)), (forged, Ipv6Addr::UNSPECIFIED.into()), (group, mapped)] {
        let route = networks.route(VnicId(1), gid).unwrap();
        assert_eq!((route.local, route.remote), (host(1), to));
    }
    let route = UnderlayRoute::plain(host(1), host(2), 0);
    let names = networks.names(VnicId(1), Qpn(0x40_0005), &route);
    assert_eq!(names, Some((gid(&networks, 1), remote)));
}

#[test]
fn a_removed_vnic_leads_nowhere_and_rotation_keeps_names() {
    let mut networks = two_tenants();
    let (old, key) = (gid(&networks, 2), TenantKey::new([3; 16]));
    let mut blue = networks.tenants[&BLUE].clone();
    blue.codec.as_mut().unwrap().rotate(&key);
    let red = networks.tenants[&RED].clone();
    networks.describe(BTreeMap::from([(BLUE, blue.clone()), (RED, red.clone())]));
    let new = gid(&networks, 2);
    assert!(old != new && networks.is_same(VnicId(1), old, new));
    assert!(networks.is_own(VnicId(2), old) && networks.is_own(VnicId(2), new));
    for gid in [old, new] {
        assert_eq!(networks.destination(VnicId(1), gid), Some(Destination::Here(VnicId(2))));
    }
    blue.codec.as_mut().unwrap().retire();
    networks.describe(BTreeMap::from([(BLUE, blue), (RED, red)]));
    assert_eq!(networks.destination(VnicId(1), old), Some(Destination::Nowhere));
    // The vNIC goes, and its address comes to another one.
    networks.seat(VnicId(2), None);
    assert_eq!(networks.destination(VnicId(1), new), Some(Destination::Nowhere));
    networks.seat(VnicId(20), Some((BLUE, place(2, 1, 0x41_0000))));
    assert_eq!(networks.destination(VnicId(1), new), Some(Destination::Nowhere));
    assert!(networks.seat(VnicId(20), None) && !networks.seat(VnicId(20), None));
}

#[test]
fn of_two_namespaces_with_one_object_the_later_one_stays_reachable() {
    let mut networks = two_tenants();
    let gid = gid(&networks, 2);
    networks.seat(VnicId(20), Some((BLUE, place(2, 1, 0x40_0400))));
    networks.seat(VnicId(2), None);
    assert_eq!(networks.destination(VnicId(1), gid), Some(Destination::Here(VnicId(20))));
}

#[test]
fn without_a_key_no_peer_is_reached() {
    let mut networks = VirtualNetworks::default();
    let keyless = TenantNetwork { codec: None, ..network(1, &[]) };
    networks.describe(BTreeMap::from([(BLUE, keyless)]));
    networks.seat(VnicId(1), Some((BLUE, place(1, 1, 0x40_0000))));
    assert_eq!(networks.table(VnicId(1), &[], &[]), Some(Vec::new()));
    assert_eq!(networks.destination(VnicId(1), Gid::MAX), Some(Destination::Nowhere));
    assert!(!networks.is_own(VnicId(1), Gid::ZERO));
}

#[test]
fn a_million_forged_names_lead_nowhere() {
    let networks = two_tenants();
    let (genuine, mut state) = (gid(&networks, 2).bytes(), 1_u64);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for n in 0..1_000_000_u32 {
        let mut bytes = genuine;
        match n % 3 {
            // Random; one bit changed; the other tenant's end.
            0 => bytes.chunks_mut(4).for_each(|part| part.copy_from_slice(&next().to_le_bytes())),
            1 => bytes[next() as usize % 16] ^= 1 << (next() % 8),
            _ => {
                let cut = 1 + next() as usize % 15;
                bytes[cut..].copy_from_slice(&gid(&networks, 12).bytes()[cut..]);
            }
        }
        let forged = Gid::new(bytes);
        if !forged.is_loopback() {
            assert_eq!(networks.destination(VnicId(1), forged), Some(Destination::Nowhere), "{n}");
        }
    }
}
