//! Tests addresses of policies through the helper's socket, in a namespace of its own.

use omniverb_netns::{AddressState, Answer, receive, serve, want_addresses};
use omniverb_sys::address_assignment;
use omniverb_sys::eventfd::readable;
use omniverb_sys::netns::Namespace;
use omniverb_sys::{pidfd, seqpacket};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// A network namespace, which a process keeps.
struct TestNamespace {
    holder: Child,
    namespace: Namespace,
}

impl TestNamespace {
    fn new() -> TestNamespace {
        let holder = Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
        let pid = i32::try_from(holder.id()).unwrap();
        let pidfd = pidfd::of(pid).unwrap();
        let ours = Namespace::current().unwrap().identity();
        let begun = Instant::now();
        let namespace = loop {
            let found = Namespace::of_process(pid, pidfd.as_fd()).unwrap();
            if found.identity() != ours {
                break found;
            }
            assert!(begun.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(5));
        };
        let place = TestNamespace { holder, namespace };
        place.ip("link add under type veth peer name far");
        place.ip("address add 192.0.2.1/24 dev under");
        place.ip("link set under up");
        place
    }

    fn ip(&self, words: &str) -> String {
        let net = format!("--net=/proc/{}/ns/net", self.holder.id());
        let words = words.split_whitespace();
        let done = Command::new("nsenter").args([&net, "ip"]).args(words).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn has(&self, address: &str) -> bool {
        self.ip("-o address show").contains(&format!(" {address}/"))
    }

    fn wait_for(&self, address: &str, is_there: bool) {
        let begun = Instant::now();
        while self.has(address) != is_there {
            assert!(begun.elapsed() < LIMIT, "{address}: {}", self.ip("address show"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Begins to note what happens to addresses here.
    fn changes(&self) -> AddressChanges {
        let net = format!("--net=/proc/{}/ns/net", self.holder.id());
        let mut command = Command::new("nsenter");
        command.args([&net, "ip", "-o", "monitor", "address"]).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let output = BufReader::new(program.stdout.take().unwrap());
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        let mut changes = AddressChanges { program, receiver, removed: Vec::new() };
        // It listens once it has told of one.
        let begun = Instant::now();
        while changes.next(Duration::from_millis(50)).is_none() {
            assert!(begun.elapsed() < LIMIT);
            self.ip("address add 192.0.2.80/32 dev under");
            self.ip("address delete 192.0.2.80/32 dev under");
        }
        changes
    }
}

/// What `ip monitor` says of the addresses of a namespace.
struct AddressChanges {
    program: Child,
    receiver: mpsc::Receiver<String>,
    /// Addresses that were removed, as far as that was taken in.
    removed: Vec<String>,
}

impl AddressChanges {
    /// The next one, if there is one within this time: whether an address is there now, and which.
    fn next(&mut self, limit: Duration) -> Option<(bool, String)> {
        let line = self.receiver.recv_timeout(limit).ok()?;
        let is_there = !line.starts_with("Deleted ");
        let (_, behind) = line.split_once(" inet ").unwrap_or_default();
        let (address, _) = behind.split_once('/').unwrap_or_default();
        if !is_there {
            self.removed.push(address.to_owned());
        }
        Some((is_there, address.to_owned()))
    }

    /// Waits until an address comes or goes.
    fn wait_for(&mut self, address: &str, is_there: bool) {
        while let Some((now, which)) = self.next(LIMIT) {
            if (now, which.as_str()) == (is_there, address) {
                return;
            }
        }
        panic!("{address} did not change; removed: {:?}", self.removed);
    }
}

impl Drop for AddressChanges {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

struct Helper {
    socket: OwnedFd,
    thread: std::thread::JoinHandle<()>,
}

impl Helper {
    fn new() -> Helper {
        let (socket, theirs) = seqpacket::pair().unwrap();
        let thread = std::thread::spawn(move || serve(theirs));
        let helper = Helper { socket, thread };
        assert!(matches!(helper.next(), Answer::Started { .. }));
        helper
    }

    fn next(&self) -> Answer {
        assert!(readable(self.socket.as_fd(), Some(LIMIT)).unwrap(), "no answer");
        receive(self.socket.as_fd()).unwrap().unwrap()
    }

    fn want(&self, place: &TestNamespace, list: &[(&str, &str)]) -> AddressState {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let wanted: BTreeMap<_, _> = list.iter().map(|(one, at)| (ip(one), ip(at))).collect();
        want_addresses(self.socket.as_fd(), place.namespace.as_fd(), &wanted).unwrap();
        self.states()
    }

    fn states(&self) -> AddressState {
        match self.next() {
            Answer::UnderlayAddresses(states) => states,
            other => panic!("{other:?}"),
        }
    }

    fn end(self) {
        drop(self.socket);
        self.thread.join().unwrap();
    }
}

#[test]
fn addresses_are_added_kept_and_removed_with_the_helper() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (place, helper) = (TestNamespace::new(), Helper::new());
    let one: IpAddr = "192.0.2.50".parse().unwrap();
    let home = ("192.0.2.50", "192.0.2.1");
    let states = helper.want(&place, &[home, ("192.0.2.60", "192.0.2.99")]);
    let homeless = Errno::ADDRNOTAVAIL.raw_os_error();
    assert_eq!(states[&one], 0);
    assert_eq!(states[&"192.0.2.60".parse::<IpAddr>().unwrap()], homeless);
    assert!(place.has("192.0.2.50") && !place.has("192.0.2.60"));
    // It is said when that has changed, unasked.
    place.ip("address add 192.0.2.99/24 dev under");
    assert!(helper.states().values().all(|state| *state == 0));
    place.wait_for("192.0.2.60", true);
    for _ in 0..3 {
        place.ip("address delete 192.0.2.50/32 dev under");
        place.wait_for("192.0.2.50", true);
    }
    // An interface that is made anew.
    place.ip("link delete under");
    place.ip("link add under type veth peer name far");
    place.ip("address add 192.0.2.1/24 dev under");
    place.wait_for("192.0.2.50", true);
    // The interface's own comes back behind it: the source of the host's packets stays its own.
    place.ip("link set under up");
    place.ip("address delete 192.0.2.1/24 dev under");
    place.ip("address add 192.0.2.1/24 dev under");
    place.ip("route add default via 169.254.1.1 dev under onlink");
    let begun = Instant::now();
    while !place.ip("route get 203.0.113.1").contains(" src 192.0.2.1 ") {
        assert!(begun.elapsed() < LIMIT, "{}", place.ip("address show"));
        std::thread::sleep(Duration::from_millis(10));
    }
    place.wait_for("192.0.2.50", true);
    helper.end();
    assert!(!place.has("192.0.2.50") && !place.has("192.0.2.60") && place.has("192.0.2.1"));
}

/// Which of an interface's IPv6 addresses resembles a destination most decides about the source,
/// unless the address is never preferred.
#[test]
fn an_ipv6_address_is_the_source_of_no_packet_that_does_not_name_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (place, helper) = (TestNamespace::new(), Helper::new());
    place.ip("address add 2001:db8::1/64 dev under nodad");
    let states = helper.want(&place, &[("2001:db8::f0", "2001:db8::1")]);
    assert!(states.len() == 1 && states.values().all(|state| *state == 0), "{states:?}");
    assert!(place.has("2001:db8::f0"));
    let route = place.ip("-6 route get 2001:db8::f1");
    assert!(route.contains(" src 2001:db8::1 "), "{route}");
    helper.end();
    assert!(!place.has("2001:db8::f0") && place.has("2001:db8::1"));
}

#[test]
fn another_helper_takes_over_what_is_marked_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = TestNamespace::new();
    place.ip("address add 192.0.2.70/32 dev under");
    let mut changes = place.changes();
    let (first, home) = (Helper::new(), ("192.0.2.50", "192.0.2.1"));
    first.want(&place, &[home, ("192.0.2.51", "192.0.2.1"), ("192.0.2.70", "192.0.2.1")]);
    // As if the first had been killed: both are there.
    let second = Helper::new();
    assert!(second.want(&place, &[home]).values().all(|state| *state == 0));
    let found = place.namespace.run(address_assignment::list).unwrap();
    if found.iter().any(|address| address.is_marked) {
        // The second removes what it has not wanted for a while: once, since the first, as another
        // daemon would, adds it again.
        changes.wait_for("192.0.2.51", false);
        changes.wait_for("192.0.2.51", true);
        assert!(place.has("192.0.2.50") && place.has("192.0.2.70"));
        let is_kept = |address: &String| ["192.0.2.50", "192.0.2.70"].contains(&address.as_str());
        assert!(!changes.removed.iter().any(is_kept), "{:?}", changes.removed);
    }
    first.end();
    place.wait_for("192.0.2.51", false);
    place.wait_for("192.0.2.50", true);
    assert!(second.want(&place, &[]).is_empty());
    assert!(!place.has("192.0.2.50"), "nothing was left to the second");
    second.end();
    assert!(place.has("192.0.2.70"), "it was there before");
}

#[test]
fn what_makes_no_sense_is_not_done() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (place, helper) = (TestNamespace::new(), Helper::new());
    for address in ["127.0.0.2", "224.0.0.1", "0.0.0.0", "255.255.255.255", "fe80::50"] {
        let wanted = BTreeMap::from([(
            address.parse::<IpAddr>().unwrap(),
            "192.0.2.1".parse::<IpAddr>().unwrap(),
        )]);
        want_addresses(helper.socket.as_fd(), place.namespace.as_fd(), &wanted).unwrap();
    }
    // Not a namespace.
    let (one, _other) = seqpacket::pair().unwrap();
    want_addresses(helper.socket.as_fd(), one.as_fd(), &BTreeMap::new()).unwrap();
    assert!(helper.want(&place, &[]).is_empty());
    assert_eq!(place.ip("-4 -o address show").lines().count(), 1);
    helper.end();
}
