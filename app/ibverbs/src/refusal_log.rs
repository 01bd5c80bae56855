//! Says why something was refused, in one line on stderr, if `OMNIVERB_LOG=warn` asks for it
//! ([`omniverb_sys::refusal_log`]): what the daemon's errors mean, why work requests are refused,
//! and why queue pairs fail.
//!
//! `OMNIVERB_STRICT=1` has direct links refuse queue pairs that do not fit each other, and says so
//! by itself.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use omniverb_client::FailureDetail;
use omniverb_device::{PostFault, ToleratedMismatch, status};
use omniverb_sys::refusal_log::{is_wanted, line};
use omniverb_terms::{Errno, Qpn};

pub(crate) use omniverb_sys::refused;

/// Whether direct links are to let pass only what a wire would.
pub(crate) fn strict_is_wanted() -> bool {
    std::env::var_os("OMNIVERB_STRICT").is_some_and(|value| value == "1")
}

/// What an errno means that came from the daemon, or instead of its answer.
pub(crate) fn of_daemon(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => "over a quota: the process, its user or its vNIC has as many as it may",
        Errno::EPIPE | Errno::ECONNRESET => "there is no daemon: it ended, and none has come since",
        Errno::ETIMEDOUT => "the daemon does not answer",
        Errno::EHOSTUNREACH => {
            "the peer is in another network, and the daemon may not use that of this process"
        }
        Errno::EIO => "a context that was opened before a fork(), or a daemon that breaks off",
        _ => "the daemon refuses it",
    }
}

/// A work request is refused: says why, once for each fault.
#[cold]
pub(crate) fn not_posted(fault: PostFault) -> Errno {
    let errno = Errno::EINVAL;
    match fault {
        PostFault::State => refused!(
            errno,
            "a work request is refused: its queue pair is not in RTS (sends) or still in RESET \
             (receives)"
        ),
        PostFault::Opcode => refused!(
            errno,
            "a work request is refused: its queue pair's transport has no such opcode"
        ),
        PostFault::Destination => refused!(
            errno,
            "a work request is refused: UD needs an address handle, and no other transport has one"
        ),
        PostFault::Flags => {
            refused!(errno, "a work request is refused: its FLUSH names no known kind, or has data")
        }
        PostFault::Entries => refused!(
            errno,
            "a work request is refused: it has more entries than its queue's max_send_sge or \
             max_recv_sge"
        ),
        PostFault::Inline => refused!(
            errno,
            "a work request is refused: inline data beyond max_inline_data, or with an operation \
             that brings data"
        ),
        PostFault::Receives => refused!(
            errno,
            "a work request is refused: its queue pair has an SRQ, or receives nothing"
        ),
    }
}

/// A request failed, and its queue pair with it: says what that status stands for, once. If it
/// reaches no peer, what the daemon knows is to follow.
pub(crate) fn request_failed(qpn: Qpn, code: u32) -> FailureDetail {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let bit = 1 << (code % 32);
    if !is_wanted() || SAID.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return FailureDetail::Nothing;
    }
    let reason = match code {
        status::LOC_LEN_ERR => "a message is longer than its transport allows",
        status::LOC_QP_OP_ERR => {
            "a READ or atomic with max_rd_atomic 0, or a key to invalidate that no bound window has"
        }
        status::LOC_PROT_ERR => "an L_Key, its range, its rights or its PD do not fit a request",
        status::MW_BIND_ERR => "a window cannot be bound so: its key, its region, range or rights",
        status::BAD_RESP_ERR => "the peer answered what no peer answers",
        status::REM_INV_REQ_ERR => {
            "the peer refuses the operation: too long for its receive, not in its \
             qp_access_flags, or misaligned"
        }
        status::REM_ACCESS_ERR => "the peer refuses the R_Key: unknown, ended, or not for this",
        status::REM_OP_ERR => "the peer's receive names memory that it may not",
        status::RETRY_EXC_ERR => {
            "the peer does not answer: gone, never ready, or the network lets nothing pass"
        }
        status::RNR_RETRY_EXC_ERR => "the peer had no receive for as long as rnr_retry lasts",
        _ => "the link to the peer is broken",
    };
    line(format_args!("queue pair {} failed: {reason} (completion status {code})", qpn.0));
    if code == status::RETRY_EXC_ERR { FailureDetail::Ways } else { FailureDetail::Nothing }
}

/// What the daemon knows of a queue pair that has failed.
pub(crate) fn explained(qpn: Qpn, what: &str) {
    line(format_args!("queue pair {}: {what}", qpn.0));
}

/// A request of a queue pair does not pass, since direct links are strict: says why, once for each
/// kind of reason.
pub(crate) fn forgiven(qpn: Qpn, what: ToleratedMismatch) {
    static SAID: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let kind = match what {
        ToleratedMismatch::Psn { .. } => 0,
        ToleratedMismatch::PathMtu { .. } => 1,
        ToleratedMismatch::RdAtomic { .. } => 2,
    };
    if SAID[kind].swap(true, Ordering::Relaxed) {
        return;
    }
    let qpn = qpn.0;
    match what {
        ToleratedMismatch::Psn { ours, theirs } => line(format_args!(
            "strict: queue pair {qpn} begins with sq_psn {ours}, and its peer's rq_psn is {theirs}"
        )),
        ToleratedMismatch::PathMtu { ours, theirs } => line(format_args!(
            "strict: queue pair {qpn} has a path_mtu of {ours} bytes, and its peer of {theirs}: \
             messages of several packets do not pass"
        )),
        ToleratedMismatch::RdAtomic { ours, theirs } => line(format_args!(
            "strict: queue pair {qpn} has max_rd_atomic {ours}, and its peer max_dest_rd_atomic \
             {theirs}"
        )),
    }
}
