//! Tests virtual machines: attached, detached, with links in their windows.

use crate::support::fake_vm_proxy::*;
use crate::support::operator::{Operator, name};
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::{Extent, *};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::operator::{AttachMachine, DetachMachine, Message as Said};
use omniverb_session::vm::{self, OpenSession};
use omniverb_sys::eventfd::readable;
use omniverb_sys::{Access, memfd, seqpacket};
use omniverb_terms::{Errno, Rkey, Service};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[test]
fn a_machine_lasts_as_long_as_its_socket() {
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
fn a_malformed_window_or_name_is_refused() {
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
            Some((Message::GidsChanged(_) | Message::GrantEnded(_), _)) => {}
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
    // The daemon sees the counters of a process there.
    let slot = omniverb_sys::Extent::new(&machine.window, DATA.offset + area.offset, PAGE);
    let slot = slot.map(Access::ReadWrite).unwrap();
    write(&slot, 0, u64::from(one.0));
    write(&slot, 8, 1234);
    let shown = daemon.status();
    let text = shown.to_string();
    assert!(text.contains("\"messages_sent\":1234"), "{text}");
    let used = |daemon: &Daemon| seen(daemon, "one").unwrap()["used"].as_u64().unwrap();
    assert_eq!(used(&daemon), pieces.iter().map(|piece| piece.length).sum::<u64>());
    // A process that has ended by the guest's word gives back what no other has.
    machine.end(first_session);
    drop(a);
    until(|| used(&daemon) == pieces.iter().map(|p| p.length).sum::<u64>() - area.length);
    machine.end(machine.last);
    drop(b);
    until(|| used(&daemon) == 0);
}

/// The next message to a machine's process but news of addresses, without descriptors.
fn told(client: &mut Client) -> Message {
    loop {
        match client.event(SOON) {
            Some((Message::GidsChanged(_) | Message::GrantEnded(_), _)) => {}
            Some((message, files)) => {
                assert!(files.is_empty(), "{message:?}");
                return message;
            }
            None => panic!("nothing"),
        }
    }
}

/// Pages of a machine's process go onto a piece of the window, which comes back when the owner and
/// all grantees have released it, as often as they were told of it, and not before.
#[test]
fn pages_of_a_machines_process_are_granted_in_its_window() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    machine.tell_address();
    let ((mut a, _), (mut b, _)) = (machine.process(), machine.process());
    let last = machine.last;
    let (one, two) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, two, "10.9.0.1", "10.9.0.1").into());
    b.call(connect(two, one, "10.9.0.1", "10.9.0.1").into());
    for client in [&mut a, &mut b] {
        assert!(matches!(told(client), Message::LinkReady(_)));
    }
    let used = || seen(&daemon, "one").unwrap()["used"].as_u64().unwrap();
    let idle = used();
    let grant = |a: &mut Client, b: &mut Client, length: u64| {
        let reg = RegMr { pd: 1, access: 6, addr: 0x10800, length, rkey: Rkey(0), reserved: 0 };
        let Message::MrRegistered(MrRegistered { rkey, .. }) = b.call(reg.into()) else { panic!() };
        let (qpn, peer_qpn, address) = (one, two, 0x11008);
        let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address, length: 8 };
        assert!(matches!(a.call(ask.into()), Message::Connected(_)));
        let adopt = match told(b) {
            Message::Adopt(adopt) => adopt,
            other => panic!("{other:?}"),
        };
        b.say(Adopted { token: adopt.token, errno: Errno::NONE, epoch: 0 }.into());
        let Message::Granted(granted) = told(a) else { panic!("no grant") };
        assert_eq!((granted.memory, granted.page_start), (adopt.memory, 0x11000));
        (rkey, granted.memory)
    };
    let (rkey, piece) = grant(&mut a, &mut b, 0x3000);
    assert!(piece.offset >= PAGE && piece.length == 0x2000, "{piece:?}");
    assert_eq!(used(), idle + piece.length);
    // Twice, as for two queue pairs.
    let (qpn, peer_qpn, address) = (one, two, 0x11008);
    let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address, length: 8 };
    a.call(ask.into());
    let Message::Adopt(adopt) = told(&mut b) else { panic!() };
    assert_eq!((adopt.fresh, adopt.memory.length), (0, piece.length));
    b.say(Adopted { token: adopt.token, errno: Errno::NONE, epoch: 0 }.into());
    let Message::Granted(granted) = told(&mut a) else { panic!() };
    assert_eq!(granted.memory, piece);
    b.call(DeregMr { rkey, reserved: 0 }.into());
    let gone = |times| LetGo { memory: piece, times, reserved: 0 };
    b.say(gone(1).into());
    a.say(gone(1).into());
    // Pieces of other processes are not its to give back, nor ranges that are no piece.
    b.say(gone(9).into());
    b.say(LetGo { memory: Extent { offset: 0, length: PAGE }, times: 1, reserved: 0 }.into());
    let (_, next) = grant(&mut a, &mut b, 0x3000);
    assert!(next.offset != piece.offset && used() == idle + 2 * piece.length);
    a.say(gone(1).into());
    until(|| used() == idle + piece.length);
    // An ended process has released everything.
    a.say(LetGo { memory: next, times: 1, reserved: 0 }.into());
    machine.end(last);
    drop(b);
    until(|| used() < idle);
    drop(a);
}

/// Half of the window is for links and all else.
#[test]
fn pages_that_the_window_has_no_room_for_stay_where_they_are() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    machine.tell_address();
    let ((mut a, _), (mut b, _)) = (machine.process(), machine.process());
    let (one, two) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, two, "10.9.0.1", "10.9.0.1").into());
    b.call(connect(two, one, "10.9.0.1", "10.9.0.1").into());
    for client in [&mut a, &mut b] {
        assert!(matches!(told(client), Message::LinkReady(_)));
    }
    let length = WINDOW_BYTES / 2;
    let reg = RegMr { pd: 1, access: 6, addr: 0x10000, length, rkey: Rkey(0), reserved: 0 };
    let Message::MrRegistered(MrRegistered { rkey, .. }) = b.call(reg.into()) else { panic!() };
    let (qpn, peer_qpn, address) = (one, two, 0x11008);
    let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address, length };
    assert!(matches!(a.call(ask.into()), Message::Connected(_)));
    let denied = GrantDenied { qpn, peer_qpn, rkey, errno: Errno::EAGAIN };
    assert_eq!(told(&mut a), denied.into());
}

/// A device's counters go on when a process of it ends, or its proxy, and not when another machine
/// has its name.
#[test]
fn counters_belong_to_the_machine_and_not_to_its_name() {
    let daemon = Daemon::start(Settings::default());
    let sent = |daemon: &Daemon| {
        let found = Operator::connect(daemon).vnics();
        let mut all = found["vnics"].as_array().unwrap().iter();
        let one = all.find(|vnic| vnic["name"] == "vm-one").unwrap();
        one["ended"]["messages_sent"].as_u64().unwrap()
    };
    let counts = |machine: &mut Machine| {
        machine.tell_address();
        let (mut client, area) = machine.process();
        let qpn = create(&mut client, Service::Rc);
        let slot = omniverb_sys::Extent::new(&machine.window, DATA.offset + area.offset, PAGE);
        let slot = slot.map(Access::ReadWrite).unwrap();
        write(&slot, 0, u64::from(qpn.0));
        write(&slot, 8, 1234);
        machine.end(machine.last);
    };
    let attach = |window: &OwnedFd| {
        let (answer, mut files) = attach_as(&daemon, "one", window, DATA);
        assert!(matches!(answer, Said::MachineAttached(_)), "{answer:?}");
        Machine {
            machine_socket: files.remove(0),
            window: window.try_clone().unwrap(),
            tag: 0,
            last: 0,
        }
    };
    let windows = [(); 2].map(|()| memfd::create("window", WINDOW_BYTES).unwrap());
    for window in &windows {
        for round in 1..3 {
            let mut machine = attach(window);
            assert_eq!(sent(&daemon), 1234 * (round - 1));
            counts(&mut machine);
            until(|| sent(&daemon) == 1234 * round);
            drop(machine);
            until(|| seen(&daemon, "one").is_none());
        }
    }
}

/// A process that fills a window gets an error; other processes, in the machine or outside, do not.
#[test]
fn a_full_window_accepts_no_connection() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    machine.tell_address();
    let (mut a, _) = machine.process();
    let mut links = 0;
    let refused = loop {
        let ends = [create(&mut a, Service::Rc), create(&mut a, Service::Rc)];
        let mut answers = [(ends[0], ends[1]), (ends[1], ends[0])].map(|(one, other)| {
            let message = connect(one, other, "10.9.0.1", "10.9.0.1");
            a.call_with(message, &[]).0
        });
        answers.sort_by_key(|answer| !matches!(answer, Message::Failed(_)));
        if let [Message::Failed(errno), _] = answers {
            break errno;
        }
        links += 1;
        assert!(links < 1000, "no end");
        link_ready(&mut a);
    };
    assert_eq!(refused, Errno::ENOMEM);
    assert!(links > 20, "{links}");
    let (mut b, _) = machine.process();
    create(&mut b, Service::Rc);
    let mut other = Client::hello(&daemon.path);
    let ends = [create(&mut other, Service::Rc), create(&mut other, Service::Rc)];
    for (one, two) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        other.call_with(connect(one, two, "127.0.0.1", "127.0.0.1"), &[]);
    }
    link_ready(&mut other);
    // Its pieces are free again when it is gone.
    let first = machine.last - 1;
    machine.end(first);
    drop(a);
    until(|| seen(&daemon, "one").unwrap()["used"].as_u64().unwrap() <= AREA_BYTES);
}

/// A server that lives long has had more connections than there is room for at a time.
#[test]
fn a_link_gives_its_memory_back_with_the_queue_pairs_at_both_ends() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    machine.tell_address();
    let (mut a, _) = machine.process();
    let (mut b, _) = machine.process();
    let used = || seen(&daemon, "one").unwrap()["used"].as_u64().unwrap();
    let mut without_links = 0;
    for round in 0..100 {
        let (one, two) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
        a.call(connect(one, two, "10.9.0.1", "10.9.0.1").into());
        b.call(connect(two, one, "10.9.0.1", "10.9.0.1").into());
        let length = link_ready(&mut a).memory.length;
        link_ready(&mut b);
        let with_link = used();
        a.call(DestroyQp { qpn: one, reserved: 0 }.into());
        // The other end may use it.
        link_closed(&mut b);
        assert_eq!(used(), with_link);
        b.call(DestroyQp { qpn: two, reserved: 0 }.into());
        if round == 0 {
            // The doorbell stays.
            without_links = with_link - length;
        }
        until(|| used() == without_links);
    }
}

/// A process goes on with its links when it has lost its daemon; only the guest knows whether it
/// is there.
#[test]
fn memory_in_use_is_neither_emptied_nor_given_again() {
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
fn a_malformed_ledger_is_refused() {
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

/// A proxy that names another machine's session at its machine socket ends none.
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

/// Of the addresses that a machine sends again and again the last count.
#[test]
fn the_last_reported_address_counts() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    for last in 1..=200 {
        machine.tell_addresses([10, 9, 0, last]);
    }
    until(|| seen(&daemon, "one").unwrap()["addresses"][0] == "10.9.0.200");
}

/// A process without a hello is disconnected in time.
#[test]
fn a_session_that_says_nothing_ends() {
    let daemon = Daemon::start(Settings::default());
    let mut machine = Machine::attach(&daemon, "one");
    let files = machine.ask(OpenSession { pid: 7, uid: 0 }).1;
    assert!(readable(files[0].as_fd(), Some(6 * SOON)).unwrap(), "it stays");
    until(|| seen(&daemon, "one").unwrap()["sessions"] == 0);
}

fn read(window: &impl omniverb_ring::WordMemory, offset: usize) -> u64 {
    window.load(offset, omniverb_ring::shared_atomics::Ordering::Relaxed)
}

fn write(window: &impl omniverb_ring::WordMemory, offset: usize, value: u64) {
    window.store(offset, value, omniverb_ring::shared_atomics::Ordering::Relaxed);
}

/// A machine's process and one of the host have no memory that both may see.
#[test]
fn no_other_process_shares_memory_with_a_machines() {
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
fn a_malformed_message_at_the_socket_ends_the_machine() {
    let daemon = Daemon::start(Settings::default());
    let hello: Message = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] }.into();
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = omniverb_session::encode(1, &hello, &mut bytes);
    let null = std::fs::File::open("/dev/null").unwrap();
    let none: &[BorrowedFd<'_>] = &[];
    let mut open = [0; MESSAGE_BYTES_MAX];
    let opened = vm::encode(1, &OpenSession { pid: 1, uid: 1 }.into(), &mut open);
    for (said, files) in [
        (&bytes[..length], none),
        (&b"nonsense"[..], none),
        (&open[..opened - 1], none),
        (&open[..opened], &[null.as_fd()][..]),
    ] {
        let mut machine = Machine::attach(&daemon, "one");
        let (client, _) = machine.process();
        let sent = seqpacket::send(machine.machine_socket.as_fd(), said, files);
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
fn settings_of_a_machine_hold_when_it_comes_back() {
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
        operations_per_second: 0,
    };
    assert!(matches!(Operator::connect(&daemon).call(set), Said::VnicChanged(_)));
    drop(machine);
    until(|| seen(&daemon, "one").is_none());
    let _back = Machine::attach(&daemon, "one");
    let found = Operator::connect(&daemon).vnics();
    let row = found["vnics"].as_array().unwrap().iter().find(|vnic| vnic["name"] == "vm-one");
    assert_eq!(row.unwrap()["adoption"], "off");
}
