//! Tests both ends of the protocol, against each other and against noise.

use super::*;
use omniverb_sys::{memfd, pidfd};

fn pass(id: u64, kind: Kind, found: &io::Result<Found>) -> Answer {
    let (one, other) = seqpacket::pair().unwrap();
    send_answer(one.as_fd(), id, kind, found).unwrap();
    receive(other.as_fd()).unwrap().unwrap()
}

#[test]
fn helper_messages_are_decoded() {
    let address = |ip: &str, scope, is_up: bool| Address {
        ip: ip.parse().unwrap(),
        interface: 7,
        scope,
        is_up,
        is_loopback: !is_up,
        mtu: 1500,
    };
    let list = vec![
        address("10.1.2.3", AddressScope::Global, true),
        address("fe80::1", AddressScope::Link, false),
        address("::ffff:1.2.3.4", AddressScope::Host, true),
    ];
    match pass(3, Kind::Addresses, &Ok(Found::Addresses(list.clone()))) {
        Answer::Found { id: 3, found: Ok(Found::Addresses(seen)), .. } => {
            assert_eq!(seen, list);
        }
        other => panic!("{other:?}"),
    }
    let many = vec![list[0]; 5000];
    match pass(3, Kind::Addresses, &Ok(Found::Addresses(many))) {
        Answer::Found { found: Ok(Found::Addresses(seen)), .. } => {
            assert_eq!(seen.len(), ADDRESSES_MAX);
        }
        other => panic!("{other:?}"),
    }
    let namespace = Namespace::current().unwrap();
    let identity = namespace.identity();
    let surroundings = Some([1, 2, 3]);
    let cgroup = "/ä".repeat(2000);
    let process = Process { namespace, cookie: None, pid: 5, surroundings, cgroup };
    match pass(u64::MAX, Kind::Process, &Ok(Found::Process(process))) {
        Answer::Found { id: u64::MAX, found: Ok(Found::Process(seen)), .. } => {
            assert_eq!((seen.namespace.identity(), seen.pid), (identity, 5));
            assert_eq!(seen.surroundings, surroundings);
            assert!(seen.cgroup.starts_with("/ä/ä") && seen.cgroup.len() < 1100);
        }
        other => panic!("{other:?}"),
    }
    let facts = facts();
    match pass(5, Kind::Interfaces, &Ok(Found::Interfaces(facts.clone()))) {
        Answer::Found { id: 5, found: Ok(Found::Interfaces(seen)), .. } => assert_eq!(seen, facts),
        other => panic!("{other:?}"),
    }
    match pass(6, Kind::Watch, &Ok(Found::Watching)) {
        Answer::Found { id: 6, found: Ok(Found::Watching), .. } => {}
        other => panic!("{other:?}"),
    }
    let busy = Err(rustix::io::Errno::ADDRINUSE.into());
    match pass(4, Kind::Port, &busy) {
        Answer::Found { kind: Kind::Port, found: Err(error), .. } => {
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
        other => panic!("{other:?}"),
    }
}

fn facts() -> ContainerFacts {
    let interface = |name: &str, bridge: Option<&str>, addresses: &[&str]| ContainerInterface {
        name: name.into(),
        is_up: bridge.is_some(),
        bridge: bridge.map(str::to_owned),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
    };
    let (one, other) = (
        interface("eth0", Some("br-blue"), &["10.1.2.3", "fe80::1"]),
        interface("eth1", None, &["::ffff:1.2.3.4"]),
    );
    ContainerFacts { name: Some("web".into()), interfaces: vec![one, other] }
}

#[test]
fn watcher_messages_are_decoded() {
    let (one, other) = seqpacket::pair().unwrap();
    let identity = NetnsIdentity { device: 4, inode: 5 };
    let long = ContainerFacts { name: Some("ä".repeat(500)), ..facts() };
    send_appeared(one.as_fd(), identity, Some(7), &facts()).unwrap();
    send_appeared(one.as_fd(), identity, None, &long).unwrap();
    send_vanished(one.as_fd(), identity).unwrap();
    let next = || receive(other.as_fd()).unwrap().unwrap();
    match next() {
        Answer::Appeared { identity: seen, cookie: Some(7), facts: told } => {
            assert_eq!((seen, told), (identity, facts()));
        }
        other => panic!("{other:?}"),
    }
    match next() {
        Answer::Appeared { facts, cookie: None, .. } => {
            assert_eq!(facts.name.unwrap(), "ä".repeat(NAME_BYTES / 2));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(next(), Answer::Vanished { identity: seen } if seen == identity));
}

#[test]
fn addresses_of_policies_are_decoded() {
    use underlay_messages::{
        AddressState, UNDERLAY_ADDRESSES_MAX, read_wanted, send_states, want_addresses,
    };
    let (one, other) = seqpacket::pair().unwrap();
    let file = memfd::create("x", 4096).unwrap();
    let mut bytes = vec![0; underlay_messages::WANTED_BYTES_MAX + 1];
    for count in [0, 1, UNDERLAY_ADDRESSES_MAX, UNDERLAY_ADDRESSES_MAX + 1] {
        let beside = "2001:db8::1".parse().unwrap();
        let address = |n: usize| match n % 2 {
            0 => IpAddr::from([10, 0, (n >> 8) as u8, n as u8]),
            _ => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n as u16]),
        };
        let wanted: std::collections::BTreeMap<_, _> =
            (1..=count).map(|n| (address(n), beside)).collect();
        want_addresses(one.as_fd(), file.as_fd(), &wanted).unwrap();
        let mode = seqpacket::BlockingMode::NonBlocking;
        let (length, mut files) = seqpacket::receive(other.as_fd(), &mut bytes, mode).unwrap();
        let (_, seen) = read_wanted(&bytes[..length], &mut files).unwrap();
        let most = count.min(UNDERLAY_ADDRESSES_MAX);
        assert_eq!(seen, wanted.into_iter().take(most).collect());
        for end in 0..length {
            let mut files = vec![file.try_clone().unwrap()];
            assert!(read_wanted(&bytes[..end], &mut files).is_none());
        }
        let states: AddressState = seen.keys().map(|ip| (*ip, 99)).collect();
        send_states(one.as_fd(), &states).unwrap();
        match receive(other.as_fd()).unwrap().unwrap() {
            Answer::UnderlayAddresses(seen) => assert_eq!(seen, states),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_for_sockets_are_decoded() {
    use underlay_messages::{
        Presence, SOCKET_REQUEST_BYTES, UnderlaySocket, read_socket_request, request_socket,
    };
    let (one, other) = seqpacket::pair().unwrap();
    let file = memfd::create("x", 4096).unwrap();
    for (ip, presence) in [("192.0.2.1", Presence::Present), ("2001:db8::1", Presence::Added)] {
        let wanted = UnderlaySocket { ip: ip.parse().unwrap(), presence };
        request_socket(one.as_fd(), 7, wanted, file.as_fd()).unwrap();
        let mut bytes = [0; SOCKET_REQUEST_BYTES + 1];
        let mode = seqpacket::BlockingMode::NonBlocking;
        let (length, mut files) = seqpacket::receive(other.as_fd(), &mut bytes, mode).unwrap();
        let (id, seen, _) = read_socket_request(&bytes[..length], &mut files).unwrap();
        assert_eq!((id, seen), (7, wanted));
        let own = || vec![file.try_clone().unwrap()];
        assert!(read_request(&bytes[..length], own()).is_none());
        assert!(read_request(&bytes[..REQUEST_BYTES], own()).is_none(), "of which address?");
        (0..length).for_each(|end| {
            assert!(read_socket_request(&bytes[..end], &mut own()).is_none());
        });
        assert!(read_socket_request(&bytes[..length], &mut Vec::new()).is_none());
        bytes[length - 4] = 2;
        assert!(read_socket_request(&bytes[..length], &mut own()).is_none());
    }
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let wanted = UnderlaySocket { ip: loopback, presence: Presence::Present };
    request_socket(one.as_fd(), 7, wanted, file.as_fd()).unwrap();
    let mut bytes = [0; SOCKET_REQUEST_BYTES];
    let mode = seqpacket::BlockingMode::NonBlocking;
    let (length, mut files) = seqpacket::receive(other.as_fd(), &mut bytes, mode).unwrap();
    assert!(read_socket_request(&bytes[..length], &mut files).is_none());
    match pass(4, Kind::UnderlaySocket, &Ok(Found::Socket(file))) {
        Answer::Found { id: 4, found: Ok(Found::Socket(_)), .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_of_a_policy_is_one_that_an_interface_can_have() {
    for (text, expected) in [
        ("192.0.2.1", true),
        ("2001:db8::1", true),
        ("fd00::1", true),
        ("0.0.0.0", false),
        ("127.0.0.1", false),
        ("224.0.0.1", false),
        ("255.255.255.255", false),
        ("::", false),
        ("::1", false),
        ("ff02::1", false),
        ("fe80::1", false),
        ("::ffff:192.0.2.1", false),
    ] {
        assert_eq!(underlay_messages::is_of_a_host(text.parse().unwrap()), expected, "{text}");
    }
}

#[test]
fn malformed_messages_are_refused_at_both_ends() {
    let (one, other) = seqpacket::pair().unwrap();
    let file = memfd::create("x", 4096).unwrap();
    let mut seed = 1u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u32
    };
    for round in 0..3000u32 {
        let lengths = [
            0,
            1,
            15,
            16,
            17,
            HEADER_BYTES,
            PORT_BYTES,
            PROCESS_BYTES,
            ADDRESSES_BYTES,
            FACTS_BYTES,
            VANISHED_BYTES,
            HEADER_BYTES + 20,
            HEADER_BYTES + 32,
        ];
        let mut bytes = vec![0u8; lengths[next() as usize % lengths.len()]];
        bytes.iter_mut().for_each(|byte| *byte = if next() % 3 == 0 { next() as u8 } else { 0 });
        if round % 2 == 0 && bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&MARK.to_ne_bytes());
            bytes[4..8].copy_from_slice(&(next() % 10).to_ne_bytes());
        }
        let files = vec![file.as_fd(); next() as usize % 6];
        let own =
            || -> Vec<OwnedFd> { files.iter().map(|f| f.try_clone_to_owned().unwrap()).collect() };
        if let Some((_, kind, _)) = read_request(&bytes, own()) {
            assert!(bytes.len() == REQUEST_BYTES && Kind::of(kind.number()).is_some());
        }
        let _ = underlay_messages::read_wanted(&bytes, &mut own());
        let _ = read_answer(&bytes, own());
        if !bytes.is_empty() {
            seqpacket::send(one.as_fd(), &bytes, &files).unwrap();
            let _ = receive(other.as_fd());
        }
    }
    assert!(read_request(&[0; REQUEST_BYTES], vec![file]).is_none());
    drop(one);
    let end = receive(other.as_fd()).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    assert!(pidfd::of(0).is_err());
}
