//! Shortens the tests of connections.

use super::{bench, call, hello, qp};
use omniverb_cm::Mad;
use omniverb_session::Message;
use omniverb_session::body::Done;
use omniverb_session::cm::*;
use omniverb_tenancy::testing::random_driver::{Bench, ip, vnic};
use omniverb_tenancy::{Action, Recipient, UnderlayRoute};
use omniverb_terms::{Qpn, Service};
use std::net::SocketAddr;

pub const TCP: u32 = 0x106;
pub const UDP: u32 = 0x111;
pub const RC: u32 = 2;
pub const UD: u32 = 4;
pub const PORT: u16 = 7471;
pub const VENDOR: u32 = 0xab_cdef;
pub const SECOND: u64 = 1_000_000_000;

pub fn address(text: &str) -> CmAddress {
    let address: SocketAddr = text.parse().unwrap();
    let family = if address.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 };
    CmAddress { family, port: address.port(), interface: 0, ip: address.ip().into() }
}

/// The address of a vNIC, with the port.
pub fn at(number: u64) -> CmAddress {
    CmAddress { family: FAMILY_IPV4, port: PORT, interface: 0, ip: ip(number).into() }
}

pub fn create(bench: &mut Bench, session: u64, space: u32, qp_type: u32) -> u32 {
    match call(bench, session, CreateCmId { space, qp_type }) {
        Some(Message::CmIdCreated(created)) => created.id,
        other => panic!("{other:?}"),
    }
}

pub fn bind(bench: &mut Bench, session: u64, id: u32, to: CmAddress) -> Option<Message> {
    call(bench, session, BindCmId { id, flags: 0, address: to })
}

pub fn is_bound(answer: Option<Message>) {
    assert!(matches!(answer, Some(Message::CmIdBound(_))), "{answer:?}");
}

pub fn done(answer: Option<Message>) {
    assert_eq!(answer, Some(Done { take_back: 0 }.into()));
}

/// A process waits at the port, at all addresses.
pub fn listen(bench: &mut Bench, session: u64, space: u32, backlog: u32) -> u32 {
    let id = create(bench, session, space, if space == TCP { RC } else { UD });
    is_bound(bind(bench, session, id, address("0.0.0.0:7471")));
    is_bound(call(bench, session, ListenCmId { id, backlog }));
    id
}

pub fn resolve(bench: &mut Bench, session: u64, id: u32, remote: CmAddress) -> CmIdResolved {
    let local = CmAddress::NONE;
    match call(bench, session, ResolveCmId { id, flags: 0, local, remote }) {
        Some(Message::CmIdResolved(resolved)) => resolved,
        other => panic!("{other:?}"),
    }
}

pub fn parameters(private_length: u8) -> CmParameters {
    CmParameters {
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 9,
        rnr_retry: 7,
        private_length,
        // More than there is room for.
        ece_vendor: VENDOR | 0x0100_0000,
        ece_options: 77,
        ..CmParameters::NONE
    }
}

/// The queue pair that a process made last.
pub fn latest(bench: &Bench, session: u64) -> Qpn {
    let made = bench.told.iter().rev().find_map(|action| match action {
        Action::Reply { session: to, message: Message::QpCreated(created), .. }
            if to.0 == session =>
        {
            Some(created.qpn)
        }
        _ => None,
    });
    made.expect("it has none")
}

pub fn connect(bench: &mut Bench, session: u64, remote: CmAddress, space: u32) -> u32 {
    let qpn = qp(bench, session, if space == TCP { Service::Rc } else { Service::Ud });
    connect_with(bench, session, remote, space, qpn)
}

pub fn connect_with(
    bench: &mut Bench,
    session: u64,
    remote: CmAddress,
    space: u32,
    qpn: Qpn,
) -> u32 {
    let id = create(bench, session, space, if space == TCP { RC } else { UD });
    resolve(bench, session, id, remote);
    let (parameters, private) = (parameters(2), [1; CM_PRIVATE_BYTES]);
    done(call(bench, session, ConnectCmId { id, qpn, parameters, private }));
    id
}

pub fn accept(bench: &mut Bench, session: u64, id: u32) -> Option<Message> {
    let qpn = qp(bench, session, Service::Rc);
    accept_with(bench, session, id, qpn)
}

pub fn accept_with(bench: &mut Bench, session: u64, id: u32, qpn: Qpn) -> Option<Message> {
    let parameters = CmParameters { responder_resources: 4, initiator_depth: 2, ..parameters(3) };
    let private = [2; CM_PRIVATE_BYTES];
    call(bench, session, AcceptCmId { id, qpn, parameters, private })
}

pub fn establish(bench: &mut Bench, session: u64, id: u32) -> Option<Message> {
    call(bench, session, EstablishCmId { id, reserved: 0 })
}

pub fn disconnect(bench: &mut Bench, session: u64, id: u32) -> Option<Message> {
    call(bench, session, DisconnectCmId { id, reserved: 0 })
}

pub fn destroy(bench: &mut Bench, session: u64, id: u32, taken: u32) -> Option<Message> {
    call(bench, session, DestroyCmId { id, taken })
}

/// The events of a process's connections since the last call.
pub fn events(bench: &mut Bench, session: u64) -> Vec<CmHappened> {
    let mut events = Vec::new();
    bench.told.retain(|action| match action {
        Action::Event { session: to, message: Message::CmHappened(event) } if to.0 == session => {
            events.push(*event);
            false
        }
        _ => true,
    });
    events
}

pub fn event(bench: &mut Bench, session: u64) -> CmHappened {
    let events = events(bench, session);
    let [event] = &events[..] else { panic!("{events:?}") };
    *event
}

pub fn kinds(bench: &mut Bench, session: u64) -> Vec<(u32, i32)> {
    events(bench, session).iter().map(|event| (event.event, event.status)).collect()
}

/// Two processes, of the vNICs of these numbers.
pub fn two(one: u64, other: u64) -> Bench {
    let mut bench = bench();
    hello(&mut bench, 1, one, 0);
    hello(&mut bench, 2, other, 0);
    bench
}

/// They are connected: the ids of the first, the requester, and of the second.
pub fn connected(bench: &mut Bench, to: CmAddress) -> (u32, u32) {
    let pair = (qp(bench, 1, Service::Rc), qp(bench, 2, Service::Rc));
    connected_with(bench, to, pair)
}

pub fn connected_with(bench: &mut Bench, to: CmAddress, (asks, asked): (Qpn, Qpn)) -> (u32, u32) {
    let id = connect_with(bench, 1, to, TCP, asks);
    let request = event(bench, 2);
    done(accept_with(bench, 2, request.id, asked));
    assert_eq!(event(bench, 1).event, event::CONNECT_RESPONSE);
    done(establish(bench, 1, id));
    assert_eq!(event(bench, 2).event, event::ESTABLISHED);
    (id, request.id)
}

/// The last management datagram that left.
pub fn last_sent(bench: &Bench) -> (UnderlayRoute, Mad) {
    let sent = bench.told.iter().rev().find_map(|action| match action {
        Action::Manage { underlay, datagram, .. } => {
            Some((*underlay, Mad::parse(datagram).unwrap()))
        }
        _ => None,
    });
    sent.expect("nothing was sent")
}

pub fn arrive(bench: &mut Bench, at: u64, way: UnderlayRoute, mad: &Mad) {
    let actions =
        bench.tenancy.management(vnic(at), Qpn::GENERAL_SERVICES, &way, &mad.to_bytes(), bench.now);
    bench.carry_out(actions);
}

/// All management datagrams that left: what they say, and whether they answer strangers.
pub fn sent(bench: &Bench) -> Vec<(Mad, bool)> {
    let sent = bench.told.iter().filter_map(|action| match action {
        Action::Manage { datagram, to, .. } => {
            Some((Mad::parse(datagram).unwrap(), *to == Recipient::Stranger))
        }
        _ => None,
    });
    sent.collect()
}

/// It ends a connection.
pub fn is_farewell(mad: &Mad) -> bool {
    matches!(mad.message, omniverb_cm::Message::Disconnect(_))
}
