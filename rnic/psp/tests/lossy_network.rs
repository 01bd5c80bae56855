//! Sealed packets on a network that loses, repeats, reorders and changes them.

use omniverb_psp::key_handshake::{Accepted, HandshakeAddresses, Pending};
use omniverb_psp::{DropReason, MasterKey, Receiver, Sealer, Sender};
use omniverb_vgid::TenantKey;
use proptest::prelude::*;
use std::collections::HashSet;

const ENDS: HandshakeAddresses = HandshakeAddresses {
    sender: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    receiver: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
};

/// A sender with a key from a receiver.
fn joined(receiver: &mut Receiver, owner: u64, salt: u8) -> Sender {
    let key = TenantKey::new([owner as u8; 16]);
    let pending = Pending::new(&key, ENDS, [salt; 16]).unwrap();
    let accepted = Accepted::new(&[&key], ENDS, pending.request()).unwrap();
    let (spi, given) = receiver.give(owner, accepted.request()).unwrap();
    pending.finish(&accepted.answer((spi, &given), 1, [salt ^ 0xff; 16]).unwrap()).unwrap()
}

fn receiver() -> Receiver {
    Receiver::new(MasterKey::new([0x5a; 32]))
}

fn sealed(sealer: &mut Sealer, clear: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    sealer.seal(clear, payload, &mut packet).unwrap();
    packet
}

#[test]
fn every_changed_byte_shows_and_what_is_clear_is_readable() {
    let mut receiver = receiver();
    let mut sealer = joined(&mut receiver, 1, 1).sealer().unwrap();
    let payload: Vec<u8> = (0..100).collect();
    let packet = sealed(&mut sealer, 5, &payload);
    assert_eq!(packet[16..36], payload[..20]);
    assert!(!packet[36..].windows(8).any(|window| window == &payload[20..28]));
    for at in 0..packet.len() {
        for bit in [1, 0x80] {
            let mut changed = packet.clone();
            changed[at] ^= bit;
            let result = receiver.open(&mut changed).map(drop);
            // The reserved bits of the crypt offset are authenticated like all others.
            assert!(result.is_err() && result != Err(DropReason::Replayed), "{at}");
        }
    }
    for end in 0..packet.len() {
        assert!(receiver.open(&mut packet[..end].to_vec()).is_err());
    }
    let mut opened = packet.clone();
    let opened = receiver.open(&mut opened).unwrap();
    assert_eq!((opened.owner, &*opened.payload), (1, &payload[..]));
    assert_eq!(receiver.open(&mut packet.clone()), Err(DropReason::Replayed));
}

#[test]
fn keys_belong_to_their_owners() {
    let mut receiver = receiver();
    let mut one = joined(&mut receiver, 1, 1).sealer().unwrap();
    let mut other = joined(&mut receiver, 2, 2).sealer().unwrap();
    let mut packet = sealed(&mut one, 0, b"from one");
    assert_eq!(receiver.open(&mut packet).unwrap().owner, 1);
    let mut packet = sealed(&mut other, 0, b"from the other");
    assert_eq!(receiver.open(&mut packet.clone()).unwrap().owner, 2);
    // The other's packet under one's number.
    let mine = sealed(&mut one, 0, b"x");
    packet[4..8].copy_from_slice(&mine[4..8]);
    assert_eq!(receiver.open(&mut packet), Err(DropReason::Forged));
    receiver.forget_owner(1);
    assert_eq!(receiver.open(&mut sealed(&mut one, 0, b"gone")), Err(DropReason::Unknown));
    assert!(receiver.open(&mut sealed(&mut other, 0, b"there")).is_ok());
    let mut elsewhere = Receiver::new(MasterKey::new([0x5b; 32]));
    elsewhere.give(2, &[1; 40]).unwrap();
    elsewhere.give(2, &[2; 40]).unwrap();
    assert_eq!(
        elsewhere.open(&mut sealed(&mut other, 0, b"another host")),
        Err(DropReason::Forged)
    );
}

#[test]
fn keys_change_under_load() {
    let mut receiver = receiver();
    let mut old = joined(&mut receiver, 1, 1).sealer().unwrap();
    for round in 1..20_u8 {
        let mut under_way = sealed(&mut old, 0, b"before");
        receiver.rotate(MasterKey::new([round; 32]));
        let mut new = joined(&mut receiver, 1, round + 1).sealer().unwrap();
        for _ in 0..100 {
            assert!(receiver.open(&mut sealed(&mut new, 0, b"new")).is_ok());
            assert!(receiver.open(&mut sealed(&mut old, 0, b"old")).is_ok());
        }
        assert!(receiver.open(&mut under_way).is_ok(), "nothing is lost");
        receiver.retire();
        assert_eq!(receiver.open(&mut sealed(&mut old, 0, b"late")), Err(DropReason::Unknown));
        old = new;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Of what several threads send, each packet is taken once, in whatever order it comes, if it
    /// is not a window late.
    #[test]
    fn each_packet_is_taken_once(
        order in proptest::collection::vec((0_usize..400, any::<bool>()), 1..1500),
        sizes in proptest::collection::vec(0_usize..300, 400),
    ) {
        let mut receiver = receiver();
        let mut sender = joined(&mut receiver, 9, 9);
        let mut sealers: Vec<_> = (0..3).map(|_| sender.sealer().unwrap()).collect();
        let packets: Vec<_> = sizes.iter().enumerate().map(|(n, size)| {
            let payload: Vec<u8> = (0..*size).map(|at| (at + n) as u8).collect();
            let packet = sealed(&mut sealers[n % 3], (n % 8) as u8, &payload);
            (packet, payload)
        }).collect();
        let mut taken = HashSet::new();
        for (which, is_changed) in order {
            let (packet, payload) = &packets[which];
            let mut packet = packet.clone();
            if is_changed {
                let at = which * 31 % packet.len();
                packet[at] ^= 0x10;
                prop_assert!(receiver.open(&mut packet).is_err());
                continue;
            }
            match receiver.open(&mut packet) {
                Ok(opened) => {
                    prop_assert!(taken.insert(which));
                    prop_assert_eq!(&*opened.payload, &payload[..]);
                }
                Err(why) => {
                    prop_assert_eq!(why, DropReason::Replayed);
                    prop_assert!(taken.contains(&which));
                }
            }
        }
    }

    #[test]
    fn nothing_else_is_taken(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        spi in 0_u32..4,
    ) {
        let mut receiver = receiver();
        receiver.give(1, &[1; 40]);
        if bytes.len() > 16 {
            bytes[..8].copy_from_slice(&[17, 1, 0, 1, 0, 0, 0, spi as u8]);
        }
        prop_assert!(receiver.open(&mut bytes).is_err());
    }
}
