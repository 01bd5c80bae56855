//! Tests which links a packet reaches: those of its own vNIC only.

use super::State;
use crate::command::{Attach, Command, Event, Grant, Memory, Pages, QpCounters, Row};
use crate::event_outbox::Outbox;
use crate::event_queues::Events;
use crate::kept_memory_limits::Store;
use crate::network::handshake_datagram;
use crate::network::pending_probes::Questions;
use crate::network::roce_port::Arrival;
use crate::pages::mapped_memory_budget::Mappings;
use crate::worker::link::{Ends, Link};
use crate::worker::shared_counters::{Counters, Showing};
use crate::worker::thread_sleep::Watcher;
use omniverb_datapath::peer_features;
use omniverb_link::layout::{REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN, link_bytes};
use omniverb_sys::udp_socket::UdpPort;
use omniverb_sys::{EventFd, Extent, memfd};
use omniverb_terms::{Operations, Qpn, Rkey, RouteKey, Service, UnderlayRoute, VnicId};
use omniverb_transport::Ecn;
use omniverb_transport::fault_injection::Faults;
use omniverb_wire::{DATAGRAM_MAX, IcrcFlow, PORT, write_notification};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

mod peer_ports;

const HERE: VnicId = VnicId(1);
const THERE: VnicId = VnicId(2);
const VICTIM: VnicId = VnicId(3);

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn bench() -> (State, Events) {
    bench_showing(Counters::default())
}

fn bench_showing(counters: Counters) -> (State, Events) {
    let events = Events::default();
    let outbox = Outbox::new(events.clone(), Arc::new(EventFd::new().unwrap()));
    let showing = Showing::new(counters);
    let (store, questions) = (Store::new(1 << 20), Questions::default());
    let answers = (questions, peer_features::ALL | peer_features::CARRIED);
    (State::new(outbox, showing, store, Mappings::default(), answers).unwrap(), events)
}

fn memory(bytes: usize) -> Memory {
    let file = Arc::new(memfd::create("link", bytes as u64).unwrap());
    Memory { extent: Extent::new(file, 0, bytes as u64), keep: None }
}

/// A queue pair of a vNIC, its peer, and their addresses.
struct End {
    vnic: VnicId,
    qpn: u32,
    peer: u32,
    local: u8,
    remote: u8,
    within: Option<VnicId>,
}

fn attach(service: Service, end: &End) -> Attach {
    let End { vnic, qpn, peer, local, remote, within } = *end;
    let (request_bytes, response_bytes) = (REQUEST_BYTES_MIN, RESPONSE_BYTES_MIN);
    Attach {
        vnic,
        qpn: Qpn(qpn),
        peer_qpn: Qpn(peer),
        service,
        underlay: UnderlayRoute::plain(ip(local), ip(remote), 0),
        link: memory(link_bytes(request_bytes, response_bytes)),
        request_bytes,
        response_bytes,
        bell: qpn.into(),
        bell_memory: Some(memory(2 * omniverb_ring::doorbell::PAGE_BYTES)),
        local_slot: 0,
        peer_slot: 0,
        within,
        refused: Operations::NONE,
        features: 0,
        peer_port: PORT,
        handover: None,
    }
}

fn link(state: &mut State, service: Service, end: &End) -> usize {
    state.attach(&attach(service, end));
    let found = state.links.of(Qpn(end.qpn), Qpn(end.peer));
    assert_eq!(found.len(), 1);
    found[0]
}

/// The victim: has a peer at address 5.
fn victim(state: &mut State, service: Service, peer: u32, within: Option<VnicId>) -> usize {
    let (vnic, qpn) = (VICTIM, 30);
    link(state, service, &End { vnic, qpn, peer, local: 3, remote: 5, within })
}

/// Where what a link sends arrives without the network.
fn near(state: &State, index: usize) -> Option<VnicId> {
    let ends: Ends = *state.links.get(index).unwrap().ends();
    state.near(&ends).map(|place| place.vnic)
}

#[test]
fn a_number_alone_reaches_no_queue_pair() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        // The network has led to another vNIC, which lends its address; the queue pair's own peer
        // is somewhere else, or has even the same number there.
        for peer in [99, 10] {
            let (mut state, _events) = bench();
            victim(&mut state, service, peer, None);
            let end =
                End { vnic: HERE, qpn: 10, peer: 30, local: 5, remote: 2, within: Some(THERE) };
            let liar = link(&mut state, service, &end);
            assert_eq!(near(&state, liar), None, "{service:?}");
        }
        // To the right vNIC, where the queue pair has another peer.
        let (mut state, _events) = bench();
        victim(&mut state, service, 99, None);
        let end = End { vnic: HERE, qpn: 10, peer: 30, local: 5, remote: 3, within: Some(VICTIM) };
        let liar = link(&mut state, service, &end);
        assert_eq!(near(&state, liar), None, "{service:?}");
        // Its own peer.
        let (mut state, _events) = bench();
        let there = victim(&mut state, service, 10, Some(HERE));
        let own = link(&mut state, service, &end);
        assert_eq!(near(&state, own), Some(VICTIM), "{service:?}");
        assert_eq!(near(&state, there), Some(HERE), "{service:?}");
    }
}

#[test]
fn a_notification_is_for_links_of_the_vnic_that_it_came_by() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let (mut state, _events) = bench();
        let index = victim(&mut state, service, 99, None);
        let flow = IcrcFlow { source: ip(5), destination: ip(3), source_port: PORT };
        let mut datagram = [0; DATAGRAM_MAX];
        let length = write_notification(&mut datagram, Qpn(30)).unwrap();
        flow.seal(&mut datagram[..length], 0);
        let (interface, ecn, identification, is_captured) = (0, Ecn::Unmarked, None, false);
        let arrival = Arrival { flow, interface, ecn, identification, is_captured };
        let heard = |state: &State| match service {
            Service::Ud => {
                let throttle = state.links.throttled(VICTIM, Qpn(30), ip(5)).unwrap();
                throttle.due(0).is_some()
            }
            _ => state.links.get(index).map(Link::counters).unwrap().received_packets > 0,
        };
        state.arrived_alone(THERE, &arrival, &datagram[..length]);
        assert!(!heard(&state), "{service:?}");
        state.arrived_alone(VICTIM, &arrival, &datagram[..length]);
        assert!(heard(&state), "{service:?}");
    }
}

#[test]
fn nothing_leaves_by_a_route_with_a_key() {
    let (mut state, events) = bench();
    let (qpn, peer) = (30, 7);
    let end = End { vnic: HERE, qpn, peer, local: 1, remote: 5, within: None };
    let mut attach = attach(Service::Rc, &end);
    attach.underlay.key = NonZeroU32::new(9).map(RouteKey);
    state.attach(&attach);
    assert!(state.links.is_empty());
    let Some(Event::Failed { qpn, peer_qpn, .. }) = events.take() else { panic!("not told") };
    assert_eq!((qpn, peer_qpn), (Qpn(30), Qpn(7)));
}

/// A link that is told to end has its last turns first, and counts in them.
#[test]
fn counters_are_forgotten_after_the_links_that_were_to_end() {
    let counters = Counters::default();
    let (mut state, _events) = bench_showing(counters.clone());
    let files = [(); 2].map(|()| EventFd::new().unwrap());
    let watcher = Watcher::new(&files[0], &files[1]).unwrap();
    let index = victim(&mut state, Service::Rc, 99, None);
    let mut datagram = [0; DATAGRAM_MAX];
    let length = write_notification(&mut datagram, Qpn(30)).unwrap();
    let flow = IcrcFlow { source: ip(5), destination: ip(3), source_port: PORT };
    flow.seal(&mut datagram[..length], 0);
    let (interface, ecn, identification, is_captured) = (0, Ecn::Unmarked, None, false);
    let arrival = Arrival { flow, interface, ecn, identification, is_captured };
    state.arrived_alone(VICTIM, &arrival, &datagram[..length]);
    let detach = || Command::Detach { qpn: Qpn(30), peer_qpn: Qpn(99) };
    assert!(state.links.get(index).is_some());
    state.apply(detach(), &watcher);
    assert_eq!(counters.ended(VICTIM).received_packets, 1);
    victim(&mut state, Service::Rc, 99, None);
    for command in [detach(), Command::ForgetCounted { vnic: VICTIM }] {
        state.apply(command, &watcher);
    }
    assert_eq!(counters.ended(VICTIM), QpCounters::default());
    assert!(counters.is_empty(), "and nothing is kept of it");
}

/// Counters of faults go on where others are set, or the vNIC's last process has gone.
#[test]
fn counters_of_faults_stay_until_they_are_forgotten() {
    let counters = Counters::default();
    let (mut state, _events) = bench_showing(counters.clone());
    let files = [(); 2].map(|()| EventFd::new().unwrap());
    let watcher = Watcher::new(&files[0], &files[1]).unwrap();
    let port = Arc::new(UdpPort::carried_by_another(PORT, Box::new(drop)).unwrap());
    let (holder, services) = (Arc::default(), Qpn::GENERAL_SERVICES);
    state.apply(Command::OpenVnic { vnic: VICTIM, port, holder, services }, &watcher);
    assert_eq!(counters.faults(VICTIM), None);
    let all = || Some(Faults { loss: 1_000_000, ..Faults::default() });
    let set = |state: &mut State, faults: Option<Faults>| {
        let faults = faults.map(|faults| Box::new((faults, 7)));
        state.apply(Command::SetFaults { vnic: VICTIM, faults }, &watcher);
    };
    let flow = IcrcFlow { source: ip(5), destination: ip(3), source_port: PORT };
    let (interface, ecn, identification, is_captured) = (0, Ecn::Unmarked, None, false);
    let arrival = Arrival { flow, interface, ecn, identification, is_captured };
    let mut datagram = [0x5a; 200];
    flow.seal(&mut datagram, 0);
    for (faults, lost) in [(all(), 2), (all(), 4), (None, 4)] {
        set(&mut state, faults);
        for _ in 0..2 {
            state.fault_queue(VICTIM, &arrival, &datagram);
        }
        state.show_counters();
        assert_eq!(counters.faults(VICTIM).unwrap().lost, lost);
    }
    set(&mut state, all());
    state.fault_queue(VICTIM, &arrival, &datagram);
    state.apply(Command::CloseVnic { vnic: VICTIM }, &watcher);
    assert_eq!(counters.faults(VICTIM).unwrap().lost, 5, "the last ones, too");
    state.apply(Command::ForgetCounted { vnic: VICTIM }, &watcher);
    assert!(counters.is_empty());
}

/// An owner that keeps pages in place is told if they cannot be mapped: for want of room, or since
/// the kernel refuses.
#[test]
fn an_owner_is_told_of_pages_that_are_not_mapped() {
    const PAGE: u64 = 4096;
    let (mut state, events) = bench();
    let files = [(); 2].map(|()| EventFd::new().unwrap());
    let watcher = Watcher::new(&files[0], &files[1]).unwrap();
    let port = Arc::new(UdpPort::carried_by_another(PORT, Box::new(drop)).unwrap());
    state.apply(
        Command::OpenVnic {
            vnic: VICTIM,
            port,
            holder: Arc::default(),
            services: Qpn::GENERAL_SERVICES,
        },
        &watcher,
    );
    victim(&mut state, Service::Rc, 99, None);
    let file = Arc::new(memfd::create("memory", 8 * PAGE).unwrap());
    let mut granted = |parts: usize, at: u64, start: u64| {
        let part = Extent::new(file.clone(), at, PAGE);
        let row = Arc::new(Row { parts: vec![part; parts], keep: None });
        let left = Arc::downgrade(&row);
        let bytes = parts as u64 * PAGE;
        let (vnic, qpn, peer_qpn, key) = (VICTIM, Qpn(30), Qpn(99), Rkey(5));
        let (region, memory) = ((start, bytes), Pages::InPlace(row));
        let grant = Grant { vnic, qpn, peer_qpn, key, access: 7, region, start, epoch: 0, memory };
        state.apply(Command::Grant(Box::new(grant)), &watcher);
        while state.map_some() {}
        let told = match events.take() {
            Some(Event::NotMapped { qpn, peer_qpn, key, start }) => {
                assert_eq!((qpn, peer_qpn, key), (Qpn(30), Qpn(99), Rkey(5)));
                Some(start)
            }
            Some(other) => panic!("{other:?}"),
            None => None,
        };
        (told, left.strong_count() > 0)
    };
    assert_eq!(granted(512, 0, 0x10000).0, None, "there is room");
    assert_eq!(granted(513, 0, 0x900000), (Some(0x900000), false), "there is none");
    assert_eq!(granted(2, 8 * PAGE, 0xa00000), (Some(0xa00000), false), "behind the file's end");
    assert_eq!(granted(2, 0, 0xb00000).0, None, "and there is room still");
}

fn handshake(state: &mut State, at: VnicId, from: u8, datagram: &[u8]) {
    let flow = IcrcFlow { source: ip(from), destination: ip(3), source_port: PORT };
    let (interface, ecn, identification, is_captured) = (0, Ecn::Unmarked, None, false);
    let arrival = Arrival { flow, interface, ecn, identification, is_captured };
    state.arrived_alone(at, &arrival, datagram);
}

/// A flood of datagrams that look like handshakes, probes and replies with unknown numbers, from a
/// neighbour or from the very address that is asked.
#[test]
fn answers_to_our_questions_pass_a_flood_of_strangers() {
    let (mut state, events) = bench();
    let port = Arc::new(UdpPort::carried_by_another(PORT, Box::new(drop)).unwrap());
    let files = [(); 2].map(|()| EventFd::new().unwrap());
    let watcher = Watcher::new(&files[0], &files[1]).unwrap();
    state.apply(
        Command::OpenVnic {
            vnic: VICTIM,
            port,
            holder: Arc::default(),
            services: Qpn::GENERAL_SERVICES,
        },
        &watcher,
    );
    state.questions.begin(7, HERE, ip(3));
    state.questions.begin(8, VICTIM, ip(5));
    for number in 100..20_100 {
        for from in [5, 66] {
            handshake(&mut state, VICTIM, from, &handshake_datagram::probe(number));
            handshake(&mut state, VICTIM, from, &handshake_datagram::reply(number, 1));
        }
        handshake(&mut state, VICTIM, 66, &handshake_datagram::reply(8, 1));
        handshake(&mut state, VICTIM, 66, &[0x0f; 40]);
    }
    assert!(events.take().is_none(), "nothing of it is for the control plane");
    handshake(&mut state, VICTIM, 1, &handshake_datagram::probe(7));
    handshake(&mut state, VICTIM, 5, &handshake_datagram::reply(8, 3));
    let mut numbers = Vec::new();
    while let Some(Event::Answered { number, at, features, .. }) = events.take() {
        assert_eq!(at, VICTIM);
        numbers.push((number, features));
    }
    assert_eq!(numbers, [(7, None), (8, Some(3))]);
}

/// However many links lead to its sender.
#[test]
fn a_notification_is_work_for_one_link() {
    let (mut state, _events) = bench();
    for peer in 100..1124 {
        let end = End { vnic: VICTIM, qpn: 30, peer, local: 3, remote: 5, within: None };
        state.attach(&attach(Service::Ud, &end));
    }
    while state.serve_links() {}
    let flow = IcrcFlow { source: ip(5), destination: ip(3), source_port: PORT };
    let mut datagram = [0; DATAGRAM_MAX];
    let length = write_notification(&mut datagram, Qpn(30)).unwrap();
    flow.seal(&mut datagram[..length], 0);
    let (interface, ecn, identification, is_captured) = (0, Ecn::Unmarked, None, false);
    let arrival = Arrival { flow, interface, ecn, identification, is_captured };
    state.arrived_alone(VICTIM, &arrival, &datagram[..length]);
    assert!(state.links.waiting() <= 1, "{}", state.links.waiting());
    assert!(state.links.throttled(VICTIM, Qpn(30), ip(5)).unwrap().due(0).is_some());
    for peer in 100..1124 {
        state.detach(Qpn(30), Qpn(peer));
    }
    assert!(state.links.throttled(VICTIM, Qpn(30), ip(5)).is_none(), "nothing is left of it");
    assert!(state.links.is_empty());
}
