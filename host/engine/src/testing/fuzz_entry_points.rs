//! Drives a queue pair of the engine, its application and its network with arbitrary bytes, for
//! fuzzing.

use crate::pages::grant::Grant;
use crate::pages::link_grants::Connected;
use crate::pages::link_grants::insert;
use crate::pages::mapped_memory_budget::Mappings;
use crate::pages::shared_extent_mappings::Hold;
use omniverb_datapath::Allowance;
use omniverb_datapath::queue_pair::connection_parameters::Trains;
use omniverb_datapath::testing::end;
use omniverb_link::layout::{self, REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN};
use omniverb_link::page_grant_pacing::Denial;
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_link::{Endpoint, Request, Response};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_sys::mapping::Access;
use omniverb_sys::{Extent, memfd};
use omniverb_terms::{Placement, Psn, Qkey, Qpn, Refusal, Rkey, Selectivity, Service};
use omniverb_transport::Ecn;
use omniverb_wire::{Bth, DATAGRAM_MAX, Packet, Reth};
use zerocopy::IntoBytes;

/// Both ends are near one PSN, so that packets are neither all old nor all new.
const PSN: Psn = Psn::new(0xff_fff8);
const STEPS_MAX: usize = 512;
const PAGE_BYTES: usize = 4096;

/// Bytes, and zeros when they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }
}

/// Runs what the bytes say. Panics and endless loops are what is looked for.
pub fn link(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let size = layout::link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN);
    let memory = Window::private(size);
    let (Some(mut application), Some(far)) = (end(&memory, 0), end(&memory, 1)) else { return };
    let service = match bytes.byte() % 16 {
        0 | 4 | 8 | 12 => Service::Uc,
        1 | 5 => Service::XrcRecv,
        2 => Service::XrcSend,
        _ => Service::Rc,
    };
    let path_mtu = bytes.byte() % 6;
    let (min_rnr_timer, max_dest_rd_atomic) = (bytes.byte(), bytes.byte());
    application.publish_receiving(&ReceiveAttributes {
        rq_psn: PSN,
        path_mtu,
        min_rnr_timer,
        max_dest_rd_atomic,
    });
    let (retry_count, rnr_retry, max_rd_atomic) = (bytes.byte(), bytes.byte(), bytes.byte());
    application.publish_sending(&SendAttributes {
        sq_psn: PSN,
        timeout: 10,
        retry_count,
        rnr_retry,
        max_rd_atomic,
    });
    application.publish_credits(u32::from(bytes.byte()), 1 << 12);
    application.open(0);
    let features = u32::from(bytes.byte() & 3);
    let mut engine = Connected::new(
        far,
        service,
        (Qpn(6), Qpn(7)),
        features,
        REQUEST_BYTES_MIN,
        Allowance::default(),
        if features == 0 { Trains::OneByOne } else { Trains::AcknowledgementFirst },
    );
    let mut datagram = vec![0; DATAGRAM_MAX];
    let mut now = 1;
    for _ in 0..STEPS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        step(&mut bytes, &mut application, &memory, &mut engine, now);
        while let Some((key, _)) = engine.application.pages().0.take_wanted() {
            match bytes.byte() % 5 {
                2 => {
                    let denied =
                        if bytes.byte() & 1 == 0 { Denial::ForNow } else { Denial::ForGood };
                    engine.application.pages().0.refused(key, denied);
                }
                0 => engine.application.pages().0.not_asked(key),
                1 => {}
                _ => grant(&mut bytes, &mut engine, key),
            }
        }
        engine.serve(now);
        for _ in 0..16 {
            let Some(length) = engine.transmit(now, &mut datagram) else { break };
            assert!(Packet::parse(&datagram[..length]).is_ok(), "what we send can be read");
        }
        engine.after();
        now += 1000;
        if engine.next_timeout().is_some_and(|at| at <= now) || bytes.byte() == 0 {
            now += 10_000_000;
            engine.timeout(now);
        }
    }
}

/// Grants pages, of which some may be holes, perhaps without a request.
fn grant(bytes: &mut Bytes<'_>, engine: &mut Connected, key: Rkey) {
    let count = 1 + usize::from(bytes.byte() % 3);
    // In a file of its own, or in a larger one.
    let (length, offset) = ((count * PAGE_BYTES) as u64, (count % 2 * 4 * PAGE_BYTES) as u64);
    let made = memfd::create("fuzz", length + 2 * offset)
        .and_then(|file| Extent::new(file, offset, length).map(Access::ReadWrite));
    let Ok(pages) = made else { return };
    let holes = bytes.byte();
    for page in (0..count).filter(|page| holes >> page & 1 == 0) {
        pages.store(page * PAGE_BYTES, 1, Ordering::Relaxed);
    }
    let Some(share) = Mappings::default().budget().share(count * PAGE_BYTES) else { return };
    let key = if bytes.byte() == 0 { Rkey(key.0 ^ 1) } else { key };
    let start = u64::from(bytes.byte()) << 12;
    let access = u32::from(bytes.byte() & 15);
    let epoch = u32::from(bytes.byte() >> 6);
    let grant = Grant::new(key, access, start, Hold::alone(pages, share));
    insert(&mut engine.application, grant, epoch);
}

fn step(
    bytes: &mut Bytes<'_>,
    application: &mut Endpoint,
    memory: &Window,
    engine: &mut Connected,
    now: u64,
) {
    match bytes.byte() % 8 {
        // Anything at all in the application's half of the memory.
        0 => {
            let places = [
                layout::side(0) + usize::from(bytes.byte() % 40) * 8,
                layout::request_ring(0, REQUEST_BYTES_MIN) + usize::from(bytes.byte()) * 8,
                layout::response_ring(0, REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN)
                    + usize::from(bytes.byte()) * 8,
            ];
            let place = places[usize::from(bytes.byte() % 3)];
            memory.store(place, bytes.number(), Ordering::Relaxed);
        }
        1 | 2 => ask(bytes, application),
        3 => answer(bytes, application),
        _ => {
            let packet = packet(bytes);
            if let Ok(packet) = Packet::parse(&packet) {
                engine.packet(now, &packet, Ecn::of(bytes.byte()));
            }
        }
    }
}

/// A request of the application, nearly right.
fn ask(bytes: &mut Bytes<'_>, application: &mut Endpoint) {
    let flags = u32::from(bytes.byte() & 0x3f) << 8;
    let (address, rkey, length) = (bytes.number() & 0xffff, Rkey(5), u64::from(bytes.byte()) * 64);
    let immediate = 9;
    let request = match bytes.byte() % 11 {
        0 => Request::Send { flags, immediate },
        1 => Request::WriteFirst { flags, address, rkey, immediate, total: length },
        2 => Request::WriteMore { flags, immediate },
        3 => Request::Read { address, rkey, length },
        4 => Request::CompareSwap { address, rkey, compare: 1, swap: 2 },
        5 => Request::FetchAdd { address, rkey, add: 1 },
        6 => Request::AtomicWrite { address, rkey, value: [7; 8] },
        7 => {
            let (placement, selectivity) = (Placement::GLOBAL, Selectivity::Range);
            Request::Flush { address, rkey, length, placement, selectivity }
        }
        8 => Request::ForSrq { number: immediate },
        9 => Request::ReadAgain { address, rkey, length },
        _ => Request::Datagram { flags, immediate, qkey: Qkey(1) },
    };
    let data = vec![0x5a; if bytes.byte() & 1 == 0 { length as usize & 0xfff } else { 0 }];
    let _ = UserMemory::lend(&data, |part| application.send_request(&request, data.len(), [&part]));
}

/// The application's answers to requests of the peer.
fn answer(bytes: &mut Bytes<'_>, application: &mut Endpoint) {
    if let Ok(Some((request, record))) = application.next_request() {
        let response = match (request, bytes.byte() % 8) {
            (_, 0) => None,
            (Request::Read { .. } | Request::ReadAgain { .. }, 1) => Some(Response::Gone),
            (Request::Read { length, .. } | Request::ReadAgain { length, .. }, 2..=6) => {
                let data = vec![1; length.min(512) as usize];
                let response = Response::ReadData { last: length <= 512 };
                let _ = UserMemory::lend(&data, |part| application.send_response(&response, part));
                None
            }
            (
                Request::CompareSwap { .. }
                | Request::FetchAdd { .. }
                | Request::AtomicWrite { .. }
                | Request::Flush { .. },
                1..=6,
            ) => Some(Response::AtomicResult { original: 3 }),
            (_, 1..=6) => None,
            _ => Some(Response::Nak { code: omniverb_link::Nak::Refused(Refusal::RemoteAccess) }),
        };
        if let Some(response) = response {
            let _ = application.send_response(&response, UserMemory::EMPTY);
        }
        application.pass_request(&record);
        application.publish_requests();
    }
}

/// A packet of the peer: any opcode, but often one of WRITE or READ that names memory near the
/// pages granted; a PSN near the expected one.
fn packet(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let (what, code) = (bytes.byte(), bytes.byte());
    let names_memory = what & 3 != 0;
    // From "RDMA WRITE first" to "RDMA READ request".
    let class = match what & 0x60 {
        0x60 => 0xa0,
        other => other & 0x20,
    };
    let opcode = if names_memory { (6 + code % 7) | class } else { code };
    let psn = PSN.plus(u32::from(bytes.byte() % 24));
    let header = Bth::new(opcode, Qpn(7), psn).ack_requested(bytes.byte() & 1 != 0);
    let mut packet = header.as_bytes().to_vec();
    if names_memory && class == 0xa0 {
        packet.extend([0, 0, 0, code >> 5]);
    }
    if names_memory && !matches!(opcode & 0x1f, 7..=9) {
        let address = u64::from(bytes.byte()) << 8 | u64::from(bytes.byte());
        let length = u32::from(bytes.byte()) * 16;
        packet.extend(Reth::new(address, Rkey(5 + u32::from(what >> 7)), length).as_bytes());
    }
    let length = usize::from(bytes.byte() % 12) * 4 + usize::from(bytes.byte() % 5) * 256;
    packet.extend((0..length).map(|_| bytes.byte()));
    packet.extend([0; 4]);
    packet
}

/// The ring of a process that tells what it likes, and the packets that this stands for.
pub fn trace(bytes: &[u8]) {
    use crate::capture_recorder::packets_of_traces::{TracedEnd, rebuild};
    use omniverb_link::TraceReader;
    use omniverb_link::captured_operations_ring::{PIECE, TRACE_BYTES};
    const PAGE: usize = 4096;
    let memory = Window::private(TRACE_BYTES);
    UserMemory::lend(bytes, |bytes| memory.fill(PAGE, bytes.first(TRACE_BYTES - PAGE)));
    let Some(mut reader) = TraceReader::new(&memory) else { return };
    let addresses = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse());
    let [Ok(local), Ok(remote)] = addresses else { return };
    while let Ok(Some((trace, payload))) = reader.take() {
        for service in [Service::Rc, Service::Uc, Service::Ud] {
            let end = TracedEnd { qpn: Qpn(0x11), peer_qpn: Qpn(0x22), service, local, remote };
            let mut count = 0;
            rebuild(&end, &trace, payload, |told| {
                count += 1;
                let packet = Packet::parse(told.datagram);
                assert!(packet.is_ok() && told.known <= told.datagram.len());
            });
            assert!(count <= PIECE / 256 + 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use omniverb_transport::splitmix64::Random;

    #[test]
    fn arbitrary_application_and_network_input() {
        let mut random = Random::new(7);
        for _ in 0..3000 {
            let length = random.between(1, 4000);
            let bytes: Vec<u8> = (0..length).map(|_| random.between(0, 255) as u8).collect();
            super::link(&bytes);
        }
    }
}
