//! Uses a UDP port that another process has and forwards: the agent of a virtual machine.
//!
//! In: messages of the proxy, which may be hostile, and so may say that anything came from
//! anywhere, as a network does. Out: the same, the other way round; what is not taken at once is
//! lost, as in a network. A *word* in between says that something was rung: the two ends share
//! memory in which one looks then. One is lost where the queue is full, and then there is a message
//! still to be read, and its reader looks as well; or where the kernel has no memory.

use crate::seqpacket;
use crate::unsolicited_fds::{self, PlainMessage};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes before a datagram's payload.
pub const HEAD_BYTES: usize = 40;
/// Bytes of the longest payload: 4096, and all headers that RoCE v2 has.
pub const PAYLOAD_MAX: usize = 4352;
/// Bytes of the longest message.
pub const MESSAGE_MAX: usize = HEAD_BYTES + PAYLOAD_MAX;
/// Budget: bytes of messages that may wait each way, if we may have so much; the kernel doubles it,
/// for its own overhead. Datagrams of unreliable services have no other place to wait in while a
/// thread at either end is not scheduled.
const CARRIED_BUFFER_BYTES: usize = 4 << 20;
/// Budget: bytes of messages that may wait in all of these of a process together, each way, which
/// the kernel doubles, too. What is left of it is divided: the first ones have all that one may
/// have, and later ones ever less.
const CARRIED_BYTES_ALL: usize = 256 << 20;
/// Budget: bytes that one has all the same, each way: a window of the longest messages.
const CARRIED_BUFFER_LEAST: usize = 80 << 10;
/// Part of what is left that one gets.
const CARRIED_SHARE: usize = 16;
/// Messages that [`ProxiedSocket::forget`] takes at most: more than a queue has room for, of which
/// the kernel takes 768 bytes each or more.
const FORGOTTEN_MAX: usize = 2 * CARRIED_BUFFER_BYTES / 512;
/// What rings: one byte, shorter than the head of any datagram.
const WORD: [u8; 1] = [1];

/// Where a datagram comes from and goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxiedHeader {
    /// The address at the machine's end; `None`: whichever its kernel takes.
    pub local: Option<IpAddr>,
    /// The address at the other end.
    pub remote: IpAddr,
    /// The machine's interface, if the address means something on one link only; otherwise zero.
    pub interface: u32,
    /// UDP port at the other end.
    pub port: u16,
    /// The two bits of explicit congestion notification.
    pub ecn: u8,
}

fn written(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// An IPv4 address is never written as an IPv6 one, and so is read as what it is.
fn read(bytes: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
}

impl ProxiedHeader {
    /// As it stands before the payload.
    #[must_use]
    pub fn written(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..16].copy_from_slice(&self.local.map_or([0; 16], written));
        bytes[16..32].copy_from_slice(&written(self.remote));
        bytes[32..36].copy_from_slice(&self.interface.to_le_bytes());
        bytes[36..38].copy_from_slice(&self.port.to_le_bytes());
        bytes[38] = self.ecn;
        bytes
    }

    /// Head and payload of a message, if it has them. Both addresses are of one IP version.
    #[must_use]
    pub fn read(message: &[u8]) -> Option<(ProxiedHeader, &[u8])> {
        let (head, payload) = message.split_first_chunk::<HEAD_BYTES>()?;
        let address = |at: usize| head[at..].first_chunk::<16>().copied();
        let local = address(0).filter(|bytes| *bytes != [0; 16]).map(read);
        let remote = read(address(16)?);
        let interface = u32::from_le_bytes(*head[32..].first_chunk()?);
        let port = u16::from_le_bytes(*head[36..].first_chunk()?);
        let alike = local.is_none_or(|local| local.is_ipv4() == remote.is_ipv4());
        let right = alike && head[38] < 4 && head[39] == 0 && payload.len() <= PAYLOAD_MAX;
        right.then_some((ProxiedHeader { local, remote, interface, port, ecn: head[38] }, payload))
    }
}

/// Has a socket closed by a process that may be held up by what lies in it.
pub type Closer = Box<dyn Fn(OwnedFd) + Send + Sync>;

/// Bytes that all of these of this process have, each way.
static CARRIED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// What one has of them.
struct SendRoom(usize);

impl SendRoom {
    fn take() -> SendRoom {
        let next = |taken: usize| Some(taken + room_beside(taken));
        let taken = CARRIED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        SendRoom(room_beside(taken.unwrap_or_else(|taken| taken)))
    }
}

impl Drop for SendRoom {
    fn drop(&mut self) {
        CARRIED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The room of one more, where others have so much.
fn room_beside(taken: usize) -> usize {
    let left = CARRIED_BYTES_ALL.saturating_sub(taken);
    (left / CARRIED_SHARE).clamp(CARRIED_BUFFER_LEAST, CARRIED_BUFFER_BYTES)
}

/// Our end of the socket by which datagrams go to the proxy, and come.
pub struct ProxiedSocket {
    /// There until this is dropped.
    socket: Option<OwnedFd>,
    /// The other end, too, for the next proxy.
    carriers_end: OwnedFd,
    close: Closer,
    _room: SendRoom,
}

impl fmt::Debug for ProxiedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carried").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum ProxiedMessage<'a> {
    /// A datagram: where it goes or comes from, and its bytes.
    Datagram(ProxiedHeader, &'a [u8]),
    /// Something was rung; or an invalid message, which says no less.
    Word,
    /// Nothing for now.
    Nothing,
    /// Nothing ever again: the other end is closed, or sent what it must not. This is not to be
    /// waited for any more.
    Over,
}

impl ProxiedSocket {
    /// Both ends. `close`: is given our own when this is dropped, if descriptors of the proxy may
    /// be in it.
    ///
    /// # Errors
    /// `EMFILE` and the like.
    pub(crate) fn new(close: Closer) -> io::Result<ProxiedSocket> {
        let (socket, carriers_end) = seqpacket::pair()?;
        let room = SendRoom::take();
        for end in [&socket, &carriers_end] {
            if sockopt::set_socket_send_buffer_size_force(end, room.0).is_err() {
                sockopt::set_socket_send_buffer_size(end, room.0)?;
            }
        }
        // Where the kernel cannot, they are seen when they come.
        let _ = unsolicited_fds::refuse(socket.as_fd());
        Ok(ProxiedSocket { socket: Some(socket), carriers_end, close, _room: room })
    }

    /// The end for the proxy.
    ///
    /// # Errors
    /// `EMFILE` and the like.
    pub fn carriers_end(&self) -> io::Result<OwnedFd> {
        self.carriers_end.try_clone()
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().unwrap_or(&self.carriers_end).as_fd()
    }

    /// Forgets what has come between looks. No network keeps anything for so long.
    pub fn forget(&self) {
        for _ in 0..FORGOTTEN_MAX {
            match unsolicited_fds::receive(self.socket(), &mut []) {
                Ok(PlainMessage::Message(_)) => {}
                // Longer than nothing.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) => {}
                Ok(PlainMessage::Descriptors) | Err(_) => return,
            }
        }
    }

    /// Sends a datagram, or not.
    pub fn send(&self, head: &ProxiedHeader, payload: &[u8]) {
        let mut message = [0; MESSAGE_MAX];
        let length = HEAD_BYTES + payload.len();
        if let Some(room) = message.get_mut(HEAD_BYTES..length) {
            room.copy_from_slice(payload);
            message[..HEAD_BYTES].copy_from_slice(&head.written());
            let _ = seqpacket::try_send(self.socket(), &message[..length], &[]);
        }
    }

    /// Says that something was rung, or leaves it to what is there to be read.
    pub fn say(&self) {
        say(self.socket());
    }

    /// The next message, into `buffer`; what is longer is lost.
    pub fn receive<'a>(&self, buffer: &'a mut [u8; MESSAGE_MAX]) -> ProxiedMessage<'a> {
        let length = match unsolicited_fds::receive(self.socket(), buffer) {
            Ok(PlainMessage::Message(length)) if length > 0 => length,
            Ok(PlainMessage::Message(_) | PlainMessage::Descriptors) => {
                return ProxiedMessage::Over;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return ProxiedMessage::Nothing;
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) => {
                return ProxiedMessage::Word;
            }
            Err(_) => return ProxiedMessage::Over,
        };
        let message = buffer.get(..length).unwrap_or(&[]);
        ProxiedHeader::read(message)
            .map_or(ProxiedMessage::Word, |(head, bytes)| ProxiedMessage::Datagram(head, bytes))
    }
}

impl Drop for ProxiedSocket {
    /// Not here: this may be the control thread, or a packet thread.
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take().filter(|socket| !unsolicited_fds::is_spent(socket))
        {
            (self.close)(socket);
        }
    }
}

/// Sends the word of [`ProxiedSocket::say`] from the other end.
pub fn say(socket: BorrowedFd<'_>) {
    let _ = seqpacket::try_send(socket, &WORD, &[]);
}

/// Whether a message is a word.
#[must_use]
pub fn is_word(message: &[u8]) -> bool {
    message == WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(local: Option<&str>, remote: &str) -> ProxiedHeader {
        let ip = |text: &str| text.parse().unwrap();
        ProxiedHeader { local: local.map(ip), remote: ip(remote), interface: 7, port: 4791, ecn: 2 }
    }

    fn carried() -> ProxiedSocket {
        ProxiedSocket::new(Box::new(drop)).unwrap()
    }

    #[test]
    fn headers_survive_encoding_and_decoding() {
        for head in [
            head(Some("10.0.0.1"), "10.0.0.2"),
            head(Some("fe80::1"), "fe80::2"),
            head(None, "10.0.0.2"),
            head(None, "2001:db8::1"),
        ] {
            let message = [&head.written()[..], b"payload"].concat();
            assert_eq!(ProxiedHeader::read(&message), Some((head, &b"payload"[..])));
            assert_eq!(ProxiedHeader::read(&message[..HEAD_BYTES]), Some((head, &[][..])));
            assert_eq!(ProxiedHeader::read(&message[..HEAD_BYTES - 1]), None);
            for (at, byte) in [(38, 4), (39, 1)] {
                let mut other = message.clone();
                other[at] = byte;
                assert_eq!(ProxiedHeader::read(&other), None);
            }
        }
        let mixed = head(Some("10.0.0.1"), "fe80::2").written();
        assert_eq!(ProxiedHeader::read(&mixed), None);
        let long = [&head(None, "10.0.0.2").written()[..], &[0; PAYLOAD_MAX + 1]].concat();
        assert_eq!(ProxiedHeader::read(&long), None);
    }

    #[test]
    fn datagrams_and_wakeups_cross_in_both_directions() {
        let carried = carried();
        let theirs = carried.carriers_end().unwrap();
        let mut buffer = [0; MESSAGE_MAX];
        assert_eq!(carried.receive(&mut buffer), ProxiedMessage::Nothing);
        let head = head(Some("10.0.0.1"), "10.0.0.2");
        carried.send(&head, b"there");
        carried.say();
        let receive = |buffer: &mut [u8]| {
            seqpacket::receive(theirs.as_fd(), buffer, seqpacket::BlockingMode::NonBlocking)
                .unwrap()
                .0
        };
        let length = receive(&mut buffer);
        assert_eq!(ProxiedHeader::read(&buffer[..length]), Some((head, &b"there"[..])));
        let length = receive(&mut buffer);
        assert!(is_word(&buffer[..length]));
        let back = [&head.written()[..], b"back"].concat();
        seqpacket::send(theirs.as_fd(), &back, &[]).unwrap();
        say(theirs.as_fd());
        seqpacket::send(theirs.as_fd(), &[0; MESSAGE_MAX + 1], &[]).unwrap();
        seqpacket::send(theirs.as_fd(), b"nonsense", &[]).unwrap();
        assert_eq!(carried.receive(&mut buffer), ProxiedMessage::Datagram(head, b"back"));
        for _ in 0..3 {
            assert_eq!(carried.receive(&mut buffer), ProxiedMessage::Word);
        }
        assert_eq!(carried.receive(&mut buffer), ProxiedMessage::Nothing);
    }

    #[test]
    fn where_there_is_no_room_for_a_word_there_is_something_to_be_read() {
        let carried = carried();
        let theirs = carried.carriers_end().unwrap();
        let head = head(None, "10.0.0.2");
        (0..100_000).for_each(|_| carried.send(&head, &[0; 1024]));
        carried.say();
        let mut buffer = [0; MESSAGE_MAX];
        let mode = seqpacket::BlockingMode::NonBlocking;
        assert!(seqpacket::receive(theirs.as_fd(), &mut buffer, mode).unwrap().0 > 0);
    }

    #[test]
    fn all_of_them_together_have_a_bound_and_each_has_some() {
        let (mut taken, mut parts) = (0, Vec::new());
        for _ in 0..1000 {
            let part = room_beside(taken);
            taken += part;
            parts.push(part);
        }
        assert!(parts[..32].iter().all(|part| *part == CARRIED_BUFFER_BYTES));
        assert!(parts.is_sorted_by(|one, other| one >= other));
        assert_eq!(parts[999], CARRIED_BUFFER_LEAST);
        let above_least = parts.iter().filter(|part| **part > CARRIED_BUFFER_LEAST);
        assert!(above_least.sum::<usize>() <= CARRIED_BYTES_ALL);
        // It is given back.
        let rooms: Vec<_> = (0..100).map(|_| SendRoom::take()).collect();
        let before = CARRIED_BYTES.load(Ordering::Relaxed);
        let of_these: usize = rooms.iter().map(|room| room.0).sum();
        drop(rooms);
        assert!(before >= of_these, "others may come and go meanwhile");
    }

    /// What peers that report may have under way: a window of 256 packets, as root.
    #[test]
    fn a_window_of_the_longest_messages_waits_each_way() {
        let (other, _) = seqpacket::pair().unwrap();
        let forced = sockopt::set_socket_send_buffer_size_force(&other, CARRIED_BUFFER_BYTES);
        let window = if forced.is_ok() { 256 } else { 16 };
        let carried = carried();
        let theirs = carried.carriers_end().unwrap();
        let head = head(Some("10.0.0.1"), "10.0.0.2");
        let message = [&head.written()[..], &[0; PAYLOAD_MAX]].concat();
        let mode = seqpacket::BlockingMode::NonBlocking;
        let mut buffer = [0; MESSAGE_MAX];
        for _ in 0..window {
            carried.send(&head, &[0; PAYLOAD_MAX]);
            seqpacket::try_send(theirs.as_fd(), &message, &[]).unwrap();
        }
        for _ in 0..window {
            assert!(matches!(carried.receive(&mut buffer), ProxiedMessage::Datagram(..)));
            assert!(seqpacket::receive(theirs.as_fd(), &mut buffer, mode).is_ok());
        }
    }

    #[test]
    fn a_sender_of_descriptors_is_cut_off() {
        let carried = carried();
        let theirs = carried.carriers_end().unwrap();
        let sent = seqpacket::try_send(theirs.as_fd(), b"x", &[theirs.as_fd()]);
        let mut buffer = [0; MESSAGE_MAX];
        // Linux 6.16 and newer refuse it.
        let expected = if sent.is_ok() { ProxiedMessage::Over } else { ProxiedMessage::Nothing };
        assert_eq!(carried.receive(&mut buffer), expected);
    }

    #[test]
    fn arrivals_between_looks_are_forgotten() {
        let carried = carried();
        let theirs = carried.carriers_end().unwrap();
        let old = [&head(Some("10.0.0.1"), "10.0.0.2").written()[..], b"old"].concat();
        (0..200).for_each(|_| seqpacket::try_send(theirs.as_fd(), &old, &[]).unwrap_or_default());
        carried.forget();
        let mut buffer = [0; MESSAGE_MAX];
        assert_eq!(carried.receive(&mut buffer), ProxiedMessage::Nothing);
        while seqpacket::try_send(theirs.as_fd(), &WORD, &[]).is_ok() {}
        carried.forget();
        assert_eq!(carried.receive(&mut buffer), ProxiedMessage::Nothing);
        say(theirs.as_fd());
        assert_eq!(carried.receive(&mut buffer), ProxiedMessage::Word);
    }

    /// Closing what may hold up the closing process is left to another one.
    #[test]
    fn a_queue_with_descriptors_in_it_is_not_closed_here() {
        use std::sync::mpsc;
        for full in [false, true] {
            let (tell, told) = mpsc::channel();
            let closer: Closer = Box::new(move |socket| tell.send(socket).unwrap());
            let carried = ProxiedSocket::new(closer).unwrap();
            let theirs = carried.carriers_end().unwrap();
            // Before Linux 6.16 they cannot be refused.
            let _ = unsolicited_fds::accept(carried.socket());
            let files = [theirs.as_fd()];
            say(theirs.as_fd());
            seqpacket::try_send(theirs.as_fd(), b"x", &files[..usize::from(full)]).unwrap();
            drop(carried);
            assert_eq!(told.try_recv().is_ok(), full);
            assert!(seqpacket::try_send(theirs.as_fd(), b"x", &[]).is_err(), "nobody reads it");
        }
    }
}
