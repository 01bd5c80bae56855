//! Tests vNICs that are no network namespace: their clients, policies and links.

use super::*;
use crate::daemon_log::{Form, Level};
use crate::runtime_folder::{Audience, RuntimeFolder};
use crate::settings::Settings;
use crate::unidentified_connections::Arrival;
use crate::vnic_attachment::Attached;
use omniverb_broker::broker_daemon_messages::NamespaceAddress as Address;
use omniverb_fairness::Holder;
use omniverb_session::body::{ConnectQp, CreateQp, Hello, QpCreated, ROLE_VERBS, Welcome};
use omniverb_session::operator::{SET_RATE, SetVnic, VNIC_NAME_BYTES};
use omniverb_session::{Message, decode, encode, limits::MESSAGE_BYTES_MAX};
use omniverb_sys::{eventfd::readable, seqpacket};
use omniverb_tenancy::{Action, Client, Reach, RelationRefusal, VnicAddress, VnicId};
use omniverb_terms::{Errno, Gid, Qpn, Service};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

struct Bench {
    server: Server,
    folder: std::path::PathBuf,
}

/// A client: its number, its socket for calls, the one for events, its vNIC's name.
struct Process(SessionId, OwnedFd, Option<OwnedFd>, String);

impl Bench {
    fn new(name: &str) -> Bench {
        let folder = std::env::temp_dir().join(format!("omniverb-{name}-{}", std::process::id()));
        let place = |name| RuntimeFolder::take(&folder.join(name), Audience::Owner).unwrap();
        let (places, journal) = ([place("a"), place("b")], Journal::new(Level::Error, Form::Words));
        let [tenants, operators] = places;
        let server = Server::new(tenants, operators, Settings::default(), journal).unwrap();
        Bench { server, folder }
    }

    fn say(&mut self, process: &Process, message: impl Into<Message>) -> (Message, Vec<OwnedFd>) {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, &message.into(), &mut bytes);
        seqpacket::send(process.1.as_fd(), &bytes[..length], &[]).unwrap();
        self.server.calls_ready(process.0);
        self.server.settle();
        // Its addresses come from the proxy that attached it: no helper can be asked.
        let address = VnicAddress {
            ip: [10, 9, 0, 1].into(),
            interface: 1,
            reach: Reach::Global,
            is_loopback: false,
            mtu: 1500,
        };
        let vnic = self.server.clients.get(process.0).unwrap().vnic().unwrap();
        self.server.tables.decide(|tables| tables.addresses(vnic, &[address], clock::now()));
        self.server.settle();
        heard(&process.1).expect("an answer")
    }

    /// A process of whatever is attached at this place.
    fn process(&mut self, place: u64, serial: Option<u64>) -> Process {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let peer = seqpacket::peer(ours.as_fd()).unwrap();
        let (id, holder) = (self.server.next_session(), Holder::new("", peer.uid));
        let arrival = Arrival { calls: ours, peer, pidfd: None, circle: None, holder };
        self.server.enter(id, arrival, Ok(Attached::Double(place, serial)));
        let mut process = Process(id, theirs, None, String::new());
        let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
        let (welcome, mut files) = self.say(&process, hello);
        let Message::Welcome(Welcome { vnic, .. }) = welcome else { panic!("{welcome:?}") };
        let name = vnic.split(|byte| *byte == 0).next().unwrap();
        process.3 = String::from_utf8(name.to_vec()).unwrap();
        process.2 = Some(files.remove(0));
        process
    }

    fn leave(&mut self, process: Process) {
        self.server.end(process.0, "goes");
        self.server.settle();
    }

    fn set_rate(&mut self, name: &str) -> Result<(), Errno> {
        let vnic = self.server.vnics.named(name.as_bytes())?.0;
        let change = SetVnic {
            name: [0; VNIC_NAME_BYTES],
            what: SET_RATE,
            datapath: 0,
            bits_per_second: 20_000_000,
            burst_bytes: 0,
            faults: Default::default(),
            adoption: 0,
            operations_per_second: 0,
        };
        self.server.engine_ports().set_vnic(vnic, &change).map(drop)
    }

    fn is_limited(&self, process: &Process) -> bool {
        let vnic = self.server.clients.get(process.0).unwrap().vnic().unwrap();
        self.server.tables.policy(vnic).limit.is_some()
    }

    fn create(&mut self, process: &Process) -> Qpn {
        let create = CreateQp::new(Service::Rc, 1, 0);
        let (created, _) = self.say(process, create);
        let Message::QpCreated(QpCreated { qpn, .. }) = created else { panic!("{created:?}") };
        qpn
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn heard(socket: &OwnedFd) -> Option<(Message, Vec<OwnedFd>)> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    readable(socket.as_fd(), Some(Duration::ZERO)).unwrap().then(|| {
        let (length, files) =
            seqpacket::receive(socket.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
                .unwrap();
        (decode(&bytes[..length]).unwrap().1, files)
    })
}

#[test]
fn identity_follows_from_evidence_of_any_kind() {
    let mut bench = Bench::new("double-identity");
    let (one, other) = (bench.process(7, Some(20)), bench.process(8, Some(21)));
    let twin = bench.process(7, Some(20));
    assert!(one.3.starts_with("double-20-"), "{}", one.3);
    assert_eq!(twin.3, one.3);
    assert_ne!(other.3, one.3);
    // By its name, and by no inode number.
    assert_eq!(bench.set_rate("net-7"), Err(Errno::ENOENT));
    assert_eq!(bench.set_rate(&one.3), Ok(()));
    assert!(bench.is_limited(&twin) && !bench.is_limited(&other));
    let name = one.3.clone();
    bench.leave(one);
    bench.leave(twin);
    let back = bench.process(7, Some(20));
    assert!(back.3 == name && bench.is_limited(&back), "it has come back");
    bench.leave(back);
    let next = bench.process(7, Some(22));
    assert!(next.3 != name && !bench.is_limited(&next), "another in its place");
    assert_eq!(bench.set_rate(&name), Err(Errno::ENOENT));
    let rows = bench.server.status_rows().status_slice(None, omniverb_session::body::Cursor::START);
    let text = String::from_utf8_lossy(&rows.text[..rows.length as usize]).into_owned();
    assert!(text.contains(&next.3) && text.contains(&other.3), "{text}");
    assert!(text.contains("\"namespace\":null"), "{text}");
    for process in [other, next] {
        bench.leave(process);
    }
    assert!(bench.server.tables.is_empty());
}

#[test]
fn its_processes_link_with_each_other_only() {
    let mut bench = Bench::new("double-pairing");
    let (one, twin) = (bench.process(7, Some(20)), bench.process(7, Some(20)));
    // With the same address.
    let other = bench.process(8, Some(21));
    let [a, b, c] = [&one, &twin, &other].map(|process| bench.create(process));
    let gid = Gid::from(std::net::IpAddr::from([10, 9, 0, 1]));
    let to =
        |qpn, dest_qpn| ConnectQp { qpn, dest_qpn, sgid: gid, dgid: gid, resume: 0, carries: 0 };
    for (process, from, peer) in [(&other, c, a), (&one, a, b), (&twin, b, a)] {
        let (answer, _) = bench.say(process, to(from, peer));
        assert!(matches!(answer, Message::Connected(_)), "{answer:?}");
    }
    for (process, own, peer) in [(&one, a, b), (&twin, b, a)] {
        let events = std::iter::from_fn(|| heard(process.2.as_ref().unwrap()));
        let ready = events.into_iter().find_map(|(message, files)| match message {
            Message::LinkReady(ready) => Some((ready.qpn, ready.peer_qpn, files.len())),
            _ => None,
        });
        assert_eq!(ready, Some((own, peer, 2)));
    }
    let links = |process: &Process| {
        let vnic = bench.server.clients.get(process.0).unwrap().vnic().unwrap();
        bench.server.tables.direct_links(vnic)
    };
    assert!(links(&one) > 0 && links(&other) == 0);
}

/// One tenant's address goes, and with it its pairs with thousands of others, each of which was the
/// last of its other end.
#[test]
fn many_pairs_of_sockets_end_at_once() {
    const PAIRS: u64 = 4000;
    let mut bench = Bench::new("double-pairs");
    let left = crate::vnic_references::UnusedVnics::default();
    let address = |namespace| Address { namespace, address: [10, 9, 0, 1].into() };
    for number in 1..=PAIRS {
        let server = &mut bench.server;
        assert!(server.related.add(number, [address(0), address(number)]));
        for namespace in [0, number] {
            let file = std::fs::File::open("/dev/null").unwrap().into();
            if server.related.join(number, namespace, 5, file).is_some() {
                let (vnic, id) = (VnicId(1 << 40 | namespace), server.next_session());
                let holder = Holder::new("", 5);
                server.related.opened(namespace, id, left.hold(vnic).0);
                let client = Client { vnic, pid: 1, uid: 5, circle: None, holder };
                server.tables.note(|tables| tables.open(id, client));
            }
        }
    }
    let gone = |number| Action::Related { number, verdict: Err(RelationRefusal::NotItsAddress) };
    bench.server.tables.decide(|_| (1..=PAIRS).map(gone).collect());
    bench.server.settle();
    assert!(bench.server.related.numbers().is_empty() && bench.server.tables.is_empty());
    assert_eq!(left.take().len() as u64, PAIRS + 1);
}
