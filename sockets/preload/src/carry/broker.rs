//! Talks to the broker: offers sockets to it, and receives links.
//!
//! It is connected to when the first socket is offered, and again, after a while, if it is gone.
//! Nothing waits for it. A word in a page of the broker's says that there is mail. All that is
//! known of the connection is in a page that a child of `fork` finds wiped, so that it makes its
//! own.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use omniverb_formats::broker_message::{BYTES, PAGE, Reply, Request, SUFFIX};
use omniverb_formats::fallback_ledger as ledger_file;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, netlink, recv, recvmsg, sendmsg, socket_with,
};

use super::links::{Flag, Link};
use super::map_sealed_memfd::map;
use super::{connection_watch, ended_links, links};
use crate::anonymous_mappings::{WipedPage, Zeros};
use crate::borrowed_fd::borrow;
use crate::kernel_socket;
use crate::shared_memory::Memory;
use crate::tsc_clock;
use crate::{fallback_ledger, library_fds, sockets_observed_by_broker};
use omniverb_ring::WordMemory;

/// Where the host's daemon listens, unless `OMNIVERB_SOCKET` says otherwise
/// (`rnic/session/src/lib.rs`).
const SYSTEM: &[u8] = b"/run/omniverb/omniverbd.sock";
/// Bytes of the name of a socket, with the zero behind it.
const NAME: usize = 108;

/// How often a thread waits for another one that offers.
const WAITS: u32 = 1000;

/// What a child of `fork` finds wiped.
struct State {
    /// One more than its place among our own descriptors; 0: there is none.
    socket: AtomicU64,
    /// Where the broker's page is; 0: it has not come.
    page: AtomicU64,
    /// What was in it when the mail was taken last.
    seen: AtomicU64,
    /// When a connection was tried last, and failed; 0: it was not.
    failed: AtomicU64,
    /// A thread takes the broker's messages, or connects.
    busy: AtomicU64,
    /// This process is known not to be a copy of another one.
    known: AtomicU64,
    /// How many connections there were.
    count: AtomicU64,
}

// SAFETY: words.
unsafe impl Zeros for State {}

static STATE: WipedPage<State> = WipedPage::new(State {
    socket: AtomicU64::new(0),
    page: AtomicU64::new(0),
    seen: AtomicU64::new(0),
    failed: AtomicU64::new(0),
    busy: AtomicU64::new(0),
    known: AtomicU64::new(0),
    count: AtomicU64::new(0),
});

/// The name of its socket.
static PATH: OnceLock<[u8; NAME]> = OnceLock::new();

/// At the start, when there is one thread: where the daemon is, if that was said. `false` if it
/// cannot be found.
pub(crate) fn begin(daemon: Option<&CStr>) -> bool {
    let daemon = daemon.map_or(SYSTEM, CStr::to_bytes);
    if daemon.len() + SUFFIX.len() >= NAME || daemon.is_empty() {
        return false;
    }
    let mut path = [0; NAME];
    path[..daemon.len()].copy_from_slice(daemon);
    path[daemon.len()..][..SUFFIX.len()].copy_from_slice(SUFFIX.as_bytes());
    _ = PATH.set(path);
    STATE.known.store(1, Ordering::Relaxed);
    STATE.wipe_on_fork()
}

fn socket() -> Option<BorrowedFd<'static>> {
    library_fds::named(&STATE.socket)
}

/// The descriptor: a child has a duplicate of it, of no use to it.
pub(super) fn fd() -> Option<c_int> {
    socket().map(|socket| socket.as_raw_fd())
}

/// One thread is in here alone, until this is dropped: there is no call in here that may be left.
struct Exclusive;

impl Exclusive {
    fn try_be() -> Option<Self> {
        (STATE.busy.swap(1, Ordering::AcqRel) == 0).then_some(Self)
    }
}

impl Exclusive {
    /// The other thread is soon done; but it may be this thread, interrupted.
    fn be() -> Option<Self> {
        (0..WAITS).find_map(|_| {
            let alone = Self::try_be();
            if alone.is_none() {
                rustix::thread::sched_yield();
            }
            alone
        })
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        STATE.busy.store(0, Ordering::Release);
    }
}

/// This process is a copy of another one, and has not been asked so far.
pub(super) fn is_copy() -> bool {
    STATE.known.swap(1, Ordering::AcqRel) == 0
}

/// Offers a socket. `false` if there is no broker to offer it to.
pub(super) fn offer(fd: c_int, link: Link) -> bool {
    let Some(_alone) = Exclusive::be() else { return false };
    if socket().is_none() && !open() {
        return false;
    }
    tell_of_the_ended();
    let file = borrow(fd);
    let is_new = sockets_observed_by_broker::was_just_accepted(fd);
    tell(Request::Offer { tag: link.tag(), is_new }, &[file])
}

/// For the thread that has [`Exclusive`]: of links that are over.
fn tell_of_the_ended() {
    ended_links::each(|name| tell(Request::LinkEnded { link: name }, &[]));
}

/// Says something to the broker. For the thread that has [`Exclusive`].
pub(super) fn tell(request: Request, files: &[BorrowedFd<'_>]) -> bool {
    let Some(socket) = socket() else { return false };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(socket, &[IoSlice::new(&request.encode())], &mut ancillary, flags);
    if matches!(sent, Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) {
        lost();
    }
    sent.is_ok()
}

/// There is a connection, or it is time to try one.
pub(super) fn may_be_there() -> bool {
    let failed = STATE.failed.load(Ordering::Relaxed);
    socket().is_some() || failed == 0 || tsc_clock::is_over(failed, tsc_clock::SECOND)
}

/// Connects, and says hello.
fn open() -> bool {
    if !may_be_there() {
        return false;
    }
    STATE.failed.store(tsc_clock::now().max(1), Ordering::Relaxed);
    let Some((socket, diagnosis)) = make() else { return false };
    let kept = library_fds::keep(socket.as_raw_fd());
    drop(socket);
    let Some(kept) = kept else { return false };
    STATE.seen.store(0, Ordering::Relaxed);
    STATE.count.fetch_add(1, Ordering::Relaxed);
    STATE.socket.store(kept as u64 + 1, Ordering::Release);
    library_fds::named(&STATE.socket).into_iter().for_each(connection_watch::put_broker);
    tell(Request::Hello { name: name() }, &[diagnosis.as_fd()])
}

/// What this thread calls itself, which is how the program is called, mostly.
fn name() -> [u64; 2] {
    let mut name = [0_u64; 2];
    let to = name.as_mut_ptr();
    // SAFETY: the kernel writes sixteen bytes.
    kernel_socket::keeping_errno(|| unsafe { libc::prctl(libc::PR_GET_NAME, to) });
    name
}

fn make() -> Option<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let path = CStr::from_bytes_until_nul(PATH.get()?).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    let protocol = Some(netlink::SOCK_DIAG);
    let diagnosis = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
    Some((socket, diagnosis))
}

/// The broker is gone. What it has given stays.
fn lost() {
    let Some(fd) = fd() else { return };
    STATE.socket.store(0, Ordering::Release);
    // The page stays mapped: a thread may be looking at it.
    STATE.page.store(0, Ordering::Release);
    STATE.failed.store(tsc_clock::now().max(1), Ordering::Relaxed);
    // Another broker knows nothing of its links, and would never end those to other namespaces.
    ended_links::each(|_| true);
    revoke(|link| link.has(Flag::CrossNamespace));
    library_fds::close(fd);
}

/// Sends a message that has no answer; connects before, if need be. `false`: there is no broker.
pub(crate) fn say(request: Request, files: &[BorrowedFd<'_>]) -> bool {
    let Some(_alone) = Exclusive::be() else { return false };
    (socket().is_some() || open()) && tell(request, files)
}

/// Which connection there is, of all that there were; 0: none.
pub(crate) fn connection() -> u64 {
    socket().map_or(0, |_| STATE.count.load(Ordering::Relaxed))
}

/// The socket of the broker, for a thread that waits for messages.
pub(crate) fn mailbox() -> Option<BorrowedFd<'static>> {
    socket()
}

/// Whether there is mail, as far as can be told without asking.
#[inline(always)]
pub(crate) fn has_mail() -> bool {
    match STATE.page.load(Ordering::Acquire) {
        // Until the page has come it has to be looked for.
        0 => STATE.socket.load(Ordering::Relaxed) != 0,
        page => mails_of(page) != STATE.seen.load(Ordering::Relaxed),
    }
}

/// How many there were, as the broker's page says.
#[inline(always)]
fn mails_of(page: u64) -> u64 {
    Memory::<PAGE>::new(page as usize).load(0, Ordering::Acquire)
}

/// There is mail to be taken, or something to be said.
#[inline(always)]
pub(super) fn is_any() -> bool {
    has_mail() || ended_links::is_due()
}

/// Links that are over are left when no thread is in here ([`super::broker_dispatch`]).
pub(super) fn revoke(is_over: impl Fn(Link) -> bool) {
    links::each(|_, link| {
        if link.identity.memory.get() != 0 && is_over(link) {
            link.set_flag(Flag::Revoked);
            ended_links::mark_revoked();
        }
    });
}

/// Takes all mail, also where the page does not say that there is some: what can be read may be the
/// end. `with` has all that is not of the conversation itself. `false`: another thread is in here
/// already.
#[cold]
pub(super) fn take(with: &mut dyn FnMut(Reply, Files)) -> bool {
    let Some(_alone) = Exclusive::try_be() else { return false };
    take_alone(with);
    true
}

fn take_alone(with: &mut dyn FnMut(Reply, Files)) {
    if socket().is_none() {
        // Calls are not to come here for ever. Those that are parted with are left by the next one.
        return ended_links::postpone();
    }
    let page = STATE.page.load(Ordering::Acquire);
    if page != 0 {
        STATE.seen.store(mails_of(page), Ordering::Relaxed);
    }
    // As many as there may be links.
    for _ in 0..4096 {
        let Some(socket) = socket() else { return };
        match receive(socket) {
            Ok(Some((reply, files))) => came(reply, files, with),
            Ok(None) => return lost(),
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(_) => return lost(),
        }
    }
    tell_of_the_ended();
}

/// What comes with a message.
pub(crate) type Files = [Option<OwnedFd>; 2];

/// The next message; `None` at the end of the connection, or for what is none. A message whose
/// descriptors find no room in this process comes without any: the end of a link may be behind it,
/// which a peer that fills our descriptor table must not delay. But the first message stays, as if
/// it had not come yet: nothing is behind it.
fn receive(from: BorrowedFd<'_>) -> Result<Option<(Reply, Files)>, Errno> {
    let mut bytes = [0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // What is looked at has descriptors of its own; those in the message are closed with it.
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let reply = Reply::decode(&bytes[..got.bytes]);
    let lacks_room = got.flags.contains(ReturnFlags::CTRUNC);
    if lacks_room && matches!(reply, Some(Reply::Welcome)) {
        return Err(Errno::AGAIN);
    }
    recv(from, &mut [0_u8; 1], RecvFlags::DONTWAIT)?;
    let mut files = [None, None];
    for one in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut all) = one
            && !lacks_room
        {
            files = [all.next(), all.next()];
        }
    }
    Ok(reply.map(|reply| (reply, files)))
}

/// Does what a message says that is of the conversation itself. What else there is `with` has.
fn came(reply: Reply, files: Files, with: &mut dyn FnMut(Reply, Files)) {
    match (reply, &files) {
        (Reply::Welcome, [Some(file), _]) => {
            if let Some(page) = map(file, PAGE, ProtFlags::READ) {
                STATE.page.store(page as u64, Ordering::Release);
                STATE.failed.store(0, Ordering::Relaxed);
            }
        }
        (Reply::Ledger, [Some(file), _]) => {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            if let Some(place) = map(file, ledger_file::BYTES, access) {
                fallback_ledger::begin(place as usize);
            }
        }
        _ => with(reply, files),
    }
}
