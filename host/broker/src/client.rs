//! A process that has connected.

use crate::limits::{LINKS, UNREAD};
use omniverb_carry::message::{PAGE, Refusal, Reply};
use omniverb_ring::Window;
use omniverb_ring::WordMemory;
use omniverb_ring::sync::Ordering;
use omniverb_sys::{Access, Extent, lock, memfd, socket};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{self, AtomicU64};

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// One of them.
#[derive(Debug)]
pub(crate) struct Client {
    /// Never given again.
    pub(crate) number: u64,
    pub(crate) socket: OwnedFd,
    /// The network namespace that it has connected from: its vNIC.
    pub(crate) namespace: u64,
    page: OwnedFd,
    post: Mutex<Post>,
    links: Mutex<BTreeSet<u64>>,
}

/// By which it is told something: messages, and a word that says that there are some.
struct Post {
    page: Window,
    sent: u64,
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} messages", self.sent)
    }
}

fn open_post(socket: &OwnedFd) -> io::Result<(OwnedFd, Post)> {
    socket::limit_sending(socket.as_fd(), UNREAD)?;
    let page = memfd::create_sealable("omniverb mail", PAGE as u64)?;
    let ours = Extent::new(page.as_fd(), 0, PAGE as u64).map(Access::ReadWrite)?;
    memfd::seal_future_write(page.as_fd())?;
    Ok((page, Post { page: ours, sent: 0 }))
}

impl Client {
    /// The socket comes back if there is no memory.
    pub(crate) fn new(socket: OwnedFd, namespace: u64) -> Result<Client, OwnedFd> {
        let Ok((page, post)) = open_post(&socket) else { return Err(socket) };
        let number = NUMBERS.fetch_add(1, atomic::Ordering::Relaxed);
        let (post, links) = (Mutex::new(post), Mutex::default());
        Ok(Client { number, socket, namespace, page, post, links })
    }

    /// The first thing it is told.
    pub(crate) fn welcome(&self) -> bool {
        self.tell(Reply::Welcome, &[self.page.as_fd()])
    }

    /// Its offer waits for the other end.
    pub(crate) fn wait(&self, tag: u64) {
        self.tell(Reply::Waiting { tag }, &[]);
    }

    /// It will not be carried.
    pub(crate) fn refuse(&self, tag: u64, why: Refusal) {
        self.tell(Reply::Refused { tag, why }, &[]);
    }

    /// Here is a link. `false` if it does not take it.
    pub(crate) fn give(&self, tag: u64, link: u64, side: u64, memory: BorrowedFd<'_>) -> bool {
        let is_told = self.tell(Reply::Link { tag, link, side }, &[memory]);
        if is_told {
            lock(&self.links).insert(link);
        }
        is_told
    }

    /// Whether it may have another one.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.links).len() < LINKS
    }

    /// It needs one no more.
    pub(crate) fn ended(&self, link: u64) {
        lock(&self.links).remove(&link);
    }

    fn tell(&self, reply: Reply, files: &[BorrowedFd<'_>]) -> bool {
        let mut post = lock(&self.post);
        let is_sent = socket::try_send(self.socket.as_fd(), &reply.encode(), files).is_ok();
        if is_sent {
            post.sent += 1;
            post.page.store(0, post.sent, Ordering::Release);
        }
        is_sent
    }
}
