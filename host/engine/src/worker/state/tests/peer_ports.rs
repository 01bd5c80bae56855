//! Tests what is believed of UDP ports of peers, and links that their processes give.

use super::*;
use omniverb_wire::PortNotice;

fn notice() -> PortNotice {
    let (from, to) = (Qpn(99), Qpn(30));
    PortNotice { from, to, port: 50_001, is_question: true, number: 7, heard: 0 }
}

/// A vNIC with sockets, and the events of its thread.
fn served() -> (State, Events, Watcher) {
    let (mut state, events) = bench();
    let port = Arc::new(UdpPort::carried_by_another(PORT, Box::new(drop)).unwrap());
    let files = [(); 2].map(|()| EventFd::new().unwrap());
    let watcher = Watcher::new(&files[0], &files[1]).unwrap();
    let (holder, services) = (Arc::default(), Qpn::GENERAL_SERVICES);
    state.apply(Command::OpenVnic { vnic: VICTIM, port, holder, services }, &watcher);
    (state, events, watcher)
}

fn arrives(state: &mut State, source_port: u16, datagram: &[u8]) {
    let flow = IcrcFlow { source: ip(5), destination: ip(3), source_port };
    let (interface, ecn, identification, is_captured) = (0, Ecn::Unmarked, None, false);
    let arrival = Arrival { flow, interface, ecn, identification, is_captured };
    state.arrived_alone(VICTIM, &arrival, datagram);
}

#[test]
fn notices_of_ports_come_from_the_port_of_a_daemon_and_are_few() {
    let (mut state, events, _watcher) = served();
    arrives(&mut state, 50_001, &notice().datagram());
    assert!(events.take().is_none(), "from a process");
    arrives(&mut state, PORT, &notice().datagram());
    let Some(Event::PortNotice { vnic, from, notice: heard }) = events.take() else { panic!() };
    assert_eq!((vnic, from, heard), (VICTIM, ip(5), notice()));
    let mut passed = 0;
    for _ in 0..20_000 {
        arrives(&mut state, PORT, &notice().datagram());
        passed += usize::from(events.take().is_some());
    }
    assert!((1000..10_000).contains(&passed), "{passed}");
    state.features = peer_features::ALL;
    arrives(&mut state, PORT, &notice().datagram());
    assert!(events.take().is_none(), "the configuration has no process carry");
}

#[test]
fn packets_go_to_the_port_that_was_said_last() {
    let (mut state, _events, watcher) = served();
    let index = victim(&mut state, Service::Rc, 99, None);
    let port = |state: &State| state.links.get(index).map(Link::peer_port);
    assert_eq!(port(&state), Some(PORT));
    let (qpn, peer_qpn) = (Qpn(30), Qpn(99));
    for (vnic, said, wanted) in [(VICTIM, 50_001, 50_001), (HERE, 50_002, 50_001)] {
        let command = Command::SetPeerPort { vnic, qpn, peer_qpn, port: said };
        state.apply(command, &watcher);
        assert_eq!(port(&state), Some(wanted));
    }
}

#[test]
fn a_given_link_is_served_unless_its_state_is_none() {
    for (given, is_served) in [(&[][..], true), (&[1, 2, 3][..], false)] {
        let (mut state, events, _watcher) = served();
        let end = End { vnic: VICTIM, qpn: 30, peer: 99, local: 3, remote: 5, within: None };
        let handover = Some(given.into());
        let attach = Attach { handover, peer_port: 50_001, ..attach(Service::Rc, &end) };
        state.attach(&attach);
        assert_eq!(state.links.is_empty(), !is_served);
        let told = events.take();
        match is_served {
            true => assert!(told.is_none(), "{told:?}"),
            false => assert!(matches!(told, Some(Event::NotServed { .. })), "{told:?}"),
        }
    }
}
