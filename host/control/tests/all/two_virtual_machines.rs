//! Tests a pair window that two machines have plugged in (decision 0042).

use crate::support::fake_vm_proxy::{
    DATA as OWN, Machine, PAGE, WINDOW_BYTES, attach_with, seen, until,
};
use crate::support::namespaces::{Net, is_root};
use crate::support::operator::{Operator, name};
use crate::support::vm_network_namespace::Carried;
use crate::support::*;
use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::{Extent, *};
use omniverb_session::operator::{AttachPair, AwaitPair, JoinPair, Message as Said};
use omniverb_session::pair_window::PlugTrouble;
use omniverb_session::vm::{self, TellPairs};
use omniverb_sys::eventfd::readable;
use omniverb_sys::extent::FileId;
use omniverb_sys::{memfd, seqpacket};
use omniverb_terms::{Errno, Rkey, Service};
use std::os::fd::{AsFd, OwnedFd};

const A: &str = "10.99.0.1";
const B: &str = "10.99.0.2";
const BYTES: u64 = 8 << 20;
const DATA: Extent = Extent { offset: 2 * PAGE, length: BYTES - 2 * PAGE };

/// A machine's files at its supervisor: its own window, a pair window, and their ledgers.
struct Kept {
    own: [OwnedFd; 2],
    pair: [OwnedFd; 2],
}

impl Kept {
    fn new() -> Kept {
        let file = |bytes| memfd::create("kept", bytes).unwrap();
        let own = [WINDOW_BYTES, OWN.length / PAGE + 32].map(file);
        Kept { own, pair: [BYTES, DATA.length / PAGE + 64].map(file) }
    }
}

fn done(said: &Said) {
    assert!(matches!(said, Said::Done(_)), "{said:?}");
}

fn id(file: &OwnedFd) -> FileId {
    omniverb_sys::Extent::new(file, 0, 0).file_id().unwrap()
}

/// A machine in a network of its own, and its supervisor as it waits.
struct There {
    machine: Machine,
    network: Carried,
    supervisor: Operator,
    text: &'static str,
}

impl There {
    /// It has its pair window, and has found it.
    fn new(daemon: &Daemon, net: &Net, text: &'static str, kept: &Kept) -> There {
        let address = if text == "one" { B } else { A };
        let files = [&kept.own[0], &kept.own[1]];
        let (answer, mut machine_sockets) = attach_with(daemon, text, &files, OWN);
        assert!(matches!(answer, Said::MachineAttached(_)), "{answer:?}");
        let window = kept.own[0].try_clone().unwrap();
        let mut machine =
            Machine { machine_socket: machine_sockets.remove(0), window, tag: 0, last: 0 };
        let mut supervisor = Operator::connect(daemon);
        let asked = AttachPair { name: name(text), data: DATA, number: 1, at: 0 };
        let files = [kept.pair[0].as_fd(), kept.pair[1].as_fd()];
        done(&supervisor.call_for_files(asked, &files).0);
        let network = Carried::new(&mut machine, net, address);
        let mut there = There { machine, network, supervisor, text };
        there.tell(1);
        there
    }

    /// Its agent has found these.
    fn tell(&mut self, present: u64) {
        assert!(matches!(self.machine.ask(TellPairs { present }).0, vm::Message::Done(_)));
    }

    /// Its supervisor waits.
    fn waits(&self, left: u32, can: u16, trouble: u16) {
        self.supervisor.say(AwaitPair { name: name(self.text), left, trouble, can });
    }

    /// The window that it is offered.
    fn offered(&self) -> OwnedFd {
        assert!(readable(self.supervisor.socket.as_fd(), Some(SOON)).unwrap(), "nothing");
        let mut bytes = [0; omniverb_session::limits::MESSAGE_BYTES_MAX];
        let mode = seqpacket::BlockingMode::NonBlocking;
        let (length, mut files) =
            seqpacket::receive(self.supervisor.socket.as_fd(), &mut bytes, mode).unwrap();
        let said = omniverb_session::operator::decode(&bytes[..length]).unwrap().1;
        assert!(matches!(said, Said::PairOffered(_)), "{said:?}");
        files.remove(0)
    }

    /// It has that one plugged in, as window 2.
    fn joins(&mut self, file: &OwnedFd) {
        let asked = JoinPair { name: name(self.text), data: DATA, number: 2, at: 0 };
        done(&self.supervisor.call_with(asked, &[file.as_fd()]));
    }
}

/// What processes of machines one and two are told of a link, and the way it goes.
fn link(ends: [&There; 2], clients: [&mut Client; 2]) -> [LinkReady; 2] {
    let [one, two] = clients;
    let (first, second) = (create(one, Service::Rc), create(two, Service::Rc));
    one.call(connect(first, second, B, A).into());
    two.call(connect(second, first, A, B).into());
    [one, two].map(|client| {
        let end = std::time::Instant::now() + SOON;
        loop {
            assert!(std::time::Instant::now() < end, "not in time");
            ends.iter().for_each(|there| there.network.carry());
            match client.event(MOMENT) {
                Some((Message::LinkReady(ready), files)) => {
                    assert!(files.is_empty(), "a machine gets none");
                    break ready;
                }
                Some((Message::GidsChanged(_) | Message::LinkClosed(_), _)) | None => {}
                event => panic!("{event:?}"),
            }
        }
    })
}

/// Two networks that reach each other: of machine one, and of machine two.
fn networks() -> [Net; 2] {
    let (there, here) = (Net::new(), Net::new());
    here.join(&there, A, B);
    [there, here]
}

fn row(daemon: &Daemon, text: &str, name: &str) -> serde_json::Value {
    seen(daemon, text).unwrap()["pairs"][name].clone()
}

fn plain(extent: Extent) -> (u64, Extent) {
    let offset = extent.offset & ((1 << 56) - 1);
    (extent.offset >> 56, Extent { offset, ..extent })
}

#[test]
fn the_second_link_of_two_machines_is_in_a_window_that_is_in_both() {
    if !is_root() {
        return;
    }
    let (nets, kept) = (networks(), [Kept::new(), Kept::new()]);
    let daemon = Daemon::start(Settings::default());
    let mut one = There::new(&daemon, &nets[0], "one", &kept[0]);
    let mut two = There::new(&daemon, &nets[1], "two", &kept[1]);
    two.waits(3, 1, 0);
    let (mut b, _) = one.machine.process();
    let of_b = one.machine.last;
    let (mut a, _) = two.machine.process();
    let of_a = two.machine.last;
    let first = link([&one, &two], [&mut b, &mut a]);
    assert_eq!(first.map(|ready| ready.engine), [1, 1], "there is none yet");
    let status = daemon.status().to_string();
    assert!(status.contains("later links have one"), "{status}");
    // A window that is not plugged in when it waits again is offered again.
    let window = two.offered();
    assert_eq!(id(&window), id(&kept[0].pair[0]), "the supervisor of one does not wait");
    assert_eq!([row(&daemon, "one", "given"), row(&daemon, "two", "given")], [1, 0]);
    two.waits(2, 1, PlugTrouble::Device as u16);
    assert_eq!(id(&two.offered()), id(&window));
    two.joins(&window);
    let same = JoinPair { name: name("two"), data: DATA, number: 2, at: 0 };
    assert_eq!(two.supervisor.call_with(same, &[window.as_fd()]), Said::Failed(Errno::EBUSY));
    two.waits(1, 1, 0);
    assert_eq!(two.supervisor.heard(MOMENT), None, "it has that, and one without owner");
    // Plugged in is not found.
    let unfound = link([&one, &two], [&mut b, &mut a]);
    assert_eq!(unfound.map(|ready| ready.engine), [1, 1]);
    two.tell(0b11);
    let [of_one, of_two] = link([&one, &two], [&mut b, &mut a]);
    assert_eq!([of_one.engine, of_two.engine], [0, 0]);
    assert_eq!([of_one.bell_side, of_two.bell_side], [1, 0], "the second page is whose it is");
    for (here, there) in [(of_one.memory, of_two.memory), (of_one.bell_memory, of_two.bell_memory)]
    {
        let [(first, here), (second, there)] = [here, there].map(plain);
        assert_eq!((first, second, here), (1, 2, there), "the numbers of the window");
    }
    for text in ["one", "two"] {
        assert_eq!([row(&daemon, text, "links"), row(&daemon, text, "given")], [1, 1], "{text}");
    }
    assert_eq!(row(&daemon, "one", "neighbours"), serde_json::json!(["vm-two"]));
    assert_eq!(row(&daemon, "two", "neighbours"), serde_json::json!(["vm-one"]));
    assert_eq!(row(&daemon, "two", "others"), 1);
    // It comes back when both guests have said that their processes are gone.
    one.machine.end(of_b);
    drop(b);
    until(|| seen(&daemon, "one").unwrap()["sessions"] == 0);
    assert!(row(&daemon, "one", "used").as_u64().unwrap() >= of_one.memory.length);
    two.machine.end(of_a);
    drop(a);
    until(|| row(&daemon, "one", "used") == 0);
    // Pieces lost in either machine do not.
    let ((mut b, _), (mut a, _)) = (one.machine.process(), two.machine.process());
    let of_b = one.machine.last;
    link([&one, &two], [&mut b, &mut a]);
    one.machine.end(of_b);
    drop((a, b));
    until(|| ["one", "two"].iter().all(|text| seen(&daemon, text).unwrap()["sessions"] == 0));
    one.machine.boot(1);
    one.machine.boot(2);
    two.machine.boot(1);
    std::thread::sleep(MOMENT);
    assert!(row(&daemon, "one", "used").as_u64().unwrap() >= of_one.memory.length);
}

/// A daemon, and both machines as their supervisors bring them, in either order.
fn again(nets: &[Net; 2], kept: [&Kept; 2], turned: bool) -> (Daemon, There, There) {
    let daemon = Daemon::start(Settings::default());
    let two = |daemon: &Daemon, window: &OwnedFd| {
        let mut two = There::new(daemon, &nets[1], "two", kept[1]);
        two.joins(window);
        two.tell(0b11);
        two
    };
    if turned {
        let two = two(&daemon, &kept[0].pair[0]);
        let one = There::new(&daemon, &nets[0], "one", kept[0]);
        return (daemon, one, two);
    }
    let one = There::new(&daemon, &nets[0], "one", kept[0]);
    let two = two(&daemon, &kept[0].pair[0]);
    (daemon, one, two)
}

#[test]
fn the_next_daemon_knows_a_windows_owner_in_any_order() {
    if !is_root() {
        return;
    }
    let (nets, kept) = (networks(), [Kept::new(), Kept::new()]);
    let direct = |one: &mut There, two: &mut There| {
        let ((mut b, _), (mut a, _)) = (one.machine.process(), two.machine.process());
        link([one, two], [&mut b, &mut a]).map(|ready| ready.engine) == [0, 0]
    };
    // A machine that claims another's window gets nothing by that.
    let (daemon, mut one, mut two) = again(&nets, [&kept[0], &kept[1]], false);
    two.waits(3, 1, 0);
    assert!(!direct(&mut one, &mut two));
    until(|| row(&daemon, "one", "given") == 1);
    assert!(direct(&mut one, &mut two), "it is given, and there");
    drop((one, two, daemon));
    for turned in [false, true] {
        let (daemon, mut one, mut two) = again(&nets, [&kept[0], &kept[1]], turned);
        assert!(direct(&mut one, &mut two), "{turned}");
        drop((one, two, daemon));
    }
    // Another machine of the same name, though its supervisor says that it has the window.
    let other = Kept::new();
    let (daemon, mut one, mut two) = again(&nets, [&kept[0], &other], true);
    two.waits(3, 1, 0);
    assert!(!direct(&mut one, &mut two));
    until(|| row(&daemon, "one", "given") == 1);
    let text = daemon.status().to_string();
    assert!(!text.contains("\"direct\","), "{text}");
}

/// Both machines, when a window of the first one's is in both, and a process of each, whose link
/// was the reason.
fn sharing(nets: &[Net; 2], kept: &[Kept; 2]) -> (Daemon, There, There, [Client; 2]) {
    let (daemon, mut one, mut two) = again(nets, [&kept[0], &kept[1]], false);
    two.waits(3, 1, 0);
    let ((mut b, _), (mut a, _)) = (one.machine.process(), two.machine.process());
    link([&one, &two], [&mut b, &mut a]);
    until(|| row(&daemon, "one", "given") == 1);
    (daemon, one, two, [b, a])
}

/// The machine that owns the window is disconnected, and comes back; then the other one.
#[test]
fn a_window_outlives_the_proxies_of_both() {
    if !is_root() {
        return;
    }
    let (nets, kept) = (networks(), [Kept::new(), Kept::new()]);
    let (daemon, mut one, mut two, _first) = sharing(&nets, &kept);
    for part_with in ["one", "two"] {
        let ((mut b, _), (mut a, _)) = (one.machine.process(), two.machine.process());
        let ready = link([&one, &two], [&mut b, &mut a]);
        assert_eq!(ready.map(|ready| ready.engine), [0, 0], "{part_with}");
        if part_with == "one" {
            drop(one);
            until(|| seen(&daemon, "one").is_none());
            one = There::new(&daemon, &nets[0], "one", &kept[0]);
        } else {
            drop(two);
            until(|| seen(&daemon, "two").is_none());
            two = There::new(&daemon, &nets[1], "two", &kept[1]);
            two.joins(&kept[0].pair[0]);
            two.tell(0b11);
        }
    }
    let ((mut b, _), (mut a, _)) = (one.machine.process(), two.machine.process());
    let ready = link([&one, &two], [&mut b, &mut a]);
    assert_eq!(ready.map(|ready| ready.engine), [0, 0]);
}

#[test]
fn a_false_claim_of_anothers_window_is_refused() {
    let daemon = Daemon::start(Settings::default());
    let _machine = Machine::attach(&daemon, "one");
    let mut operator = Operator::connect(&daemon);
    let window = memfd::create("pair", BYTES).unwrap();
    let mut join = |text, number, files: &[&OwnedFd]| {
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        operator.call_with(JoinPair { name: name(text), data: DATA, number, at: 0 }, &files)
    };
    let open = memfd::unsealed("pair", BYTES).unwrap();
    for (number, files) in [(0, vec![&window]), (61, vec![&window]), (1, vec![]), (1, vec![&open])]
    {
        assert_eq!(join("one", number, &files), Said::Failed(Errno::EINVAL), "{number}");
    }
    assert_eq!(join("one", 1, &[&window, &window]), Said::Failed(Errno::EINVAL));
    assert_eq!(join("two", 1, &[&window]), Said::Failed(Errno::ENOENT));
    done(&join("one", 1, &[&window]));
    assert_eq!(row(&daemon, "one", "windows"), 1);
}

/// Each is told of the same piece, by its own number of the window.
#[test]
fn two_machines_grant_each_other_pages_in_the_window_that_is_in_both() {
    if !is_root() {
        return;
    }
    let (nets, kept) = (networks(), [Kept::new(), Kept::new()]);
    let (daemon, one, two, [mut b, mut a]) = sharing(&nets, &kept);
    let [here, there] = link([&one, &two], [&mut b, &mut a]);
    assert_eq!([here.engine, there.engine], [0, 0]);
    let used = || row(&daemon, "one", "used").as_u64().unwrap();
    let idle = used();
    let told = |client: &mut Client| loop {
        match client.event(SOON).expect("nothing") {
            (Message::GidsChanged(_) | Message::LinkClosed(_) | Message::GrantEnded(_), _) => {}
            (message, files) => {
                assert!(files.is_empty(), "a machine gets none");
                break message;
            }
        }
    };
    for (first_owns, numbers) in [(true, [1, 2]), (false, [2, 1])] {
        let (owner, peer, way) = match first_owns {
            true => (&mut b, &mut a, (there.qpn, here.qpn)),
            false => (&mut a, &mut b, (here.qpn, there.qpn)),
        };
        let (addr, length) = (0x10000, 0x3000);
        let reg = RegMr { pd: 1, access: 6, addr, length, rkey: Rkey(0), reserved: 0 };
        let Message::MrRegistered(MrRegistered { rkey, .. }) = owner.call(reg.into()) else {
            panic!()
        };
        let (qpn, peer_qpn) = way;
        let ask = RequestGrant { qpn, peer_qpn, rkey, reserved: 0, address: addr, length: 8 };
        assert!(matches!(peer.call(ask.into()), Message::Connected(_)));
        let Message::Adopt(adopt) = told(owner) else { panic!() };
        owner.say(Adopted { token: adopt.token, errno: Errno::NONE, epoch: 0 }.into());
        let Message::Granted(granted) = told(peer) else { panic!() };
        let [(first, at), (second, same)] = [adopt.memory, granted.memory].map(plain);
        assert_eq!(([first, second], at), (numbers, same));
        assert_eq!((at.length, used()), (length, idle + length));
        owner.call(DeregMr { rkey, reserved: 0 }.into());
        owner.say(LetGo { memory: adopt.memory, times: 1, reserved: 0 }.into());
        peer.say(LetGo { memory: plain(granted.memory).1, times: 1, reserved: 0 }.into());
        assert_eq!(used(), idle + length);
        peer.say(LetGo { memory: granted.memory, times: 1, reserved: 0 }.into());
        until(|| used() == idle);
    }
}
