//! Carries bytes of TCP connections within this host through shared memory
//! (docs/decisions/0046).
//!
//! Both processes have the library. It is on if `OMNIVERB_SOCKETS` is `carry`, which is the
//! default, or `light`: what cannot be light is carried. Sockets without a link are the kernel's.
//! `hooks`, `io_hooks` and `call_observers` call the functions in here.
//!
//! * **Links.** [`links`] keeps them, in slots ([`omniverb_formats::private_link_slot`], in
//!   `sockets/formats/src/private_link_slot.rs`); [`ended_links`] and [`forgotten_links`] remember
//!   those that are over. [`offer_sockets_to_broker`] offers sockets to the [`broker`],
//!   [`admission`] decides how soon, [`broker_dispatch`] has the answers handled by
//!   [`broker_link_messages`], [`map_sealed_memfd`] maps what comes with them.
//! * **Moving bytes.** [`ring_or_kernel_choice`] decides how a call's bytes go. [`fast_path`] sends
//!   and receives one piece under a [`try_guard`], by [`ring_copy`]; [`mod@send`] and
//!   [`mod@receive`] do all else. [`writer_lock`] admits one writer; [`backpressure`] waits for
//!   room; [`send_source`] and [`crate::iovecs`] say where bytes come from and go to.
//!   [`published_bytes`] gives the kernel what the peer has not read ([`unread_links`]).
//! * **Waiting.** [`adaptive_spin`], [`spin_budget`], [`wake_latency`], [`crate::spin_history`],
//!   [`yield_cpu`] and [`cpu_contention`] decide how long a call polls before it sleeps;
//!   [`reader_polling`] tells the peer that it polls.
//! * **Readiness.** [`polled_links`]; [`epoll`] with [`epoll_membership`], [`epoll_slot`],
//!   [`epoll_maybe_ready`], [`epoll_polling_flags`], [`ring_events`], [`epoll_wakeup`],
//!   [`link_bitmap`].
//! * **The kernel's socket.** [`crate::kernel_socket`] asks it, [`kernel_socket_check`] now and
//!   then, [`connection_watch`] for all links by one call; [`unread_bytes`] compares its bytes with
//!   the ring's, [`tcp_inq`] tells how many are unread.
//! * **Processes.** [`fork`]; [`reattach`] offers a socket again after a fork, or after
//!   [`suspend_idle_links`].
//! * **Ends.** [`kernel_fallback`] gives a socket back to the kernel, [`ended_link_private_memory`]
//!   leaves the memory that the peer writes.

mod adaptive_spin;
mod admission;
mod backpressure;
pub(crate) mod broker;
pub(crate) mod broker_dispatch;
mod broker_link_messages;
mod connection_watch;
mod cpu_contention;
mod ended_link_private_memory;
mod ended_links;
mod epoll;
mod epoll_events_in_rings;
mod epoll_maybe_ready;
mod epoll_membership;
mod epoll_polling_flags;
mod epoll_slot;
mod epoll_wakeup;
pub(crate) mod fast_path;
mod forgotten_links;
mod fork;
mod kernel_fallback;
mod kernel_socket_check;
mod link_bitmap;
mod links;
pub(crate) mod map_sealed_memfd;
mod offer_sockets_to_broker;
mod polled_links;
mod published_bytes;
mod reader_polling;
mod reattach;
mod receive;
mod ring_copy;
mod ring_or_kernel_choice;
mod send;
mod send_source;
pub(crate) mod spin_budget;
mod suspend_idle_links;
mod tcp_inq;
mod try_guard;
mod unread_bytes;
mod unread_links;
mod wake_latency;
mod writer_lock;
mod yield_cpu;

use core::ffi::{CStr, c_int};
use core::sync::atomic::{Ordering, fence};

pub(crate) use epoll::{CarriedSet, wait_without_places};
pub(crate) use epoll_wakeup::without_waker;
pub(crate) use fork::{
    OwnDescriptors, after_fork, before_clone, before_fork, before_spawn, before_unseen_fork,
    before_vfork,
};
use links::is_here;
use offer_sockets_to_broker::LinkLookup;
pub(crate) use offer_sockets_to_broker::offers;
use omniverb_connection::descriptors::Why;
use omniverb_connection::readiness::wait_loop::MOVES;
pub(crate) use polled_links::{PolledLinks, concerns as concerns_poll, prepare as prepare_poll};
pub(crate) use ring_or_kernel_choice::Route;
use ring_or_kernel_choice::{call_suspended, link_for_call, link_for_send, route_of};
pub(crate) use send_source::{File, SendfileRequest};
pub(crate) use tcp_inq::{left_behind, set_inq};

use crate::iovecs::Parts;
use crate::kernel_socket;
use crate::process_count_slots::{self, Release};
use crate::user_memory::{UserMessage, UserPtr, UserPtrMut};
use crate::{
    descriptor_changes_by_calls, fallback_ledger, fork_refcount, holder_count_at_exit,
    running_call_counts, vfork_check,
};
use crate::{descriptor_tables, tsc_clock};

/// Sockets may be carried in this process.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    links::is_on()
}

/// There may be unread bytes, for which every call looks that moves bytes.
#[inline(always)]
pub(crate) fn has_unread() -> bool {
    unread_links::is_any()
}

/// Starts carrying, with the daemon's socket of the environment. `false`: there is no broker.
pub(crate) fn begin(socket: Option<&CStr>) -> bool {
    let has_broker = broker::begin(socket);
    if has_broker {
        connection_watch::begin();
        links::turn_on();
    }
    has_broker
}

/// Ends all links of a process that is about to end.
pub(crate) fn finish(end: holder_count_at_exit::End) {
    if links::is_on() {
        kernel_fallback::finish();
        holder_count_at_exit::ends(end);
    }
}

/// How many links there were, and how many bytes this process has put into their memory.
pub(crate) fn link_counts() -> (u64, u64) {
    links::count()
}

pub(crate) use broker_dispatch::set_handler as set_message_handler;

/// A descriptor has a link.
#[inline]
pub(crate) fn has(fd: c_int) -> bool {
    links::has(fd)
}

/// The route of a call that sends.
#[inline(always)]
pub(crate) fn route_for_send(fd: c_int, flags: c_int) -> Route {
    published_bytes::reclaim_abandoned();
    leave_if_flagged(fd, flags);
    route_of(fd)
}

/// The route of a call that receives.
#[inline(always)]
pub(crate) fn route_for_receive(fd: c_int) -> Route {
    published_bytes::reclaim_abandoned();
    route_of(fd)
}

/// Gives the kernel all that peers have not read: the call that follows may sleep.
pub(crate) fn flush_unread() {
    published_bytes::flush_all();
}

/// The same, unless the call that follows on this descriptor does not sleep.
pub(crate) fn flush_unread_before(fd: c_int, flags: c_int) {
    published_bytes::flush_before(fd, flags);
}

/// Sends by a route, or by the kernel where that has no link.
#[inline(always)]
pub(crate) fn send<'a>(
    route: Route,
    fd: c_int,
    parts: impl FnOnce() -> Option<Parts<'a>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    if !matches!(route, Route::Ring(_)) {
        published_bytes::flush_before(fd, flags);
    }
    let link = match link_for_send(route, fd, &native) {
        Ok(link) => link,
        Err(sent) => return sent,
    };
    let sent =
        send::send(link, fd, parts().filter(Parts::are_few), flags, tsc_clock::now(), native);
    suspend_idle_links::check(link, fd);
    link.release();
    sent
}

/// `sendfile`, of a part of a regular file; `None`: what only the kernel knows of one.
pub(crate) fn send_file(fd: c_int, file: Option<File>, native: impl Fn() -> isize) -> isize {
    published_bytes::reclaim_abandoned();
    let native = || {
        published_bytes::flush_before(fd, 0);
        native()
    };
    let link = match link_for_send(route_of(fd), fd, &native) {
        Ok(link) => link,
        Err(sent) => return sent,
    };
    let sent = send::send_file(link, fd, file, native);
    suspend_idle_links::check(link, fd);
    link.release();
    sent
}

/// Receives by a route, or by the kernel where that has no link.
#[inline(always)]
pub(crate) fn receive<'a>(
    route: Route,
    fd: c_int,
    parts: impl FnOnce() -> Option<Parts<'a>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    let link = match route {
        Route::Ring(link) => link,
        Route::Suspended(link) => {
            published_bytes::flush_before(fd, flags);
            return call_suspended(link, native);
        }
        Route::Unknown => {
            let found = offer_sockets_to_broker::enter(fd);
            if !matches!(found, LinkLookup::Carried(_)) {
                published_bytes::flush_before(fd, flags);
            }
            match link_for_call(fd, found, |slot| &slot.receiver.sleeping, &native) {
                Ok(link) => link,
                Err(got) => return got,
            }
        }
    };
    let got = receive::receive(link, fd, parts().filter(Parts::are_few), flags, native);
    link.release();
    got
}

/// A call may sleep, or do something for long.
#[inline(always)]
pub(crate) fn may_sleep() {
    if is_here() {
        published_bytes::flush_all();
    }
}

/// A call of the kernel's may, if what is at this descriptor waits at all.
#[inline(always)]
pub(crate) fn may_wait(fd: c_int) {
    if is_here() {
        published_bytes::flush_before(fd, 0);
    }
}

/// The kernel alone has to do with a socket from now on.
#[inline]
pub(crate) fn leave(fd: c_int) {
    if links::has(fd) {
        kernel_fallback::leave_fd(fd);
    }
}

/// Leaves a socket to the kernel but for what has come by memory and was not received: that is read
/// there.
#[inline]
pub(crate) fn leave_unread_here(fd: c_int) {
    if links::has(fd) {
        kernel_fallback::leave_but_read_here(fd);
    }
}

/// The kernel alone sends by a socket from now on.
#[inline]
pub(crate) fn stop_sending(fd: c_int) {
    if links::has(fd) {
        kernel_fallback::stop_sending(fd);
    }
}

/// `epoll_ctl`.
#[inline]
pub(crate) fn change_set(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: UserPtr<'_, libc::epoll_event>,
    native: impl FnOnce() -> c_int,
) -> c_int {
    if !is_here() {
        return native();
    }
    if descriptor_tables::look(set).why() != Why::Free {
        // The process that has made it does not know its members any more.
        fork_refcount::mark_escaped(set);
    }
    if operation != libc::EPOLL_CTL_DEL {
        epoll::joins(set, fd, event);
    }
    let result = native();
    if result == 0 {
        epoll::changed(set, operation, fd, event);
    }
    result
}

/// With all of them.
pub(crate) fn leave_all() {
    if is_here() {
        kernel_fallback::leave_all();
    }
}

/// With all of them, and with those that are to come.
pub(crate) fn stop() {
    if is_here() {
        // From here on, for good, no link is made, and none gets its memory that is there.
        running_call_counts::count();
        kernel_fallback::leave_all();
        links::turn_off();
        fork_refcount::stop();
    }
}

/// A message with these flags is about to be sent, of which only the kernel can honour some.
#[inline(always)]
pub(crate) fn leave_if_flagged(fd: c_int, flags: c_int) {
    if flags & descriptor_changes_by_calls::FLAGS != 0
        && vfork_check::is_this_process()
        && descriptor_tables::look(fd).kind().is_stream()
    {
        fallback_ledger::keep(fd, Why::Flag);
        fence(Ordering::SeqCst);
        kernel_fallback::leave_fd(fd);
    }
}

/// Another program is about to be executed in this process: it has those sockets that are not
/// closed then.
pub(crate) fn before_exec() {
    if is_here() {
        kernel_fallback::share_all(|fd| !kernel_socket::is_close_on_exec(fd));
        // The new program counts nothing. If there is none after all this process still has them,
        // and none counts as its alone.
        fork_refcount::release_all(Release::Possible);
    }
}

/// A descriptor is about to be closed.
#[inline]
pub(crate) fn close(fd: c_int) {
    if (links::has(fd) || links::is_on() && process_count_slots::are_any())
        && vfork_check::is_this_process()
    {
        kernel_fallback::close(fd);
        broker_dispatch::poll();
    }
}

/// All from `first` to `last` are.
pub(crate) fn close_range(first: u32, last: u32) {
    if is_here() {
        descriptor_tables::between(first, last).for_each(kernel_fallback::close);
        broker_dispatch::poll();
    }
}

/// `to` is about to be, or was made, a duplicate of `from`.
pub(crate) fn duplicate(from: c_int, to: Option<c_int>) {
    if !links::has(from) || !vfork_check::is_this_process() {
        return;
    }
    match to {
        Some(to) if to >= 0 && to != from => links::copy(from, to),
        Some(_) => {}
        None => {
            if let Some(link) = links::enter(from) {
                // The kernel keeps a member for as long as one of its descriptors is there.
                if link.glance.set.get() == 0 {
                    kernel_fallback::stop_carrying(link, from);
                } else {
                    kernel_fallback::leave(link, from);
                }
                link.release();
            }
        }
    }
}

/// A descriptor is closed where no hook could see it before.
pub(crate) fn forget(fd: c_int) {
    if links::has(fd) && vfork_check::is_this_process() {
        kernel_fallback::forget(fd);
    }
}

/// A socket is about to be shut down.
pub(crate) fn shutdown(fd: c_int, how: c_int) {
    if links::has(fd) {
        kernel_fallback::shutdown(fd, how);
    }
}

/// How a socket waits has changed.
pub(crate) fn mode_changed(fd: c_int) {
    if let Some(link) = links::enter(fd) {
        link.glance.looked.set(0);
        link.release();
    }
}

/// `FIONREAD`. `native` asks the kernel.
pub(crate) fn queued(fd: c_int, count: UserPtrMut<'_, c_int>, native: impl Fn() -> c_int) -> c_int {
    let Some(link) = links::enter(fd) else { return native() };
    published_bytes::reclaim_abandoned();
    let (mut turns, mut result, began) = (0, 0, tsc_clock::now());
    while turns < MOVES {
        let before = unread_bytes::mark(link);
        result = native();
        let more = unread_bytes::unread_bytes(link);
        turns += 1;
        // What goes another way at this moment is nowhere, or counted twice.
        let is_passing = unread_bytes::wait_until_passed(link, began);
        let is_sure = !is_passing && unread_bytes::mark(link) == before || turns == MOVES;
        if result != 0 || is_sure {
            if result == 0 && more > 0 {
                count.write(count.read().unwrap_or(0) + more as c_int);
                unread_bytes::note_shown(link);
            }
            break;
        }
    }
    link.release();
    result
}

/// `SO_ERROR`, as far as the kernel does not know of it.
pub(crate) fn take_error(fd: c_int) -> Option<c_int> {
    let link = links::enter(fd)?;
    let error = if link.identity.memory.get() != 0 {
        _ = kernel_socket_check::check_now(link, fd);
        kernel_socket_check::take_error(link)
    } else {
        None
    };
    link.release();
    error
}

/// A message by this socket may carry descriptors: only then is it looked at before the kernel has
/// said that it is there.
pub(crate) fn may_pass(fd: c_int) -> bool {
    links::is_on() && kernel_socket::is_unix(fd)
}

/// Descriptors that a message is about to pass to another process.
pub(crate) fn pass(message: UserMessage<'_>) {
    message.each_descriptor(|fd| {
        fork_refcount::mark_untracked(fd);
        epoll::leave_to_kernel(fd);
        kernel_fallback::share_fd(fd);
    });
}

/// What is known of a link, in words.
pub(crate) fn describe(fd: c_int) -> Option<&'static str> {
    let link = links::enter(fd)?;
    let is_there = link.identity.memory.get() != 0;
    let is_polling = link.inward().is_some_and(|direction| direction.is_polling());
    let is_stopped = link.outward().is_some_and(|direction| direction.head().is_stopped());
    let rests = reattach::is_suspended(link);
    link.release();
    if rests && is_there {
        return Some("rests");
    }
    Some(match (is_there, is_polling, is_stopped) {
        (false, ..) => "offered",
        (true, true, false) => "carried",
        (true, true, true) => "carried in",
        (true, false, false) => "linked",
        (true, false, true) => "left",
    })
}
