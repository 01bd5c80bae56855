//! Tests that traces become the packets they stand for, and no others.

use super::{TracedEnd, rebuild};
use omniverb_link::captured_operations_ring::{ACKNOWLEDGED, Key, Kind, NOT_READY, PIECE, Trace};
use omniverb_link::record::{IMMEDIATE, INVALIDATE, SOLICITED};
use omniverb_terms::{Psn, Qkey, Qpn, Rkey, Service};
use omniverb_wire::{IcrcFlow, IcrcVerdict, Operation, Packet, PacketPosition, Syndrome};
use proptest::prelude::*;

/// A packet in the file, decoded.
struct Seen {
    flow: IcrcFlow,
    bytes: Vec<u8>,
    known: usize,
}

impl Seen {
    fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).unwrap()
    }
}

fn end(service: Service) -> TracedEnd {
    let (local, remote) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    TracedEnd { qpn: Qpn(0x11), peer_qpn: Qpn(0x22), service, local, remote }
}

fn told(end: &TracedEnd, trace: &Trace, payload: &[u8]) -> Option<Vec<Seen>> {
    let mut seen = Vec::new();
    let sense = rebuild(end, trace, payload, |told| {
        let (flow, known) = (told.flow, told.known);
        seen.push(Seen { flow, bytes: told.datagram.to_vec(), known });
    });
    assert!(sense || seen.is_empty(), "nothing of what makes no sense");
    sense.then_some(seen)
}

fn trace(kind: Kind, length: u64) -> Trace {
    Trace {
        kind,
        qpn: Qpn(0x11),
        peer_qpn: Qpn(0x22),
        path_mtu: 1,
        psn: Psn::new(0xff_fffe),
        messages: 9,
        keep: 4096,
        address: 0x7000,
        key: Key::Remote(Rkey(0x99)),
        immediate: u32::from_ne_bytes(*b"immd"),
        first: length,
        ..Trace::default()
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7) as u8).collect()
}

#[test]
fn a_write_with_immediate_data_and_its_acknowledgement() {
    let (end, data) = (end(Service::Rc), bytes(600));
    let flags = IMMEDIATE | SOLICITED | ACKNOWLEDGED;
    let seen = told(&end, &Trace { flags, ..trace(Kind::Write, 600) }, &data).unwrap();
    assert_eq!(seen.len(), 4);
    let places = [PacketPosition::First, PacketPosition::Middle, PacketPosition::Last];
    let mut payload: Vec<u8> = Vec::new();
    for (index, (seen, place)) in seen.iter().zip(places).enumerate() {
        let packet = seen.packet();
        let last = place.ends();
        assert_eq!(packet.opcode().operation, Operation::Write { place, immediate: last });
        assert_eq!(packet.bth().psn(), Psn::new(0xff_fffe + index as u32));
        assert_eq!(packet.bth().destination(), Qpn(0x22));
        assert_eq!((packet.bth().is_solicited(), packet.bth().is_ack_requested()), (last, last));
        let reth = packet.reth().map(|reth| (reth.address(), reth.key(), reth.length()));
        assert_eq!(reth, place.begins().then_some((0x7000, Rkey(0x99), 600)));
        assert_eq!(packet.immediate().map(|immediate| immediate.0), last.then_some(*b"immd"));
        assert_eq!((seen.flow.source, seen.flow.destination), (end.local, end.remote));
        payload.extend(packet.payload());
    }
    assert_eq!(payload, data);
    let answer = seen[3].packet();
    assert_eq!(answer.opcode().operation, Operation::Acknowledge);
    assert_eq!((answer.bth().psn(), answer.bth().destination()), (Psn::new(0), Qpn(0x11)));
    let aeth = answer.aeth().unwrap();
    assert_eq!((aeth.syndrome(), aeth.messages()), (Syndrome::Ack(31), 9));
    assert_eq!((seen[3].flow.source, seen[3].flow.destination), (end.remote, end.local));
    for seen in &seen {
        assert_eq!(seen.flow.check(&seen.bytes, None), IcrcVerdict::Exact);
        assert_eq!(seen.known, seen.bytes.len());
    }
    let ports = seen.iter().map(|seen| seen.flow.source_port);
    assert!(ports.clone().all(|port| port >= 0xc000 && Some(port) == ports.clone().next()));
}

#[test]
fn a_long_message_comes_in_pieces() {
    let (end, total) = (end(Service::Rc), PIECE + 100);
    let whole = bytes(total as usize);
    let (first, second) = whole.split_at(PIECE as usize);
    let flags = INVALIDATE | ACKNOWLEDGED;
    let begin = Trace { flags, path_mtu: 5, ..trace(Kind::Send, total) };
    let mut seen = told(&end, &begin, first).unwrap();
    assert_eq!(seen.len(), 4, "the end is not there yet");
    seen.extend(told(&end, &Trace { second: PIECE, ..begin }, second).unwrap());
    assert_eq!(seen.len(), 6);
    let last = seen[4].packet();
    let operation =
        Operation::Send { place: PacketPosition::Last, immediate: false, invalidate: true };
    assert_eq!(last.opcode().operation, operation);
    assert_eq!(last.invalidate().map(|key| key.key()), Some(Rkey(begin.immediate)));
    assert_eq!((last.bth().psn(), seen[5].packet().bth().psn()), (Psn::new(2), Psn::new(2)));
    let payload: Vec<u8> = seen.iter().flat_map(|seen| seen.packet().payload().to_vec()).collect();
    assert_eq!(payload, whole);
    // A piece that begins elsewhere, or where the message has ended, is none.
    for offset in [1, PIECE / 2, 2 * PIECE] {
        assert!(told(&end, &Trace { second: offset, ..begin }, second).is_none());
    }
}

#[test]
fn missing_payload_is_not_made_up() {
    let end = end(Service::Rc);
    let data = bytes(600);
    let kept: Vec<u8> =
        data.chunks(256).flat_map(|packet| &packet[..packet.len().min(10)]).copied().collect();
    let seen = told(&end, &Trace { keep: 10, ..trace(Kind::Send, 600) }, &kept).unwrap();
    assert_eq!(seen.len(), 3);
    for (seen, (length, from)) in seen.iter().zip([(256, 0), (256, 256), (88, 512)]) {
        assert_eq!(seen.packet().payload().len(), length, "as long as it was");
        assert_eq!(seen.known, 12 + 10);
        assert_eq!(seen.bytes[12..22], data[from..from + 10]);
    }
    assert!(told(&end, &Trace { keep: 11, ..trace(Kind::Send, 600) }, &kept).is_none());
}

#[test]
fn reads_and_atomics_with_their_answers() {
    let end = end(Service::Rc);
    let request = told(&end, &trace(Kind::Read, 600), &[]).unwrap();
    let packet = request[0].packet();
    assert_eq!(packet.opcode().operation, Operation::ReadRequest);
    assert_eq!(packet.reth().map(|reth| reth.length()), Some(600));
    let data = bytes(600);
    let answer = told(&end, &trace(Kind::ReadData, 600), &data).unwrap();
    let expected = [
        (PacketPosition::First, true),
        (PacketPosition::Middle, false),
        (PacketPosition::Last, true),
    ];
    for (index, (seen, (place, speaks))) in answer.iter().zip(expected).enumerate() {
        let packet = seen.packet();
        assert_eq!(packet.opcode().operation, Operation::ReadResponse { place });
        assert_eq!(packet.aeth().is_some(), speaks);
        assert_eq!(packet.bth().psn(), Psn::new(0xff_fffe + index as u32));
        assert_eq!((packet.bth().destination(), seen.flow.source), (Qpn(0x11), end.remote));
    }
    let numbers = |kind| {
        let seen = told(&end, &Trace { second: 7, ..trace(kind, 5) }, &[]).unwrap();
        let header = seen[0].packet().atomic().unwrap();
        (header.swap_or_add(), header.compare(), header.address(), header.key())
    };
    assert_eq!(numbers(Kind::CompareSwap), (7, 5, 0x7000, Rkey(0x99)));
    assert_eq!(numbers(Kind::FetchAdd), (5, 0, 0x7000, Rkey(0x99)));
    let result = told(&end, &trace(Kind::AtomicResult, 77), &[]).unwrap();
    assert_eq!(result[0].packet().atomic_ack().map(|ack| ack.original()), Some(77));
}

#[test]
fn atomic_writes_and_flushes() {
    let end = end(Service::Rc);
    let eight = told(&end, &trace(Kind::AtomicWrite, 8), &bytes(8)).unwrap();
    let packet = eight[0].packet();
    assert_eq!(packet.to_string(), "ATOMIC-WRITE qpn 0x22 psn 16777214 ask 0x7000+8 rkey 0x99");
    assert_eq!((packet.payload(), eight.len()), (&bytes(8)[..], 1));
    for length in [0, 7, 16] {
        let trace = trace(Kind::AtomicWrite, length);
        assert!(told(&end, &trace, &bytes(length as usize)).is_none());
    }
    let flush = Trace { immediate: 0x101, ..trace(Kind::Flush, 300) };
    let line = "FLUSH qpn 0x22 psn 16777214 ask global region 0x7000+300 rkey 0x99";
    assert_eq!(told(&end, &flush, &[]).unwrap()[0].packet().to_string(), line);
    for immediate in [0, 4, 0x201] {
        assert!(told(&end, &Trace { immediate, ..flush }, &[]).is_none());
    }
    let done = told(&end, &trace(Kind::ReadData, 0), &[]).unwrap();
    assert!(done[0].packet().to_string().starts_with("READ-RESPONSE-ONLY qpn 0x11 psn"));
}

#[test]
fn refusals_and_peers_that_are_not_ready() {
    let end = end(Service::Rc);
    let refusal = told(&end, &Trace { code: 2, ..trace(Kind::Refusal, 0) }, &[]).unwrap();
    assert_eq!(refusal[0].packet().aeth().unwrap().syndrome().to_byte(), 0x62);
    assert!(told(&end, &Trace { code: 4, ..trace(Kind::Refusal, 0) }, &[]).is_none());
    let not_ready = Trace { flags: NOT_READY, code: 12, ..trace(Kind::Send, 600) };
    let seen = told(&end, &not_ready, &bytes(600)).unwrap();
    assert_eq!(seen.len(), 4);
    let answer = seen[3].packet();
    assert_eq!(answer.aeth().unwrap().syndrome(), Syndrome::ReceiverNotReady(12));
    assert_eq!(answer.bth().psn(), not_ready.psn, "at its first packet");
}

#[test]
fn a_datagram_and_what_other_services_cannot_do() {
    let (datagrams, key) = (end(Service::Ud), Qkey(0x8000_0001));
    let datagram = Trace { path_mtu: 5, key: Key::Queue(key), ..trace(Kind::Datagram, 100) };
    let seen = told(&datagrams, &datagram, &bytes(100)).unwrap();
    let deth = seen[0].packet().deth().unwrap();
    assert_eq!((deth.queue_key(), deth.source()), (key, Qpn(0x11)));
    let long = Trace { first: 4097, ..datagram };
    assert!(told(&datagrams, &long, &bytes(4097)).is_none());
    for kind in [Kind::Send, Kind::Read, Kind::Acknowledge] {
        assert!(told(&datagrams, &trace(kind, 0), &[]).is_none(), "{kind:?} on UD");
    }
    let unreliable = end(Service::Uc);
    assert!(told(&unreliable, &trace(Kind::Send, 3), &bytes(3)).is_some());
    for kind in [Kind::Datagram, Kind::Read, Kind::FetchAdd, Kind::Acknowledge, Kind::ReadData] {
        assert!(told(&unreliable, &trace(kind, 0), &[]).is_none(), "{kind:?} on UC");
    }
    let answered = Trace { flags: ACKNOWLEDGED, ..trace(Kind::Send, 3) };
    assert!(told(&unreliable, &answered, &bytes(3)).is_none());
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) }
}

prop_compose! {
    fn any_trace()(
        kind in prop::sample::select(vec![
            Kind::Send, Kind::Write, Kind::Read, Kind::CompareSwap, Kind::FetchAdd, Kind::Datagram,
            Kind::Acknowledge, Kind::ReadData, Kind::AtomicResult, Kind::Refusal,
            Kind::AtomicWrite, Kind::Flush,
        ]),
        flags in any::<u32>(),
        (path_mtu, code) in (0..7u8, any::<u8>()),
        (psn, messages) in (any::<u32>(), any::<u32>()),
        keep in prop_oneof![Just(4096u16), 0..300u16, any::<u16>()],
        first in prop_oneof![0..20_000u64, any::<u64>()],
        second in prop_oneof![Just(0u64), Just(PIECE), any::<u64>()],
        (address, key, immediate) in any::<(u64, u32, u32)>(),
    ) -> Trace {
        Trace {
            kind, flags, path_mtu, code, messages, keep, first, second, address, immediate,
            key: match kind {
                Kind::Datagram => Key::Queue(Qkey(key)),
                _ => Key::Remote(Rkey(key)),
            },
            psn: Psn::new(psn), qpn: Qpn(0x11), peer_qpn: Qpn(0x22), time: 0,
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever a process tells: packets between its own queue pair and that one's peer, sound as
    /// far as they are known, and not many.
    #[test]
    fn any_record(
        trace in any_trace(),
        length in prop_oneof![Just(None), (0..20_000usize).prop_map(Some)],
        service in prop::sample::select(vec![Service::Rc, Service::Uc, Service::Ud]),
    ) {
        let end = end(service);
        // The right length, or another.
        let mtu = trace.mtu_bytes().unwrap_or(1024);
        let left = trace.first.saturating_sub(trace.second).min(PIECE);
        let keep = u64::from(trace.keep);
        let right = left / mtu * keep.min(mtu) + (left % mtu).min(keep);
        let right = if trace.kind.has_payload() { right as usize } else { 0 };
        let Some(seen) = told(&end, &trace, &bytes(length.unwrap_or(right))) else { return Ok(()) };
        prop_assert!(!seen.is_empty() && seen.len() <= PIECE as usize / 256 + 2);
        for seen in seen {
            let packet = seen.packet();
            let back = packet.opcode().operation.is_response();
            let flow = &seen.flow;
            let (from, to) = if back { (end.remote, end.local) } else { (end.local, end.remote) };
            prop_assert_eq!((flow.source, flow.destination), (from, to));
            prop_assert_eq!(packet.bth().destination(), if back { Qpn(0x11) } else { Qpn(0x22) });
            prop_assert_eq!(flow.check(&seen.bytes, None), IcrcVerdict::Exact);
            prop_assert!(seen.known <= seen.bytes.len());
        }
    }
}
