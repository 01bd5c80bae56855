//! UDP ports of virtual machines: what their porters carry, from whoever it comes.

mod support;

use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_sys::carried::{Head, MESSAGE_MAX};
use omniverb_sys::event::readable;
use omniverb_sys::socket;
use omniverb_terms::Service;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use support::machine::*;
use support::*;

/// Carries what leaves by each of two ports to the other.
fn carry(ports: &[OwnedFd; 2]) {
    let mut buffer = [0; MESSAGE_MAX];
    for (from, to) in [(&ports[0], &ports[1]), (&ports[1], &ports[0])] {
        let mode = socket::Mode::NonBlocking;
        // An empty one: the other end is gone.
        while let Ok((length @ 1.., _)) = socket::receive(from.as_fd(), &mut buffer, mode) {
            let Some((head, payload)) = Head::read(&buffer[..length]) else { continue };
            let (local, remote) = (Some(head.remote), head.local.unwrap());
            let arrived = [&Head { local, remote, ..head }.written()[..], payload].concat();
            let _ = socket::send(to.as_fd(), &arrived, &[]);
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
fn link(a: &mut Client, b: &mut Client) {
    let [first, second] = [&mut *a, &mut *b].map(|client| create(client, Service::Rc));
    a.call(connect(first, second, ONE, TWO).into());
    b.call(connect(second, first, TWO, ONE).into());
    for client in [a, b] {
        let (ready, files) = loop {
            match client.event(SOON) {
                Some((Message::LinkReady(ready), files)) => break (ready, files),
                Some((Message::GidsChanged(_), _)) => {}
                event => panic!("{event:?}"),
            }
        };
        assert!(ready.engine != 0 && files.is_empty(), "{ready:?}");
        assert!(ready.memory.offset >= PAGE && ready.bell_memory.offset >= PAGE, "{ready:?}");
    }
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
    // Who is gone has no link; what the engine had mapped comes back with it.
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
fn nonsense_by_a_machines_port_harms_nobody() {
    let daemon = Daemon::start(Settings::default());
    let ([mut one, mut two], [port, far]) = two_machines(&daemon);
    // Its port is watched while it has a process.
    let (mut a, _) = one.process();
    create(&mut a, Service::Rc);
    let head = Head {
        local: Some([10, 9, 0, 1].into()),
        remote: [10, 9, 0, 2].into(),
        interface: 0,
        port: 4791,
        ecn: 0,
    };
    for length in [0, 1, 12, 40, 64, 4000] {
        for byte in [0, 0x0f, 0xff] {
            let message = [&head.written()[..], &vec![byte; length]].concat();
            socket::send(port.as_fd(), &message, &[]).unwrap();
            socket::send(port.as_fd(), &vec![byte; length + 1], &[]).unwrap();
        }
    }
    create(&mut Client::hello(&daemon.path), Service::Rc);
    let _network = Network::between(&[&port, &far]);
    let (mut b, _) = two.process();
    link(&mut a, &mut b);
    assert_eq!(forwarded(&daemon), 4, "{}", daemon.status());
}

/// What no agent can have its porter send: the porter is not what it was.
#[test]
fn a_porter_that_sends_by_its_port_what_it_must_not_has_no_machine_any_more() {
    let daemon = Daemon::start(Settings::default());
    let ([mut one, mut two], [port, far]) = two_machines(&daemon);
    let _network = Network::between(&[&port, &far]);
    let ((mut a, _), (mut b, _)) = (one.process(), two.process());
    link(&mut a, &mut b);
    let null = std::fs::File::open("/dev/null").unwrap();
    // Kernels that can refuse descriptors do so; an empty message is none, either.
    if socket::send(port.as_fd(), b"x", &[null.as_fd()]).is_err() {
        socket::send(port.as_fd(), b"", &[]).unwrap();
    }
    assert!(one.is_parted_with() && a.is_dropped());
    until(|| seen(&daemon, "one").is_none());
    create(&mut b, Service::Rc);
    Machine::attach(&daemon, "one");
}

/// A network keeps nothing for whoever comes an hour later.
#[test]
fn what_came_while_a_machine_had_no_process_is_for_none_that_comes() {
    let daemon = Daemon::start(Settings::default());
    let mut one = Machine::attach(&daemon, "one");
    one.tell_address();
    let port = one.open_port();
    // Another daemon asks who is there, in a handshake of this number.
    let ask = |number: u8| {
        let (ip, local) = (|last| [10, 9, 0, last].into(), Some([10, 9, 0, 1].into()));
        let head = Head { local, remote: ip(2), interface: 0, port: 4791, ecn: 0 };
        let bytes = [&[0xff, 0x0f][..], &[0; 10], b"omniver1", &[number; 16], &[0; 4]].concat();
        socket::send(port.as_fd(), &[&head.written()[..], &bytes].concat(), &[]).unwrap();
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
    let mode = socket::Mode::NonBlocking;
    while let Ok((length @ 1.., _)) = socket::receive(port.as_fd(), &mut buffer, mode) {
        let Some((_, answer)) = Head::read(&buffer[..length]) else { continue };
        assert_eq!((&answer[12..20], &answer[20..36]), (&b"omniver2"[..], &[2; 16][..]));
    }
}
