//! Measures how fast the transport is by itself: two connections back to back in one thread, ICRC
//! included.
//!
//! `cargo bench -p omniverb_transport` prints, for a few sizes of SEND, nanoseconds per message at
//! both ends together. What the engine adds (sockets, links) comes on top.

use omniverb_terms::Qpn;
use omniverb_transport::{
    AtomicRequest, Config, Connection, Delivery, Ecn, Event, FetchOutcome, FlushRequest,
    GatherOutcome, Operation, Part, PlaceOutcome, ReadRequest, Request, RequestId, Ticket,
    UpperLayer,
};
use omniverb_wire::{DATAGRAM_MAX, IcrcFlow, IcrcVerdict, Packet, PacketPosition};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

struct Memory(Vec<u8>);

impl UpperLayer for Memory {
    fn gather(&mut self, _: RequestId, offset: u64, target: &mut [u8]) -> GatherOutcome {
        let begin = offset as usize;
        target.copy_from_slice(&self.0[begin..begin + target.len()]);
        GatherOutcome::Filled
    }
    fn place(&mut self, _: RequestId, _: u64, _: &[u8]) -> PlaceOutcome {
        PlaceOutcome::Done
    }
    fn deliver(&mut self, _: Ticket, part: &Part<'_>) -> Delivery {
        let begin = part.offset as usize;
        self.0[begin..begin + part.data.len()].copy_from_slice(part.data);
        Delivery::Done
    }
    fn read(&mut self, _: Ticket, _: &ReadRequest) -> Delivery {
        Delivery::Done
    }
    fn fetch(&mut self, _: Ticket, _: u64, target: &mut [u8]) -> FetchOutcome {
        target.fill(1);
        FetchOutcome::Filled
    }
    fn release(&mut self, _: Ticket) {}
    fn flush(&mut self, _: Ticket, _: &FlushRequest) -> Result<u64, Delivery> {
        Ok(0)
    }
    fn atomic(&mut self, _: Ticket, _: &AtomicRequest) -> Result<u64, Delivery> {
        Ok(0)
    }
}

struct End {
    connection: Connection,
    memory: Memory,
}

impl End {
    fn new(path_mtu: usize) -> End {
        let config = Config { path_mtu, delay_target: None, ..Config::new(Qpn(7)) };
        End { connection: Connection::new(config).unwrap(), memory: Memory(vec![3; 1 << 20]) }
    }
}

/// Everything `from` has to send now reaches `to`.
fn carry(now: u64, flow: &IcrcFlow, from: &mut End, to: &mut End, buffer: &mut [u8]) -> u64 {
    let mut packets = 0;
    while let Some(sent) = from.connection.poll_transmit(now, buffer, &mut from.memory) {
        let datagram = &mut buffer[..sent.length];
        flow.seal(datagram, 0);
        assert_eq!(flow.check(datagram, None), IcrcVerdict::Exact);
        let packet = Packet::parse(datagram).unwrap();
        to.connection.handle_packet(now, &packet, Ecn::Unmarked, &mut to.memory);
        packets += 1;
    }
    packets
}

fn measure(length: u64, path_mtu: usize) {
    let [mut here, mut there] = [End::new(path_mtu), End::new(path_mtu)];
    let source = Ipv4Addr::new(10, 0, 0, 1).into();
    let destination = Ipv4Addr::new(10, 0, 0, 2).into();
    let flow = IcrcFlow { source, destination, source_port: 0xc000 };
    let mut buffer = vec![0; DATAGRAM_MAX];
    let operation = Operation::Send { immediate: None, invalidate: None, solicited: false };
    let (place, is_fenced) = (PacketPosition::Only, false);
    let begin = Instant::now();
    let (mut messages, mut packets, mut done, mut now) = (0_u64, 0, 0, 1);
    while begin.elapsed() < Duration::from_millis(300) {
        while messages - done < 32 {
            let id = RequestId(messages);
            here.connection
                .submit(Request { id, operation, srq: 0, length, place, is_fenced })
                .unwrap();
            messages += 1;
        }
        now += 10_000;
        packets += carry(now, &flow, &mut here, &mut there, &mut buffer);
        packets += carry(now + 5000, &flow, &mut there, &mut here, &mut buffer);
        while let Some(event) = here.connection.poll_event() {
            done += u64::from(matches!(black_box(event), Event::Completed { .. }));
        }
    }
    let time = begin.elapsed().as_nanos() as f64;
    let (each, rate) = (time / done as f64, (done * length) as f64 * 8.0 / time);
    println!(
        "{length:7} B, MTU {path_mtu:4}: {each:6.0} ns/message {rate:6.1} Gbit/s {:6.0} ns/packet",
        time / packets as f64
    );
}

fn main() {
    for (length, path_mtu) in [(8, 1024), (1024, 1024), (65536, 1024), (4096, 4096), (65536, 4096)]
    {
        measure(length, path_mtu);
    }
}
