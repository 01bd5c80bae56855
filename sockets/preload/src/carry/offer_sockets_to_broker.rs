//! Offers sockets to the broker when they first send or receive.
//!
//! A socket is offered only if one process has it by one descriptor, for all that is known, even if
//! others had it before (`crate::fork_refcount`). It is in one set of epoll at most
//! ([`epoll_membership`]), and no option, signal or stream of the C library has a part in it.
//! Nothing is offered where the program makes system calls past the C library (`crate::code`).

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use omniverb_connection::descriptors::{Entry, Kind, Why};

use super::epoll_membership::NotJoinable;
use super::links::{self, Flag, Link};
use super::{
    admission, broker, broker_dispatch, epoll_membership, forgotten_links, kernel_fallback,
};
use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::kernel_socket;
use crate::running_call_counts::{self, count_one, uncount_one};
use crate::syscall_scan::Calls;
use crate::tsc_clock;
use crate::{
    fallback_ledger, fork_refcount, sockets_observed_by_broker, syscall_scan, vfork_check,
};

/// Bytes of the ring that have to be of use.
const LEAST: usize = 4096;
/// Descriptors that the C library gives to other files unseen (`daemon`).
const STANDARD: c_int = 2;

/// What is known of a descriptor.
pub(super) enum LinkLookup {
    /// It has a link, held.
    Carried(Link),
    /// It has one without memory, held: so far all is the kernel's.
    Offered(Link),
    /// A socket without one; a call is counted: [`running_call_counts::uncount_one`].
    Counted,
    /// It is none.
    Other,
}

/// The link of a descriptor; the socket is offered if it never was.
#[inline]
pub(super) fn enter(fd: c_int) -> LinkLookup {
    broker_dispatch::poll();
    enter_unpolled(fd)
}

/// The same for a call that holds links already: the broker is listened to before it.
#[inline]
pub(super) fn enter_unpolled(fd: c_int) -> LinkLookup {
    for _ in 0..2 {
        if let Some(link) = links::enter(fd) {
            let is_there = link.identity.memory.get() != 0;
            return if is_there { LinkLookup::Carried(link) } else { LinkLookup::Offered(link) };
        }
        let kind = DESCRIPTORS.look(fd).kind();
        // A listener has no bytes, and never will.
        if !kind.is_stream() || kind == Kind::Listening || !vfork_check::is_this_process() {
            fork_refcount::mark_unknown_use(fd);
            return LinkLookup::Other;
        }
        if !offer(fd) {
            count_one(fd);
            // A thread that makes a link makes it first, and then looks for uncounted holders.
            if !links::has(fd) {
                return LinkLookup::Counted;
            }
            uncount_one(fd);
        }
    }
    count_one(fd);
    LinkLookup::Counted
}

/// A socket is to be offered now, though no bytes move yet.
pub(crate) fn offers(fd: c_int) {
    if !links::is_on() {
        return;
    }
    match enter(fd) {
        LinkLookup::Carried(link) | LinkLookup::Offered(link) => link.release(),
        LinkLookup::Counted => uncount_one(fd),
        LinkLookup::Other => {}
    }
}

/// Offers it, unless it is not to be carried. Whether it has a link now.
fn offer(fd: c_int) -> bool {
    let entry = DESCRIPTORS.look(fd);
    let is_alone = fork_refcount::is_unshared(fd, entry, None);
    if !is_alone || !may_be(fd, entry) {
        return false;
    }
    let is_free = !running_call_counts::is_any_of(fd) && broker::may_be_there();
    // What is to be seen by the broker is offered, though no link may be worth it.
    let is_due = || admission::is_due(fd, entry.id()) || sockets_observed_by_broker::is_wanted(fd);
    is_free && is_due() && offer_now(fd)
}

/// It may be carried, if no other process has it.
pub(super) fn may_be(fd: c_int, entry: Entry) -> bool {
    let is_connected = matches!(entry.kind(), Kind::Connected | Kind::Accepted | Kind::Connecting);
    let is_alone = !entry.was_found() && !entry.is_duplicated() && entry.why() == Why::Free;
    let is_sure =
        fd > STANDARD && !descriptor_tables::has_rings() && !vfork_check::are_fd_tables_apart();
    is_connected && is_alone && is_sure
}

#[cold]
fn offer_now(fd: c_int) -> bool {
    let entry = DESCRIPTORS.look(fd);
    match syscall_scan::calls_past_libraries(tsc_clock::now()) {
        Calls::None => {}
        Calls::Unknown => return false,
        Calls::Some => {
            fallback_ledger::keep(fd, Why::Instructions);
            kernel_fallback::leave_all();
            return false;
        }
    }
    match epoll_membership::membership(fd, entry.id()) {
        Err(NotJoinable::ForNow) => return false,
        Err(NotJoinable::Forever) => {
            fallback_ledger::keep(fd, Why::Member);
            return false;
        }
        Ok(_) => {}
    }
    let information = kernel_socket::Information::of(fd);
    if information.as_ref().is_some_and(kernel_socket::Information::is_ending) {
        fallback_ledger::keep(fd, Why::Ended);
        return false;
    }
    let is_open = information.is_some_and(|of| of.is_established());
    let Some(cookie) = kernel_socket::cookie(fd).filter(|_| is_open) else {
        return false;
    };
    // What is taken back out of the ring must find room with the kernel ([`Link::room`]).
    let buffer = kernel_socket::send_buffer(fd);
    if kernel_socket::low_water(fd) != 1 || buffer < 4 * LEAST {
        fallback_ledger::keep(fd, Why::Option);
        return false;
    }
    let Some(link) = links::make(fd) else { return false };
    link.identity.cookie.set(cookie);
    link.member.fd.set(fd as u64);
    fence(Ordering::SeqCst);
    // What keeps a socket from being carried is noted before any thread looks for its link.
    let again = DESCRIPTORS.look(fd);
    let is_alone = fork_refcount::is_unshared(fd, again, Some(cookie));
    let is_same =
        is_alone && again.id() == entry.id() && again.why() == Why::Free && !again.is_duplicated();
    let is_where_it_may_be = epoll_membership::join(link, fd, entry.id());
    if !is_where_it_may_be
        && epoll_membership::membership(fd, entry.id()) != Err(NotJoinable::ForNow)
    {
        fallback_ledger::keep(fd, Why::Member);
    }
    let is_quiet = !running_call_counts::is_any_of(fd) && !forgotten_links::has_forgotten(link);
    let is_free = is_same && is_where_it_may_be && is_quiet;
    let is_offered = is_free && broker::offer(fd, link);
    if !is_offered {
        // It was none that could have been worth it.
        link.set_flag(Flag::Reattachable);
        links::forget(fd, link);
    }
    link.release();
    is_offered
}
