//! A queue pair whose link leads to the engine, and that far end in a test's hands.

use crate::fake_engine::{self, PACKET, packet, take};
use crate::two_device_fixture::{Options, Pair, to_init, to_rts};
use omniverb_device::{GlobalRoute, Qp};
use omniverb_link::{Endpoint, Request, layout};
use omniverb_terms::{Qpn, Service};
use std::sync::Arc;

pub const RINGS: (usize, usize) = (layout::REQUEST_BYTES, layout::RESPONSE_BYTES);
/// The daemon gives datagram links these.
pub const SMALL: (usize, usize) = (64 << 10, 4 << 10);
pub const PEER: Qpn = Qpn(4711);

pub fn options(service: Service) -> Options {
    Options::new(service).with(|o| {
        (o.send_max, o.recv_max) = (4096, 4096);
        let a = &mut o.attributes;
        (a.rq_psn, a.sq_psn) = (0xab_cdef, 0x12_3456);
        (a.path_mtu, a.timeout, a.retry_cnt, a.rnr_retry) = (3, 11, 5, 6);
        (a.max_rd_atomic, a.max_dest_rd_atomic) = (4, 9);
        a.route = GlobalRoute { traffic_class: 0x68, hop_limit: 17, flow_label: 0xf_1234 };
    })
}

/// A QP in RTS with such a link, and the far end.
pub fn ready(pair: &Pair, options: &Options) -> (Arc<Qp>, Endpoint) {
    let qp = pair.sides[0].qp(options);
    to_init(&qp, options);
    to_rts(&qp, options);
    let rings = if options.service == Service::Ud { SMALL } else { RINGS };
    let far = fake_engine::open(pair, 0, &qp, PEER, rings);
    pair.settle();
    (qp, far)
}

/// Everything that is in the ring, consumed.
pub fn drain(far: &mut Endpoint) -> Vec<(Request, Vec<u8>)> {
    let all = std::iter::from_fn(|| take(far)).collect();
    far.publish_requests();
    all
}

/// Delivers a message in packets, as far as there is room.
pub fn deliver(far: &mut Endpoint, request: &Request, bytes: &[u8]) {
    let mut offset = 0;
    loop {
        let piece = &bytes[offset..bytes.len().min(offset + PACKET)];
        let last = offset + piece.len() == bytes.len();
        assert!(fake_engine::request(far, &packet(request, offset, last), piece), "no room");
        offset += piece.len();
        if last {
            return;
        }
    }
}
