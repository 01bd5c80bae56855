//! Processes that offer sockets, by hand.

use omniverb_broker::Order;
use omniverb_carry::layout;
use omniverb_carry::message::{BYTES, Refusal, Reply, Request};
use omniverb_ring::WordMemory;
use omniverb_ring::sync::Ordering;
use omniverb_sys::child::{Helper, Helpers};
use omniverb_sys::people::People;
use omniverb_sys::{Access, Extent, socket};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Who is not answered within this waits for a close; each of the lingering sockets takes a minute.
const HANGS: Duration = Duration::from_secs(20);

const HELLO: Request = Request::Hello { name: [0; 2] };

/// A broker on a thread.
struct Broker {
    path: PathBuf,
    _helper: Helper,
}

impl Broker {
    fn start(name: &str) -> Broker {
        Broker::start_for(name, None)
    }

    /// For some only.
    fn start_for(name: &str, allowed: Option<People>) -> Broker {
        let path = std::env::temp_dir().join(format!("broker-{}-{name}", std::process::id()));
        let listener = socket::listen(&path, 0o600).unwrap();
        let helper =
            Helpers::Threads.start(omniverb_broker::BROKER, omniverb_broker::serve).unwrap();
        let order = Order { helpers: Helpers::Threads, allowed }.encode().unwrap();
        socket::send(helper.socket(), &order, &[listener.as_fd()]).unwrap();
        Broker { path, _helper: helper }
    }

    /// Without a word.
    fn call(&self) -> Process {
        let calls = socket::connect(&self.path).unwrap();
        socket::limit_receiving(calls.as_fd(), Some(HANGS)).unwrap();
        Process { calls, page: None }
    }

    fn connect(&self) -> Process {
        let mut process = self.call();
        let by = diagnosis();
        process.say(HELLO, &[by.as_fd()]);
        let (reply, page) = process.hear().unwrap();
        assert_eq!(reply, Reply::Welcome);
        process.page = page;
        assert_eq!(process.hear().unwrap().0, Reply::Ledger);
        process
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}

fn diagnosis() -> OwnedFd {
    let (protocol, flags) = (Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC);
    socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).unwrap()
}

struct Process {
    calls: OwnedFd,
    page: Option<OwnedFd>,
}

impl Process {
    fn say(&self, request: Request, files: &[BorrowedFd<'_>]) {
        socket::send(self.calls.as_fd(), &request.encode(), files).unwrap();
    }

    /// `None`: it is parted with.
    fn hear(&self) -> Option<(Reply, Option<OwnedFd>)> {
        let mut bytes = [0; BYTES];
        let got = socket::receive(self.calls.as_fd(), &mut bytes, socket::Mode::Blocking);
        let (length, mut files) = got.ok().filter(|(length, _)| *length > 0)?;
        Some((Reply::decode(&bytes[..length]).unwrap(), files.pop()))
    }

    fn offer(&self, tag: u64, end: &impl AsFd) {
        self.say(Request::Offer { tag }, &[end.as_fd()]);
    }

    /// Offers one whose other end has not come; its duplicate is closed then.
    fn offer_first(&self, tag: u64, end: &impl AsFd) {
        self.offer(tag, end);
        assert_eq!(self.hear().unwrap().0, Reply::Waiting { tag });
    }

    /// Has been answered everything: a socket that cannot be carried is refused.
    fn settle(&self) {
        let (one, _other) = socket::pair().unwrap();
        self.offer(99, &one);
        let refused = Reply::Refused { tag: 99, why: Refusal::NotConnected };
        assert_eq!(self.hear().unwrap().0, refused);
    }

    /// How many messages the page says that there were.
    fn mail(&self) -> u64 {
        let page = self.page.as_ref().unwrap();
        let page = Extent::new(page.as_fd(), 0, 4096).map(Access::ReadOnly).unwrap();
        page.load(0, Ordering::Acquire)
    }
}

/// A socket that takes a minute to close, and its other end.
fn lingering() -> (OwnedFd, TcpStream) {
    let (ours, theirs) = ends();
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60))).unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 65536]).is_ok() {}
    (ours.into(), theirs)
}

/// Where the last reference is ours, because the sending was refused, this takes long.
fn close_elsewhere(files: impl Send + 'static) {
    std::thread::spawn(move || drop(files));
}

fn ends() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

#[test]
fn both_ends_are_given_the_same_memory() {
    let broker = Broker::start("both");
    let [one, two] = [(); 2].map(|()| broker.connect());
    let (near, far) = ends();
    one.offer_first(5, &near);
    two.offer(6, &far);
    let (first, memory) = one.hear().unwrap();
    let (second, same) = two.hear().unwrap();
    let (
        Reply::Link { tag: 5, link, side: 0, .. },
        Reply::Link { tag: 6, link: other, side: 1, .. },
    ) = (first, second)
    else {
        panic!("{first:?} {second:?}")
    };
    assert_eq!(link, other);
    let map = |file: Option<OwnedFd>| {
        let extent = Extent::new(file.unwrap(), 0, layout::BYTES as u64);
        extent.map_exactly(layout::BYTES, Access::ReadWrite).unwrap()
    };
    let (ours, theirs) = (map(memory), map(same));
    ours.store(layout::HEAD, 7, Ordering::Relaxed);
    assert_eq!(theirs.load(layout::HEAD, Ordering::Relaxed), 7);
    // The page says so a moment later; that it has said so is sure with the next message.
    [&one, &two].into_iter().for_each(Process::settle);
    assert!(one.mail() >= 3 && two.mail() >= 2);
}

#[test]
fn a_duplicate_puts_off_nobodys_end() {
    let broker = Broker::start("end");
    let one = broker.connect();
    let (near, mut far) = ends();
    one.offer_first(1, &near);
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
    assert!(far.write(b"x").is_ok());
}

/// Names come again; who had them before is given nothing.
#[test]
fn who_had_these_names_before_is_not_the_other_end() {
    let broker = Broker::start("before");
    let [liar, victim] = [(); 2].map(|()| broker.connect());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let before = TcpStream::connect(target).unwrap();
    let port = before.local_addr().unwrap();
    liar.offer_first(1, &before);
    // A reset: the names are free at once.
    rustix::net::sockopt::set_socket_linger(&before, Some(std::time::Duration::ZERO)).unwrap();
    drop(before);
    drop(listener.accept().unwrap());
    let again =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&again, true).unwrap();
    rustix::net::bind(&again, &port).unwrap();
    rustix::net::connect(&again, &target).unwrap();
    let far = listener.accept().unwrap().0;
    assert_eq!(far.peer_addr().unwrap(), port);
    victim.offer_first(2, &far);
    // Who waited for what is gone now waits for nothing.
    let refused = Reply::Refused { tag: 1, why: Refusal::NotProven };
    assert_eq!(liar.hear().unwrap().0, refused);
    let honest = broker.connect();
    honest.offer(3, &again);
    assert!(matches!(victim.hear().unwrap().0, Reply::Link { tag: 2, .. }));
    assert!(matches!(honest.hear().unwrap().0, Reply::Link { tag: 3, .. }));
    liar.settle();
}

#[test]
fn what_is_no_connection_is_refused_and_who_talks_nonsense_is_parted_with() {
    let broker = Broker::start("refused");
    let one = broker.connect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    one.offer(1, &listener);
    let refused = Reply::Refused { tag: 1, why: Refusal::NotConnected };
    assert_eq!(one.hear().unwrap().0, refused);
    one.say(Request::Ended { link: 77 }, &[]);
    socket::send(one.calls.as_fd(), &[9; BYTES], &[]).unwrap();
    assert!(one.hear().is_none());
    // Hello has to come with the right socket, and soon.
    let two = broker.call();
    two.say(HELLO, &[listener.as_fd()]);
    assert!(two.hear().is_none());
    let three = broker.call();
    assert!(three.hear().is_none(), "who says nothing is parted with");
}

/// What is not read stays within a limit.
#[test]
fn who_reads_nothing_is_told_no_more() {
    let broker = Broker::start("unread");
    let idle = broker.connect();
    let (one, _other) = socket::pair().unwrap();
    (0..200).for_each(|tag| idle.offer(tag, &one));
    // It is parted with when all have been answered, or not.
    socket::send(idle.calls.as_fd(), &[9; BYTES], &[]).unwrap();
    // Who reads meanwhile makes room.
    let mut over = [PollFd::new(&idle.calls, PollFlags::RDHUP)];
    assert_eq!(poll(&mut over, Some(&HANGS.try_into().unwrap())).unwrap(), 1);
    let told = std::iter::from_fn(|| idle.hear()).count();
    assert!((10..150).contains(&told), "{told}");
}

/// Descriptors for hundreds of processes and a broker.
fn have_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit { current: limit.maximum.or(limit.current), maximum: limit.maximum };
    setrlimit(Resource::Nofile, more).unwrap();
}

#[test]
fn one_network_namespace_has_a_share() {
    have_many_descriptors();
    let broker = Broker::start("share");
    let all: Vec<Process> = (0..256).map(|_| broker.connect()).collect();
    let one_more = broker.call();
    let by = diagnosis();
    // It may be refused before it says so.
    _ = socket::send(one_more.calls.as_fd(), &HELLO.encode(), &[by.as_fd()]);
    assert!(one_more.hear().is_none());
    drop(all);
}

/// Who is let in no more has sent something, which takes a minute to close.
#[test]
fn who_is_refused_holds_up_nobody() {
    have_many_descriptors();
    let broker = Broker::start("lingers");
    let silent: Vec<Process> = (0..512).map(|_| broker.call()).collect();
    let mut peers = Vec::new();
    for _ in 0..20 {
        let (slow, peer) = lingering();
        let one = broker.call();
        _ = socket::send(one.calls.as_fd(), b"text", &[slow.as_fd()]);
        close_elsewhere((slow, one));
        peers.push(peer);
    }
    // All of these are parted with, and then there is room.
    silent.iter().for_each(|one| assert!(one.hear().is_none()));
    let (near, far) = ends();
    let [one, two] = [(); 2].map(|()| broker.connect());
    one.offer_first(1, &near);
    two.offer(2, &far);
    assert!(matches!(one.hear().unwrap().0, Reply::Link { tag: 1, .. }));
}

#[test]
fn who_is_not_allowed_is_parted_with() {
    let uid = rustix::process::geteuid().as_raw();
    let only = |uid| Some(People { users: vec![uid], groups: Vec::new() });
    Broker::start_for("allowed", only(uid)).connect();
    let broker = Broker::start_for("denied", only(uid + 1));
    let one = broker.call();
    let by = diagnosis();
    _ = socket::send(one.calls.as_fd(), &HELLO.encode(), &[by.as_fd()]);
    assert!(one.hear().is_none());
}

/// What comes with hello takes a minute to close; others say hello meanwhile.
#[test]
fn who_hangs_before_hello_takes_a_small_share() {
    have_many_descriptors();
    let broker = Broker::start("silent");
    let (slow, _peer) = lingering();
    let hanging: Vec<Process> = (0..20).map(|_| broker.call()).collect();
    for one in &hanging {
        _ = socket::send(one.calls.as_fd(), &HELLO.encode(), &[slow.as_fd()]);
    }
    close_elsewhere(slow);
    broker.connect().settle();
}
