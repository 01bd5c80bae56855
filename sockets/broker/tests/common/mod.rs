//! Processes that talk to a broker, by hand.
#![allow(dead_code)] // Not every test needs all of it.

use omniverb_broker::{Range, StartupParameters};
use omniverb_formats::broker_message::{BYTES, Refusal, Reply, Request};
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_sys::helper_process::{Helper, HelperStart};
use omniverb_sys::user_and_group_check::UsersAndGroups;
use omniverb_sys::{Access, Extent, seqpacket};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// An answer that takes longer than this waits for a close; each of the lingering sockets takes a
/// minute.
pub const HANGS: Duration = Duration::from_secs(20);

pub const HELLO: Request = Request::Hello { name: [0; 2] };

/// To which addresses connections are light.
pub fn light() -> Vec<Range> {
    ["10.0.0.0/8:7", "fd00::/8"].map(|range| range.parse().unwrap()).to_vec()
}

/// A broker on a thread.
pub struct Broker {
    path: PathBuf,
    _helper: Helper,
}

impl Broker {
    pub fn start(name: &str) -> Broker {
        Broker::start_for(name, None)
    }

    /// For some only.
    pub fn start_for(name: &str, allowed: Option<UsersAndGroups>) -> Broker {
        let path = std::env::temp_dir().join(format!("broker-{}-{name}", std::process::id()));
        let listener = seqpacket::listen(&path, 0o600).unwrap();
        let helper =
            HelperStart::Threads.start(omniverb_broker::BROKER, omniverb_broker::serve).unwrap();
        let order = StartupParameters { helpers: HelperStart::Threads, allowed, light: light() }
            .encode()
            .unwrap();
        seqpacket::send(helper.socket(), &order, &[listener.as_fd()]).unwrap();
        Broker { path, _helper: helper }
    }

    /// Without a word.
    pub fn call(&self) -> Process {
        let calls = seqpacket::connect(&self.path).unwrap();
        seqpacket::limit_receiving(calls.as_fd(), Some(HANGS)).unwrap();
        Process { calls, page: None }
    }

    pub fn connect(&self) -> Process {
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

pub fn diagnosis() -> OwnedFd {
    let (protocol, flags) = (Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC);
    socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).unwrap()
}

pub struct Process {
    pub calls: OwnedFd,
    page: Option<OwnedFd>,
}

impl Process {
    pub fn say(&self, request: Request, files: &[BorrowedFd<'_>]) {
        seqpacket::send(self.calls.as_fd(), &request.encode(), files).unwrap();
    }

    /// `None`: it is parted with.
    pub fn hear(&self) -> Option<(Reply, Option<OwnedFd>)> {
        self.hear_all().map(|(reply, mut files)| (reply, files.pop()))
    }

    /// The same, with all descriptors; but for what comes before or behind each answer.
    pub fn hear_all(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        loop {
            let heard = self.hear_any()?;
            if !matches!(heard.0, Reply::ListenerIs { .. } | Reply::Unlistened { .. }) {
                return Some(heard);
            }
        }
    }

    /// The next message, with all descriptors.
    pub fn hear_any(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        let mut bytes = [0; BYTES];
        let got =
            seqpacket::receive(self.calls.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking);
        let (length, files) = got.ok().filter(|(length, _)| *length > 0)?;
        Some((Reply::decode(&bytes[..length]).unwrap(), files))
    }

    pub fn offer(&self, tag: u64, end: &impl AsFd) {
        self.say(Request::Offer { tag, is_new: false }, &[end.as_fd()]);
    }

    /// Offers one whose other end has not come; its duplicate is closed then.
    pub fn offer_first(&self, tag: u64, end: &impl AsFd) {
        self.offer(tag, end);
        assert_eq!(self.hear().unwrap().0, Reply::Pending { tag });
    }

    /// Has been answered everything: a socket that cannot be carried is refused.
    pub fn settle(&self) {
        let (one, _other) = seqpacket::pair().unwrap();
        self.offer(99, &one);
        let refused = Reply::Refused { tag: 99, why: Refusal::NotConnected };
        assert_eq!(self.hear().unwrap().0, refused);
    }

    /// How many messages the page says that there were.
    pub fn mail(&self) -> u64 {
        let page = self.page.as_ref().unwrap();
        let page = Extent::new(page.as_fd(), 0, 4096).map(Access::ReadOnly).unwrap();
        page.load(0, Ordering::Acquire)
    }
}

/// A socket that takes a minute to close, and its other end.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let (ours, theirs) = ends();
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60))).unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 65536]).is_ok() {}
    (ours.into(), theirs)
}

/// Where the last reference is ours, because the sending was refused, this takes long.
pub fn close_elsewhere(files: impl Send + 'static) {
    std::thread::spawn(move || drop(files));
}

pub fn ends() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Descriptors for hundreds of processes and a broker.
pub fn have_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit { current: limit.maximum.or(limit.current), maximum: limit.maximum };
    setrlimit(Resource::Nofile, more).unwrap();
}
