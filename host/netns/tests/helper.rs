//! Tests the helper through its socket: answers, refusals, survival.

use omniverb_netns::{Answer, Found, Kind, WORKERS, receive, request, serve};
use omniverb_sys::eventfd::readable;
use omniverb_sys::netns::Namespace;
use omniverb_sys::{memfd, pidfd, seqpacket};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

struct Helper {
    socket: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
    last: u64,
}

impl Helper {
    fn new() -> Helper {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let thread = std::thread::spawn(move || serve(theirs));
        let helper = Helper { socket: Some(ours), thread: Some(thread), last: 0 };
        assert!(matches!(helper.answer(), Answer::Started { .. }));
        helper
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().unwrap().as_fd()
    }

    fn answer(&self) -> Answer {
        assert!(readable(self.socket(), Some(Duration::from_secs(10))).unwrap(), "no answer");
        receive(self.socket()).unwrap().unwrap()
    }

    fn ask(&mut self, kind: Kind, file: impl AsFd) -> io::Result<Found> {
        self.last += 1;
        request(self.socket(), self.last, kind, file.as_fd()).unwrap();
        match self.answer() {
            Answer::Found { id, kind: answered, found } => {
                assert_eq!((id, answered), (self.last, kind));
                found
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.socket.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own_pidfd() -> OwnedFd {
    pidfd::of(i32::try_from(std::process::id()).unwrap()).unwrap()
}

#[test]
fn finds_namespace_cgroup_and_addresses() {
    let mut helper = Helper::new();
    let Ok(Found::Process(process)) = helper.ask(Kind::Process, own_pidfd()) else { panic!() };
    assert_eq!(process.namespace.identity(), Namespace::current().unwrap().identity());
    assert_eq!(process.pid, i32::try_from(std::process::id()).unwrap());
    assert!(process.cgroup.starts_with('/'));
    assert_eq!(process.cookie, omniverb_sys::netns::cookie().ok());
    let found = helper.ask(Kind::Addresses, &process.namespace);
    let Ok(Found::Addresses(list)) = found else { panic!() };
    assert!(list.iter().any(|address| address.is_loopback));
}

#[test]
fn reads_interfaces_and_watches_them() {
    let mut helper = Helper::new();
    let ours = Namespace::current().unwrap();
    let Ok(Found::Interfaces(facts)) = helper.ask(Kind::Interfaces, &ours) else { panic!() };
    assert!(facts.interfaces.iter().all(|interface| interface.name != "lo"));
    let file = memfd::create("x", 4096).unwrap();
    assert!(helper.ask(Kind::Interfaces, &file).is_err());
    if rustix::process::geteuid().is_root() {
        let found = helper.ask(Kind::Watch, &ours);
        assert!(matches!(found, Ok(Found::Watching)), "{found:?}");
    }
}

#[test]
fn opens_the_port_of_another_namespace() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut helper = Helper::new();
    let child = Killed(Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap());
    let pidfd = pidfd::of(i32::try_from(child.0.id()).unwrap()).unwrap();
    let ours = Namespace::current().unwrap().identity();
    let begun = Instant::now();
    let process = loop {
        let Ok(Found::Process(process)) = helper.ask(Kind::Process, &pidfd) else { panic!() };
        if process.namespace.identity() != ours {
            break process;
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    };
    let Ok(Found::UdpPort(port)) = helper.ask(Kind::Port, &process.namespace) else { panic!() };
    assert!(port.sockets().count() >= 1 && !port.senders().is_empty());
    // It is in use now: said at once, without another try.
    let again = helper.ask(Kind::Port, &process.namespace);
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(port);
    // The helper lets go of its own copies when it has sent them.
    while helper.ask(Kind::Port, &process.namespace).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    // An ended process has no identity, even if its number is used again.
    drop(child);
    assert!(helper.ask(Kind::Process, &pidfd).is_err());
}

#[test]
fn refuses_descriptors_of_the_wrong_kind() {
    let mut helper = Helper::new();
    let file = memfd::create("x", 4096).unwrap();
    let (one, _other) = seqpacket::pair().unwrap();
    let user_namespace = std::fs::File::open("/proc/self/ns/uts").unwrap();
    for kind in [Kind::Process, Kind::Addresses, Kind::Port] {
        assert!(helper.ask(kind, &file).is_err());
        assert!(helper.ask(kind, &one).is_err());
        assert!(helper.ask(kind, &user_namespace).is_err());
    }
    assert!(helper.ask(Kind::Addresses, own_pidfd()).is_err());
    assert!(helper.ask(Kind::Process, Namespace::current().unwrap()).is_err());
}

#[test]
fn noise_is_ignored_and_a_flood_refused() {
    let mut helper = Helper::new();
    let file = memfd::create("x", 4096).unwrap();
    let mut seed = 7u64;
    for _ in 0..2000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bytes = vec![(seed >> 40) as u8; 1 + (seed >> 50) as usize % 40];
        let files = vec![file.as_fd(); (seed >> 33) as usize % 8];
        seqpacket::send(helper.socket(), &bytes, &files).unwrap();
    }
    // Every well-formed request is answered, each with its number.
    let count = 4 * WORKERS as u64;
    let pidfd = own_pidfd();
    let mut sent = 0;
    let (mut done, mut busy) = (0, 0);
    while done + busy < count {
        while sent < count && request(helper.socket(), sent, Kind::Process, pidfd.as_fd()).is_ok() {
            sent += 1;
        }
        match helper.answer() {
            Answer::Found { found: Ok(_), .. } => done += 1,
            Answer::Found { found: Err(error), .. } => {
                assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
                busy += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(done > 0);
    assert!(helper.ask(Kind::Process, &pidfd).is_ok());
}
