//! Writes a capture file with a packet of every opcode, over IPv4 and IPv6, with and without
//! padding: `every_packet FILE`. The tests show it to a packet analyser.

use omniverb_terms::{Placement, Psn, Qkey, Qpn, Refusal, Rkey, Selectivity, Service};
use omniverb_wire::pcap::{Capture, Envelope};
use omniverb_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Builder, DATAGRAM_MAX, Deth, Feth, IcrcFlow,
    Identification, Ieth, ImmDt, Opcode, Operation, Reth, Syndrome, XrcEth, write_notification,
};
use std::fs::File;
use std::io::{self, BufWriter};
use std::net::IpAddr;

const SYNDROMES: [Syndrome; 4] = [
    Syndrome::Ack(0x1f),
    Syndrome::ReceiverNotReady(12),
    Syndrome::SequenceError,
    Syndrome::Refused(Refusal::RemoteAccess),
];

fn main() -> io::Result<()> {
    let name = std::env::args_os().nth(1).ok_or(io::ErrorKind::InvalidInput)?;
    let mut capture = Capture::new(BufWriter::new(File::create(name)?))?;
    let mut time = 1_000_000_000;
    for (source, destination) in [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")] {
        let address = |text: &str| text.parse::<IpAddr>().map_err(io::Error::other);
        let flow = IcrcFlow {
            source: address(source)?,
            destination: address(destination)?,
            source_port: 0xc3c0,
        };
        let envelope = Envelope {
            flow,
            identification: Identification::ZERO,
            traffic_class: 2,
            hop_limit: 64,
        };
        for opcode in (0..=255).filter_map(Opcode::from_byte) {
            for payload in [0, 1, 2, 3, 1024] {
                if payload > 0 && !opcode.has_payload() {
                    continue;
                }
                for syndrome in SYNDROMES {
                    if syndrome != SYNDROMES[0] && opcode.operation != Operation::Acknowledge {
                        continue;
                    }
                    let mut datagram = [0; DATAGRAM_MAX];
                    let length = build(&mut datagram, opcode, payload, syndrome);
                    flow.seal(&mut datagram[..length], 0);
                    capture.add(time, &envelope, &datagram[..length])?;
                    time += 1_000_000;
                }
            }
        }
    }
    capture.finish()?.into_inner()?.sync_all()
}

fn build(datagram: &mut [u8], opcode: Opcode, payload: usize, syndrome: Syndrome) -> usize {
    if opcode.is_notification() {
        return write_notification(datagram, Qpn(0x118)).unwrap_or(0);
    }
    let bth = Bth::new(opcode.to_byte(), Qpn(0x15), Psn::new(0xff_fff0)).ack_requested(true);
    let Some(builder) = Builder::new(datagram, opcode, bth, payload) else { return 0 };
    let original = opcode.operation == Operation::AtomicAcknowledge;
    let mut builder = builder
        .maybe((opcode.is_of(Service::Ud)).then(|| Deth::new(Qkey(0x11), Qpn(0x17))))
        .maybe(opcode.has_srq().then(|| XrcEth::new(5)))
        .maybe(opcode.has_flush().then(|| Feth::new(Placement::GLOBAL, Selectivity::Range)))
        .maybe(opcode.has_reth().then(|| Reth::new(0x1000, Rkey(0x77), payload as u32)))
        .maybe(opcode.has_atomic().then(|| AtomicEth::new(0x1000, Rkey(0x77), 7, 9)))
        .maybe(opcode.has_aeth().then(|| Aeth::new(syndrome, 5)))
        .maybe(original.then(|| AtomicAckEth::new(7)))
        .maybe(opcode.has_immediate().then_some(ImmDt([0xde, 0xad, 0xbe, 0xef])))
        .maybe(opcode.has_invalidate().then(|| Ieth::new(Rkey(0x99))));
    builder.payload().fill(0x5a);
    builder.finish()
}
