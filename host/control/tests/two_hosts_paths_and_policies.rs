//! Tests two hosts as two daemons: forwarded and limited vNICs, and the users that may set that.

#[path = "all/support/mod.rs"]
mod support;

use omniverb_control::Settings;
use omniverb_session::Message;
use omniverb_session::body::*;
use omniverb_session::network_fault_text::Faults;
use omniverb_session::operator::{
    Capture, DATAPATH_FORWARDED, EndCapture, Message as Said, SET_DATAPATH, SET_RATE, SetVnic,
};
use omniverb_tenancy::{Datapath, PathReason, Policies};
use omniverb_terms::{Errno, Qpn, Service};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;
use support::client_process::Remote;
use support::namespaces::{Net, is_root};
use support::operator::{Operator, name};
use support::*;

const A: &str = "10.98.0.1";
const B: &str = "10.98.0.2";

struct Hosts {
    daemons: [Daemon; 2],
    nets: [Net; 2],
}

impl Hosts {
    fn new() -> Hosts {
        let nets = [Net::new(), Net::new()];
        nets[0].join(&nets[1], A, B);
        Hosts { daemons: [(); 2].map(|()| Daemon::start(Settings::default())), nets }
    }

    fn clients(&self) -> (Remote, Remote) {
        (self.nets[0].client(&self.daemons[0]), self.nets[1].client(&self.daemons[1]))
    }
}

fn paths(status: &serde_json::Value, vnic: usize) -> Vec<(String, String)> {
    let qps = status["vnics"][vnic]["processes"][0]["qps"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    qps.iter().map(|qp| (text(&qp["path"]), text(&qp["why"]))).collect()
}

#[test]
fn another_host_is_reached_by_the_wire() {
    if !is_root() {
        return;
    }
    let hosts = Hosts::new();
    let (mut a, mut b) = hosts.clients();
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let (one, other) = (create(&mut a, service), create(&mut b, service));
        assert!(matches!(a.call(connect(one, other, A, B).into()), Message::Connected(_)));
        let ready = link_ready(&mut a);
        assert_eq!((ready.engine, ready.side, ready.peer_qpn), (1, 0, other));
        assert_eq!(b.next_event(MOMENT), None, "its own wish is its own");
        b.call(connect(other, one, B, A).into());
        assert_eq!(link_ready(&mut b).engine, 1);
    }
    for daemon in &hosts.daemons {
        let found = paths(&daemon.status(), 0);
        let answered = "another Omniverb answered the handshake";
        assert_eq!(found, vec![("wire".to_owned(), answered.to_owned()); 3]);
    }
    // When one of them is gone, it is plain RoCE at best.
    let Hosts { daemons: [one, other], nets } = hosts;
    drop((b, other));
    let later = create(&mut a, Service::Rc);
    a.call(connect(later, Qpn(0x77), A, "10.98.0.3").into());
    assert_eq!(link_ready(&mut a).dgid, gid("10.98.0.3"));
    let found = paths(&one.status(), 0);
    assert_eq!(found.iter().filter(|(path, _)| path == "roce").count(), 1, "{found:?}");
    drop((one, nets));
}

#[test]
fn memory_of_engine_links_goes_with_them() {
    if !is_root() {
        return;
    }
    let hosts = Hosts::new();
    let (mut a, b) = hosts.clients();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let round = |a: &mut Remote| {
        let qps: Vec<_> = (0..20).map(|_| create(a, Service::Rc)).collect();
        for qpn in &qps {
            a.call(connect(*qpn, Qpn(0x77), A, B).into());
            assert_eq!(link_ready(a).engine, 1);
        }
        for qpn in qps {
            a.call(DestroyQp { qpn, reserved: 0 }.into());
        }
        assert!(matches!(a.next_event(SOON), Some((Message::BellClosed(_), _))));
    };
    round(&mut a);
    std::thread::sleep(Duration::from_millis(300));
    let before = open();
    for _ in 0..10 {
        round(&mut a);
    }
    // Other tests run in this process, too: theirs come and go.
    let mut least = open();
    let begun = std::time::Instant::now();
    while least >= before + 10 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
        least = least.min(open());
    }
    assert!(least < before + 10, "{before} descriptors, then {least}");
    assert_eq!(hosts.daemons[0].status()["vnics"][0]["processes"][0]["links"], 0);
    drop(b);
}

/// Speaks with a vNIC's port from inside a namespace.
fn python(net: &Net, script: &str) -> String {
    let output = Command::new("nsenter")
        .args(["-t", &net.pid().to_string(), "-n", "python3", "-c", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn strangers_probes_are_answered_but_not_without_bounds() {
    if !is_root() {
        return;
    }
    let hosts = Hosts::new();
    let mut a = hosts.nets[0].client(&hosts.daemons[0]);
    create(&mut a, Service::Rc);
    // 40 bytes: a header that is not RoCE, the mark, a number, zeroes.
    let script = format!(
        "import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('',4791)); s.settimeout(1)
head=bytes([0xff,0x0f]+[0]*10)
def probe(n): return head+b'omniver1'+n.to_bytes(16,'big')+bytes(4)
got=b''
for _ in range(20):
    s.sendto(probe(7),('{A}',4791))
    try: got=s.recv(100); break
    except TimeoutError: pass
s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,1<<20)
# A forged reply, a reply to nothing, an empty one: nothing comes of them.
for junk in [head+b'omniver2'+bytes(20), head+b'omniver2'+bytes([1]*20), b'', probe(8)[:39]]:
    s.sendto(junk,('{A}',4791))
sent=answers=0
begin=time.time()
s.setblocking(False)
while time.time()<begin+2:
    for n in range(200): s.sendto(probe(n),('{A}',4791)); sent+=1
    time.sleep(.002)
    try:
        while True: s.recv(100); answers+=1
    except BlockingIOError: pass
print(len(got), got[12:20].decode(), int.from_bytes(got[20:36],'big'), got[36:].hex(),
      answers, sent, round((time.time()-begin)*1000))"
    );
    let found = python(&hosts.nets[1], &script);
    let words: Vec<&str> = found.split(' ').collect();
    let features = format!("{:08x}", omniverb_engine::peer_features::ALL);
    assert_eq!(words[..4], ["40", "omniver2", "7", &features], "{found}");
    let [answers, sent, milliseconds] =
        [4, 5, 6].map(|word: usize| words[word].parse::<u64>().unwrap());
    // The vNIC's budget of replies (host/engine, REPLIES), which one sender may use up while no
    // other asks: 5000 a second, 1024 at once.
    let budget = 1024 + 5 * milliseconds;
    let range = 200..=budget;
    assert!(range.contains(&answers), "{answers} of {sent} in {milliseconds} ms");
    // Connected clients are still served.
    assert!(matches!(a.call(QueryGids { reserved: 0 }.into()), Message::Gids(_)));
}

fn forwarded() -> Settings {
    let mut policies = Policies::default();
    policies.general.datapath = Datapath::Forwarded;
    Settings { policies, ..Settings::default() }
}

#[test]
fn a_forwarded_host_gets_no_direct_link() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(forwarded());
    let nets = [Net::new(), Net::new()];
    nets[0].join(&nets[1], A, B);
    let (mut a, mut b) = (nets[0].client(&daemon), nets[1].client(&daemon));
    let (one, other) = (create(&mut a, Service::Rc), create(&mut b, Service::Rc));
    a.call(connect(one, other, A, B).into());
    b.call(connect(other, one, B, A).into());
    let (ours, theirs) = (link_ready(&mut a), link_ready(&mut b));
    assert_eq!((ours.engine, theirs.engine, ours.side, theirs.side), (1, 1, 0, 0));
    // Within one process, before any process has asked for the sockets.
    let (c, d) = (create(&mut a, Service::Ud), create(&mut a, Service::Ud));
    let home = "127.0.0.1";
    assert_eq!(a.call(connect(c, d, home, home).into()), Connected { qpn: c, ready: 1 }.into());
    assert_eq!(link_ready(&mut a).engine, 1);
    let status = daemon.status();
    for vnic in 0..2 {
        let forwarded = ("forwarded".to_owned(), PathReason::Forwarded.phrase().to_owned());
        assert!(paths(&status, vnic).contains(&forwarded), "{status}");
    }
    // The death of a forwarded peer is told like that of any other.
    b.kill();
    let expected = LinkClosed { qpn: one, peer_qpn: other, reason: CLOSED_BY_DEATH, reserved: 0 };
    assert_eq!(link_closed(&mut a), expected);
}

fn set(vnic: &str, what: u32, bits_per_second: u64) -> SetVnic {
    SetVnic {
        name: name(vnic),
        what,
        datapath: 1,
        bits_per_second,
        burst_bytes: 0,
        faults: Faults::default(),
        adoption: 0,
        operations_per_second: 0,
    }
}

#[test]
fn a_policy_holds_for_the_namespace_it_was_set_for() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(Settings::default());
    let net = Net::new();
    let mut tool = Operator::connect(&daemon);
    // Before there is any process of it.
    let by_pid = format!("pid:{}", net.pid());
    let changed = tool.call(set(&by_pid, SET_RATE, 20_000_000));
    let Said::VnicChanged(changed) = changed else { panic!("{changed:?}") };
    assert_eq!((changed.bits_per_second, changed.burst_bytes), (20_000_000, 64 << 10));
    let home = "127.0.0.1";
    let path_of = || {
        let mut client = net.client(&daemon);
        let (one, other) = (create(&mut client, Service::Ud), create(&mut client, Service::Ud));
        client.call(connect(one, other, home, home).into());
        let engine = link_ready(&mut client).engine;
        (engine, client)
    };
    // For every process that comes, one after the other too.
    for _ in 0..2 {
        assert_eq!(path_of().0, 1);
    }
    let vnics = tool.vnics();
    let found = &vnics["vnics"][0];
    assert_eq!((&found["rate"], &found["datapath"]), (&20_000_000.into(), &"forwarded".into()));
    let known = found["name"].as_str().unwrap().to_owned();
    let (_, client) = path_of();
    assert!(matches!(tool.call(set(&known, SET_RATE, 0)), Said::VnicChanged(_)));
    drop(client);
    let (engine, client) = path_of();
    assert_eq!(engine, 0);
    let changed = tool.call(set(&known, SET_DATAPATH, 0));
    let Said::VnicChanged(changed) = changed else { panic!("{changed:?}") };
    assert_eq!((changed.datapath, changed.direct_links), (DATAPATH_FORWARDED, 1));
    drop(client);
    for wrong in ["net-1", "pid:0", "pid:x", "pid:-1"] {
        assert!(matches!(
            tool.call(set(wrong, SET_RATE, 0)),
            Said::Failed(Errno::ENOENT | Errno::EINVAL)
        ));
    }
    assert_eq!(tool.call(set(&known, 0, 0)), Said::Failed(Errno::EINVAL));
}

fn capture(vnic: &str) -> Capture {
    Capture { name: name(vnic), snap_bytes: 65536, reserved: 0 }
}

#[test]
fn a_capture_ends_with_its_connection() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(forwarded());
    let net = Net::new();
    let vnic = format!("pid:{}", net.pid());
    let path = std::env::temp_dir().join(format!("omniverb-capture-{}", std::process::id()));
    let file: OwnedFd = File::create(&path).unwrap().into();
    let read_only: OwnedFd = File::open(&path).unwrap().into();
    let (_, pipe) = rustix::pipe::pipe().unwrap();
    let mut one = Operator::connect(&daemon);
    let capture = capture(&vnic);
    assert_eq!(one.call(capture), Said::Failed(Errno::EINVAL), "no file");
    for wrong in [&read_only, &pipe] {
        assert_eq!(one.call_with(capture, &[wrong.as_fd()]), Said::Failed(Errno::EINVAL));
    }
    assert_eq!(one.call_with(capture, &[file.as_fd()]), Done { take_back: 0 }.into());
    let mut two = Operator::connect(&daemon);
    assert_eq!(two.call_with(capture, &[file.as_fd()]), Said::Failed(Errno::EBUSY));
    // Processes come and go meanwhile.
    for _ in 0..2 {
        let mut client = net.client(&daemon);
        let qpn = create(&mut client, Service::Ud);
        client.call(connect(qpn, qpn, "127.0.0.1", "127.0.0.1").into());
        assert_eq!(link_ready(&mut client).engine, 1);
    }
    assert_eq!(two.call(EndCapture { reserved: 0 }), Said::Failed(Errno::ENOENT));
    drop(one);
    let written = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        std::fs::metadata(&path).unwrap().len() == 24
    });
    assert!(written);
    let free = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        matches!(two.call_with(capture, &[file.as_fd()]), Said::Done(_))
    });
    assert!(free);
    // It ends when it is told to, and says how it was.
    let Said::Captured(captured) = two.call(EndCapture { reserved: 0 }) else {
        panic!("not captured")
    };
    assert_eq!(
        (captured.packets, captured.dropped, captured.refused, captured.errno),
        (0, 0, 0, Errno::NONE)
    );
    std::fs::remove_file(path).unwrap();
}
