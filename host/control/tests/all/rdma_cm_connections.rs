//! Tests connections by address, within a daemon and between two.
//!
//! (Within one vNIC nothing leaves the tables: `cm_connections.rs` of `host/tenancy`.)

use crate::support::client_process::Remote;
use crate::support::namespaces::{Net, is_root};
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::Done;
use omniverb_session::cm::*;
use omniverb_terms::Qpn;
use std::time::Duration;

const A: &str = "10.98.0.1";
const B: &str = "10.98.0.2";
const PORT: u16 = 7471;
const TCP: u32 = 0x106;
const UDP: u32 = 0x111;

fn address(ip: &str) -> CmAddress {
    CmAddress { family: FAMILY_IPV4, port: PORT, interface: 0, ip: gid(ip) }
}

fn make(client: &mut Remote, space: u32) -> u32 {
    let qp_type = if space == TCP { 2 } else { 4 };
    match client.call(CreateCmId { space, qp_type }.into()) {
        Message::CmIdCreated(created) => created.id,
        other => panic!("{other:?}"),
    }
}

fn done(answer: Message) {
    assert_eq!(answer, Done { take_back: 0 }.into());
}

/// Much longer than what was lost takes to be said again.
const PATIENCE: Duration = Duration::from_secs(50);

fn happened(client: &mut Remote, event: u32) -> CmHappened {
    loop {
        match client.next_event(PATIENCE) {
            // The kernel changes addresses when it likes.
            Some((Message::GidsChanged(_), _)) => {}
            Some((Message::CmHappened(happened), _)) if happened.event == event => return happened,
            other => panic!("not event {event}: {other:?}"),
        }
    }
}

fn start(client: &mut Remote, space: u32, qpn: u32) -> u32 {
    let id = make(client, space);
    let (local, remote) = (CmAddress::NONE, address(B));
    let resolved = client.call(ResolveCmId { id, flags: 0, local, remote }.into());
    let Message::CmIdResolved(resolved) = resolved else { panic!("{resolved:?}") };
    assert_eq!((resolved.sgid, resolved.dgid), (gid(A), gid(B)));
    let (parameters, private) = (CmParameters::NONE, [7; CM_PRIVATE_BYTES]);
    done(client.call(ConnectCmId { id, qpn: Qpn(qpn), parameters, private }.into()));
    id
}

fn come_together(a: &mut Remote, b: &mut Remote) {
    for (round, space) in [TCP, UDP, TCP].into_iter().enumerate() {
        let qpn = 100 + round as u32;
        // No QP is connected there yet: the peer answers so.
        start(a, space, qpn);
        let refused = if space == TCP { event::REJECTED } else { event::UNREACHABLE };
        let expected = if space == TCP { 8 } else { 1 };
        assert_eq!(happened(a, refused).status, expected);
        let listener = make(b, space);
        let any = CmAddress { ip: gid("0.0.0.0"), ..address(B) };
        let bound = b.call(BindCmId { id: listener, flags: 0, address: any }.into());
        assert!(matches!(bound, Message::CmIdBound(_)), "{bound:?}");
        b.call(ListenCmId { id: listener, backlog: 0 }.into());
        let id = start(a, space, qpn);
        let request = happened(b, event::CONNECT_REQUEST);
        assert_eq!((request.listener, request.remote.ip), (listener, gid(A)));
        let (parameters, private) = (CmParameters::NONE, [9; CM_PRIVATE_BYTES]);
        let accept = AcceptCmId { id: request.id, qpn: Qpn(200), parameters, private };
        done(b.call(accept.into()));
        if space == TCP {
            let response = happened(a, event::CONNECT_RESPONSE);
            assert_eq!((response.id, response.qpn), (id, Qpn(200)));
            done(a.call(EstablishCmId { id, reserved: 0 }.into()));
            happened(b, event::ESTABLISHED);
            done(b.call(DisconnectCmId { id: request.id, reserved: 0 }.into()));
            happened(a, event::DISCONNECTED);
            happened(b, event::DISCONNECTED);
            happened(a, event::TIMEWAIT_EXIT);
            happened(b, event::TIMEWAIT_EXIT);
        } else {
            assert_eq!(happened(a, event::ESTABLISHED).qpn, Qpn(200));
        }
        done(b.call(DestroyCmId { id: listener, taken: 1 }.into()));
    }
}

#[test]
fn processes_of_two_hosts_connect() {
    if !is_root() {
        return;
    }
    let nets = [Net::new(), Net::new()];
    nets[0].join(&nets[1], A, B);
    let daemons = [(); 2].map(|()| Daemon::start(Settings::default()));
    let (mut a, mut b) = (nets[0].client(&daemons[0]), nets[1].client(&daemons[1]));
    open_port(&mut b);
    come_together(&mut a, &mut b);
    // The end of a process ends its connection.
    let listener = make(&mut b, TCP);
    b.call(BindCmId { id: listener, flags: 0, address: address(B) }.into());
    b.call(ListenCmId { id: listener, backlog: 0 }.into());
    start(&mut a, TCP, 300);
    let request = happened(&mut b, event::CONNECT_REQUEST);
    drop(a);
    assert_eq!(happened(&mut b, event::REJECTED).id, request.id);
    drop((b, daemons, nets));
}

#[test]
fn processes_of_two_vnics_of_a_host_connect() {
    if !is_root() {
        return;
    }
    let nets = [Net::new(), Net::new()];
    nets[0].join(&nets[1], A, B);
    let daemon = Daemon::start(Settings::default());
    let (mut a, mut b) = (nets[0].client(&daemon), nets[1].client(&daemon));
    open_port(&mut b);
    come_together(&mut a, &mut b);
    drop((a, b, daemon, nets));
}

/// Has the vNIC's port opened: what comes before that is lost.
fn open_port(client: &mut Remote) {
    let id = make(client, TCP);
    let bound = client.call(BindCmId { id, flags: 0, address: address_any() }.into());
    assert!(matches!(bound, Message::CmIdBound(_)), "{bound:?}");
}

fn address_any() -> CmAddress {
    CmAddress { port: 0, ip: gid("0.0.0.0"), ..address(B) }
}
