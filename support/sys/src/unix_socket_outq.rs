//! Tells how many sent bytes of a unix socket are unread.
// UNSAFETY: an ioctl that rustix does not have.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that wait at the other end, with what the kernel needs to keep them.
///
/// # Errors
/// `EINVAL` for what is not such a socket.
pub fn unread(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: this request, called SIOCOUTQ for sockets, writes one integer where it is told.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::unread;
    use crate::seqpacket;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_taken_does_not_count() {
        let (one, other) = seqpacket::pair().unwrap();
        assert_eq!(unread(one.as_fd()).unwrap(), 0);
        (0..32).for_each(|_| seqpacket::send(one.as_fd(), &[0; 100], &[]).unwrap());
        let bytes = unread(one.as_fd()).unwrap();
        assert!((32 * 100..32 << 11).contains(&bytes), "{bytes}");
        assert_eq!(unread(other.as_fd()).unwrap(), 0);
        (0..32).for_each(|_| {
            drop(
                seqpacket::receive(
                    other.as_fd(),
                    &mut [0; 100],
                    seqpacket::BlockingMode::NonBlocking,
                )
                .unwrap(),
            )
        });
        assert_eq!(unread(one.as_fd()).unwrap(), 0);
    }
}
