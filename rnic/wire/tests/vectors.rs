//! Packets known to be right, from the IPv4 header to the ICRC.

use omniverb_terms::{Psn, Qpn, Refusal, Rkey};
use omniverb_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Builder, Fragments, IcrcFlow, IcrcVerdict, Identification,
    Ieth, ImmDt, Opcode, Packet, Reth, Syndrome, write_notification, write_report,
};
use std::net::Ipv4Addr;

const MANAGEMENT: &str = "\
    4500013400004000401100000a4d00010a4d0002c3c012b7012000006400ffff\
    0000000100000007800100000000000101070203000000000000000111223344\
    001000000000000011223344000000000000000001061d2f02fc00fffe000001\
    00000000000000000000150100000001000000a0abcdefa7ffff37f0ffffffff\
    00000000000000000000ffff0a4d000100000000000000000000ffff0a4d0002\
    7c3df00000400088000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000000000000040c3500000000000000000\
    000000000a4d00010000000000000000000000000a4d00020000000000000000\
    0000000000000000000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000571fd4ab";
const NOTIFICATION: &str = "\
    45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff\
    40000118000000000000000000000000000000000000000082fd002a";
const COMPARE_SWAP: &str = "\
    4502004800004000401100000a4d00010a4d0002c3c012b7003400001340ffff\
    0000001580000001112233445566778800001234000000000000000700000000\
    000000092483a4a7";
const READ_REQUEST: &str = "\
    4502003c00004000401100000a4d00010a4d0002c3c012b7002800000c40ffff\
    0000001580000001000000000000100000000077000013882fa91abe";
const NAK: &str = "\
    4502003000004000401100000a4d00010a4d0002c3c012b7001c00001140ffff\
    000000150000000160000005b9c1ebda";
const NOT_READY: &str = "\
    4502003000004000401100000a4d00010a4d0002c3c012b7001c00001140ffff\
    00000015000000012c0000053c26290b";
const WRITE_IMMEDIATE: &str = "\
    4502004800004000401100000a4d00010a4d0002c3c012b7003400000b70ffff\
    000000158000000100000000000010000000007700000005deadbeef68656c6c\
    6f000000968854bf";
const SEND_INVALIDATE: &str = "\
    4502003400004000401100000a4d00010a4d0002c3c012b70020000017d0ffff\
    000000158000000100000099616263008d3cd5c5";

/// An IPv4 packet taken apart.
struct Vector {
    flow: IcrcFlow,
    identification: Identification,
    datagram: Vec<u8>,
}

fn vector(text: &str) -> Vector {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    assert_eq!(usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), bytes.len());
    let address =
        |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into();
    Vector {
        flow: IcrcFlow {
            source: address(12),
            destination: address(16),
            source_port: u16::from_be_bytes([bytes[20], bytes[21]]),
        },
        identification: Identification {
            id: u16::from_be_bytes([bytes[4], bytes[5]]),
            fragments: match bytes[6] & 0x40 {
                0 => Fragments::Allowed,
                _ => Fragments::Forbidden,
            },
        },
        datagram: bytes[28..].to_vec(),
    }
}

/// Builds the packet anew and compares every byte.
fn same(text: &str, build: impl FnOnce(&mut [u8]) -> usize) {
    let vector = vector(text);
    let mut datagram = [0x55; 512];
    let length = build(&mut datagram);
    vector.flow.seal(&mut datagram[..length], vector.identification.id);
    assert_eq!(datagram[..length], vector.datagram);
}

fn begin(datagram: &mut [u8], code: u8, ack: bool, payload: usize) -> Builder<'_> {
    let opcode = Opcode::from_byte(code).unwrap();
    let bth = Bth::new(code, Qpn(0x15), Psn::new(1)).ack_requested(ack).solicited(code == 0x17);
    Builder::new(datagram, opcode, bth, payload).unwrap()
}

#[test]
fn icrc_of_every_vector() {
    for text in [
        MANAGEMENT,
        NOTIFICATION,
        COMPARE_SWAP,
        READ_REQUEST,
        NAK,
        NOT_READY,
        WRITE_IMMEDIATE,
        SEND_INVALIDATE,
    ] {
        let vector = vector(text);
        assert!(Packet::parse(&vector.datagram).is_ok(), "{text}");
        let known = Some(vector.identification);
        assert_eq!(vector.flow.check(&vector.datagram, known), IcrcVerdict::Exact, "{text}");
        // Without being told: a zero identification is exact, another one is found.
        let expected = match vector.identification {
            Identification::ZERO => IcrcVerdict::Exact,
            other => IcrcVerdict::Solved(other),
        };
        assert_eq!(vector.flow.check(&vector.datagram, None), expected, "{text}");
        for at in 0..vector.datagram.len() {
            let mut damaged = vector.datagram.clone();
            damaged[at] ^= 0x10;
            // The congestion bits and their neighbours are not covered.
            let verdict = if at == 4 { IcrcVerdict::Exact } else { IcrcVerdict::Damaged };
            assert_eq!(vector.flow.check(&damaged, known), verdict, "{text} at {at}");
        }
    }
}

#[test]
fn headers_of_every_vector() {
    same(NOTIFICATION, |datagram| write_notification(datagram, Qpn(0x118)).unwrap());
    same(COMPARE_SWAP, |datagram| {
        let operands = AtomicEth::new(0x1122_3344_5566_7788, Rkey(0x1234), 7, 9);
        begin(datagram, 0x13, true, 0).header(operands).finish()
    });
    same(READ_REQUEST, |datagram| {
        begin(datagram, 0x0c, true, 0).header(Reth::new(0x1000, Rkey(0x77), 5000)).finish()
    });
    same(NAK, |datagram| {
        let aeth = Aeth::new(Syndrome::SequenceError, 5);
        begin(datagram, 0x11, false, 0).header(aeth).finish()
    });
    same(NOT_READY, |datagram| {
        let aeth = Aeth::new(Syndrome::ReceiverNotReady(12), 5);
        begin(datagram, 0x11, false, 0).header(aeth).finish()
    });
    same(WRITE_IMMEDIATE, |datagram| {
        let mut builder = begin(datagram, 0x0b, true, 5)
            .header(Reth::new(0x1000, Rkey(0x77), 5))
            .header(ImmDt([0xde, 0xad, 0xbe, 0xef]));
        builder.payload().copy_from_slice(b"hello");
        builder.finish()
    });
    same(SEND_INVALIDATE, |datagram| {
        let mut builder = begin(datagram, 0x17, true, 3).header(Ieth::new(Rkey(0x99)));
        builder.payload().copy_from_slice(b"abc");
        builder.finish()
    });
}

#[test]
fn fields_of_the_vectors() {
    let vector = vector(WRITE_IMMEDIATE);
    let packet = Packet::parse(&vector.datagram).unwrap();
    assert_eq!(packet.payload(), b"hello");
    assert_eq!(packet.reth(), Some(Reth::new(0x1000, Rkey(0x77), 5)));
    assert_eq!(packet.immediate(), Some(ImmDt([0xde, 0xad, 0xbe, 0xef])));
    assert_eq!((packet.bth().destination(), packet.bth().psn()), (Qpn(0x15), Psn::new(1)));
    assert!(packet.bth().is_ack_requested() && packet.bth().is_migrated());
    assert_eq!((packet.aeth(), packet.atomic(), packet.deth()), (None, None, None));
}

#[test]
fn packets_print_as_the_vectors_say() {
    let swap = "COMPARE-SWAP qpn 0x15 psn 1 ask 0x1122334455667788 rkey 0x1234 0x9 -> 0x7";
    let lines = [
        (MANAGEMENT, "UD SEND-ONLY qpn 0x1 psn 7 from 0x1 qkey 0x80010000"),
        (NOTIFICATION, "CNP qpn 0x118"),
        (COMPARE_SWAP, swap),
        (READ_REQUEST, "READ-REQUEST qpn 0x15 psn 1 ask 0x1000+5000 rkey 0x77"),
        (NAK, "NAK sequence qpn 0x15 psn 1 msn 5"),
        (NOT_READY, "RNR-NAK timer 12 qpn 0x15 psn 1 msn 5"),
        (WRITE_IMMEDIATE, "WRITE-ONLY-IMM qpn 0x15 psn 1 ask 0x1000+5 rkey 0x77 imm deadbeef"),
        (SEND_INVALIDATE, "SEND-ONLY-INV qpn 0x15 psn 1 solicited ask inv 0x99"),
    ];
    for (text, line) in lines {
        let vector = vector(text);
        assert_eq!(Packet::parse(&vector.datagram).unwrap().to_string(), line);
    }
    // Answers, and what only an Omniverb says.
    let made = |code, syndrome: Option<Syndrome>, result: Option<u64>| {
        let mut datagram = [0; 64];
        let aeth = syndrome.map(|syndrome| Aeth::new(syndrome, 3));
        let builder = begin(&mut datagram, code, false, 0).maybe(aeth);
        let length = builder.maybe(result.map(AtomicAckEth::new)).finish();
        Packet::parse(&datagram[..length]).unwrap().to_string()
    };
    let ack = Some(Syndrome::Ack(0x1f));
    let refused = Some(Syndrome::Refused(Refusal::RemoteAccess));
    assert_eq!(made(0x11, ack, None), "ACK qpn 0x15 psn 1 msn 3");
    assert_eq!(made(0x11, refused, None), "NAK remote access qpn 0x15 psn 1 msn 3");
    assert_eq!(made(0x0d, ack, None), "READ-RESPONSE-FIRST qpn 0x15 psn 1 msn 3");
    assert_eq!(made(0x0e, None, None), "READ-RESPONSE-MIDDLE qpn 0x15 psn 1");
    let line = "ATOMIC-ACKNOWLEDGE qpn 0x15 psn 1 credits 0x2 msn 3 original 0x5";
    assert_eq!(made(0x12, Some(Syndrome::Ack(2)), Some(5)), line);
    assert_eq!(made(0x20, None, None), "UC SEND-FIRST qpn 0x15 psn 1");
    let mut datagram = [0; 64];
    let length = write_report(&mut datagram, Qpn(9), Qpn(7), Psn::new(12)).unwrap();
    let report = Packet::parse(&datagram[..length]).unwrap();
    assert_eq!(report.to_string(), "CNP qpn 0x9 report of 0x7 psn 12");
}
