//! Tests a repeated READ whose answer stands behind one that is too large to keep.

use super::app_and_qp_of_one_end::{Side, side};
use super::memory_owner::KEY;
use omniverb_link::{Endpoint, Request, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::{Psn, Qpn, Service};
use omniverb_transport::Ecn;
use omniverb_wire::{Bth, Builder, DATAGRAM_MAX, Opcode, Operation, Packet, Reth};
use std::collections::VecDeque;

const PACKET: usize = 256;
/// Bytes of the first READ, and of the later one.
const FIRST: usize = 4 * PACKET;
const LATER: usize = 3 << 20;
/// First PSN, and address of the later READ.
const PSN: u32 = 9;
const LATER_AT: u64 = 1 << 30;

/// The contents of the memory.
fn byte(address: u64) -> u8 {
    (address ^ address >> 8 ^ address >> 16 ^ address >> 30) as u8
}

fn ask(side: &mut Side, psn: u32, address: u64, length: usize) {
    let mut datagram = [0; DATAGRAM_MAX];
    let code = Opcode::new(Service::Rc, Operation::ReadRequest);
    let header = Bth::new(code.to_byte(), Qpn(6), Psn::new(psn)).ack_requested(true);
    let builder = Builder::new(&mut datagram, code, header, 0).unwrap();
    let length = builder.header(Reth::new(address, KEY, length as u32)).finish();
    side.engine.packet(1, &Packet::parse(&datagram[..length]).unwrap(), Ecn::Unmarked);
    side.engine.after();
}

/// The application: where it is in the READs that it has taken, and how many those are.
#[derive(Default)]
struct Reader {
    reads: VecDeque<(u64, u64)>,
    taken: usize,
}

impl Reader {
    /// Answers up to `most` bytes, as far as there is room.
    fn answer(&mut self, application: &mut Endpoint, mut most: usize) {
        while let Some((request, record)) = application.next_request().unwrap() {
            let (Request::Read { address, length, .. }
            | Request::ReadAgain { address, length, .. }) = request
            else {
                panic!("{request:?}")
            };
            application.pass_request(&record);
            self.reads.push_back((address, length));
            self.taken += 1;
        }
        application.publish_requests();
        while let Some((address, left)) = self.reads.front_mut() {
            let count = (*left).min(most as u64).min(700);
            let data: Vec<u8> = (*address..*address + count).map(byte).collect();
            let response = Response::ReadData { last: count == *left };
            let sent = count > 0
                && UserMemory::lend(&data, |data| application.send_response(&response, data))
                    .unwrap();
            if !sent {
                return;
            }
            (*address, *left, most) = (*address + count, *left - count, most - count as usize);
            if *left == 0 {
                self.reads.pop_front();
            }
        }
    }
}

/// Packets that leave now: PSNs and data.
fn sent(side: &mut Side) -> Vec<(u32, Vec<u8>)> {
    let mut datagram = vec![0; DATAGRAM_MAX];
    let mut list = Vec::new();
    side.engine.serve(1);
    while let Some(length) = side.engine.transmit(1, &mut datagram) {
        let packet = Packet::parse(&datagram[..length]).unwrap();
        assert!(matches!(packet.opcode().operation, Operation::ReadResponse { .. }));
        list.push((packet.bth().psn().number(), packet.payload().to_vec()));
    }
    side.engine.after();
    list
}

#[test]
fn a_repeated_read_is_answered_after_later_reads() {
    for answered in [FIRST / 2, FIRST] {
        let (mut side, mut reader) = (side(Service::Rc, 1), Reader::default());
        ask(&mut side, PSN, 0, FIRST);
        ask(&mut side, PSN + (FIRST / PACKET) as u32, LATER_AT, LATER);
        reader.answer(&mut side.application, answered);
        assert_eq!(sent(&mut side).len(), answered / PACKET);
        // It was lost.
        ask(&mut side, PSN, 0, FIRST);
        let (mut expected, mut quiet) = (PSN, 0);
        let end = PSN + ((FIRST + LATER) / PACKET) as u32;
        while expected < end {
            reader.answer(&mut side.application, usize::MAX);
            let packets = sent(&mut side);
            quiet = if packets.is_empty() { quiet + 1 } else { 0 };
            assert!(quiet < 100_000, "{answered}: PSN {expected} is never answered");
            for (psn, data) in packets {
                assert_eq!(psn, expected, "{answered}");
                let at = (psn - PSN) as usize * PACKET;
                let from = if at < FIRST { at as u64 } else { LATER_AT + (at - FIRST) as u64 };
                assert!(data.len() == PACKET && (from..).map(byte).zip(data).all(|(a, b)| a == b));
                expected += 1;
            }
        }
        assert!(reader.reads.is_empty());
        assert_eq!(reader.taken, 4, "the later one was read a second time, and no oftener");
    }
}

/// Packets that leave now, a line each.
fn lines(side: &mut Side) -> Vec<String> {
    let mut datagram = vec![0; DATAGRAM_MAX];
    let mut list = Vec::new();
    side.engine.serve(1);
    while let Some(length) = side.engine.transmit(1, &mut datagram) {
        list.push(Packet::parse(&datagram[..length]).unwrap().to_string());
    }
    side.engine.after();
    list
}

/// A READ comes a second time when its key is gone, as rightly as not: the network may have kept
/// it, or the answer. A requester that lacks the answer is told so, if it is an Omniverb, and
/// nothing ends.
#[test]
fn a_repeated_read_of_a_gone_key_ends_nothing() {
    for features in [1, 0] {
        asked_for_when_gone(features);
    }
}

fn asked_for_when_gone(features: u32) {
    let (mut side, mut reader) = (side(Service::Rc, features), Reader::default());
    ask(&mut side, PSN, 0, FIRST);
    reader.answer(&mut side.application, usize::MAX);
    assert_eq!(sent(&mut side).len(), FIRST / PACKET);
    for turn in 0..3 {
        ask(&mut side, PSN, 0, FIRST);
        assert_eq!(lines(&mut side), [""; 0]);
        let (request, record) = side.application.next_request().unwrap().unwrap();
        assert!(matches!(request, Request::ReadAgain { .. }), "{request:?}");
        // The first packet of it was there, once.
        if turn == 1 {
            let data = Response::ReadData { last: false };
            let part = UserMemory::lend(&[0; PACKET], |part| {
                side.application.send_response(&data, part).unwrap()
            });
            assert!(part);
        }
        assert!(side.application.send_response(&Response::Gone, UserMemory::EMPTY).unwrap());
        side.application.pass_request(&record);
        side.application.publish_requests();
        // A refusal behind data is sent when those have left.
        let mut lines = lines(&mut side);
        lines.extend(self::lines(&mut side));
        let part = usize::from(turn == 1);
        if features == 0 {
            assert_eq!(lines.len(), part);
            continue;
        }
        let refusal = lines.last().expect("a refusal");
        let psn = PSN + part as u32;
        assert!(refusal.contains(&format!("NAK remote access qpn 0x6 psn {psn}")), "{refusal}");
        assert_eq!(lines.len(), 1 + part);
    }
    let end = PSN + (FIRST / PACKET) as u32;
    ask(&mut side, end, LATER_AT, PACKET);
    reader.answer(&mut side.application, usize::MAX);
    assert_eq!(sent(&mut side)[0].0, end);
    assert!(side.engine.take_failure().is_none());
}
