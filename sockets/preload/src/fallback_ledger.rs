//! Writes down which sockets stay the kernel's, and why, for the broker to show.
//!
//! In: a socket that was offered, or never will be. Out: a row of a file of the broker's
//! (`omniverb_formats::fallback_ledger`), if there is one. It is written once for a socket, when
//! that becomes the kernel's, and never looked at here.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::net::SocketAddr;

use omniverb_connection::descriptors::Why;
use omniverb_formats::broker_message::Refusal;
use omniverb_formats::fallback_ledger::{BYTES, Kept, ROW, ROWS};
use omniverb_formats::socket_status_rows::Reason;
use rustix::net::{getpeername, getsockname, sockopt};

use crate::borrowed_fd::borrow;
use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::shared_memory::Memory;
use crate::{fork_refcount, vfork_check};
use omniverb_ring::WordMemory;

/// Sockets of one process that are written down when all of them become the kernel's at once.
pub(crate) const AT_ONCE: usize = 64;

/// Where it is; 0: there is none.
static PLACE: AtomicUsize = AtomicUsize::new(0);
/// How many rows were written.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// It has come.
pub(crate) fn begin(place: usize) {
    PLACE.store(place, Ordering::Release);
}

/// In a child: it is the parent's, which has another connection. It stays mapped.
pub(crate) fn begin_anew() {
    PLACE.store(0, Ordering::Release);
}

/// A socket is the kernel's from now on, for this reason.
pub(crate) fn keep(fd: c_int, why: Why) {
    let is_new = PLACE.load(Ordering::Relaxed) != 0
        && DESCRIPTORS.look(fd).why() == Why::Free
        && descriptor_tables::look(fd).kind().is_stream();
    DESCRIPTORS.keep(fd, why);
    // What other processes may not know of it.
    fork_refcount::mark_escaped(fd);
    if is_new {
        write(fd, None, reason(why));
    }
}

/// The broker does not take the socket of this cookie, which had that descriptor when it was
/// offered.
pub(crate) fn refused(fd: c_int, cookie: u64, why: Refusal) {
    write(
        fd,
        Some(cookie),
        match why {
            Refusal::NotConnected => Reason::NotConnected,
            Refusal::Elsewhere => Reason::Elsewhere,
            Refusal::NotProven => Reason::NotProven,
            Refusal::TooMany => Reason::TooMany,
            Refusal::Bound => Reason::Bound,
            Refusal::NotOne => Reason::NotOne,
        },
    );
}

/// Its link is over since the broker says so.
pub(crate) fn parted(fd: c_int, cookie: u64) {
    write(fd, Some(cookie), Reason::Over);
}

fn reason(why: Why) -> Reason {
    match why {
        Why::Free => Reason::Unknown,
        Why::Stdio => Reason::Stdio,
        Why::Asynchronous => Reason::Asynchronous,
        Why::Spliced => Reason::Spliced,
        Why::Signals => Reason::Signals,
        Why::Option => Reason::Option,
        Why::Flag => Reason::Flag,
        Why::Passed => Reason::Passed,
        Why::Shared => Reason::Shared,
        Why::Member => Reason::Member,
        Why::Ended => Reason::Ended,
        Why::Instructions => Reason::Instructions,
    }
}

/// Unless the descriptor is another socket's by now than the one that is meant.
fn write(fd: c_int, meant: Option<u64>, reason: Reason) {
    let place = PLACE.load(Ordering::Acquire);
    if place == 0 || fd < 0 || !vfork_check::is_this_process() {
        return;
    }
    let file = borrow(fd);
    let address = |any| SocketAddr::try_from(any).ok();
    let names = (getsockname(file).ok().and_then(address), getpeername(file).ok().flatten());
    let (Some(local), Some(remote)) = (names.0, names.1.and_then(address)) else { return };
    let Ok(cookie) = sockopt::socket_cookie(file) else { return };
    if meant.is_some_and(|meant| meant != cookie) {
        return;
    }
    let canonical = |of: SocketAddr| SocketAddr::new(of.ip().to_canonical(), of.port());
    let kept = Kept { cookie, local: canonical(local), remote: canonical(remote), reason };
    let row = WRITTEN.fetch_add(1, Ordering::Relaxed) as usize % ROWS;
    let words = kept.encode();
    let file = Memory::<BYTES>::new(place);
    for (at, word) in words.iter().enumerate().rev() {
        // The first one last: a row that is half written is an old one.
        file.store((row * ROW + at) * 8, *word, Ordering::Release);
    }
}
