//! Connected sockets of the loopback interface, and calls on them.

use std::ffi::{c_int, c_void};

use omniverb_connection::carried::FarEnd;

/// What a call gives: its value, or the error number.
pub(crate) type Outcome = Result<usize, c_int>;

fn outcome(value: isize) -> Outcome {
    usize::try_from(value).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// One end of a connection; non-blocking.
#[derive(Debug)]
pub(crate) struct Socket(c_int);

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}

/// The end that connected, and the one that was accepted.
pub(crate) fn pair() -> [Socket; 2] {
    // SAFETY: calls on descriptors of our own, with structures that live across them.
    unsafe {
        let listener = Socket(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
        let mut length = size_of::<libc::sockaddr_in>() as u32;
        let pointer = (&raw mut address).cast::<libc::sockaddr>();
        assert_eq!(libc::bind(listener.0, pointer, length), 0);
        assert_eq!(libc::listen(listener.0, 1), 0);
        assert_eq!(libc::getsockname(listener.0, pointer, &raw mut length), 0);
        let connected = Socket(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        assert_eq!(libc::connect(connected.0, pointer, length), 0);
        let null = std::ptr::null_mut();
        let accepted = Socket(libc::accept(listener.0, null, std::ptr::null_mut()));
        assert!(accepted.0 >= 0);
        for socket in [&connected, &accepted] {
            assert_eq!(libc::fcntl(socket.0, libc::F_SETFL, libc::O_NONBLOCK), 0);
            let one: c_int = 1;
            socket.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, &one);
        }
        [connected, accepted]
    }
}

impl Socket {
    pub(crate) fn fd(&self) -> c_int {
        self.0
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Outcome {
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the slice is there for as long as the call.
        outcome(unsafe { libc::send(self.0, bytes.as_ptr().cast::<c_void>(), bytes.len(), flags) })
    }

    pub(crate) fn receive(&self, bytes: &mut [u8], flags: c_int) -> Outcome {
        let to = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: the slice is there for as long as the call.
        outcome(unsafe { libc::recv(self.0, to, bytes.len(), flags) })
    }

    pub(crate) fn shut_down(&self, how: c_int) -> Outcome {
        // SAFETY: no memory is involved.
        outcome(unsafe { libc::shutdown(self.0, how) } as isize)
    }

    /// `SO_ERROR`, which is taken by asking.
    pub(crate) fn error(&self) -> c_int {
        let (mut value, mut length): (c_int, _) = (0, size_of::<c_int>() as u32);
        let to = (&raw mut value).cast();
        // SAFETY: both live across the call.
        unsafe { libc::getsockopt(self.0, libc::SOL_SOCKET, libc::SO_ERROR, to, &raw mut length) };
        value
    }

    pub(crate) fn set<T>(&self, level: c_int, name: c_int, value: &T) {
        let (from, length) = ((&raw const *value).cast(), size_of::<T>() as u32);
        // SAFETY: the value lives across the call.
        assert_eq!(unsafe { libc::setsockopt(self.0, level, name, from, length) }, 0);
    }

    /// The next `close` resets the connection.
    pub(crate) fn close_will_reset(&self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        self.set(libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }

    pub(crate) fn close(&mut self) {
        if self.0 >= 0 {
            // SAFETY: the descriptor is ours, and not used again.
            unsafe { libc::close(self.0) };
            self.0 = -1;
        }
    }

    /// The events that `poll` shows.
    pub(crate) fn events(&self) -> u32 {
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
        let mut one = libc::pollfd { fd: self.0, events: all, revents: 0 };
        // SAFETY: the structure lives across the call.
        unsafe { libc::poll(&raw mut one, 1, 0) };
        one.revents as u32
    }

    /// What is still to be acknowledged: 0 says that the other end has all.
    pub(crate) fn unsent(&self) -> c_int {
        let mut count: c_int = 0;
        // SAFETY: the number lives across the call.
        unsafe { libc::ioctl(self.0, libc::TIOCOUTQ, &raw mut count) };
        count
    }

    /// Bytes that could be received.
    pub(crate) fn readable(&self) -> usize {
        let mut count: c_int = 0;
        // SAFETY: the number lives across the call.
        unsafe { libc::ioctl(self.0, libc::FIONREAD, &raw mut count) };
        count.unsigned_abs() as usize
    }

    /// Bytes given to the kernel so far, as it counts them: sent, without those sent again, and not
    /// sent yet. (`tcpi_bytes_acked` counts a SYN and a FIN, too.)
    pub(crate) fn given(&self) -> u64 {
        const NOT_SENT: usize = 144;
        const SENT: usize = 200;
        const SENT_AGAIN: usize = 208;
        let bytes = self.information();
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let short = u32::from_ne_bytes(bytes[NOT_SENT..NOT_SENT + 4].try_into().unwrap());
        long(SENT) - long(SENT_AGAIN) + u64::from(short)
    }

    /// Whether the other end may still send, by the state of TCP.
    pub(crate) fn far_end(&self) -> FarEnd {
        // TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING.
        match self.information()[0] {
            6..=9 | 11 => FarEnd::Ended,
            _ => FarEnd::Open,
        }
    }

    fn information(&self) -> [u8; 256] {
        let mut bytes = [0_u8; 256];
        let mut length = bytes.len() as u32;
        let to = bytes.as_mut_ptr().cast();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        // SAFETY: both live across the call.
        assert_eq!(unsafe { libc::getsockopt(self.0, level, name, to, &raw mut length) }, 0);
        bytes
    }
}

/// Numbers that a seed determines.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % end
    }
}

/// How many sequences, unless the environment says otherwise; and the first seed.
pub(crate) fn sequences(usual: u64) -> std::ops::Range<u64> {
    let from = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = from("OMNIVERB_SEED").unwrap_or(0);
    first..first + from("OMNIVERB_SEQUENCES").unwrap_or(usual)
}

/// Waits until a condition holds: what one end did reaches the other by an interrupt, as a rule at
/// once.
pub(crate) fn settles(mut is_so: impl FnMut() -> bool) -> bool {
    for _ in 0..2000 {
        if is_so() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
    }
    false
}
