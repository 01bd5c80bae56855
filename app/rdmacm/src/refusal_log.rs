//! Says why a call of rdma_cma.h or rsocket.h fails, and why a connection does not come about, if
//! `OMNIVERB_LOG=warn` asks for it ([`omniverb_sys::refusal_log`]).
//!
//! In: what a call answers, or an event. Out: the same, and a line on stderr, once for each call
//! and errno. What the daemon's connection manager means by an errno depends on the call.

use core::net::{IpAddr, SocketAddr};

use omniverb_abi::*;
use omniverb_session::cm::CmAddress;
use omniverb_sys::refusal_log::{self, LoggedReasons};
use omniverb_terms::Errno;

use crate::c_sockaddr;
use crate::errno::{EADDRNOTAVAIL, ECONNREFUSED, of};

/// What is attempted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptedStep {
    /// An identifier, or a socket, is made.
    Create,
    /// It gets an address.
    Bind,
    /// It waits for connections.
    Listen,
    /// An address, or a route, is looked for.
    Resolve,
    /// A connection is asked for.
    Connect,
    /// One is accepted.
    Accept,
    /// A queue pair is made for it.
    QueuePair,
    /// A group is joined.
    Join,
}

/// Errnos that a call has said something about: those that occur are below.
const ERRNOS: usize = 128;

/// A call of the program's.
pub(crate) struct LoggedCall {
    name: &'static str,
    attempt: AttemptedStep,
    said: LoggedReasons<ERRNOS>,
}

impl LoggedCall {
    /// A call of this name.
    pub(crate) const fn new(name: &'static str, attempt: AttemptedStep) -> LoggedCall {
        LoggedCall { name, attempt, said: LoggedReasons::none() }
    }

    /// The result; if there is a reason, and it is wanted, that is said.
    pub(crate) fn explain<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        result.inspect_err(|errno| self.failed(*errno))
    }

    #[cold]
    fn failed(&self, errno: Errno) {
        if let Some(reason) = reason(self.attempt, errno)
            && self.said.first(errno.0 as usize)
        {
            refusal_log::line(format_args!("{}: {reason} ({errno})", self.name));
        }
    }
}

const ENETUNREACH: Errno = of(libc::ENETUNREACH);

/// What an errno means; `None`: nothing went wrong, or an event says it.
fn reason(attempt: AttemptedStep, errno: Errno) -> Option<&'static str> {
    use AttemptedStep::*;
    Some(match (attempt, errno) {
        (_, Errno::EAGAIN) => return None,
        (_, errno) if errno == of(libc::EINPROGRESS) || errno == of(libc::EINTR) => return None,
        // Of a peer's, which its event tells.
        (Connect | Accept, ECONNREFUSED | Errno::ETIMEDOUT) => return None,
        (Create, Errno::ENODEV) => "there is no device: no daemon answers; see omniverb doctor",
        (Resolve | Connect, Errno::ENODEV) => {
            "the way there is by no interface whose addresses the device has"
        }
        (_, Errno::ENODEV | Errno::EPIPE | Errno::ECONNRESET) => "the daemon has ended",
        (_, Errno::ENOMEM) => {
            "over a quota: the process, its user or its vNIC has as many as it may"
        }
        (_, Errno::ETIMEDOUT) => "the daemon does not answer",
        (_, Errno::EAFNOSUPPORT) => "an address that is neither IPv4 nor IPv6",
        (Create, Errno::EOPNOTSUPP) => "no such kind of socket, or of queue pair, is offered",
        (Create, Errno::EINVAL) => "a port space that is not known, or not with that queue pair",
        (Bind | Listen, EADDRNOTAVAIL) => {
            "no interface of this network namespace has the address, or the port is taken for all \
             addresses by somebody else"
        }
        (Bind | Listen, Errno::EADDRINUSE) => "another process has the port, or listens there",
        (Bind, Errno::EINVAL) => "no address, or there is one already",
        (Listen, Errno::EINVAL) => "it listens already, or is for a connection",
        (Resolve | Connect, EADDRNOTAVAIL) => {
            "the source address is no interface's of this network namespace"
        }
        (Resolve | Connect, ENETUNREACH | Errno::EHOSTUNREACH) => "the kernel has no route there",
        (Resolve, Errno::EINVAL) => {
            "no address, one of another family than the source's, or not at this time"
        }
        (Connect | Accept, Errno::EINVAL) => {
            "no resolved route, or no request; no queue pair; more READs at a time than the device \
             has; or private data that is too long"
        }
        (Connect, Errno::EOPNOTSUPP) => "the peer has accepted, but not as an rsocket",
        (Accept, Errno::EPROTO) => "the peer does not ask as an rsocket does",
        (QueuePair, Errno::EINVAL) => {
            "no device yet, a queue pair already, or completion queues or a domain that do not fit"
        }
        (Join, Errno::EINVAL) => "no address of a group, or no resolved or bound identifier",
        _ => return None,
    })
}

/// Why an event tells of a failure; `None`: it does not, or the reason is unknown.
fn of_event(event: u32, status: i32) -> Option<&'static str> {
    // `enum ib_cm_rej_reason`.
    const NO_RESOURCES: i32 = 3;
    const TIMEOUT: i32 = 4;
    const INVALID_SERVICE: i32 = 8;
    const STALE: i32 = 10;
    const CONSUMER: i32 = 28;
    Some(match (event, status) {
        (_, 0) => return None,
        (RDMA_CM_EVENT_ADDR_ERROR, _) => {
            "the way there is by no interface whose addresses the device has"
        }
        (RDMA_CM_EVENT_UNREACHABLE, _) => {
            "nobody answers: there is no such host, nothing there speaks RoCE v2, or the network \
             lets UDP port 4791 not pass"
        }
        (RDMA_CM_EVENT_REJECTED, INVALID_SERVICE) => "no process listens at that port",
        (RDMA_CM_EVENT_REJECTED, CONSUMER) => "the program that listens there has rejected it",
        (RDMA_CM_EVENT_REJECTED, NO_RESOURCES) => "the peer has no room for one more",
        (RDMA_CM_EVENT_REJECTED, TIMEOUT) => "the peer waited too long for our answer",
        (RDMA_CM_EVENT_REJECTED, STALE) => "the peer knows the queue pair from an older connection",
        (RDMA_CM_EVENT_REJECTED, _) => "the peer's connection manager refuses what was asked for",
        (RDMA_CM_EVENT_CONNECT_ERROR, _) => "the queue pair cannot be connected as was agreed",
        (RDMA_CM_EVENT_MULTICAST_ERROR, _) => "the group cannot be joined",
        _ => return None,
    })
}

/// An event tells of a failure: says which, once for each kind and status.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn failed(id: *mut rdma_cm_id, event: u32, status: i32) {
    static SAID: LoggedReasons<2048> = LoggedReasons::none();
    let Some(reason) = of_event(event, status) else { return };
    if !SAID.first(event as usize * 128 + status.unsigned_abs() as usize % 128) {
        return;
    }
    // SAFETY: the caller's promise; the storage is as long as any family says.
    let peer = unsafe { c_sockaddr::from_c((&raw const (*id).route.addr.dst_storage).cast()) };
    match peer.map(|peer| shown(&peer)) {
        Ok(peer) => {
            refusal_log::line(format_args!("no connection with {peer}: {reason} (status {status})"))
        }
        Err(_) => refusal_log::line(format_args!("no connection: {reason} (status {status})")),
    }
}

fn shown(peer: &CmAddress) -> SocketAddr {
    let ip: IpAddr = c_sockaddr::ip(peer);
    SocketAddr::new(ip, peer.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_failure_has_no_reason() {
        for attempt in [AttemptedStep::Connect, AttemptedStep::Accept, AttemptedStep::Resolve] {
            for number in [libc::EAGAIN, libc::EINPROGRESS, libc::EINTR] {
                assert_eq!(reason(attempt, of(number)), None);
            }
        }
        assert_eq!(of_event(RDMA_CM_EVENT_REJECTED, 0), None);
        assert_eq!(of_event(RDMA_CM_EVENT_ESTABLISHED, 0), None);
        // Said by its event, with the peer.
        assert_eq!(reason(AttemptedStep::Connect, ECONNREFUSED), None);
        assert!(of_event(RDMA_CM_EVENT_REJECTED, 8).is_some());
    }

    #[test]
    fn the_same_errno_means_different_things_to_different_calls() {
        let of = |attempt| reason(attempt, Errno::EINVAL);
        let all = [
            AttemptedStep::Create,
            AttemptedStep::Bind,
            AttemptedStep::Listen,
            AttemptedStep::Resolve,
        ];
        let mut reasons: Vec<_> = all.into_iter().filter_map(of).collect();
        reasons.dedup();
        assert_eq!(reasons.len(), all.len());
    }
}
