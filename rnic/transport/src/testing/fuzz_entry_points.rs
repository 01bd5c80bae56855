//! Entry points for fuzzers: bytes in, nothing out, never a panic, memory bounded.

use crate::upper_layer::{
    AtomicRequest, Delivery, FetchOutcome, FlushRequest, GatherOutcome, Part, PlaceOutcome,
    ReadRequest, Ticket, UpperLayer,
};
use crate::{
    Config, Connection, DelayNotices, Ecn, GoneReads, Operation, Request, RequestId, Unreliable,
};
use omniverb_terms::{Placement, Qpn, Refusal, Rkey, Selectivity, Service};
use omniverb_wire::{DATAGRAM_MAX, Packet, PacketPosition};

/// A layer above that answers as the input says.
struct FuzzedUpperLayer {
    bytes: Vec<u8>,
    at: usize,
    tickets: u64,
}

impl FuzzedUpperLayer {
    fn next(&mut self) -> u8 {
        self.at += 1;
        self.bytes.get(self.at % self.bytes.len().max(1)).copied().unwrap_or(0)
    }

    fn delivery(&mut self, ticket: Ticket) -> Delivery {
        assert!(ticket.0 > self.tickets, "tickets count up");
        self.tickets = ticket.0;
        match self.next() % 16 {
            0 => Delivery::NotReady,
            1 => Delivery::Full,
            2 => Delivery::Refused(Refusal::RemoteAccess),
            3..=7 => Delivery::Later,
            _ => Delivery::Done,
        }
    }
}

impl UpperLayer for FuzzedUpperLayer {
    fn gather(&mut self, _: RequestId, _: u64, target: &mut [u8]) -> GatherOutcome {
        target.fill(1);
        [GatherOutcome::Filled, GatherOutcome::Later, GatherOutcome::Filled]
            [usize::from(self.next() % 3)]
    }
    fn place(&mut self, _: RequestId, _: u64, _: &[u8]) -> PlaceOutcome {
        [PlaceOutcome::Done, PlaceOutcome::Full, PlaceOutcome::Done][usize::from(self.next() % 3)]
    }
    fn deliver(&mut self, ticket: Ticket, _: &Part<'_>) -> Delivery {
        self.delivery(ticket)
    }
    fn read(&mut self, ticket: Ticket, _: &ReadRequest) -> Delivery {
        self.delivery(ticket)
    }
    fn fetch(&mut self, _: Ticket, _: u64, target: &mut [u8]) -> FetchOutcome {
        target.fill(2);
        [FetchOutcome::Filled, FetchOutcome::Later, FetchOutcome::Filled]
            [usize::from(self.next() % 3)]
    }
    fn release(&mut self, _: Ticket) {}
    fn atomic(&mut self, ticket: Ticket, _: &AtomicRequest) -> Result<u64, Delivery> {
        match self.delivery(ticket) {
            Delivery::Done => Ok(7),
            other => Err(other),
        }
    }
    fn flush(&mut self, ticket: Ticket, _: &FlushRequest) -> Result<u64, Delivery> {
        match self.delivery(ticket) {
            Delivery::Done => Ok(0),
            other => Err(other),
        }
    }
}

/// Requests under way while packets arrive.
fn requests() -> [Request; 7] {
    let send = Operation::Send { immediate: None, invalidate: None, solicited: true };
    let write = Operation::Write {
        address: 64,
        key: Rkey(1),
        total: 600,
        immediate: None,
        solicited: false,
    };
    let read = Operation::Read { address: 64, key: Rkey(1) };
    let add = Operation::FetchAdd { address: 64, key: Rkey(1), add: 1 };
    let (placement, selectivity) = (Placement::GLOBAL, Selectivity::Range);
    let flush = Operation::Flush { address: 64, key: Rkey(1), length: 9, placement, selectivity };
    let eight = Operation::AtomicWrite { address: 64, key: Rkey(1), value: [3; 8] };
    let list =
        [(send, 300), (read, 700), (write, 600), (add, 8), (flush, 0), (eight, 8), (send, 0)];
    let mut id = 0;
    list.map(|(operation, length)| {
        id += 1;
        Request {
            id: RequestId(id),
            operation,
            srq: 0,
            length,
            place: PacketPosition::Only,
            is_fenced: id == 4,
        }
    })
}

/// A conversation of one end with whoever wrote `bytes`: a length byte, so many bytes of a packet
/// whose ICRC is missing, and so on. PSNs are mostly near the right ones.
pub fn connection(bytes: &[u8]) {
    let mut upper = FuzzedUpperLayer { bytes: bytes.to_vec(), at: 0, tickets: 0 };
    // The unreliable end numbers its own tickets.
    let mut other = FuzzedUpperLayer { bytes: bytes.to_vec(), at: 0, tickets: 0 };
    let service = match bytes.len() % 4 {
        1 => Service::XrcRecv,
        2 => Service::XrcSend,
        _ => Service::Rc,
    };
    let config = Config {
        path_mtu: 256,
        unanswered_max: 8,
        service,
        rnr_retry: (bytes.len() % 8) as u8,
        receiver_late: 5_000_000,
        delay_notices: match bytes.len() % 3 {
            0 => DelayNotices::Agreed,
            _ => DelayNotices::Unknown,
        },
        gone_reads: match bytes.len() % 5 {
            0 => GoneReads::Refused,
            _ => GoneReads::Unanswered,
        },
        ..Config::new(Qpn(5))
    };
    let (Ok(mut reliable), Ok(mut unreliable)) =
        (Connection::new(config.clone()), Unreliable::new(config))
    else {
        return;
    };
    for request in requests() {
        let _ = reliable.submit(request);
    }
    let mut datagram = [0; DATAGRAM_MAX];
    let (mut rest, mut now, mut sequence) = (bytes, 0, 0_u32);
    while let Some((&length, tail)) = rest.split_first() {
        let (head, tail) = tail.split_at(usize::from(length).min(tail.len()));
        rest = tail;
        // Whatever the bytes say, most of them shall get past the parser.
        let mut packet = head.to_vec();
        packet.resize(packet.len().max(44) / 4 * 4, 0);
        packet[1] &= 0xf0;
        packet[2..4].fill(0xff);
        packet[5..8].copy_from_slice(&[0, 0, 9]);
        if length % 4 != 0 {
            sequence = sequence.wrapping_add(u32::from(length % 4 == 1));
            packet[9..12].copy_from_slice(&sequence.to_be_bytes()[1..]);
        }
        if let Ok(packet) = Packet::parse(&packet) {
            reliable.handle_packet(
                now,
                &packet,
                Ecn::of(if length % 8 == 0 { 3 } else { 0 }),
                &mut upper,
            );
            unreliable.handle_packet(&packet, &mut other);
        }
        for _ in 0..64 {
            if reliable.poll_transmit(now, &mut datagram, &mut upper).is_none() {
                break;
            }
        }
        now += u64::from(length) * 10_000;
        if reliable.poll_timeout().is_some_and(|time| time <= now) {
            reliable.handle_timeout(now);
        }
        match length % 6 {
            0 => reliable.done_through(Ticket(upper.tickets)),
            1 => reliable.answer(Ticket(upper.tickets), crate::LateAnswer::Original(3)),
            2 => reliable.answer(Ticket(upper.tickets), crate::LateAnswer::NotReady),
            3 => reliable.resume(now),
            4 => reliable.answer(Ticket(upper.tickets), crate::LateAnswer::Gone),
            _ => reliable.receive_came(),
        }
        while reliable.poll_event().is_some() {}
    }
    reliable.close(&mut upper);
    assert!(reliable.poll_transmit(now, &mut datagram, &mut upper).is_none());
}

#[cfg(test)]
mod tests {
    use super::connection;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn arbitrary_packets_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            connection(&bytes);
        }

        #[test]
        fn arbitrary_requests_do_no_harm(
            packets in prop::collection::vec(
                (0_u8..0x18, prop::collection::vec(any::<u8>(), 60)),
                40,
            )
        ) {
            // Length byte, then a packet that begins with a known opcode.
            let bytes: Vec<u8> = packets
                .into_iter()
                .flat_map(|(code, rest)| [vec![61, code], rest].concat())
                .collect();
            connection(&bytes);
        }
    }
}
