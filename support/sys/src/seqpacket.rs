//! Sends and receives messages with descriptors over `SOCK_SEQPACKET` unix sockets.
//!
//! `SOCK_SEQPACKET`: one send is one receive, and a closed peer is seen. Nothing here blocks
//! unless asked to by argument, whatever flags the other side managed to set on the socket.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect as connect_to, listen as listen_on, recv, recvmsg,
    sendmsg, shutdown, socket_with, socketpair, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

pub use crate::pidfd::{Peer, of_peer as peer_pidfd, peer, peer_groups};
pub use crate::unix_socket_outq::unread;

/// Most descriptors one message carries. A message with more is an error at either end.
pub const DESCRIPTORS_MAX: usize = 8;

/// Budget: clients that wait to be accepted; others wait in `connect`. All that are in front are
/// accepted first: a client that fills the queue delays others by so many turns. The kernel caps it
/// at `net.core.somaxconn`.
const BACKLOG: i32 = 512;

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path`, which must not exist, and gives it the permissions `mode`.
///
/// # Errors
/// `EADDRINUSE` if the path exists, otherwise what the kernel says.
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))?;
    listen_on(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next client of a listening socket, or `None` if there is none at the moment.
///
/// # Errors
/// `EMFILE` and the like; a client that went away while waiting is skipped.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => return Ok(Some(client)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Connects to the socket at `path`.
///
/// # Errors
/// `ENOENT`, `ECONNREFUSED`, `EACCES`, `EPROTOTYPE` as the kernel says.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match connect_to(&socket, &address) {
            Err(Errno::INTR) => {}
            other => {
                other?;
                return Ok(socket);
            }
        }
    }
}

/// Two sockets joined to each other.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Two stream sockets joined to each other, on which nothing waits.
///
/// # Errors
/// As [`pair`].
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Sends one message, waiting for room if there is none.
///
/// # Errors
/// `EPIPE` or `ECONNRESET` if the other end is closed; never a signal.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, bytes, descriptors, SendFlags::NOSIGNAL)
}

/// As [`send`], but `WouldBlock` if there is no room.
///
/// # Errors
/// As [`send`], and `WouldBlock`.
pub fn try_send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, bytes, descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL.into());
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// What a call does if there is nothing to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockingMode {
    /// It sleeps until there is.
    Blocking,
    /// It fails with `WouldBlock`.
    NonBlocking,
}

/// Receives one message and its descriptors; `(0, [])` when the other end is closed.
///
/// # Errors
/// `WouldBlock` if there is none and the mode is [`BlockingMode::NonBlocking`]. `EMSGSIZE` if it is
/// larger than `buffer` or carries more than [`DESCRIPTORS_MAX`] descriptors, `EMFILE` if it
/// carries more than this process may still open: the message is lost, its descriptors closed.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    mode: BlockingMode,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    loop {
        match receive_once(socket, buffer, mode) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// As [`receive`], but a message whose descriptors find no room stays: it can be received when
/// there is some. What this process [keeps spare](crate::spare_fds) is given up for it. For a
/// socket that one thread at a time receives from.
///
/// # Errors
/// As [`receive`]; after `EMFILE` the message is still the next.
pub fn receive_kept(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    mode: BlockingMode,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    loop {
        match receive_kept_once(socket, buffer, mode) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Whether there was no room for a descriptor.
#[must_use]
pub fn lacks_room(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MFILE.raw_os_error())
}

/// Whether [`receive`] has failed for one message only, which is lost: the next may be received.
#[must_use]
pub fn is_lost(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::MSGSIZE]
        .iter()
        .any(|one| error.raw_os_error() == Some(one.raw_os_error()))
}

/// The beginning of the next message, which stays there: bytes of it in `buffer`. Never waits.
///
/// # Errors
/// `WouldBlock` if there is none, `ENOTSOCK` for a descriptor of another kind.
pub fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let (bytes, _) = rustix::io::retry_on_intr(|| recv(socket, &mut *buffer, flags))?;
    Ok(bytes)
}

/// Whether a descriptor is a socket of the kind that this module makes. No file system is asked:
/// what is behind the descriptor may be a file that never answers.
#[must_use]
pub fn is_one(file: BorrowedFd<'_>) -> bool {
    let kind = sockopt::socket_domain(file).and_then(|of| Ok((of, sockopt::socket_type(file)?)));
    kind == Ok((AddressFamily::UNIX, SocketType::SEQPACKET))
}

/// Makes an end of a connection, for all holders of the socket: both sides find it closed.
pub fn shut(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket, Shutdown::Both);
}

/// How long a call that waits for a message does that; `None`: for ever.
///
/// # Errors
/// What the kernel says.
pub fn limit_receiving(socket: BorrowedFd<'_>, time: Option<Duration>) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, time)?)
}

/// How long a call that waits for room does that.
///
/// # Errors
/// What the kernel says.
pub fn limit_sending_time(socket: BorrowedFd<'_>, time: Duration) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(time))?)
}

/// How many bytes of messages may wait to be read by the other end, as the kernel counts them: with
/// what it needs for each. At least 4608.
///
/// # Errors
/// What the kernel says.
pub fn limit_sending(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    // It doubles what it is told.
    Ok(sockopt::set_socket_send_buffer_size(socket, bytes / 2)?)
}

/// As [`receive`]; a signal ends it.
pub(crate) fn receive_once(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    mode: BlockingMode,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    receive_with(socket, buffer, mode, RecvFlags::CMSG_CLOEXEC)
}

/// As [`receive_kept`]; a signal ends it.
pub(crate) fn receive_kept_once(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    mode: BlockingMode,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let look = RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
    let mut looked = receive_with(socket, buffer, mode, look);
    if matches!(looked, Err(Errno::MFILE)) && crate::spare_fds::give_up() {
        looked = receive_with(socket, buffer, BlockingMode::NonBlocking, look);
    }
    // What was looked at has descriptors of its own: those in the message are closed with it.
    if !matches!(looked, Err(Errno::MFILE | Errno::AGAIN | Errno::INTR)) {
        let _ = recv(socket, &mut [0_u8; 1], RecvFlags::DONTWAIT);
    }
    crate::spare_fds::refill();
    looked
}

fn receive_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    mode: BlockingMode,
    mut flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    flags.set(RecvFlags::DONTWAIT, mode == BlockingMode::NonBlocking);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    // Whatever is not moved out of the ancillary buffer is closed when it is dropped.
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        // While those that came are still open: was there room for the others?
        // (A limit of no descriptors at all is an EINVAL.)
        return Err(match rustix::io::fcntl_dupfd_cloexec(socket, 0) {
            Err(Errno::MFILE | Errno::INVAL) => Errno::MFILE,
            _ => Errno::MSGSIZE,
        });
    }
    let mut descriptors = Vec::new();
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            descriptors.extend(rights);
        }
    }
    Ok((message.bytes, descriptors))
}

/// What is behind the path of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// There is no socket, or nothing listens any more.
    None,
    /// A process that lives.
    Alive,
    /// A process that will never answer any more.
    Dead,
    /// A listener with more connections waiting than may wait, so that nothing can be known.
    Full,
}

/// The listener at `path`. Never waits.
#[must_use]
pub fn listener(path: &Path) -> Listener {
    let connected = seqpacket().map_err(Some).and_then(|socket| {
        rustix::io::ioctl_fionbio(&socket, true).map_err(|e| Some(e.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|e| Some(e.into()))?;
        match connect_to(&socket, &address) {
            Ok(()) => Ok(socket),
            Err(Errno::AGAIN) => Err(None),
            Err(errno) => Err(Some(io::Error::from(errno))),
        }
    });
    match connected {
        Ok(socket) => {
            let dead =
                peer(socket.as_fd()).is_ok_and(|peer| crate::process_is_dead::is_dead(peer.pid));
            if dead { Listener::Dead } else { Listener::Alive }
        }
        Err(None) => Listener::Full,
        Err(Some(_)) => Listener::None,
    }
}

/// True if a daemon or anything else listens at `path`. Never waits.
#[must_use]
pub fn is_alive(path: &Path) -> bool {
    matches!(listener(path), Listener::Alive | Listener::Full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_boundaries_and_descriptors() {
        let (one, other) = pair().unwrap();
        let file = crate::memfd::create("test", 4096).unwrap();
        send(one.as_fd(), b"first", &[file.as_fd(), file.as_fd()]).unwrap();
        send(one.as_fd(), b"second", &[]).unwrap();
        let mut buffer = [0; 64];
        let (length, files) = receive(other.as_fd(), &mut buffer, BlockingMode::Blocking).unwrap();
        assert_eq!((&buffer[..length], files.len()), (&b"first"[..], 2));
        crate::Extent::new(&files[1], 0, 4096).verify().unwrap();
        let (length, files) = receive(other.as_fd(), &mut buffer, BlockingMode::Blocking).unwrap();
        assert_eq!((&buffer[..length], files.len()), (&b"second"[..], 0));
        let error = receive(other.as_fd(), &mut buffer, BlockingMode::NonBlocking).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(peek(other.as_fd(), &mut buffer).unwrap_err().kind(), error.kind());
        send(one.as_fd(), b"third", &[]).unwrap();
        for _ in 0..2 {
            let length = peek(other.as_fd(), &mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"third");
        }
        receive(other.as_fd(), &mut buffer, BlockingMode::NonBlocking).unwrap();
        assert!(peek(file.as_fd(), &mut buffer).is_err());
        assert!(is_one(one.as_fd()) && !is_one(file.as_fd()));
        assert!(!is_one(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()));
        drop(one);
        assert_eq!(receive(other.as_fd(), &mut buffer, BlockingMode::Blocking).unwrap().0, 0);
        assert!(send(other.as_fd(), b"x", &[]).is_err(), "and no SIGPIPE");
    }

    fn open_files() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn too_much_of_anything_is_an_error_and_leaks_nothing() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
        let (one, other) = pair().unwrap();
        let file = crate::memfd::create("test", 4096).unwrap();
        let many = [file.as_fd(); 32];
        assert!(send(one.as_fd(), b"x", &many).is_err());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        // Other tests open files at the same time, so look at many rounds at once.
        let before = open_files();
        for _ in 0..100 {
            sendmsg(&one, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
            assert!(receive(other.as_fd(), &mut [0; 8], BlockingMode::Blocking).is_err());
        }
        assert!(open_files() < before + 100);
        send(one.as_fd(), &[0; 100], &[]).unwrap();
        assert!(receive(other.as_fd(), &mut [0; 8], BlockingMode::Blocking).is_err());
        send(one.as_fd(), b"fine", &[]).unwrap();
        assert_eq!(receive(other.as_fd(), &mut [0; 8], BlockingMode::Blocking).unwrap().0, 4);
    }

    #[test]
    fn a_path_is_listened_at_once() {
        let folder = std::env::temp_dir().join(format!("omniverb-sys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let _ = std::fs::remove_file(&path);
        assert!(!is_alive(&path));
        let listener = listen(&path, 0o600).unwrap();
        assert!(is_alive(&path));
        assert!(listen(&path, 0o600).is_err());
        let client = connect(&path).unwrap();
        assert!(accept(listener.as_fd()).unwrap().is_some(), "the one of is_alive");
        let served = accept(listener.as_fd()).unwrap().unwrap();
        assert!(accept(listener.as_fd()).unwrap().is_none());
        send(client.as_fd(), b"hello", &[]).unwrap();
        assert_eq!(receive(served.as_fd(), &mut [0; 8], BlockingMode::NonBlocking).unwrap().0, 5);
        drop(listener);
        assert!(!is_alive(&path));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
