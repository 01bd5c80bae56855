//! Represents one connected process: its socket, its mailbox, its diagnosis socket, its links.

use crate::limits::{LINKS, UNREAD};
use crate::listeners::Process;
use omniverb_formats::broker_message::{PAGE, Reach, Refusal, Reply, Side};
use omniverb_formats::fallback_ledger::{self, Kept};
use omniverb_formats::message_codec::bytes_of;
use omniverb_formats::socket_status_rows::{NAME, Process as ConnectionTable};
use omniverb_ring::Window;
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_sys::seqpacket::Peer;
use omniverb_sys::tcp_connection_state::{SockDiag, TcpAddresses, TcpConnection, TcpTraffic};
use omniverb_sys::{Access, Extent, lock, memfd, seqpacket};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{self, AtomicBool, AtomicU64};

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// One of them.
#[derive(Debug)]
pub(crate) struct Client {
    /// Never given again.
    pub(crate) number: u64,
    pub(crate) socket: OwnedFd,
    /// The credentials of the process, from the kernel.
    pub(crate) peer: Peer,
    /// What it calls itself.
    name: Mutex<[u64; 2]>,
    /// Where it writes down which sockets are the kernel's.
    ledger: OwnedFd,
    /// The network namespace that it has connected from: its vNIC.
    pub(crate) namespace: u64,
    page: OwnedFd,
    /// The netlink socket by which the kernel is asked about its sockets, once it has said hello.
    /// The lock keeps questions apart: an answer belongs to the last question.
    diagnosis: Mutex<Option<OwnedFd>>,
    post: Mutex<MessageQueue>,
    links: Mutex<BTreeSet<u64>>,
    /// No offer of its is kept any more. Set and looked at with the lock of all offers.
    is_gone: AtomicBool,
}

/// By which it is told something: messages, and a word that says that there are some.
struct MessageQueue {
    page: Window,
    sent: u64,
}

impl std::fmt::Debug for MessageQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} messages", self.sent)
    }
}

fn open_post(socket: &OwnedFd) -> io::Result<(OwnedFd, MessageQueue)> {
    seqpacket::limit_sending(socket.as_fd(), UNREAD)?;
    let page = memfd::create_sealable("omniverb mail", PAGE as u64)?;
    let ours = Extent::new(page.as_fd(), 0, PAGE as u64).map(Access::ReadWrite)?;
    memfd::seal_future_write(page.as_fd())?;
    Ok((page, MessageQueue { page: ours, sent: 0 }))
}

impl Client {
    /// The socket comes back if there is no memory.
    pub(crate) fn new(socket: OwnedFd, peer: Peer, namespace: u64) -> Result<Client, OwnedFd> {
        let ledger = memfd::create("omniverb ledger", fallback_ledger::BYTES as u64);
        let opened = open_post(&socket).and_then(|(page, post)| Ok((page, post, ledger?)));
        let Ok((page, post, ledger)) = opened else { return Err(socket) };
        let number = NUMBERS.fetch_add(1, atomic::Ordering::Relaxed);
        let (links, diagnosis, name) = (Mutex::default(), Mutex::default(), Mutex::default());
        let post = Mutex::new(post);
        let is_gone = AtomicBool::new(false);
        Ok(Client {
            number,
            socket,
            peer,
            name,
            ledger,
            namespace,
            page,
            diagnosis,
            post,
            links,
            is_gone,
        })
    }

    /// No offer of its is to be kept from now on.
    pub(crate) fn go(&self) {
        self.is_gone.store(true, atomic::Ordering::Relaxed);
    }

    /// That was said.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(atomic::Ordering::Relaxed)
    }

    /// Takes the socket by which the kernel is asked, if it is one, and in its namespace.
    pub(crate) fn take_diagnosis(&self, file: OwnedFd) -> Option<()> {
        let namespace = SockDiag::by(file.as_fd())?.namespace().ok()?;
        (namespace == self.namespace).then(|| *lock(&self.diagnosis) = Some(file))
    }

    /// Asks the kernel by its socket.
    fn ask<T>(&self, what: impl FnOnce(&SockDiag<'_>) -> io::Result<T>) -> io::Result<T> {
        let diagnosis = lock(&self.diagnosis);
        let by = diagnosis.as_ref().and_then(|file| SockDiag::by(file.as_fd()));
        by.map_or(Err(io::ErrorKind::NotConnected.into()), |by| what(&by))
    }

    /// What has passed at a socket in its namespace; `None`: it is not there, or no more.
    pub(crate) fn look(&self, connection: &TcpConnection) -> io::Result<Option<TcpTraffic>> {
        self.ask(|by| connection.look(by))
    }

    /// The listening socket that the kernel would choose for a connection from its network
    /// namespace to this address.
    pub(crate) fn listener(&self, to: SocketAddr) -> io::Result<Option<u64>> {
        self.ask(|by| by.listener(to))
    }

    /// Whether there is a connection of these names in its namespace.
    pub(crate) fn has(&self, names: TcpAddresses) -> io::Result<bool> {
        self.ask(|by| by.has(names))
    }

    /// Its network namespace and its number.
    pub(crate) fn process(&self) -> Process {
        (self.namespace, self.number)
    }

    /// The first thing it is told.
    pub(crate) fn welcome(&self) -> bool {
        self.tell_with(Reply::Welcome, &[self.page.as_fd()])
            && self.tell_with(Reply::Ledger, &[self.ledger.as_fd()])
    }

    /// What it calls itself.
    pub(crate) fn set_name(&self, name: [u64; 2]) {
        *lock(&self.name) = name;
    }

    /// How it is shown.
    pub(crate) fn row(&self) -> ConnectionTable {
        let [first, last] = lock(&self.name).map(u64::to_ne_bytes);
        let mut name = [0; NAME];
        name[..8].copy_from_slice(&first);
        name[8..].copy_from_slice(&last);
        let (pid, uid) = (self.peer.pid, self.peer.uid);
        ConnectionTable { number: self.number, pid, uid, namespace: self.namespace, name }
    }

    /// What it says of sockets that are the kernel's, the last for each.
    pub(crate) fn kept(&self) -> BTreeMap<u64, Kept> {
        let length = fallback_ledger::BYTES as u64;
        let extent = Extent::new(self.ledger.as_fd(), 0, length);
        let Ok(memory) = extent.map_exactly(fallback_ledger::BYTES, Access::ReadOnly) else {
            return BTreeMap::new();
        };
        let row = |row: usize| {
            let word = |at| memory.load((row * fallback_ledger::ROW + at) * 8, Ordering::Acquire);
            Kept::decode(&std::array::from_fn(word))
        };
        (0..fallback_ledger::ROWS).filter_map(row).map(|kept| (kept.cookie, kept)).collect()
    }

    /// It will not be carried.
    pub(crate) fn refuse(&self, tag: u64, why: Refusal) {
        self.tell(Reply::Refused { tag, why });
    }

    /// Here is a link. `false` if it does not take it.
    pub(crate) fn give(
        &self,
        tag: u64,
        (link, side, reach): (u64, Side, Reach),
        memory: BorrowedFd<'_>,
    ) -> bool {
        let is_told = self.tell_with(Reply::Link { tag, link, side, reach }, &[memory]);
        if is_told {
            lock(&self.links).insert(link);
        }
        is_told
    }

    /// Here is a channel: its memory, and one end of the two sockets; between two network
    /// namespaces its own address and the other one's. `false` if it does not take it.
    pub(crate) fn channel(
        &self,
        (tag, name, side): (u64, u64, Side),
        ends: Option<[IpAddr; 2]>,
        files: [BorrowedFd<'_>; 2],
    ) -> bool {
        let ends = ends.map(|ends| ends.map(bytes_of));
        self.tell_with(Reply::Channel { tag, name, side, ends }, &files)
    }

    /// Tells it that a channel to that listener may be had now.
    pub(crate) fn seen(&self, to: SocketAddr) {
        self.tell(Reply::RemoteSeen { address: bytes_of(to.ip()), port: to.port() });
    }

    /// All that it has.
    pub(crate) fn links(&self) -> BTreeSet<u64> {
        lock(&self.links).clone()
    }

    /// Whether it may have another one.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.links).len() < LINKS
    }

    /// It needs one no more.
    pub(crate) fn ended(&self, link: u64) {
        lock(&self.links).remove(&link);
    }

    /// Tells it something. `false`: it has no room for messages, and hears nothing of it.
    pub(crate) fn tell(&self, reply: Reply) -> bool {
        self.tell_with(reply, &[])
    }

    fn tell_with(&self, reply: Reply, files: &[BorrowedFd<'_>]) -> bool {
        let mut post = lock(&self.post);
        let is_sent = seqpacket::try_send(self.socket.as_fd(), &reply.encode(), files).is_ok();
        if is_sent {
            post.sent += 1;
            post.page.store(0, post.sent, Ordering::Release);
        }
        is_sent
    }
}

#[cfg(test)]
impl Client {
    /// A client in a network namespace, whose process is gone.
    pub(crate) fn alone(namespace: u64) -> std::sync::Arc<Client> {
        let (socket, _) = seqpacket::pair().unwrap();
        let peer = seqpacket::peer(socket.as_fd()).unwrap();
        std::sync::Arc::new(Client::new(socket, peer, namespace).unwrap())
    }
}
