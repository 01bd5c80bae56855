//! Tests that packets are read back as they were built, and damaged ones refused. Arbitrary bytes
//! are for `src/testing/fuzz_entry_points.rs`.

use omniverb_terms::{Placement, Psn, Qkey, Qpn, Rkey, Selectivity, Service};
use omniverb_wire::pcap::{Capture, Envelope};
use omniverb_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Builder, DATAGRAM_MAX, Deth, Feth, Fragments, IcrcFlow,
    IcrcVerdict, Identification, Ieth, ImmDt, Opcode, Operation, Packet, PacketPosition,
    PreparedIcrc, Reth, Syndrome, WritePattern, WriteRun, XrcEth, icrc, receive_area,
};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn address() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(a, b)| (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into())),
        any::<(u128, u128)>()
            .prop_map(|(a, b)| (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into())),
    ]
}

fn flow() -> impl Strategy<Value = IcrcFlow> {
    (address(), 0xc000_u16..).prop_map(|((source, destination), source_port)| IcrcFlow {
        source,
        destination,
        source_port,
    })
}

fn opcode() -> impl Strategy<Value = Opcode> {
    any::<u8>()
        .prop_filter_map("known opcodes", Opcode::from_byte)
        .prop_filter("notifications have a writer of their own", |o| !o.is_notification())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn packets_survive_encoding_and_decoding(
        flow in flow(),
        opcode in opcode(),
        (qpn, psn) in (1_u32..1 << 24, 0_u32..1 << 24),
        (ack, solicited) in any::<(bool, bool)>(),
        (long, half, word) in any::<(u64, u64, u32)>(),
        id in any::<u16>(),
        payload in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let (qpn, psn, key) = (Qpn(qpn), Psn::new(psn), Rkey(word));
        let payload = if opcode.has_payload() { payload } else { Vec::new() };
        let reth = Reth::new(long, key, half as u32);
        let selectivity = if ack { Selectivity::Region } else { Selectivity::Range };
        let placement = Placement::from_bits(id as u8 % 3 + 1).unwrap();
        let feth = Feth::new(placement, selectivity);
        let atomic = AtomicEth::new(half, key, long, !long);
        let aeth = Aeth::new(Syndrome::from_byte(word as u8), word);
        let result = opcode.operation == Operation::AtomicAcknowledge;
        let bth = Bth::new(opcode.to_byte(), qpn, psn).ack_requested(ack).solicited(solicited);
        let mut buffer = [0xaa; DATAGRAM_MAX];
        let mut builder = Builder::new(&mut buffer, opcode, bth, payload.len()).unwrap()
            .maybe((opcode.is_of(Service::Ud)).then(|| Deth::new(Qkey(word), qpn)))
            .maybe(opcode.has_srq().then(|| XrcEth::new(word)))
            .maybe(opcode.has_flush().then_some(feth))
            .maybe(opcode.has_reth().then_some(reth))
            .maybe(opcode.has_atomic().then_some(atomic))
            .maybe(opcode.has_aeth().then_some(aeth))
            .maybe(result.then(|| AtomicAckEth::new(long)))
            .maybe(opcode.has_immediate().then(|| ImmDt(word.to_be_bytes())))
            .maybe(opcode.has_invalidate().then(|| Ieth::new(key)));
        builder.payload().copy_from_slice(&payload);
        let length = builder.finish();
        flow.seal(&mut buffer[..length], id);

        let packet = Packet::parse(&buffer[..length]).unwrap();
        prop_assert_eq!(packet.opcode(), opcode);
        prop_assert_eq!(packet.bth().destination(), qpn);
        prop_assert_eq!(packet.bth().psn(), psn);
        prop_assert_eq!(packet.bth().is_ack_requested(), ack);
        prop_assert_eq!(packet.bth().is_solicited(), solicited);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.reth(), opcode.has_reth().then_some(reth));
        prop_assert_eq!(packet.flush(), opcode.has_flush().then_some(feth));
        prop_assert_eq!(packet.atomic(), opcode.has_atomic().then_some(atomic));
        prop_assert_eq!(packet.aeth(), opcode.has_aeth().then_some(aeth));
        prop_assert_eq!(packet.atomic_ack(), result.then(|| AtomicAckEth::new(long)));
        prop_assert_eq!(
            packet.immediate(),
            opcode.has_immediate().then(|| ImmDt(word.to_be_bytes()))
        );
        prop_assert_eq!(packet.invalidate(), opcode.has_invalidate().then(|| Ieth::new(key)));
        prop_assert_eq!(packet.srq(), opcode.has_srq().then_some(word & 0xff_ffff));
        let deth = (opcode.is_of(Service::Ud)).then(|| Deth::new(Qkey(word), qpn));
        prop_assert_eq!(packet.deth(), deth);

        let prepared = PreparedIcrc::new(&flow, length).unwrap();
        let mut again = buffer[..length].to_vec();
        again[length - 4..].fill(0);
        prepared.seal(&mut again, id);
        prop_assert_eq!(&again[..], &buffer[..length]);
        let sent = Identification { id, fragments: Fragments::Forbidden };
        for probably in [sent, Identification::ZERO, Identification { id: !id, ..sent }] {
            let verdict = prepared.check(&again, probably);
            prop_assert_eq!(verdict, flow.check(&again, None));
        }
        again[length / 2] ^= 1 << (id & 7);
        prop_assert_ne!(prepared.check(&again, sent), IcrcVerdict::Exact);
        let verdict = flow.check(&buffer[..length], None);
        if flow.source.is_ipv6() || id == 0 {
            prop_assert_eq!(verdict, IcrcVerdict::Exact);
        } else {
            prop_assert_eq!(verdict, IcrcVerdict::Solved(sent));
            prop_assert_eq!(flow.check(&buffer[..length], Some(sent)), IcrcVerdict::Exact);
        }
    }

    #[test]
    fn fragmentable_packets_are_solved(
        (a, b, id) in any::<(u32, u32, u16)>(),
        words in 3_usize..1034,
        fill in any::<u8>(),
    ) {
        let identification = Identification { id, fragments: Fragments::Allowed };
        let (source, destination) = (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into());
        let mut datagram = vec![fill; words * 4];
        let crc = icrc(source, destination, 0xc123, identification.bytes(), &datagram);
        datagram.extend_from_slice(&crc.to_le_bytes());
        let flow = IcrcFlow { source, destination, source_port: 0xc123 };
        prop_assert_eq!(flow.check(&datagram, None), IcrcVerdict::Solved(identification));
    }

    #[test]
    fn captures_have_the_length_they_claim(flow in flow(), payload in 0_usize..5000) {
        let envelope = Envelope {
            flow,
            identification: Identification::ZERO,
            traffic_class: 2,
            hop_limit: 64,
        };
        let mut capture = Capture::new(Vec::new()).unwrap();
        capture.add(1_500_000_000_123_456_789, &envelope, &vec![7; payload]).unwrap();
        let file = capture.finish().unwrap();
        let length = u32::from_ne_bytes(file[32..36].try_into().unwrap()) as usize;
        prop_assert_eq!(file.len(), 24 + 16 + length);
        let ip = if flow.source.is_ipv4() { 20 } else { 40 };
        prop_assert_eq!(length, 14 + ip + 8 + payload);
        if ip == 40 {
            // Addresses, UDP header and payload, then protocol and length.
            let mut summed = file[24 + 16 + 22..].to_vec();
            summed.resize(summed.len().next_multiple_of(2), 0);
            summed.extend(((payload + 8 + 17) as u32).to_be_bytes());
            let words = summed.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1]));
            prop_assert_eq!(words.sum::<u64>() % 0xffff, 0);
        }
    }
}

#[test]
fn the_receive_area_of_ipv4_has_a_valid_checksum() {
    let source = Ipv4Addr::new(10, 0, 17, 1).into();
    let area = receive_area(source, Ipv4Addr::new(10, 0, 18, 1).into(), 0xc2, 64, 40);
    assert_eq!(area[..20], [0; 20]);
    let words = area[20..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

/// A packet in the middle of a WRITE that names what is left.
fn in_the_middle(psn: u32, (address, left): (u64, u32), payload: usize) -> Vec<u8> {
    let place = PacketPosition::First;
    let opcode = Opcode::new(Service::Rc, Operation::Write { place, immediate: false });
    let bth = Bth::new(opcode.to_byte(), Qpn(17), Psn::new(psn));
    let mut buffer = [0; DATAGRAM_MAX];
    let builder = Builder::new(&mut buffer, opcode, bth, payload).unwrap();
    let length = builder.header(Reth::new(address, Rkey(9), left)).finish();
    buffer[..length].to_vec()
}

proptest! {
    /// A pattern goes on as the packets would be made one by one, and a run is what it made.
    #[test]
    fn runs_are_recognised_and_split(
        (psn, address) in (0_u32..1 << 24, any::<u64>()),
        (words, count) in (1_usize..300, 1_usize..20),
        more in 1_u32..1000,
        (damage, bit) in (any::<prop::sample::Index>(), 0_u32..8),
    ) {
        let payload = 4 * words;
        let left = |index: usize| more + ((count - index) * payload) as u32;
        let at = |index: usize| address.wrapping_add((index * payload) as u64);
        let each: Vec<Vec<u8>> = (0..count)
            .map(|i| in_the_middle(psn.wrapping_add(i as u32), (at(i), left(i)), payload))
            .collect();
        let length = each[0].len();
        let mut train = vec![0; length * (count + 1)];
        train[..length].copy_from_slice(&each[0]);
        let pattern = WritePattern::of(&each[0]).unwrap();
        let mut slots = pattern.write(&mut train[length..], count - 1);
        prop_assert_eq!(slots.count(), count - 1);
        prop_assert_eq!(slots.bytes(), (count - 1) * payload);
        prop_assert!(slots.iter_mut().all(|slot| slot.len() == payload));
        train.truncate(length * count);
        prop_assert_eq!(&train, &each.concat());
        let run = WriteRun::of(&train, length);
        prop_assert_eq!(run.map_or(1, |run| run.count()), count);
        if let Some(run) = run {
            prop_assert_eq!(run.bytes(), count * payload);
            prop_assert_eq!(run.payloads().count(), count);
        }
        // Whatever is wrong with a header ends the run before it.
        let at = damage.index(train.len());
        if at % length < 28 && at >= length {
            train[at] ^= 1_u8 << bit;
            prop_assert_eq!(WriteRun::of(&train, length).map_or(1, |run| run.count()), at / length);
        }
        // Nothing else begins one: the end of a message, a question, a datagram that is cut off.
        let mut asks = each[0].clone();
        asks[8] = 0x80;
        prop_assert!(WritePattern::of(&asks).is_none());
        prop_assert!(WritePattern::of(&each[0][..31]).is_none());
    }
}

#[test]
fn a_run_ends_before_its_message() {
    // The fourth would name nothing any more.
    let packets = (0..4).map(|i| in_the_middle(i, (64 * u64::from(i), 192 - 64 * i), 64));
    let train = packets.collect::<Vec<_>>().concat();
    assert_eq!(WriteRun::of(&train, train.len() / 4).unwrap().count(), 2);
}
