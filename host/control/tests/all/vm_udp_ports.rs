//! Tests UDP ports of virtual machines: datagrams that their proxies carry.

use crate::support::fake_vm_proxy::*;
use crate::support::*;
use omniverb_control::Settings;
use omniverb_ring::{WordMemory, shared_atomics::Ordering as Order};
use omniverb_session::Message;
use omniverb_session::body::{ConnectQp, LinkReady, QueryGids};
use omniverb_sys::eventfd::readable;
use omniverb_sys::proxied_udp::{self, MESSAGE_MAX, ProxiedHeader};
use omniverb_sys::{Access, Extent, seqpacket};
use omniverb_terms::{Gid, Service};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Carries what leaves by each of two ports to the other.
fn carry(ports: &[OwnedFd; 2]) {
    let mut buffer = [0; MESSAGE_MAX];
    for (from, to) in [(&ports[0], &ports[1]), (&ports[1], &ports[0])] {
        let mode = seqpacket::BlockingMode::NonBlocking;
        // An empty one: the other end is gone.
        while let Ok((length @ 1.., _)) = seqpacket::receive(from.as_fd(), &mut buffer, mode) {
            let Some((head, payload)) = ProxiedHeader::read(&buffer[..length]) else { continue };
            let (local, remote) = (Some(head.remote), head.local.unwrap());
            let arrived =
                [&ProxiedHeader { local, remote, ..head }.written()[..], payload].concat();
            let _ = seqpacket::send(to.as_fd(), &arrived, &[]);
        }
    }
}

/// A network between two ports, as long as it is there.
struct Network {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    fn between(ports: &[&OwnedFd; 2]) -> Network {
        let ports = ports.map(|port| port.try_clone().unwrap());
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                carry(&ports);
                thread::sleep(Duration::from_millis(1));
            }
        });
        Network { over, thread: Some(thread) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

const ONE: &str = "10.9.0.1";
const TWO: &str = "10.9.0.2";

/// Two machines that have their ports.
fn two_machines(daemon: &Daemon) -> ([Machine; 2], [OwnedFd; 2]) {
    let [mut one, mut two] = ["one", "two"].map(|name| Machine::attach(daemon, name));
    one.tell_addresses([10, 9, 0, 1]);
    two.tell_addresses([10, 9, 0, 2]);
    let ports = [one.open_port(), two.open_port()];
    ([one, two], ports)
}

/// A process of each is linked with the other by the engine, if the network carries probes.
fn link(a: &mut Client, b: &mut Client) -> [LinkReady; 2] {
    let [first, second] = [&mut *a, &mut *b].map(|client| create(client, Service::Rc));
    a.call(connect(first, second, ONE, TWO).into());
    b.call(connect(second, first, TWO, ONE).into());
    [a, b].map(|client| {
        let (ready, files) = loop {
            match client.event(SOON) {
                Some((Message::LinkReady(ready), files)) => break (ready, files),
                Some((Message::GidsChanged(_), _)) => {}
                event => panic!("{event:?}"),
            }
        };
        assert!(ready.engine != 0 && files.is_empty(), "{ready:?}");
        assert!(ready.memory.offset >= PAGE, "{ready:?}");
        assert!(ready.bell_new == 0 || ready.bell_memory.offset >= PAGE, "{ready:?}");
        ready
    })
}

/// Links that the engine forwards, as operators see them: of each queue pair, and of each peer.
fn forwarded(daemon: &Daemon) -> usize {
    daemon.status().to_string().matches("\"path\":\"forwarded\"").count()
}

/// The test is the network.
#[test]
fn machines_whose_network_carries_a_probe_are_linked_by_the_engine() {
    let daemon = Daemon::start(Settings::default());
    let ([mut one, mut two], [first, second]) = two_machines(&daemon);
    assert_eq!(seen(&daemon, "one").unwrap()["network"], true);
    let network = Network::between(&[&first, &second]);
    let ((mut a, _), (mut b, _)) = (one.process(), two.process());
    link(&mut a, &mut b);
    assert_eq!(forwarded(&daemon), 4, "{}", daemon.status());
    let row = seen(&daemon, "one").unwrap();
    assert_eq!((&row["engine"], &row["direct"]), (&1.into(), &0.into()), "{row}");
    // An ended process has no link; what the engine had mapped comes back with it.
    let (session, used) = (one.last, || seen(&daemon, "one").unwrap()["used"].as_u64().unwrap());
    one.end(session);
    drop(a);
    until(|| used() == 0);
    drop((network, one));
    until(|| seen(&daemon, "one").is_none());
    assert!(seen(&daemon, "two").is_some());
}

/// Whatever an agent carries: others have what they had, and so has the machine itself.
#[test]
fn malformed_messages_at_a_machines_port_harm_no_other() {
    let daemon = Daemon::start(Settings::default());
    let ([mut one, mut two], [port, far]) = two_machines(&daemon);
    // Its port is watched while it has a process.
    let (mut a, _) = one.process();
    create(&mut a, Service::Rc);
    let head = ProxiedHeader {
        local: Some([10, 9, 0, 1].into()),
        remote: [10, 9, 0, 2].into(),
        interface: 0,
        port: 4791,
        ecn: 0,
    };
    for length in [0, 1, 12, 40, 64, 4000] {
        for byte in [0, 0x0f, 0xff] {
            let message = [&head.written()[..], &vec![byte; length]].concat();
            seqpacket::send(port.as_fd(), &message, &[]).unwrap();
            seqpacket::send(port.as_fd(), &vec![byte; length + 1], &[]).unwrap();
        }
    }
    create(&mut Client::hello(&daemon.path), Service::Rc);
    let _network = Network::between(&[&port, &far]);
    let (mut b, _) = two.process();
    link(&mut a, &mut b);
    assert_eq!(forwarded(&daemon), 4, "{}", daemon.status());
}

/// No agent can have its proxy send this: the proxy must have been replaced.
#[test]
fn a_proxy_that_sends_forbidden_messages_loses_its_machine() {
    let daemon = Daemon::start(Settings::default());
    let ([mut one, mut two], [port, far]) = two_machines(&daemon);
    let _network = Network::between(&[&port, &far]);
    let ((mut a, _), (mut b, _)) = (one.process(), two.process());
    link(&mut a, &mut b);
    let null = std::fs::File::open("/dev/null").unwrap();
    // Kernels that can refuse descriptors do so; an empty message is none, either.
    if seqpacket::send(port.as_fd(), b"x", &[null.as_fd()]).is_err() {
        seqpacket::send(port.as_fd(), b"", &[]).unwrap();
    }
    assert!(one.is_parted_with() && a.is_dropped());
    until(|| seen(&daemon, "one").is_none());
    create(&mut b, Service::Rc);
    Machine::attach(&daemon, "one");
}

/// A network keeps no packet for a process that comes an hour later.
#[test]
fn packets_to_a_machine_without_process_are_dropped() {
    let daemon = Daemon::start(Settings::default());
    let mut one = Machine::attach(&daemon, "one");
    one.tell_address();
    let port = one.open_port();
    // Another daemon probes, in a handshake of this number.
    let ask = |number: u8| {
        let (ip, local) = (|last| [10, 9, 0, last].into(), Some([10, 9, 0, 1].into()));
        let head = ProxiedHeader { local, remote: ip(2), interface: 0, port: 4791, ecn: 0 };
        let bytes = [&[0xff, 0x0f][..], &[0; 10], b"omniver1", &[number; 16], &[0; 4]].concat();
        seqpacket::send(port.as_fd(), &[&head.written()[..], &bytes].concat(), &[]).unwrap();
    };
    (0..10).for_each(|_| ask(1));
    let (mut a, _) = one.process();
    create(&mut a, Service::Rc);
    let end = Instant::now() + SOON;
    while !readable(port.as_fd(), Some(MOMENT)).unwrap() {
        assert!(Instant::now() < end, "no answer");
        ask(2);
    }
    let mut buffer = [0; MESSAGE_MAX];
    let mode = seqpacket::BlockingMode::NonBlocking;
    while let Ok((length @ 1.., _)) = seqpacket::receive(port.as_fd(), &mut buffer, mode) {
        let Some((_, answer)) = ProxiedHeader::read(&buffer[..length]) else { continue };
        assert_eq!((&answer[12..20], &answer[20..36]), (&b"omniver2"[..], &[2; 16][..]));
    }
}

/// Random numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What a guest's kernel may do: write over a window, most of all where links are. Now and then it
/// reports a rung doorbell.
fn write_all_over(window: &OwnedFd, ready: &[LinkReady], port: &OwnedFd, dice: &mut Dice) {
    let all = Extent::new(window, DATA.offset, DATA.length).map(Access::ReadWrite).unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        for _ in 0..1000 {
            let link = ready[dice.below(ready.len() as u64) as usize];
            let (begin, length) = match dice.below(8) {
                0 => (0, DATA.length),
                1..=2 if link.bell_new != 0 => (link.bell_memory.offset, link.bell_memory.length),
                // The words of either side, or the beginnings of rings.
                3..=4 => (link.memory.offset + dice.below(2) * PAGE, 0x180),
                5..=6 => (link.memory.offset + 2 * PAGE, 0x200),
                _ => (link.memory.offset, link.memory.length),
            };
            let at = (begin + dice.below(length)) as usize & !7;
            let value = match dice.below(8) {
                0 => dice.next(),
                1 => dice.below(0x1000),
                2 => 1 << dice.below(64),
                3 => u64::MAX - dice.below(16),
                4 => all.load(dice.below(DATA.length) as usize & !7, Order::Relaxed),
                5 => u64::from(link.peer_qpn.0) << (32 * dice.below(2)),
                _ => all.load(at, Order::Relaxed).wrapping_add(dice.below(17)).wrapping_sub(8),
            };
            all.store(at, value, Order::Relaxed);
        }
        proxied_udp::say(port.as_fd());
    }
}

/// A guest's kernel writes whatever it likes wherever it likes in its window: others have what they
/// had.
#[test]
fn writes_over_a_machines_window_harm_itself_only() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let daemon = Daemon::start(Settings::default());
    let ([mut one, mut two], [port, far]) = two_machines(&daemon);
    let mut three = Machine::attach(&daemon, "three");
    three.tell_addresses([10, 9, 0, 3]);
    let _network = Network::between(&[&port, &far]);
    // A machine that has links of its own beside it, in memory of its own.
    let ((mut a, _), (mut b, _)) = (one.process(), two.process());
    let (mut c, _) = three.process();
    let own = [create(&mut c, Service::Rc), create(&mut c, Service::Rc)];
    for (from, to) in [(own[0], own[1]), (own[1], own[0])] {
        c.call(connect(from, to, "10.9.0.3", "10.9.0.3").into());
    }
    let ready = link_ready(&mut c);
    let memory = Extent::new(&three.window, DATA.offset + ready.memory.offset, 2 * PAGE);
    let memory = memory.map(Access::ReadWrite).unwrap();
    let words = || (0..2 * PAGE as usize).step_by(8).map(|at| memory.load(at, Order::Relaxed));
    let before: Vec<u64> = words().collect();
    let links: Vec<LinkReady> = (0..4).map(|_| link(&mut a, &mut b)[0]).collect();
    let mut dice = Dice(seed);
    write_all_over(&one.window, &links, &port, &mut dice);
    assert!(words().eq(before), "the memory of another machine");
    // The daemon serves new processes, the machine's neighbour as well.
    assert!(daemon.status()["vnics"].as_array().is_some_and(|vnics| vnics.len() >= 3));
    create(&mut Client::hello(&daemon.path), Service::Rc);
    create(&mut b, Service::Rc);
    // The guest harmed these links only: the next one works.
    link(&mut one.process().0, &mut b);
}

/// A file with a key that the daemon's user alone can read.
fn key_file(name: &str, byte: &str) -> std::path::PathBuf {
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::env::temp_dir().join(format!("omniverb-{name}-{}", std::process::id()));
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    std::io::Write::write_all(file.as_mut().unwrap(), byte.repeat(16).as_bytes()).unwrap();
    path
}

/// The only GID of a process's device.
fn vgid(client: &mut Client) -> Gid {
    match client.call(QueryGids { reserved: 0 }.into()) {
        Message::Gids(gids) if gids.count == 1 => gids.entries[0].gid,
        answer => panic!("{answer:?}"),
    }
}

/// Their agents carry nothing, and what they say of their addresses does not matter.
#[test]
fn machines_of_a_virtual_network_are_linked_by_vgids_and_no_packet_passes_their_agents() {
    let keys = [key_file("blue", "f0"), key_file("red", "a1")];
    let tenant = |key: usize| serde_json::json!({ "key_file": keys[key], "underlay": "127.0.0.1" });
    let vnic =
        |tenant: &str, address: &str| serde_json::json!({ "tenant": tenant, "address": address });
    let objects = serde_json::json!({
        "tenant": { "blue": tenant(0), "red": tenant(1) },
        "vnic": {
            "vm-one": vnic("blue", "10.0.0.1"),
            "vm-two": vnic("blue", "10.0.0.2"),
            "vm-three": vnic("red", "10.0.0.2"),
        },
    });
    let objects = serde_json::from_value(objects).unwrap();
    let daemon = Daemon::start(Settings { objects, ..Settings::default() });
    let mut machines = ["one", "two", "three"].map(|name| Machine::attach(&daemon, name));
    machines.iter_mut().for_each(Machine::tell_address);
    let ports = machines.each_mut().map(Machine::open_port);
    let mut clients = machines.each_mut().map(|machine| machine.process().0);
    let gids = clients.each_mut().map(vgid);
    assert!(gids.iter().all(|gid| gids.iter().filter(|other| *other == gid).count() == 1));
    let qpns = clients.each_mut().map(|client| create(client, Service::Rc));
    assert!(qpns.iter().all(|qpn| qpn.0 < 1024), "{qpns:?}");
    let ask = |from: usize, to: usize| ConnectQp {
        qpn: qpns[from],
        dest_qpn: qpns[to],
        sgid: gids[from],
        dgid: gids[to],
        resume: 0,
        carries: 0,
    };
    for (from, to) in [(0, 1), (1, 0)] {
        assert!(matches!(clients[from].call(ask(from, to).into()), Message::Connected(_)));
    }
    for client in &mut clients[..2] {
        let ready = link_ready(client);
        assert!(ready.engine != 0 && ready.memory.offset >= PAGE, "{ready:?}");
    }
    assert_eq!(forwarded(&daemon), 4, "{}", daemon.status());
    // Of another tenant: its link loses what is sent.
    clients[2].call(ask(2, 0).into());
    link_ready(&mut clients[2]);
    assert_eq!(forwarded(&daemon), 4, "{}", daemon.status());
    let mut buffer = [0; MESSAGE_MAX];
    let mode = seqpacket::BlockingMode::NonBlocking;
    for port in &ports {
        while let Ok((length, _)) = seqpacket::receive(port.as_fd(), &mut buffer, mode) {
            assert!(proxied_udp::is_word(&buffer[..length]), "a packet");
        }
    }
    // What an agent may not send ends its machine, as elsewhere.
    seqpacket::send(ports[2].as_fd(), b"", &[]).unwrap();
    assert!(machines[2].is_parted_with() && clients[2].is_dropped());
    create(&mut clients[0], Service::Rc);
    for key in keys {
        std::fs::remove_file(key).unwrap();
    }
}
