//! Goes on with a queue pair in a state that a hostile process has written, for fuzzing.

use super::end;
use crate::Allowance;
use crate::handover::{Handover, ReceivingState, STATE_BYTES_MAX, SendingState, ticket};
use crate::pages::mapped_pages::NoPages;
use crate::pages::write_execution::WriteRoute;
use crate::peer_features;
use crate::queue_pair::connected_qp::Connected;
use crate::queue_pair::connection_parameters::Trains;
use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
use omniverb_link::qp_attributes_for_engine::{ReceiveAttributes, SendAttributes};
use omniverb_link::record::{FIRST, LAST};
use omniverb_link::{Endpoint, EndpointPositions, Request, Response};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_terms::{Psn, Qpn, Rkey, Service};
use omniverb_transport::Ecn;
use omniverb_transport::snapshot::{
    IncomingMessage, OpenMessage, RememberedAnswer, RememberedSnapshot, RequesterSnapshot,
    ResponderSnapshot, SentExtent, UnansweredPart,
};
use omniverb_wire::{DATAGRAM_MAX, Packet};

const STEPS_MAX: usize = 256;
const PSN: u32 = 0xff_fff8;

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

/// Two bytes of length and a state; then what application and network do with the queue pair that
/// goes on so. Panics, endless loops and memory without a bound are what is looked for.
pub fn handover(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (state, rest) = rest.split_at(length);
    let Ok(handover) = Handover::from_bytes(state) else { return };
    assert_eq!(handover.to_bytes().as_deref(), Some(state), "one state, one form");
    let mut bytes = Bytes(rest);
    let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
    let (Some(mut application), Some(far)) = (end(&memory, 0), end(&memory, 1)) else { return };
    prepare(&mut application, &handover, &mut bytes);
    let features = if bytes.byte() % 4 == 0 { 0 } else { peer_features::ALL };
    let trains = Trains::AcknowledgementFirst;
    let (qpns, allowance) = ((Qpn(6), Qpn(7)), Allowance::default());
    let mut connected: Connected<NoPages> =
        Connected::new(far, Service::Rc, qpns, features, REQUEST_BYTES_MIN, allowance, trains);
    if connected.restore(&handover).is_err() {
        return connected.close();
    }
    let mut datagram = vec![0; DATAGRAM_MAX];
    let mut now = 1;
    for _ in 0..STEPS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        step(&mut bytes, &mut application, &memory, &mut connected, now);
        connected.serve(now);
        for _ in 0..64 {
            if connected.transmit(now, &mut datagram).is_none() {
                break;
            }
        }
        connected.after();
        now += u64::from(bytes.byte()) * 100_000;
        if connected.next_timeout().is_some_and(|at| at <= now) {
            connected.timeout(now);
        }
    }
    // Whatever it is in now can be said again, unless something is missing.
    if let Some(again) = connected.export(now).and_then(|handover| handover.to_bytes()) {
        assert!(Handover::from_bytes(&again).is_ok());
    }
}

/// An application that is where the state says, and has asked for something.
fn prepare(application: &mut Endpoint, handover: &Handover, bytes: &mut Bytes<'_>) {
    application.publish_receiving(&ReceiveAttributes {
        rq_psn: Psn::new(PSN),
        path_mtu: bytes.byte() % 5 + 1,
        min_rnr_timer: 1,
        max_dest_rd_atomic: bytes.byte() % 8,
    });
    application.publish_sending(&SendAttributes {
        sq_psn: Psn::new(PSN),
        timeout: 10,
        retry_count: 3,
        rnr_retry: 3,
        max_rd_atomic: bytes.byte() % 8,
    });
    let EndpointPositions { requests_out, requests_in, responses_out, responses_in, .. } =
        handover.positions;
    // What the far end sends is what this one takes.
    let mirrored = EndpointPositions {
        requests_out: requests_in,
        requests_in: requests_out,
        responses_out: responses_in,
        responses_in: responses_out,
        receives_used: 0,
    };
    if !application.resume_at(&mirrored) {
        return;
    }
    application.publish_credits(u32::from(bytes.byte()), 1 << 12);
    application.open(0);
    for _ in 0..bytes.byte() % 8 {
        ask(application, bytes);
    }
}

fn ask(application: &mut Endpoint, bytes: &mut Bytes<'_>) {
    let kind = bytes.byte();
    let length = [0, 8, 256, 512, 700][usize::from(kind / 16 % 5)];
    let flags = if kind & 4 == 0 { LAST } else { LAST | FIRST };
    let (address, rkey, total) = (64, Rkey(5), length as u64);
    let (request, length) = match kind % 4 {
        0 => (Request::Send { flags: flags | FIRST, immediate: 0 }, length),
        1 => (Request::WriteFirst { flags, address, rkey, immediate: 0, total }, length),
        2 => (Request::Read { address, rkey, length: total }, 0),
        _ => (Request::FetchAdd { address, rkey, add: 1 }, 0),
    };
    let _ = UserMemory::lend(&vec![7; length], |part| {
        application.send_request(&request, length, [&part])
    });
}

fn step(
    bytes: &mut Bytes<'_>,
    application: &mut Endpoint,
    memory: &Window,
    connected: &mut Connected<NoPages>,
    now: u64,
) {
    match bytes.byte() % 8 {
        0 => ask(application, bytes),
        1 => {
            if let Ok(Some((_, record))) = application.next_request() {
                application.pass_request(&record);
                application.publish_requests();
            }
        }
        2 => {
            if let Ok(Some((_, record))) = application.next_response() {
                application.pass_response(&record);
            }
        }
        3 => {
            let response = match bytes.byte() % 3 {
                0 => Response::AtomicResult { original: 9 },
                1 => Response::ReadData { last: true },
                _ => Response::Gone,
            };
            let _ = application.send_response(&response, UserMemory::EMPTY);
        }
        4 => {
            // A word of the application's side.
            let at = usize::from(bytes.byte()) * 8 % 0x188;
            memory.store(at, bytes.number(), Ordering::Relaxed);
        }
        5 => connected.rest(),
        _ => {
            let mut packet = [0; 64];
            packet.iter_mut().for_each(|byte| *byte = bytes.byte());
            packet[1] &= 0xf0;
            packet[2..4].fill(0xff);
            packet[5..8].copy_from_slice(&[0, 0, 6]);
            let psn = PSN.wrapping_add(u32::from(packet[11] % 32)).to_be_bytes();
            packet[9..12].copy_from_slice(&psn[1..]);
            if let Ok(packet) = Packet::parse(&packet) {
                connected.packet(now, &packet, Ecn::Unmarked);
            }
        }
    }
}

/// An input that gets past the first checks, from random numbers below what is asked for.
pub fn plausible_handover(mut below: impl FnMut(u64) -> u64) -> Vec<u8> {
    let mut position = || below(6) * below(9) * 1000 / 8 * 8;
    let requests_out = position() + 2000;
    let positions = EndpointPositions {
        requests_out,
        requests_in: position(),
        responses_out: position(),
        responses_in: position(),
        receives_used: 0,
    };
    let psn = |ahead: u64| Psn::new(PSN.wrapping_add(ahead as u32));
    let count = below(4) as usize;
    let parts = 0..count as u64;
    let message = match below(3) {
        0 => None,
        1 => Some(IncomingMessage::Send { offset: 256 << below(5) }),
        _ => Some(IncomingMessage::Write { address: 64, key: Rkey(5), total: 9000, offset: 4096 }),
    };
    let receiving = ReceivingState {
        responder: ResponderSnapshot {
            expected: psn(below(20)),
            messages: below(5) as u32,
            message,
            has_named: below(2) == 0,
            unanswered: parts
                .clone()
                .map(|index| UnansweredPart {
                    ticket: ticket(index as usize),
                    is_done: below(3) == 0,
                    is_ack_requested: below(2) == 0,
                    is_end_of_message: below(2) == 0,
                })
                .collect(),
            remembered: (0..below(4))
                .rev()
                .map(|index| RememberedSnapshot {
                    back: (count as u64 + 10 * (index + 1)) as u32,
                    answer: match below(3) {
                        0 => RememberedAnswer::Read { address: 64, key: Rkey(5), length: 600 },
                        1 => RememberedAnswer::Found(below(99)),
                        _ => RememberedAnswer::Done,
                    },
                })
                .collect(),
        },
        delivered: if below(2) == 0 { 0 } else { 8 * below(100) },
        ends: parts.map(|index| Some(requests_out - 64 * (count as u64 - index))).collect(),
        route: [WriteRoute::Records, WriteRoute::Here, WriteRoute::Rest][below(3) as usize],
        has_notice_due: below(8) == 0,
    };
    let (open, write) = match below(4) {
        0 => (Some(OpenMessage::Send { bytes: 4096 }), None),
        1 => (Some(OpenMessage::Write { left: 700 }), Some((64, Rkey(5), 4796))),
        _ => (None, None),
    };
    let sent = below(4) as u32;
    let requester = RequesterSnapshot {
        first: psn(below(20)),
        acknowledged: sent.min(below(2) as u32),
        sent,
        open,
        extents: (0..below(3)).map(|first| SentExtent { first: first as u32, count: 1 }).collect(),
    };
    let (stage, sending) = (below(8), SendingState { requester, write });
    let handover = Handover {
        positions,
        receiving: (stage > 0).then_some(receiving),
        sending: (stage > 1).then_some(sending),
    };
    let mut state = handover.to_bytes().unwrap_or_default();
    assert!(state.len() <= STATE_BYTES_MAX);
    for _ in 0..below(3) {
        let at = below(state.len() as u64) as usize;
        state[at] = below(256) as u8;
    }
    let mut input = (state.len() as u16).to_le_bytes().to_vec();
    input.extend(state);
    let length = below(1500);
    input.extend((0..length).map(|_| below(256) as u8));
    input
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::HandoverError;
    use omniverb_transport::splitmix64::Random;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn arbitrary_states_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            handover(&bytes);
        }

        #[test]
        fn likely_states_do_no_harm(seed in any::<u64>()) {
            let mut random = Random::new(seed);
            handover(&plausible_handover(|end| random.below(end)));
        }
    }

    /// Most inputs are to get further than the first check, or they say nothing.
    #[test]
    fn likely_states_are_often_gone_on_with() {
        let mut random = Random::new(1);
        let (mut read, mut restored, mut refused) = (0, 0, [0; 4]);
        for _ in 0..2000 {
            let input = plausible_handover(|end| random.below(end));
            let length = usize::from(u16::from_le_bytes([input[0], input[1]]));
            let Ok(handover) = Handover::from_bytes(&input[2..2 + length]) else { continue };
            read += 1;
            let memory = Window::private(link_bytes(REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN));
            let (mut application, far) = (end(&memory, 0).unwrap(), end(&memory, 1).unwrap());
            prepare(&mut application, &handover, &mut Bytes(&input[2 + length..]));
            let mut connected: Connected<NoPages> = Connected::new(
                far,
                Service::Rc,
                (Qpn(6), Qpn(7)),
                peer_features::ALL,
                REQUEST_BYTES_MIN,
                Allowance::default(),
                Trains::AcknowledgementFirst,
            );
            match connected.restore(&handover) {
                Ok(()) => restored += 1,
                Err(HandoverError::Positions) => refused[0] += 1,
                Err(HandoverError::Connection) => refused[1] += 1,
                Err(HandoverError::Requests) => refused[2] += 1,
                Err(_) => refused[3] += 1,
            }
        }
        assert!(read > 1000 && restored > 100, "{read} read, {restored} restored, {refused:?}");
        assert!(refused[..3].iter().all(|count| *count > 10), "{refused:?}");
    }
}
