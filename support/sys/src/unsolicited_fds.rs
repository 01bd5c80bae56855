//! Disposes of descriptors that arrive unasked on unix sockets.
//!
//! A process that may send on a unix socket may attach descriptors of any kind, and the one that
//! lets go of the last reference to a file does what that file's kind wants done: a TCP socket
//! lingers, a FUSE file asks its server. Taking a message discards what there is no room for, and
//! closing a socket discards its queue, in the thread that does it. So nothing here takes a
//! descriptor: messages are looked at first, which lets go of no last reference.

use crate::pidfd::set_option;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, SocketAddrAny, recv, recvmsg, shutdown,
    sockopt,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

/// `SO_PASSRIGHTS` (Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;

/// Messages without descriptors that [`is_spent`] takes before it gives up.
const TAKEN: usize = 512;

/// Has the kernel refuse messages with descriptors for this socket, and for those that are
/// accepted from it, at their senders: they get `EPERM`.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16. Then [`receive`] must do.
pub fn refuse(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, SO_PASSRIGHTS, 0)
}

/// Takes [`refuse`] back.
///
/// # Errors
/// As [`refuse`].
pub fn accept(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, SO_PASSRIGHTS, 1)
}

/// What a socket has for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainMessage {
    /// A message of so many bytes; 0 if the other end is closed (or sent an empty one).
    Message(usize),
    /// A message that carries descriptors. It stays where it is.
    Descriptors,
}

/// Receives one message that must not carry descriptors. Never waits.
///
/// # Errors
/// `WouldBlock` if there is none; `EMSGSIZE` if it is larger than `buffer`: it is lost.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<PlainMessage> {
    receive_from(socket, buffer).map(|(plain, _)| plain)
}

/// The same, and the address that the sender's socket has, of which the kernel is sure.
///
/// # Errors
/// As [`receive`].
pub fn receive_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(PlainMessage, Option<SocketAddrAny>)> {
    let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let seen = loop {
        let mut none = RecvAncillaryBuffer::new(&mut []);
        let mut slices = [IoSliceMut::new(buffer)];
        match recvmsg(socket, &mut slices, &mut none, look) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    // Without room for control messages this says that there are some. Credentials, the other
    // kind, come to sockets only that asked for them.
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Ok((PlainMessage::Descriptors, seen.address));
    }
    // There is no other reader, so it is the same message.
    while let Err(errno) = recv(socket, &mut [0u8; 0], RecvFlags::DONTWAIT) {
        if errno != Errno::INTR {
            return Err(errno.into());
        }
    }
    if seen.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    Ok((PlainMessage::Message(seen.bytes), seen.address))
}

/// Ends a connection and says whether closing its socket lets go of nothing of the other side's:
/// true if nothing waits in it and nothing can come any more. If false, let a process close it that
/// may hang.
#[must_use]
pub fn is_spent(socket: impl AsFd) -> bool {
    let socket = socket.as_fd();
    // From here on senders get EPIPE. A socket that was never connected has no sender.
    let _ = shutdown(socket, Shutdown::Both);
    // An empty message looks like the end of a connection; credentials come with messages only.
    if sockopt::set_socket_passcred(socket, true).is_err() {
        return false;
    }
    for _ in 0..TAKEN {
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut credentials = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8; 1];
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut credentials, look) {
            Ok(seen) if seen.flags.contains(ReturnFlags::CTRUNC) => return false,
            Ok(_) if credentials.drain().next().is_none() => return true,
            Ok(_) => {
                let _ = recv(socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
            }
            Err(Errno::AGAIN | Errno::NOTCONN) => return true,
            // What the other side did not take any more; the error is told once.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket::{pair, send};

    #[test]
    fn plain_messages_come_and_others_stay() {
        let (ours, theirs) = pair().unwrap();
        let mut buffer = [0; 8];
        assert_eq!(
            receive(ours.as_fd(), &mut buffer).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let null = std::fs::File::open("/dev/null").unwrap();
        send(theirs.as_fd(), b"first", &[]).unwrap();
        send(theirs.as_fd(), &[7; 20], &[]).unwrap();
        send(theirs.as_fd(), b"third", &[null.as_fd()]).unwrap();
        assert_eq!(receive(ours.as_fd(), &mut buffer).unwrap(), PlainMessage::Message(5));
        assert_eq!(&buffer[..5], b"first");
        assert_eq!(
            receive(ours.as_fd(), &mut buffer).unwrap_err().raw_os_error(),
            Some(libc::EMSGSIZE)
        );
        for _ in 0..3 {
            assert_eq!(receive(ours.as_fd(), &mut buffer).unwrap(), PlainMessage::Descriptors);
        }
        assert!(!is_spent(&ours));
        let (ours, theirs) = pair().unwrap();
        drop(theirs);
        assert_eq!(receive(ours.as_fd(), &mut buffer).unwrap(), PlainMessage::Message(0));
    }

    #[test]
    fn a_socket_is_spent_when_nothing_of_the_others_is_in_it() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let fill = |messages: &[(&[u8], bool)], close: bool| {
            let (ours, theirs) = pair().unwrap();
            send(ours.as_fd(), b"not taken", &[]).unwrap();
            for (bytes, attached) in messages {
                let files = [null.as_fd()];
                send(theirs.as_fd(), bytes, &files[..usize::from(*attached)]).unwrap();
            }
            let kept = Some(theirs).filter(|_| !close);
            let spent = is_spent(&ours);
            if let Some(theirs) = kept {
                assert!(send(theirs.as_fd(), b"x", &[null.as_fd()]).is_err());
            }
            spent
        };
        for close in [false, true] {
            assert!(fill(&[], close));
            assert!(fill(&[(b"text", false), (b"", false), (b"more", false)], close));
            assert!(!fill(&[(b"text", true)], close));
            assert!(!fill(&[(b"", true)], close));
            assert!(!fill(&[(b"", false), (b"text", false), (b"", false), (b"", true)], close));
        }
    }

    #[test]
    fn a_kernel_that_can_refuses_them_at_the_sender() {
        let (ours, theirs) = pair().unwrap();
        if refuse(ours.as_fd()).is_err() {
            return; // before Linux 6.16
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = send(theirs.as_fd(), b"x", &[null.as_fd()]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        accept(ours.as_fd()).unwrap();
        send(theirs.as_fd(), b"x", &[null.as_fd()]).unwrap();
    }
}
