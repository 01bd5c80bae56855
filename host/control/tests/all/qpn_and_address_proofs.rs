//! Tests proof of names: claims of QP numbers, addresses of probes, links that the network forbids.

use crate::support::client_process::Remote;
use crate::support::namespaces::{Net, is_root};
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_tenancy::Limits;
use omniverb_terms::{Errno, Qpn, Service};
use std::time::{Duration, Instant};

const A: &str = "10.97.0.1";
const B: &str = "10.97.0.2";

fn settings(consent_ms: u64) -> Settings {
    let limits = Limits { consent_time_ns: consent_ms * 1_000_000, ..Limits::default() };
    Settings { limits, ..Settings::default() }
}

fn two_nets() -> (Net, Net) {
    let (one, other) = (Net::new(), Net::new());
    one.join(&other, A, B);
    (one, other)
}

/// Connects two queue pairs by a direct link.
fn link(a: &mut Remote, b: &mut Remote, one: Qpn, other: Qpn) {
    a.call(connect(one, other, A, B).into());
    b.call(connect(other, one, B, A).into());
    assert_eq!((link_ready(a).engine, link_ready(b).engine), (0, 0));
}

fn again(daemon: &Daemon, net: &Net) -> Remote {
    let mut remote = Remote::start(&daemon.path, Some(net.pid()));
    remote.come_back();
    remote
}

/// The next message to a client in this time about anything but addresses.
fn told(client: &mut dyn Speaker, wait: Duration) -> Option<Message> {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match client.next_event(left)?.0 {
            Message::GidsChanged(_) => {}
            message => return Some(message),
        }
    }
}

#[test]
fn an_early_liar_gains_nothing_and_harms_no_other() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(Settings::default());
    let (one_net, other_net) = two_nets();
    let (mut a, mut b) = (one_net.client(&daemon), other_net.client(&daemon));
    let (keep_a, keep_b) = (create_kept(&mut a, Service::Rc), create_kept(&mut b, Service::Rc));
    let (one, other) = (keep_a.qpn, keep_b.qpn);
    link(&mut a, &mut b, one, other);
    let daemon = Daemon::start_in(daemon.stop(), Settings::default());

    // A process in another namespace with the same address knows all numbers, and one ticket.
    let liar_net = Net::new();
    liar_net.run(
        "ip link add eth0 type veth peer name eth1; ip link set eth1 up; \
         ip addr add 10.97.0.1/24 dev eth0; ip link set eth0 up",
    );
    let mut liar = again(&daemon, &liar_net);
    let refused = Message::Failed(Errno::EPERM);
    for (stolen, qpn) in [(keep_a, one), (keep_b, other), (create_qp(Service::Rc), one)] {
        assert_eq!(liar.call(CreateQp { qpn, ..stolen }.into()), refused);
    }
    // Its own, with which it names a victim's as its peer.
    let own = create(&mut liar, Service::Rc);
    for resume in [RESUME_LINK, RESUME_WIRE] {
        let claim = ConnectQp { resume, ..connect(own, other, A, B) };
        assert_eq!(liar.call(claim.into()), refused);
    }
    liar.call(connect(own, other, A, B).into());

    let (mut a, mut b) = (again(&daemon, &one_net), again(&daemon, &other_net));
    for (client, keep) in [(&mut a, keep_a), (&mut b, keep_b)] {
        assert!(matches!(client.call(keep.into()), Message::QpCreated(_)));
    }
    let survived = |m: ConnectQp| Message::from(ConnectQp { resume: RESUME_LINK, ..m });
    a.call(survived(connect(one, other, A, B)));
    b.call(survived(connect(other, one, B, A)));
    liar.call(DestroyQp { qpn: own, reserved: 0 }.into());
    liar.kill();
    assert_eq!(told(&mut a, Duration::from_secs(6)), None, "no event comes");
    assert_eq!(told(&mut b, MOMENT), None);
    let status = daemon.status();
    let vnics = status["vnics"].as_array().unwrap();
    let peers = vnics.iter().map(|v| &v["processes"][0]["qps"][0]["peers"][0]["qpn"]);
    let peers: Vec<_> = peers.filter_map(serde_json::Value::as_u64).collect();
    assert_eq!(peers.len(), 2, "{status}");
    assert!(peers.contains(&u64::from(one.0)) && peers.contains(&u64::from(other.0)));
    // And it is closed as any other.
    a.call(DisconnectQp { qpn: one, peer_qpn: other }.into());
    let closed = LinkClosed { qpn: other, peer_qpn: one, reason: CLOSED_BY_PEER, reserved: 0 };
    assert_eq!(link_closed(&mut b), closed);
}

#[test]
fn nothing_is_announced_late_or_to_the_first_daemon() {
    let mut late = Settings::default();
    late.limits.resume_window_ns = 5_000_000_000;
    let daemon = Daemon::start(late.clone());
    let mut a = Client::hello(&daemon.path);
    let keep = create_kept(&mut a, Service::Rc);
    drop(a);
    let mut a = Client::hello_with(&daemon.path, 1);
    assert_eq!(a.call(keep.into()), Message::Failed(Errno::EPERM), "there was no daemon before");
    let daemon = Daemon::start_in(daemon.stop(), late);
    let mut a = Client::hello_with(&daemon.path, 1);
    assert!(matches!(a.call(keep.into()), Message::QpCreated(_)));
    a.call(DestroyQp { qpn: keep.qpn, reserved: 0 }.into());
    std::thread::sleep(Duration::from_millis(5200));
    assert_eq!(a.call(keep.into()), Message::Failed(Errno::EPERM));
    // Without the secret no proof can be made.
    let folder = daemon.stop();
    std::fs::remove_file(folder.join("socket.secret")).unwrap();
    let daemon = Daemon::start_in(folder, Settings::default());
    let mut a = Client::hello_with(&daemon.path, 1);
    assert_eq!(a.call(keep.into()), Message::Failed(Errno::EPERM));
}

#[test]
fn a_probe_from_a_foreign_address_makes_no_direct_link() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(Settings::default());
    let (one_net, other_net) = two_nets();
    let (mut a, mut b) = (one_net.client(&daemon), other_net.client(&daemon));
    // Leaving packets have another's address: translated here, forged by an attacker. (Questions
    // from the other side would, if they came first, make ours answers to them, which keep theirs.)
    one_net.run(
        "nft add table ip t; nft 'add chain ip t c { type nat hook postrouting priority 100; }'; \
         nft add rule ip t c udp dport 4791 snat to 10.97.0.77; \
         nft 'add chain ip t i { type filter hook input priority 0; }'; \
         nft add rule ip t i ct state new udp dport 4791 drop",
    );
    let (one, other) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, other, A, B).into());
    b.call(connect(other, one, B, A).into());
    assert_eq!(link_ready(&mut a).engine, 1);
    assert_eq!(link_ready(&mut b).engine, 1);
    // An address that the asker has only since a moment counts, and so does a second one.
    one_net.run("nft delete table ip t; ip addr add 10.97.0.3/24 dev eth0");
    std::thread::sleep(Duration::from_millis(1100));
    let (one, other) = (create(&mut a, Service::Ud), create(&mut b, Service::Ud));
    a.call(QueryGids { reserved: 0 }.into());
    a.call(connect(one, other, "10.97.0.3", B).into());
    assert_eq!(link_ready(&mut a).engine, 0);
}

#[test]
fn a_wall_that_appears_ends_links_and_leaves_others_alone() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(settings(200));
    let (one_net, other_net) = two_nets();
    let (mut a, mut b) = (one_net.client(&daemon), other_net.client(&daemon));
    let (mut c, mut d) = (one_net.client(&daemon), Client::hello(&daemon.path));
    let (rc, uc, ud) = (Service::Rc, Service::Uc, Service::Ud);
    let pairs = [rc, uc, ud].map(|kind| (create(&mut a, kind), create(&mut b, kind)));
    for (one, other) in &pairs[..2] {
        link(&mut a, &mut b, *one, *other);
    }
    a.call(connect(pairs[2].0, pairs[2].1, A, B).into());
    assert_eq!((link_ready(&mut a).engine, link_ready(&mut b).engine), (0, 0));
    // Within a vNIC no host is probed.
    let own = create(&mut c, Service::Rc);
    c.call(connect(own, own, A, A).into());
    link_ready(&mut c);
    link_ready(&mut c);
    let home = create(&mut d, Service::Rc);
    d.call(connect(home, home, "127.0.0.1", "127.0.0.1").into());
    link_ready(&mut d);
    link_ready(&mut d);
    assert_eq!(told(&mut b, Duration::from_millis(1500)), None, "links go on");

    other_net.run(
        "nft add table ip t; nft 'add chain ip t c { type filter hook input priority 0; }'; \
         nft add rule ip t c udp dport 4791 drop",
    );
    for (client, mirrored) in [(&mut a, false), (&mut b, true)] {
        let closed: Vec<_> = (0..3).map(|_| link_closed(&mut *client)).collect();
        for (one, other) in pairs {
            let (qpn, peer_qpn) = if mirrored { (other, one) } else { (one, other) };
            let reason = CLOSED_BY_NETWORK;
            assert!(closed.contains(&LinkClosed { qpn, peer_qpn, reason, reserved: 0 }));
        }
    }
    assert_eq!((told(&mut c, MOMENT), told(&mut d, MOMENT)), (None, None));
    // What was known of the network does not help either.
    let (one, other) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, other, A, B).into());
    b.call(connect(other, one, B, A).into());
    let ready = link_ready(&mut a);
    assert_eq!((ready.qpn, ready.engine), (one, 1));
}
