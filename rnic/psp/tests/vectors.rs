//! Packets that scapy 2.8 sealed (`scapy.contrib.psp`), with the key of SPI 1 under the master key
//! 00 01 .. 1f, which Python's cryptography package derived.

use omniverb_psp::key_handshake::{Accepted, HandshakeAddresses, Pending};
use omniverb_psp::{MasterKey, Receiver};
use omniverb_vgid::TenantKey;
use std::net::Ipv4Addr;

/// UDP from port 49152 to 4791, and 40 bytes: 00 to 27.
const PAYLOAD: &str = "c00012b700300000\
    000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627";

/// Clear words, and the packet.
const SEALED: [(u8, &str); 4] = [
    (
        0,
        "11010001000000010000000000000000\
         e0433ce56c4cf63fbe7f06e86655f5a72bb536f41e0407a6ca9d541952fba525\
         ecee81561fa5d0a9d4bde028b740abd4814a2a3cd4f436764883521c1c93f36e",
    ),
    (
        5,
        "11010501000000010000000000000001\
         c00012b700300000000102030405060708090a0b6bdd67a47178391d4d19b669\
         b23f22890337942bc8e9e977555f4be554a1232bf75817e510401767ce943b5b",
    ),
    (
        12,
        "11010c01000000010000000000000002\
         c00012b700300000000102030405060708090a0b0c0d0e0f1011121314151617\
         18191a1b1c1d1e1f20212223242526279a310f21adc7167ad170221e50cfa2d0",
    ),
    // The seventh of the third other thread.
    (
        5,
        "11010501000000010300000000000007\
         c00012b700300000000102030405060708090a0b147fd632b841575a8b664460\
         b5691917f65f2155a31c99e83d2916eefe001ec28d88afcdba4f327fc0821c4f",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn receiver() -> Receiver {
    Receiver::new(MasterKey::new(std::array::from_fn(|n| n as u8)))
}

#[test]
fn what_scapy_sealed_is_opened() {
    let mut receiver = receiver();
    assert_eq!(receiver.give(5, &[1; 40]).unwrap().0.number(), 1);
    for (_, packet) in SEALED {
        let mut packet = bytes(packet);
        let opened = receiver.open(&mut packet).unwrap();
        assert_eq!((opened.owner, &*opened.payload), (5, &bytes(PAYLOAD)[..]));
    }
}

#[test]
fn what_is_sealed_is_what_scapy_seals() {
    let ends = HandshakeAddresses {
        sender: Ipv4Addr::LOCALHOST.into(),
        receiver: Ipv4Addr::LOCALHOST.into(),
    };
    let (key, mut receiver) = (TenantKey::new([1; 16]), receiver());
    let pending = Pending::new(&key, ends, [1; 16]).unwrap();
    let accepted = Accepted::new(&[&key], ends, pending.request()).unwrap();
    let (spi, given) = receiver.give(5, accepted.request()).unwrap();
    let answer = accepted.answer((spi, &given), 1, [2; 16]).unwrap();
    let mut sender = pending.finish(&answer).unwrap();
    let mut sealers: Vec<_> = (0..4).map(|_| sender.sealer().unwrap()).collect();
    let payload = bytes(PAYLOAD);
    for (clear, packet) in &SEALED[..3] {
        let mut sealed = Vec::new();
        sealers[0].seal(*clear, &payload, &mut sealed).unwrap();
        assert_eq!(sealed, bytes(packet));
    }
    let mut sealed = Vec::new();
    for _ in 0..8 {
        sealed.clear();
        sealers[3].seal(5, &payload, &mut sealed).unwrap();
    }
    assert_eq!(sealed, bytes(SEALED[3].1));
}
