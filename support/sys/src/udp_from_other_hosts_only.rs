//! Has a UDP socket hear other hosts only.
//!
//! Any process of a namespace can send from an IPv6 address that the namespace does not have, with
//! `IPV6_FREEBIND` and without any privilege. So a packet's source alone does not tell one of
//! another host from one of this namespace. The interface does: what a namespace sends to itself
//! comes by the loopback one.
#![expect(unsafe_code)]
// UNSAFETY: a socket option that rustix does not offer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The index of the loopback interface in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// Instructions of a socket filter (`linux/filter.h`): drop what comes by the loopback interface.
const FILTER: [libc::sock_filter; 4] = [
    // The interface's index: BPF_LD | BPF_W | BPF_ABS.
    step(0x20, 0, 0, (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned()),
    // BPF_JMP | BPF_JEQ | BPF_K: skip none or one.
    step(0x15, 0, 1, LOOPBACK),
    // BPF_RET | BPF_K: so many bytes are kept.
    step(0x06, 0, 0, 0),
    step(0x06, 0, 0, u32::MAX),
];

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// What this namespace sends to itself is not received from now on.
pub(crate) fn hear_others_only(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut filter = FILTER;
    let program = libc::sock_fprog { len: FILTER.len() as u16, filter: filter.as_mut_ptr() };
    let length = libc::socklen_t::try_from(size_of_val(&program)).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes of `program`, which has that many, and of `filter`
    // the steps that it has.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use crate::eventfd::readable;
    use crate::udp_socket::{bound_early_to, bound_to};
    use rustix::net::{RecvFlags, SendFlags, recv, sendto};
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    fn new_namespace() {
        // SAFETY: it is the calling thread that comes to another namespace.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    }

    fn ip(words: &str) {
        let done = Command::new("ip").args(words.split_whitespace()).output().unwrap();
        assert!(done.status.success(), "{words}: {done:?}");
    }

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse::<IpAddr>().unwrap(), 4791)
    }

    /// Each address of a host, another host's, and a third one's.
    const HOSTS: [[&str; 3]; 2] =
        [["2001:db8::1", "2001:db8::2", "2001:db8::3"], ["192.0.2.1", "192.0.2.2", "192.0.2.3"]];

    #[test]
    fn nothing_is_heard_from_the_own_namespace_whatever_it_says_it_is() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (tell, other) = mpsc::channel();
        let (go, begin) = mpsc::channel();
        let far = std::thread::spawn(move || {
            new_namespace();
            tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            begin.recv().unwrap();
            for [host, other, _] in HOSTS {
                let bits = if host.contains(':') { "64 nodad" } else { "24" };
                ip(&format!("address add {other}/{bits} dev far"));
            }
            ip("link set far up");
            for [host, other, _] in HOSTS {
                let socket = bound_to(at(other)).unwrap();
                let sent = sendto(&socket, b"genuine", SendFlags::empty(), &at(host));
                assert_eq!(sent, Ok(7));
            }
            begin.recv().unwrap();
        });
        let near = std::thread::spawn(move || {
            new_namespace();
            ip("link set lo up");
            ip("link add under type veth peer name far");
            ip(&format!("link set far netns {}", other.recv().unwrap()));
            ip("link set under up");
            ip("address add 2001:db8::1/64 dev under nodad");
            ip("address add 192.0.2.1/24 dev under");
            let sockets = HOSTS.map(|[host, ..]| bound_to(at(host)).unwrap());
            for [host, _, third] in HOSTS {
                let forger = bound_early_to(at(third)).unwrap();
                // With IPv4 the kernel refuses.
                let sent = sendto(&forger, b"forged", SendFlags::empty(), &at(host));
                assert!(sent.is_ok() == host.contains(':'), "{host}: {sent:?}");
            }
            go.send(()).unwrap();
            for socket in sockets {
                let limit = Some(Duration::from_secs(10));
                assert!(readable(socket.as_fd(), limit).unwrap());
                let mut bytes = [0; 16];
                let (length, _) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
                assert_eq!(&bytes[..length], b"genuine");
                assert!(!readable(socket.as_fd(), Some(Duration::ZERO)).unwrap());
            }
            go.send(()).unwrap();
            // One of this host alone hears it.
            let own = bound_to(at("127.0.0.1")).unwrap();
            sendto(&own, b"own", SendFlags::empty(), &at("127.0.0.1")).unwrap();
            assert!(readable(own.as_fd(), Some(Duration::from_secs(1))).unwrap());
        });
        near.join().unwrap();
        far.join().unwrap();
    }
}
