//! Tests network namespaces: two containers on a wire, isolation, refusal.

use crate::support::client_process::Remote;
use crate::support::namespaces::{Net, is_root};
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_terms::{Errno, Gid, Qpn, Service};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const A: &str = "10.99.0.1";
const B: &str = "10.99.0.2";

fn two() -> (Daemon, Net, Net, Remote, Remote) {
    let daemon = Daemon::start(Settings::default());
    let (one, other) = (Net::new(), Net::new());
    one.join(&other, A, B);
    let (a, b) = (one.client(&daemon), other.client(&daemon));
    (daemon, one, other, a, b)
}

fn table(client: &mut Remote) -> Vec<Gid> {
    match client.call(QueryGids { reserved: 0 }.into()) {
        Message::Gids(gids) => {
            gids.entries[..gids.count as usize].iter().map(|entry| entry.gid).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn containers_on_one_wire_are_neighbours() {
    if !is_root() {
        return;
    }
    let (daemon, one_net, other_net, mut a, mut b) = two();
    let ours = table(&mut a);
    assert_eq!((ours[0].is_link_local(), ours[1]), (true, gid(A)));
    assert!(!ours.contains(&gid("127.0.0.1")) && !ours.contains(&gid("::1")), "{ours:?}");
    for service in [Service::Rc, Service::Uc] {
        let (one, other) = (create(&mut a, service), create(&mut b, service));
        let begun = Instant::now();
        assert!(matches!(a.call(connect(one, other, A, B).into()), Message::Connected(_)));
        assert!(matches!(b.call(connect(other, one, B, A).into()), Message::Connected(_)));
        assert_eq!(link_ready(&mut a).peer_qpn, other);
        assert_eq!(link_ready(&mut b).dgid, gid(A));
        println!("pairing over the wire took {:?}", begun.elapsed());
    }
    // Where the first probe is late, on a crowded machine, a link goes by the engine.
    let direct = (0..50).any(|_| {
        let (one, other) = (create(&mut a, Service::Ud), create(&mut b, Service::Ud));
        let answer = a.call(connect(one, other, A, B).into());
        assert_eq!(answer, Connected { qpn: one, ready: 1 }.into());
        link_ready(&mut a).engine == 0
    });
    assert!(direct, "no UD link between neighbours");
    link_ready(&mut b);
    // Link-local addresses work as well, once both sides have them.
    one_net
        .run("while ip -6 addr show dev eth0 scope link | grep -q tentative; do sleep 0.1; done");
    other_net
        .run("while ip -6 addr show dev eth0 scope link | grep -q tentative; do sleep 0.1; done");
    std::thread::sleep(Duration::from_millis(300));
    let (from, to) = (table(&mut a)[0], table(&mut b)[0]);
    let (one, other) = (create(&mut a, Service::Ud), create(&mut b, Service::Ud));
    let message =
        ConnectQp { qpn: one, dest_qpn: other, sgid: from, dgid: to, resume: 0, carries: 0 };
    assert_eq!(a.call(message.into()), Connected { qpn: one, ready: 1 }.into());

    // The owner of the daemon sees both.
    let status = daemon.status();
    assert_eq!(status["vnics"].as_array().unwrap().len(), 2);
    let peers = &status["vnics"][0]["processes"][0]["qps"][0]["peers"];
    assert_eq!(peers.as_array().unwrap().len(), 1);
    a.kill();
    for _ in 0..20 {
        match b.next_event(SOON) {
            Some((Message::LinkClosed(closed), _)) => assert_eq!(closed.reason, CLOSED_BY_DEATH),
            Some((Message::BellClosed(_), _)) => return,
            _ => {}
        }
    }
    panic!("no end of the bell");
}

#[test]
fn no_link_is_made_against_the_network() {
    if !is_root() {
        return;
    }
    let (daemon, one, _other, mut a, mut b) = two();
    // A's packets for B go astray; B's for A arrive.
    one.run(&format!("ip neigh replace {B} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"));
    let (rc, rc_peer) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    assert!(matches!(a.call(connect(rc, rc_peer, A, B).into()), Message::Connected(_)));
    assert!(matches!(b.call(connect(rc_peer, rc, B, A).into()), Message::Connected(_)));
    let (ud, ud_peer) = (create(&mut a, Service::Ud), create(&mut b, Service::Ud));
    assert_eq!(a.call(connect(ud, ud_peer, A, B).into()), Connected { qpn: ud, ready: 1 }.into());
    let back = b.call(connect(ud_peer, ud, B, A).into());
    assert_eq!(back, Connected { qpn: ud_peer, ready: 1 }.into());
    // All of it through the engine, where the network decides about every packet.
    for client in [&mut a, &mut b] {
        for _ in 0..2 {
            let ready = link_ready(client);
            assert_eq!((ready.engine, ready.side), (1, 0));
        }
    }
    let status = daemon.status();
    let vnics = status["vnics"].as_array().unwrap();
    let paths = |vnic: usize| {
        let qps = vnics[vnic]["processes"][0]["qps"].as_array().unwrap();
        qps.iter().map(|qp| (qp["path"].clone(), qp["why"].clone())).collect::<Vec<_>>()
    };
    let mut found = [paths(0), paths(1)];
    found.sort_by_key(|paths| paths[0].0.to_string());
    for (path, why) in &found[0] {
        assert_eq!((path, why), (&"roce".into(), &"no answer to the handshake".into()));
    }
    for (path, why) in &found[1] {
        assert_eq!(path, "wire");
        assert!(why.as_str().unwrap().contains("one direction"));
    }
    // No such address, no route: a network gives no error.
    for (unknown, peer) in [("10.99.0.77", 0x77), ("192.0.2.1", 0x78)] {
        let answer = a.call(connect(ud, Qpn(peer), A, unknown).into());
        assert_eq!(answer, Connected { qpn: ud, ready: 1 }.into());
        assert_eq!(link_ready(&mut a).dgid, gid(unknown));
    }
    // Another's address as one's own.
    assert_eq!(a.call(connect(ud, ud_peer, B, B).into()), Message::Failed(Errno::EINVAL));
}

#[test]
fn strangers_do_not_see_each_other() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(Settings::default());
    // The same address in both, and no wire between them.
    let (one, other) = (Net::new(), Net::new());
    for net in [&one, &other] {
        net.run(
            "ip link add eth0 type veth peer name eth1; ip link set eth1 up; \
             ip addr add 10.99.0.1/24 dev eth0; ip link set eth0 up",
        );
    }
    let (mut a, mut b) = (one.client(&daemon), other.client(&daemon));
    let (ud, victim) = (create(&mut a, Service::Ud), create(&mut b, Service::Ud));
    assert_eq!(a.call(connect(ud, victim, A, A).into()), Message::Failed(Errno::ENOENT));
    a.call(connect(ud, victim, A, B).into());
    assert_eq!(link_ready(&mut a).engine, 1);
    assert_eq!(b.next_event(MOMENT), None);
    let (rc, victim) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(rc, victim, A, A).into());
    b.call(connect(victim, rc, A, A).into());
    assert_eq!(a.next_event(MOMENT), None);
    assert_eq!(
        a.call(DestroyQp { qpn: victim, reserved: 0 }.into()),
        Message::Failed(Errno::ENOENT)
    );
    assert_eq!(
        a.call(CreateQp { qpn: victim, ..create_qp(Service::Rc) }.into()),
        Message::Failed(Errno::EINVAL)
    );
}

#[test]
fn a_port_in_use_leaves_direct_links() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(Settings::default());
    let net = Net::new();
    let _thief = {
        let namespace = net.pid().to_string();
        let script = "import socket,sys;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);\
                      s.bind(('',4791));print('up',flush=True);sys.stdin.read()";
        let mut child = Command::new("nsenter")
            .args(["-t", &namespace, "-n", "python3", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.as_mut().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        Net::from(child)
    };
    let mut a = net.client(&daemon);
    let (one, other) = (create(&mut a, Service::Ud), create(&mut a, Service::Ud));
    let home = "127.0.0.1";
    let answer = a.call(connect(one, other, home, home).into());
    assert_eq!(answer, Connected { qpn: one, ready: 1 }.into());
    let elsewhere = connect(one, Qpn(0x00ab_cdef), home, B);
    assert_eq!(a.call(elsewhere.into()), Message::Failed(Errno::EHOSTUNREACH));
}
