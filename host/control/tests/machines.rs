//! Virtual machines: attached, parted with; what their processes share lies in their window.

mod support;

use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::{Extent, *};
use omniverb_session::limits::{GIDS_MAX, MESSAGE_BYTES_MAX};
use omniverb_session::machine::{
    self, EndSession, MachineAddress, OpenPort, OpenSession, TellAddresses,
};
use omniverb_session::operator::{AttachMachine, DetachMachine, Message as Said};
use omniverb_sys::carried::{Head, MESSAGE_MAX};
use omniverb_sys::event::readable;
use omniverb_sys::{Access, memfd, socket};
use omniverb_terms::{Errno, Service};
use serde_json::Value;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use support::operator::{Operator, name};
use support::*;

const PAGE: u64 = 4096;
const WINDOW_BYTES: u64 = 32 << 20;
const DATA: Extent = Extent { offset: 2 * PAGE, length: WINDOW_BYTES - 2 * PAGE };
const ADDRESS: [u8; 4] = [10, 9, 0, 1];

/// A machine, as its porter has it.
struct Machine {
    door: OwnedFd,
    window: OwnedFd,
    tag: u64,
    /// What the session that came last is called.
    last: u64,
}

fn attach_as(daemon: &Daemon, text: &str, window: &OwnedFd, data: Extent) -> (Said, Vec<OwnedFd>) {
    attach_with(daemon, text, &[window], data)
}

fn attach_with(
    daemon: &Daemon,
    text: &str,
    files: &[&OwnedFd],
    data: Extent,
) -> (Said, Vec<OwnedFd>) {
    let mut operator = Operator::connect(daemon);
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    operator.call_for_files(AttachMachine { name: name(text), data }, &files)
}

impl Machine {
    fn attach(daemon: &Daemon, text: &str) -> Machine {
        let window = memfd::create("window", WINDOW_BYTES).unwrap();
        let (answer, mut files) = attach_as(daemon, text, &window, DATA);
        assert!(matches!(answer, Said::MachineAttached(_)), "{answer:?}");
        Machine { door: files.remove(0), window, tag: 0, last: 0 }
    }

    fn ask(&mut self, message: impl Into<machine::Message>) -> (machine::Message, Vec<OwnedFd>) {
        self.tag += 1;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = machine::encode(self.tag, &message.into(), &mut bytes);
        socket::send(self.door.as_fd(), &bytes[..length], &[]).unwrap();
        assert!(readable(self.door.as_fd(), Some(SOON)).unwrap(), "no answer");
        let (length, files) =
            socket::receive(self.door.as_fd(), &mut bytes, socket::Mode::Blocking).unwrap();
        let (tag, answer) = machine::decode(&bytes[..length]).unwrap();
        assert_eq!(tag, self.tag);
        (answer, files)
    }

    /// A process that has said hello, and where its statistics are.
    fn process(&mut self) -> (Client, Extent) {
        let (answer, mut files) = self.ask(OpenSession { pid: 7, uid: 0 });
        let machine::Message::SessionOpened(opened) = answer else { panic!("{answer:?}") };
        self.last = opened.session;
        let mut client = Client::over(files.remove(0));
        let hello = Hello { role: ROLE_VERBS, resume: 0, name: *b"in a machine\0\0\0\0" };
        let (answer, mut files) = client.call_with(hello, &[]);
        let Message::Welcome(Welcome { area, vnic, .. }) = answer else { panic!("{answer:?}") };
        assert!(vnic.starts_with(b"vm-"), "{vnic:?}");
        assert_eq!(files.len(), 1, "nothing but the events socket");
        client.events = files.pop();
        (client, area)
    }

    /// A process is gone, as the guest says.
    fn end(&mut self, session: u64) {
        assert!(matches!(self.ask(EndSession { session }).0, machine::Message::Done(_)));
    }

    fn tell_address(&mut self) {
        self.tell_addresses(ADDRESS);
    }

    fn tell_addresses(&mut self, address: [u8; 4]) {
        let none = MachineAddress { ip: [0; 16], interface: 0, mtu: 0, reach: 0, loopback: 0 };
        let ip = std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets();
        let mut told = TellAddresses { count: 1, reserved: 0, entries: [none; GIDS_MAX] };
        told.entries[0] = MachineAddress { ip, interface: 2, mtu: 1500, ..none };
        assert!(matches!(self.ask(told).0, machine::Message::Done(_)));
    }

    /// The same window, at another daemon, with what the one before has noted.
    fn attach_again(daemon: &Daemon, window: &OwnedFd, ledger: &OwnedFd) -> Machine {
        let (answer, mut files) = attach_with(daemon, "one", &[window, ledger], DATA);
        assert!(matches!(answer, Said::MachineAttached(_)), "{answer:?}");
        Machine { door: files.remove(0), window: window.try_clone().unwrap(), tag: 0, last: 0 }
    }

    /// What is said at the door, without having been asked; nothing: it is closed.
    fn hear(&self) -> Option<machine::Message> {
        assert!(readable(self.door.as_fd(), Some(SOON)).unwrap(), "nothing");
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match socket::receive(self.door.as_fd(), &mut bytes, socket::Mode::NonBlocking) {
            Ok((0, _)) | Err(_) => None,
            Ok((length, _)) => Some(machine::decode(&bytes[..length]).unwrap().1),
        }
    }

    /// Has its UDP port 4791: the other end is the engine's.
    fn open_port(&mut self) -> OwnedFd {
        let (answer, mut files) = self.ask(OpenPort { reserved: 0 });
        assert!(matches!(answer, machine::Message::PortOpened(_)), "{answer:?}");
        files.remove(0)
    }

    fn is_parted_with(&self) -> bool {
        self.hear().is_none()
    }

    /// An operator did so.
    fn is_detached(&self) -> bool {
        matches!(self.hear(), Some(machine::Message::Parted(_))) && self.hear().is_none()
    }
}

/// What operators see of a machine.
fn seen(daemon: &Daemon, text: &str) -> Option<Value> {
    let found = Operator::connect(daemon).vnics();
    let all = found["vnics"].as_array().unwrap();
    let one = all.iter().find(|vnic| vnic["name"] == format!("vm-{text}"))?;
    one["machine"].is_object().then(|| one["machine"].clone())
}

/// Until it is so; the daemon may not have heard yet.
fn until(what: impl Fn() -> bool) {
    let end = std::time::Instant::now() + SOON;
    while !what() {
        assert!(std::time::Instant::now() < end, "not in time");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_machine_is_there_as_long_as_its_door_is_open() {
    let daemon = Daemon::start(Settings::default());
    let machine = Machine::attach(&daemon, "one");
    let other = Machine::attach(&daemon, "other");
    assert_eq!(seen(&daemon, "one").unwrap()["window"], DATA.length);
    let window = memfd::create("window", WINDOW_BYTES).unwrap();
    assert_eq!(attach_as(&daemon, "one", &window, DATA).0, Said::Failed(Errno::EBUSY));
    drop(machine);
    until(|| seen(&daemon, "one").is_none());
    let again = Machine::attach(&daemon, "one");
    let detach = |text: &str| Operator::connect(&daemon).call(DetachMachine { name: name(text) });
    assert!(matches!(detach("one"), Said::Done(_)));
    assert!(again.is_detached() && seen(&daemon, "one").is_none());
    assert_eq!(detach("one"), Said::Failed(Errno::ENOENT));
    assert_eq!(detach("no name"), Said::Failed(Errno::EINVAL));
    assert!(seen(&daemon, "other").is_some());
    drop(other);
}

#[test]
fn what_is_no_window_or_no_name_is_refused() {
    let daemon = Daemon::start(Settings::default());
    let window = || memfd::create("window", WINDOW_BYTES).unwrap();
    let refused = |text: &str, window: &OwnedFd, data: Extent| {
        let (answer, files) = attach_as(&daemon, text, window, data);
        assert_eq!((answer, files.len()), (Said::Failed(Errno::EINVAL), 0), "{text} {data:?}");
    };
    refused("", &window(), DATA);
    refused("a/b", &window(), DATA);
    for (offset, length) in [(0, PAGE), (1, PAGE), (0, WINDOW_BYTES + PAGE), (0, 0), (0, u64::MAX)]
    {
        refused("one", &window(), Extent { offset, length });
    }
    let open = memfd::unsealed("window", WINDOW_BYTES).unwrap();
    refused("one", &open, DATA);
    let sealed = memfd::create_sealable("window", WINDOW_BYTES).unwrap();
    memfd::seal_future_write(sealed.as_fd()).unwrap();
    refused("one", &sealed, DATA);
    let device: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    refused("one", &device, DATA);
    let none = Operator::connect(&daemon).call(AttachMachine { name: name("one"), data: DATA });
    assert_eq!(none, Said::Failed(Errno::EINVAL));
    drop(Machine::attach(&daemon, "one"));
}

#[test]
fn processes_of_a_machine_share_pieces_of_its_window_and_no_descriptors() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    machine.tell_address();
    let (mut a, area) = machine.process();
    let first_session = machine.last;
    let (mut b, other) = machine.process();
    assert_eq!((area.length, other.length), (AREA_BYTES, AREA_BYTES));
    let Message::Gids(gids) = a.call_with(QueryGids { reserved: 0 }, &[]).0 else { panic!() };
    assert!(gids.entries.iter().any(|entry| entry.gid == gid("10.9.0.1") && entry.mtu == 1500));
    let (one, two) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, two, "10.9.0.1", "10.9.0.1").into());
    b.call(connect(two, one, "10.9.0.1", "10.9.0.1").into());
    let ready = |client: &mut Client| loop {
        match client.event(SOON) {
            Some((Message::GidsChanged(_), _)) => {}
            Some((Message::LinkReady(ready), files)) => break (ready, files.len()),
            event => panic!("{event:?}"),
        }
    };
    let ((first, files), (second, more)) = (ready(&mut a), ready(&mut b));
    assert_eq!((files, more), (0, 0));
    assert_eq!((first.memory, first.bell_memory), (second.memory, second.bell_memory));
    let mut pieces = [area, other, first.memory, first.bell_memory];
    pieces.sort_by_key(|piece| piece.offset);
    assert!(pieces[0].offset >= PAGE, "the first page is the head's");
    for (one, next) in pieces.iter().zip(&pieces[1..]) {
        assert!(one.offset + one.length <= next.offset, "{pieces:?}");
    }
    // What a process counts there the daemon sees.
    let slot = omniverb_sys::Extent::new(&machine.window, DATA.offset + area.offset, PAGE);
    let slot = slot.map(Access::ReadWrite).unwrap();
    write(&slot, 0, u64::from(one.0));
    write(&slot, 8, 1234);
    let shown = daemon.status();
    let text = shown.to_string();
    assert!(text.contains("\"messages_sent\":1234"), "{text}");
    let used = |daemon: &Daemon| seen(daemon, "one").unwrap()["used"].as_u64().unwrap();
    assert_eq!(used(&daemon), pieces.iter().map(|piece| piece.length).sum::<u64>());
    // Who is gone as the guest says gives back what nobody else has.
    machine.end(first_session);
    drop(a);
    until(|| used(&daemon) == pieces.iter().map(|p| p.length).sum::<u64>() - area.length);
    machine.end(machine.last);
    drop(b);
    until(|| used(&daemon) == 0);
}

/// A process goes on with its links when it has lost its daemon; only the guest knows whether it
/// is there.
#[test]
fn what_a_process_may_still_use_is_neither_emptied_nor_given_to_others() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    let (lost, area) = machine.process();
    let window = machine.window.try_clone().unwrap();
    let map = |area: Extent| {
        let pages = omniverb_sys::Extent::new(&window, DATA.offset + area.offset, PAGE);
        pages.map(Access::ReadWrite).unwrap()
    };
    let mapped = map(area);
    write(&mapped, 64, 77);
    drop(lost);
    until(|| seen(&daemon, "one").unwrap()["sessions"] == 0);
    // It said nothing before it went.
    let (_next, other) = machine.process();
    assert!(other.offset >= area.offset + area.length, "{other:?} after {area:?}");
    let stays = map(other);
    write(&stays, 64, 78);
    assert!(matches!(
        Operator::connect(&daemon).call(DetachMachine { name: name("one") }),
        Said::Done(_)
    ));
    assert!(machine.is_detached());
    drop(daemon);
    assert_eq!([&mapped, &stays].map(|window| read(window, 64)), [77, 78]);
}

/// What processes have that a daemon before this one knew they may have still.
#[test]
fn a_window_comes_to_the_next_daemon_with_its_ledger() {
    let window = memfd::create("window", WINDOW_BYTES).unwrap();
    let ledger = memfd::create("ledger", DATA.length / PAGE).unwrap();
    let used = |daemon: &Daemon| seen(daemon, "one").unwrap()["used"].as_u64().unwrap();
    let first = Daemon::start(Settings::default());
    let mut machine = Machine::attach_again(&first, &window, &ledger);
    let (gone, _) = machine.process();
    let of_gone = machine.last;
    let (stays, area) = machine.process();
    machine.end(of_gone);
    drop(gone);
    until(|| used(&first) == area.length);
    let kept = used(&first);
    drop(first);
    assert!(machine.is_parted_with());
    let second = Daemon::start(Settings::default());
    let mut machine = Machine::attach_again(&second, &window, &ledger);
    assert_eq!(used(&second), kept);
    for _ in 0..3 {
        let (_, other) = machine.process();
        let apart =
            other.offset >= area.offset + area.length || other.offset + other.length <= area.offset;
        assert!(apart, "{other:?} is {area:?}");
    }
    drop(stays);
}

#[test]
fn what_is_no_ledger_is_refused() {
    let daemon = Daemon::start(Settings::default());
    let window = memfd::create("window", WINDOW_BYTES).unwrap();
    let short = memfd::create("ledger", DATA.length / PAGE - 1).unwrap();
    let open = memfd::unsealed("ledger", DATA.length / PAGE).unwrap();
    let device: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for ledger in [&short, &open, &device] {
        let (answer, files) = attach_with(&daemon, "one", &[&window, ledger], DATA);
        assert_eq!((answer, files.len()), (Said::Failed(Errno::EINVAL), 0));
    }
    let three = attach_with(&daemon, "one", &[&window, &window, &window], DATA).0;
    assert_eq!(three, Said::Failed(Errno::EINVAL));
    drop(Machine::attach(&daemon, "one"));
}

/// Whoever has a number of another session's at his door ends nobody.
#[test]
fn a_machine_speaks_of_its_own_sessions_only() {
    let daemon = Daemon::start(Settings::default());
    let (mut one, mut two) = (Machine::attach(&daemon, "one"), Machine::attach(&daemon, "two"));
    let (theirs, area) = one.process();
    two.end(one.last);
    two.end(u64::MAX);
    drop(theirs);
    until(|| seen(&daemon, "one").unwrap()["sessions"] == 0);
    // It was not gone by the word of its own machine.
    assert!(one.process().1.offset >= area.offset + area.length);
}

/// Of what a machine says of its addresses again and again the last counts.
#[test]
fn the_address_that_was_said_last_counts() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    for last in 1..=200 {
        machine.tell_addresses([10, 9, 0, last]);
    }
    until(|| seen(&daemon, "one").unwrap()["addresses"][0] == "10.9.0.200");
}

/// Who never says hello is not there for ever.
#[test]
fn a_session_that_says_nothing_ends() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    let files = machine.ask(OpenSession { pid: 7, uid: 0 }).1;
    assert!(readable(files[0].as_fd(), Some(6 * SOON)).unwrap(), "it stays");
    until(|| seen(&daemon, "one").unwrap()["sessions"] == 0);
}

fn read(window: &impl omniverb_ring::WordMemory, offset: usize) -> u64 {
    window.load(offset, omniverb_ring::sync::Ordering::Relaxed)
}

fn write(window: &impl omniverb_ring::WordMemory, offset: usize, value: u64) {
    window.store(offset, value, omniverb_ring::sync::Ordering::Relaxed);
}

/// A machine's process and one of the host have no memory that both may see.
#[test]
fn nobody_else_is_given_memory_with_a_process_of_a_machine() {
    let daemon = Daemon::start(Settings::default());
    let (mut machine, mut stranger) =
        (Machine::attach(&daemon, "one"), Machine::attach(&daemon, "two"));
    machine.tell_address();
    stranger.tell_address();
    let (mut a, _) = machine.process();
    let (mut b, _) = stranger.process();
    let mut c = Client::hello(&daemon.path);
    let [one, two, three] = [&mut a, &mut b, &mut c].map(|client| create(client, Service::Rc));
    // The same address, each with itself in mind; and another's number.
    for (client, own, peer) in [(&mut a, one, two), (&mut b, two, one), (&mut c, three, one)] {
        let from = if own == three { "127.0.0.1" } else { "10.9.0.1" };
        client.call(connect(own, peer, from, "10.9.0.1").into());
    }
    for client in [&mut a, &mut b, &mut c] {
        while let Some((message, files)) = client.event(MOMENT) {
            let Message::LinkReady(ready) = message else { continue };
            // The host's process: to whatever has that address on its own network.
            assert!(ready.qpn == three && ready.engine != 0 && files.len() == 2, "{ready:?}");
        }
    }
}

#[test]
fn who_talks_nonsense_at_a_door_has_no_machine_any_more() {
    let daemon = Daemon::start(Settings::default());
    let hello: Message = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] }.into();
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = omniverb_session::encode(1, &hello, &mut bytes);
    let null = std::fs::File::open("/dev/null").unwrap();
    let none: &[BorrowedFd<'_>] = &[];
    let mut open = [0; MESSAGE_BYTES_MAX];
    let opened = machine::encode(1, &OpenSession { pid: 1, uid: 1 }.into(), &mut open);
    for (said, files) in [
        (&bytes[..length], none),
        (&b"nonsense"[..], none),
        (&open[..opened - 1], none),
        (&open[..opened], &[null.as_fd()][..]),
    ] {
        let mut machine = Machine::attach(&daemon, "one");
        let (client, _) = machine.process();
        let sent = socket::send(machine.door.as_fd(), said, files);
        // Kernels that can refuse descriptors do so.
        if !files.is_empty() && sent.is_err() {
            drop(machine);
            until(|| seen(&daemon, "one").is_none());
            continue;
        }
        assert!(machine.is_parted_with() && client.is_dropped());
        until(|| seen(&daemon, "one").is_none());
    }
    // Others do not notice.
    create(&mut Client::hello(&daemon.path), Service::Rc);
}

#[test]
fn what_is_set_for_a_machine_holds_when_it_comes_back() {
    use omniverb_session::operator::{ADOPTION_OFF, SET_ADOPTION, SetVnic};
    let daemon = Daemon::start(Settings::default());
    let machine = Machine::attach(&daemon, "one");
    let set = SetVnic {
        name: name("vm-one"),
        what: SET_ADOPTION,
        datapath: 0,
        bits_per_second: 0,
        burst_bytes: 0,
        faults: Default::default(),
        adoption: ADOPTION_OFF,
        reserved: 0,
    };
    assert!(matches!(Operator::connect(&daemon).call(set), Said::VnicChanged(_)));
    drop(machine);
    until(|| seen(&daemon, "one").is_none());
    let _back = Machine::attach(&daemon, "one");
    let found = Operator::connect(&daemon).vnics();
    let row = found["vnics"].as_array().unwrap().iter().find(|vnic| vnic["name"] == "vm-one");
    assert_eq!(row.unwrap()["adoption"], "off");
}

/// Carries what leaves by each of two ports to the other.
fn carry(ports: &[OwnedFd; 2]) {
    let mut buffer = [0; MESSAGE_MAX];
    for (from, to) in [(&ports[0], &ports[1]), (&ports[1], &ports[0])] {
        let mode = socket::Mode::NonBlocking;
        while let Ok((length, _)) = socket::receive(from.as_fd(), &mut buffer, mode) {
            let Some((head, payload)) = Head::read(&buffer[..length]) else { continue };
            let (local, remote) = (Some(head.remote), head.local.unwrap());
            let arrived = [&Head { local, remote, ..head }.written()[..], payload].concat();
            socket::send(to.as_fd(), &arrived, &[]).unwrap();
        }
    }
}

/// The test is the network.
#[test]
fn machines_whose_network_carries_a_probe_are_linked_by_the_engine() {
    let daemon = Daemon::start(Settings::default());
    let [mut one, mut two] = ["one", "two"].map(|name| Machine::attach(&daemon, name));
    one.tell_addresses([10, 9, 0, 1]);
    two.tell_addresses([10, 9, 0, 2]);
    let ports = [one.open_port(), two.open_port()];
    assert_eq!(seen(&daemon, "one").unwrap()["network"], true);
    let ((mut a, _), (mut b, _)) = (one.process(), two.process());
    let [first, second] = [&mut a, &mut b].map(|client| create(client, Service::Rc));
    a.call(connect(first, second, "10.9.0.1", "10.9.0.2").into());
    b.call(connect(second, first, "10.9.0.2", "10.9.0.1").into());
    for client in [&mut a, &mut b] {
        let end = std::time::Instant::now() + SOON;
        let (ready, files) = loop {
            assert!(std::time::Instant::now() < end, "not in time");
            carry(&ports);
            match client.event(MOMENT) {
                Some((Message::LinkReady(ready), files)) => break (ready, files),
                Some((Message::GidsChanged(_), _)) | None => {}
                event => panic!("{event:?}"),
            }
        };
        assert!(ready.engine != 0 && files.is_empty(), "{ready:?}");
        assert!(ready.memory.offset >= PAGE && ready.bell_memory.offset >= PAGE, "{ready:?}");
    }
    let text = daemon.status().to_string();
    // Of each queue pair, and of each peer.
    assert_eq!(text.matches("\"path\":\"forwarded\"").count(), 4, "{text}");
    let row = seen(&daemon, "one").unwrap();
    assert_eq!((&row["engine"], &row["direct"]), (&1.into(), &0.into()), "{row}");
    // Who is gone has no link; what the engine had mapped comes back with it.
    let (session, used) = (one.last, || seen(&daemon, "one").unwrap()["used"].as_u64().unwrap());
    one.end(session);
    drop(a);
    until(|| used() == 0);
    drop(one);
    until(|| seen(&daemon, "one").is_none());
    assert!(seen(&daemon, "two").is_some());
}

/// Whatever an agent carries: others have what they had.
#[test]
fn nonsense_by_a_machines_port_harms_nobody() {
    let daemon = Daemon::start(Settings::default());
    let mut one = Machine::attach(&daemon, "one");
    one.tell_address();
    let port = one.open_port();
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
    create(&mut a, Service::Rc);
    drop(port);
    create(&mut Client::hello(&daemon.path), Service::Rc);
    assert_eq!(seen(&daemon, "one").unwrap()["sessions"], 1);
}
