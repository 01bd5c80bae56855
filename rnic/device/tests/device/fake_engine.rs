//! Plays the engine at the far end of a link, and joins two such ends to a relay, as plainly as it
//! can be done. It looks at one record at a time, passes it on in packets, and consumes it when the
//! other side has.

use crate::two_device_fixture::{Pair, gid};
use omniverb_device::FarEnd;
use omniverb_device::{Peer, Qp};
use omniverb_link::Credit;
use omniverb_link::record::{FIRST, LAST};
use omniverb_link::{Endpoint, EndpointParts, Request, Response};
use omniverb_ring::{Record, UserMemory};
use omniverb_terms::{Qpn, Service};
use std::sync::Arc;

/// Payload of a packet.
pub const PACKET: usize = 1024;

/// A new link to the engine for `qp`, a QP of this side: the far end of it. Its own words are not
/// set.
pub fn attach(
    pair: &Pair,
    side: usize,
    qp: &Arc<Qp>,
    peer_qpn: Qpn,
    rings: (usize, usize),
) -> Endpoint {
    let joint = pair.joint(rings);
    let end = |end: usize| {
        Endpoint::new(EndpointParts {
            memory: joint.memory.clone(),
            side: end,
            request_bytes: rings.0,
            response_bytes: rings.1,
            doorbell: match end {
                0 => pair.engine.clone(),
                _ => pair.sides[side].ringer.clone(),
            },
            peer_slot: joint.slot,
        })
        .unwrap()
    };
    let peer =
        Peer { qpn: peer_qpn, dgid: gid(1 - side), sgid: gid(side), far_end: FarEnd::Engine };
    let index = qp.attach(peer, end(0)).unwrap();
    pair.sides[side].bell.bind(joint.slot, qp, index);
    end(1)
}

/// As [`attach`], and ready.
pub fn open(
    pair: &Pair,
    side: usize,
    qp: &Arc<Qp>,
    peer_qpn: Qpn,
    rings: (usize, usize),
) -> Endpoint {
    let mut far = attach(pair, side, qp, peer_qpn, rings);
    far.publish_no_credits();
    far.open(0);
    far
}

/// Payload of a request.
pub fn request_bytes(far: &Endpoint, record: &Record) -> Vec<u8> {
    let mut bytes = vec![0; record.length];
    UserMemory::lend_mut(&mut bytes, |target| far.request_payload(record, 0, target));
    bytes
}

/// Payload of a response.
pub fn response_bytes(far: &Endpoint, record: &Record) -> Vec<u8> {
    let mut bytes = vec![0; record.length];
    UserMemory::lend_mut(&mut bytes, |target| far.response_payload(record, 0, target));
    bytes
}

/// Sends a request that is one packet. False: no room.
pub fn request(far: &mut Endpoint, request: &Request, bytes: &[u8]) -> bool {
    UserMemory::lend(bytes, |bytes| far.send_request(request, bytes.len(), [&bytes])).unwrap()
}

/// Sends a response that is one packet. False: no room.
pub fn respond(far: &mut Endpoint, response: &Response, bytes: &[u8]) -> bool {
    UserMemory::lend(bytes, |bytes| far.send_response(response, bytes)).unwrap()
}

/// Takes the request at the head; the application does not learn of it yet.
pub fn take(far: &mut Endpoint) -> Option<(Request, Vec<u8>)> {
    let (request, record) = far.next_request().unwrap()?;
    let bytes = request_bytes(far, &record);
    far.pass_request(&record);
    Some((request, bytes))
}

/// The part of a record's request that goes into its packet at `offset`.
pub fn packet(request: &Request, offset: usize, last: bool) -> Request {
    let keep = |flags: u32| {
        let flags = if offset > 0 { flags & !FIRST } else { flags };
        if last { flags } else { flags & FIRST }
    };
    match *request {
        Request::Send { flags, immediate } => Request::Send { flags: keep(flags), immediate },
        Request::WriteFirst { flags, immediate, .. } if offset > 0 => {
            Request::WriteMore { flags: keep(flags), immediate }
        }
        Request::WriteFirst { flags, address, rkey, immediate, total } => {
            Request::WriteFirst { flags: keep(flags), address, rkey, immediate, total }
        }
        Request::WriteMore { flags, immediate } => {
            Request::WriteMore { flags: keep(flags), immediate }
        }
        other => other,
    }
}

/// Whether the packet takes a receive, and tells so at its beginning or its end.
fn takes_receive(request: &Request) -> bool {
    match *request {
        Request::Send { flags, .. } => flags & FIRST != 0,
        Request::WriteFirst { flags, .. } | Request::WriteMore { flags, .. } => {
            flags & omniverb_link::record::IMMEDIATE != 0
        }
        _ => false,
    }
}

/// How far the record at the head of one direction has come.
#[derive(Default)]
struct RelayProgress {
    /// Bytes of it that were passed on.
    sent: usize,
    /// All of it was, up to this position of the other ring.
    whole: Option<u64>,
    /// Its answer is complete.
    answered: bool,
    /// Bytes of the response at the head that were passed back.
    returned: usize,
}

/// An engine with two links and nothing between them.
pub struct Relay {
    service: Service,
    ends: [Endpoint; 2],
    ways: [RelayProgress; 2],
}

impl Relay {
    /// Gives each of these its link.
    pub fn join(pair: &Pair, qps: &[Arc<Qp>; 2], rings: (usize, usize)) -> Relay {
        let end = |side: usize| open(pair, side, &qps[side], qps[1 - side].number, rings);
        Relay { service: qps[0].service, ends: [end(0), end(1)], ways: Default::default() }
    }

    /// Does something in both directions. False: there was nothing to do.
    pub fn turn(&mut self) -> bool {
        (0..2).fold(false, |moved, side| {
            let moved = self.pass_back(side) | moved;
            self.finish(side) | self.pass_on(side) | moved
        })
    }

    /// Requests of `side` go on to the other.
    fn pass_on(&mut self, side: usize) -> bool {
        let [from, to] = self.ends.get_disjoint_mut([side, 1 - side]).unwrap();
        let way = &mut self.ways[side];
        if way.whole.is_some() {
            return false;
        }
        let Some((request, record)) = from.next_request().unwrap() else { return false };
        if self.service == Service::Rc && !to.peer_is_open() {
            return false;
        }
        let bytes = request_bytes(from, &record);
        let piece = &bytes[way.sent..];
        let most = if matches!(request, Request::Datagram { .. }) { 4096 } else { PACKET };
        let piece = &piece[..piece.len().min(most)];
        let last = way.sent + piece.len() == bytes.len();
        let packet = packet(&request, way.sent, last);
        let credit = to.credit();
        if takes_receive(&packet) && self.service == Service::Rc && credit == Credit::None {
            return false;
        }
        if !crate::fake_engine::request(to, &packet, piece) {
            return false;
        }
        if takes_receive(&packet) && credit != Credit::Unpromised {
            to.use_credit();
        }
        way.sent += piece.len();
        way.whole = last.then(|| to.request_position());
        true
    }

    /// The record at the head is done with when the other side has consumed or answered it.
    fn finish(&mut self, side: usize) -> bool {
        let [from, to] = self.ends.get_disjoint_mut([side, 1 - side]).unwrap();
        let way = &mut self.ways[side];
        let Some(position) = way.whole else { return false };
        let (request, record) = from.next_request().unwrap().unwrap();
        let done = match request {
            _ if self.service != Service::Rc => true,
            Request::Read { .. }
            | Request::CompareSwap { .. }
            | Request::FetchAdd { .. }
            | Request::AtomicWrite { .. }
            | Request::Flush { .. } => way.answered,
            _ => to.request_consumed(position).unwrap(),
        };
        if done {
            from.pass_request(&record);
            from.publish_requests();
            (way.sent, way.whole, way.answered) = (0, None, false);
        }
        done
    }

    /// Answers to `side`'s requests come back.
    fn pass_back(&mut self, side: usize) -> bool {
        let [from, to] = self.ends.get_disjoint_mut([side, 1 - side]).unwrap();
        let way = &mut self.ways[side];
        let Some((response, record)) = to.next_response().unwrap() else { return false };
        let bytes = response_bytes(to, &record);
        let piece = &bytes[way.returned..];
        let piece = &piece[..piece.len().min(PACKET)];
        let ends = way.returned + piece.len() == bytes.len();
        let packet = match response {
            Response::ReadData { last } => Response::ReadData { last: last && ends },
            other => other,
        };
        if !respond(from, &packet, piece) {
            return false;
        }
        way.returned += piece.len();
        if ends {
            way.returned = 0;
            way.answered |= match response {
                Response::ReadData { last } => last,
                _ => true,
            };
            to.pass_response(&record);
        }
        true
    }
}

/// Flags of a whole message in one packet.
pub const WHOLE: u32 = FIRST | LAST;
