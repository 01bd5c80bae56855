//! Fuzzes what the peer of an rsocket sends, stream or datagram.

// Parts of a library that has the C functions of another.
#[allow(dead_code)]
#[path = "../../app/rdmacm/src/rsocket/datagram/wire_format.rs"]
mod datagram;
#[allow(dead_code)]
#[path = "../../app/rdmacm/src/rsocket/flow_control.rs"]
mod flow;
#[allow(dead_code)]
#[path = "../../app/rdmacm/src/rsocket/wire_format.rs"]
mod wire_format;

use datagram::{DatagramPurpose, KernelDatagramHeader, ROUTE_BYTES};
use flow::{PieceLength, ReadMode, Receiver, Sender};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire_format::{
    BYTE_ORDER, ByteOrder, HELLO_BYTES, Hello, MAP_BYTES, Message, PLACES, RemoteBuffer, RemoteMap,
};

/// Bytes of each buffer.
const BUFFER: u32 = 8192;
const QUEUE: u16 = 64;

/// The first byte says which of the two it is.
pub fn rsocket_peer(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => datagrams(rest),
        Some((_, rest)) => stream(rest),
        None => {}
    }
}

/// A datagram: from a queue pair, behind its route header, and through the kernel.
fn datagrams(bytes: &[u8]) {
    if let Some((from, length)) = datagram::named(bytes) {
        assert!(length <= bytes.len());
        let again = datagram::name(from);
        assert_eq!(again.bytes(), &bytes[..length]);
        if let Some(route) = bytes.get(length..).and_then(<[u8]>::first_chunk::<ROUTE_BYTES>) {
            let _ = datagram::may_be(from.ip(), datagram::sender(route));
        }
    }
    for from in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        if let Some((knock, length)) = KernelDatagramHeader::decode(bytes, from) {
            assert!(length <= bytes.len() && knock.qpn < 1 << 24);
        }
    }
}

/// A connection: private data, and then messages, entries of our lists, and calls of the program.
fn stream(bytes: &[u8]) {
    let Some(hello) = Hello::decode(bytes) else { return };
    let mut sender = Sender::new(BUFFER, u32::from(QUEUE), 64, hello.buffer, hello.credits);
    let mut receiver = Receiver::new(BUFFER, QUEUE);
    let (mut steps, mut under_way) = (PieceLength::new(), Vec::new());
    for step in bytes[HELLO_BYTES..].chunks_exact(5) {
        let [kind, number @ ..] = step else { return };
        let number = u32::from_le_bytes(number.try_into().unwrap_or_default());
        match kind % 6 {
            0 => match Message::decode(number) {
                Message::Data(bytes) => {
                    if receiver.data(bytes).is_err() {
                        return;
                    }
                }
                Message::Credits(until) => sender.allow(until),
                Message::Mapped(_) => receiver.message(),
                _ => {}
            },
            1 if sender.targets() < PLACES => {
                let address = u64::from(number) << (kind >> 3);
                sender.add_target(RemoteBuffer { address, key: number, length: number });
            }
            2 => {
                let reading = if kind & 0x80 == 0 { ReadMode::Take } else { ReadMode::Peek };
                for range in receiver.read(number as usize, reading) {
                    assert!(range.start <= range.end && range.end <= BUFFER as usize);
                }
            }
            3 => {
                if let Some(grant) = receiver.grant() {
                    assert!(grant.half.is_none_or(|half| half == 0 || half == BUFFER / 2));
                }
            }
            4 => {
                if let Some(piece) = sender.next(number as usize, &mut steps) {
                    let parts: usize = piece.from.iter().map(ExactSizeIterator::len).sum();
                    assert!(piece.is_inline() || parts == piece.bytes as usize);
                    assert!(piece.from.iter().all(|range| range.end <= BUFFER as usize));
                    assert_eq!(piece.to.length, piece.bytes);
                    under_way.push(piece.bytes);
                    assert!(under_way.iter().sum::<u32>() <= BUFFER);
                }
            }
            _ => {
                if let Some(bytes) = under_way.pop() {
                    sender.piece_is_done(bytes);
                }
            }
        }
        assert!(receiver.unread() <= BUFFER);
    }
    if let Some(entry) = bytes.first_chunk::<MAP_BYTES>() {
        let map = RemoteMap::here(entry);
        assert_eq!(map.encode(BYTE_ORDER), *entry);
        let _ = map.find(u64::from(hello.list.key));
    }
}

/// Begins of inputs that are understood.
pub fn beginning(kind: u8) -> Vec<u8> {
    let from = ([10, 0, 0, 1], 7471).into();
    let place = RemoteBuffer { address: 0x1000, key: 7, length: BUFFER / 2 };
    match kind % 4 {
        0 => [&[0], datagram::name(from).bytes()].concat(),
        1 => {
            let purpose =
                if kind & 4 == 0 { DatagramPurpose::Data } else { DatagramPurpose::Answer };
            let knock = KernelDatagramHeader { purpose, qpn: 17 };
            [&[0], knock.encode(from.ip()).bytes()].concat()
        }
        _ => {
            let list = RemoteBuffer { length: PLACES as u32, ..place };
            let (credits, maps) = (u16::from(kind), u16::from(kind >> 3));
            let byte_order = ByteOrder::Little;
            let hello = Hello { byte_order, credits, maps, list, buffer: place };
            [&[1][..], &hello.encode()].concat()
        }
    }
}
