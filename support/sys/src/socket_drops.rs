//! Reads a socket's queues, and how many datagrams the kernel dropped.
#![expect(unsafe_code)]
// UNSAFETY: a socket option that rustix does not offer.

use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_MEMINFO` (Linux 4.12), and which of its numbers these are (`SK_MEMINFO_RMEM_ALLOC`,
/// `SK_MEMINFO_WMEM_ALLOC`, `SK_MEMINFO_SNDBUF`, `SK_MEMINFO_DROPS`).
const SO_MEMINFO: libc::c_int = 55;
const WAITING: usize = 0;
const UNSENT: usize = 2;
const SEND_BUFFER: usize = 3;
const DROPS: usize = 8;
const NUMBERS: usize = DROPS + 1;

/// How many were dropped so far, modulo 2^32; `None`: the kernel does not say.
pub(crate) fn count(socket: BorrowedFd<'_>) -> Option<u32> {
    numbers(socket).map(|numbers| numbers[DROPS])
}

/// Bytes of the kernel's memory that what waits takes; `None`: the kernel does not say.
pub(crate) fn waiting(socket: BorrowedFd<'_>) -> Option<u32> {
    numbers(socket).map(|numbers| numbers[WAITING])
}

/// Less than half of what may wait to be sent does, or the kernel does not say.
pub(crate) fn is_half_free(socket: BorrowedFd<'_>) -> bool {
    numbers(socket).is_none_or(|numbers| numbers[UNSENT] < numbers[SEND_BUFFER] / 2)
}

fn numbers(socket: BorrowedFd<'_>) -> Option<[u32; NUMBERS]> {
    let mut numbers = [0_u32; NUMBERS];
    let mut length = libc::socklen_t::try_from(size_of_val(&numbers)).ok()?;
    // SAFETY: the kernel writes up to `length` bytes to `numbers`, which has that many, and the
    // length that it wrote to `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            (&raw mut numbers).cast(),
            &raw mut length,
        )
    };
    let whole = usize::try_from(length).ok()? >= size_of_val(&numbers);
    (result == 0 && whole).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use crate::udp_socket::UdpPort;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;

    #[test]
    fn what_finds_a_full_queue_is_counted() {
        let free = |number| Some((number, UdpPort::open(number).ok()?));
        let (number, port) = (42_000..43_000).find_map(free).unwrap();
        let before = port.dropped();
        let socket = port.sockets().next().unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, 1).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..64 {
            sender.send_to(&[0; 1000], (Ipv4Addr::LOCALHOST, number)).unwrap();
        }
        let dropped = port.dropped().wrapping_sub(before);
        assert!((1..=64).contains(&dropped), "{dropped}");
    }

    #[test]
    fn what_waits_to_be_sent_fills_the_send_buffer() {
        // What is not read counts as the sender's, between sockets of Unix.
        let (one, other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        assert!(super::is_half_free(one.as_fd()));
        while one.send(&[0; 16 << 10]).is_ok() {}
        assert!(!super::is_half_free(one.as_fd()) && super::is_half_free(other.as_fd()));
    }
}
