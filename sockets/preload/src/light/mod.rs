//! Light mode: connections between two processes with the library, without a socket of the kernel's
//! (docs/decisions/0053).
//!
//! `OMNIVERB_SOCKETS=light`, for programs that do not hand sockets on: a light connection cannot go
//! to a child or to another program. Or, beside those that are carried, to addresses in the ranges
//! of `OMNIVERB_SOCKETS_LIGHT` (docs/decisions/0056). For what carries a light connection is
//! something of the kernel's, as it is for the program.
//!
//! * Calls: [`connect_accept`], [`connect_unspec`], [`transfer`], [`fast_path`], [`message_lists`],
//!   [`msg_trunc`], [`options`].
//! * Waiting: [`waiting`], [`sleepers`], [`doorbell`], [`backpressure`]; among other descriptors
//!   [`poll_readiness`], [`epoll_calls`], [`epoll_sets`], [`nested_epoll`], [`accept_events`].
//! * Listening: [`listeners`], [`accept_queue`], [`listeners_told_to_broker`].
//! * Routes: [`address_ranges`], [`broker`], [`route_lookup`], [`local_addresses`],
//!   [`observed_connections`].
//! * Channels: [`channel`], [`channel_validity`], [`progress`]; their lanes [`lanes`],
//!   [`lane_assignment`], [`lane_table`].
//! * Connections that were refused and open again: [`reopen_unaccepted`],
//!   [`connections_without_channel`].
//! * State: [`state`], [`signal_safe_lock`], [`mmap_buffers`], [`descriptors`],
//!   [`enabled_and_fork_reset`].
//! * Options: [`option_profiles`], [`slot_options`], [`supported_socket_options`],
//!   [`socket_addresses`].

mod accept_events;
mod accept_queue;
mod address_ranges;
mod backpressure;
mod broker;
mod channel;
mod channel_validity;
mod connect_accept;
mod connect_unspec;
mod connections_without_channel;
mod descriptors;
mod doorbell;
mod enabled_and_fork_reset;
mod epoll_calls;
mod epoll_sets;
pub(crate) mod fast_path;
mod lane_assignment;
mod lane_table;
mod lanes;
mod listeners;
mod listeners_told_to_broker;
mod local_addresses;
pub(crate) mod message_lists;
mod mmap_buffers;
mod msg_trunc;
mod nested_epoll;
mod observed_connections;
mod option_profiles;
mod options;
mod poll_readiness;
mod progress;
mod reopen_unaccepted;
mod route_lookup;
mod signal_safe_lock;
mod sleepers;
mod slot_options;
mod socket_addresses;
mod state;
mod supported_socket_options;
mod transfer;
mod waiting;

use core::ffi::{CStr, c_int};

use omniverb_connection::descriptors::Kind;
use omniverb_connection::light::connection_slot::Flag;
use omniverb_connection::peer_wait_budget::TimeBudget;
use rustix::fs::{SeekFrom, seek, tell};
use rustix::io::{Errno, pread};
use rustix::thread::sched_yield;

use accept_queue::Pending;
pub(crate) use descriptors::Token;
pub(crate) use epoll_calls::LightSet;
pub(crate) use mmap_buffers::with_list;
pub(crate) use observed_connections::has_come_from_afar;
pub(crate) use poll_readiness::{PolledConnections, concerns as concerns_poll};
pub(crate) use sleepers::{DOORBELLS, Sleeper};
use state::with;
pub(crate) use waiting::is_over;

use crate::borrowed_fd::borrow;
use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::errno::{errno, fails, keeping_errno};
use crate::iovecs::Parts;
use crate::tsc_clock;
use crate::user_memory::{UserPart, UserPtr, UserPtrMut, UserSlice};
use crate::vfork_check;

/// Budget: microseconds that calls of this process (`close`, `fork`) wait, in all, while peers say
/// that they are about to open connections to a listener that is closed. A peer takes one, and a
/// few thousand if it has lost its processor meanwhile.
const OPENERS_US: u64 = 20_000;
/// Budget: of so many microseconds that pass there is one more for that.
const OPENERS_ONE_OF: u64 = 50;
const OPENERS: TimeBudget = TimeBudget { capacity: OPENERS_US, refill_divisor: OPENERS_ONE_OF };
const MICROSECOND: u64 = 1000;

/// Bytes of a file that are sent at a time.
const PIECE: usize = 16 << 10;

/// At the start of the program: connections are light.
pub(crate) fn begin() {
    if enabled_and_fork_reset::begin() {
        crate::carry::set_message_handler(take_messages);
    }
}

/// At the start of the program: those to addresses in these ranges are, if there are any.
pub(crate) fn begin_within(text: &CStr) {
    if address_ranges::begin(text) {
        begin();
    }
}

/// How many connections there were, and how many bytes this process has sent by them.
pub(crate) fn count() -> (u64, u64) {
    with(|state| {
        state.count_lane_bytes();
        state.carried
    })
    .unwrap_or_default()
}

/// There may be light connections.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    enabled_and_fork_reset::is_on()
}

/// There may be some, and they are this process's.
#[inline(always)]
pub(crate) fn is_here() -> bool {
    enabled_and_fork_reset::is_on() && vfork_check::is_this_process()
}

pub(crate) use enabled_and_fork_reset::is_begun;

/// Takes the broker's messages for all threads. `false`: this process has no light connections. (A
/// child of `fork` that comes here first begins anew before: the state, and its lock, are the
/// parent's until then.)
fn take_messages() -> bool {
    let is_on = is_on();
    if is_on {
        _ = with(broker::take);
    }
    is_on
}

/// The light connection of a descriptor.
#[inline(always)]
pub(crate) fn token_of(fd: c_int) -> Option<Token> {
    if !is_here() {
        return None;
    }
    descriptors::token(fd)
}

pub(crate) use transfer::{receive, send};

/// Has light connections come to this descriptor, from now on if not before: it listens, and this
/// process accepts there. (A listening process may leave that to its children.)
pub(crate) fn is_listener(fd: c_int) -> bool {
    is_here() && connect_accept::is_listener(fd)
}

pub(crate) use connect_accept::accept;

/// `connect`. `None`: it is the kernel's. `closes`: the kernel's socket is about to be closed.
pub(crate) fn connect(fd: c_int, to: UserSlice<'_, u8>, closes: impl FnOnce()) -> Option<c_int> {
    if !is_here() {
        return None;
    }
    let token = descriptors::token(fd);
    if !to.is_readable(size_of::<libc::sockaddr_storage>()) {
        return token.map(|_| fails(libc::EFAULT));
    }
    if let Some(token) = token {
        return Some(match socket_addresses::undoes(to) {
            true => connect_unspec::disconnect(fd, token),
            false => connect_accept::again(token),
        });
    }
    connect_accept::connect(fd, to, closes)
}

/// An option of a socket of the kernel's was set.
pub(crate) fn was_set(fd: c_int, level: c_int, name: c_int) {
    if may_be_light(fd) {
        supported_socket_options::was_set(fd, level, name);
        looks_at_options(fd);
    }
}

/// A socket of the kernel's was told to do what a light connection cannot.
pub(crate) fn is_unlike(fd: c_int) {
    if may_be_light(fd) {
        supported_socket_options::is_unlike(fd);
        looks_at_options(fd);
    }
}

fn may_be_light(fd: c_int) -> bool {
    let kind = || descriptor_tables::look(fd).kind();
    is_here() && matches!(kind(), Kind::Fresh | Kind::Listening)
}

fn looks_at_options(fd: c_int) {
    if connect_accept::has_listened() && !keeping_errno(|| connect_accept::has_changed(fd)) {
        stops_listening(fd);
    }
}

pub(crate) use options::{ConnectionEnd, control, get, name, request, set};
pub(crate) use transfer::shut;

/// A descriptor is about to be closed, or to be for something else.
pub(crate) fn closes(fd: c_int) {
    if !is_here() {
        return;
    }
    let is_light = descriptors::token(fd).is_some();
    if !is_light && !connect_accept::has_listened() && !epoll_sets::are_any() {
        return;
    }
    keeping_errno(|| {
        let listens = || with(|state| state.listeners.of(fd).is_some()) == Some(true);
        // Another descriptor may be for the same.
        let was = descriptor_tables::look(fd);
        let other = match was.is_duplicated() && !is_light {
            true => DESCRIPTORS.fds_of(was.id()).find(|other| *other != fd),
            false => None,
        };
        if let Some(other) = other {
            with(|state| state.listeners.set_descriptor(was.id(), other));
            return;
        }
        if !is_light && listens() {
            listeners_told_to_broker::waits_for_duplicate(fd);
            listeners_told_to_broker::unlistens(fd);
        }
        with(|state| {
            if let Some(at) = descriptors::put(fd, None) {
                let slot = state.slots.at(at);
                slot.fd_count -= 1;
                if slot.fd_count == 0 {
                    state.close(at);
                }
                return;
            }
            state.leave_listener(fd);
        });
        epoll_calls::closed(was.id());
    });
}

/// A listening socket was shut down: no connection comes there any more, and waiting clients are
/// refused.
pub(crate) fn stops_listening(fd: c_int) {
    if is_here() && connect_accept::has_listened() {
        keeping_errno(|| {
            if with(|state| state.listeners.of(fd).is_some()) == Some(true) {
                listeners_told_to_broker::unlistens(fd);
                with(|state| state.leave_listener(fd));
            }
        });
    }
}

/// All of a range are.
pub(crate) fn closes_range(first: u32, last: u32) {
    if is_here() {
        descriptors::each(first, last).for_each(closes);
    }
}

/// A descriptor is a duplicate of another one.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    if let Some(token) = token_of(from)
        && to >= 0
        && from != to
        && descriptors::has_room(to)
    {
        with(|state| {
            let Some(at) = state.slot(token) else { return };
            state.slots.at(at).fd_count += 1;
            descriptors::put(to, Some(token));
        });
    } else if to >= 0 && is_on() {
        supported_socket_options::duplicated(from, to);
    }
}

/// A process is about to be made by `fork`. A process that has only listened so far leaves its
/// listening sockets to children: they take up those that they accept at. (A child finds by itself
/// that it is one, and begins anew: [`enabled_and_fork_reset`].)
pub(crate) fn forks() {
    if !is_here() {
        return;
    }
    keeping_errno(|| {
        while let Some(fd) = with(|state| state.listeners.unused()).flatten() {
            listeners_told_to_broker::unlistens(fd);
            with(|state| state.leave_listener(fd));
        }
    });
}

impl state::State {
    /// Removes a listener, which the broker knows: no light connection comes there any more.
    pub(in crate::light) fn leave_listener(&mut self, fd: c_int) {
        let Some(pending) = self.listeners.remove(fd) else { return };
        // Nor do clients with an older count. Those that wait ask anew.
        self.channels.iter().flatten().for_each(channel::Channel::count_closed_listener);
        self.waits_for_openers();
        self.drop_pending(pending);
        // Those that are on their way hear of it now: there may be no other call for long.
        self.progress();
    }

    /// Waits until peers that had not seen the end of a listener have sent their frames, within the
    /// budget of this process for that. A connection opened later is refused by the next call.
    fn waits_for_openers(&mut self) {
        let is_any =
            |state: &Self| state.channels.iter().flatten().any(channel::Channel::is_opened);
        if !is_any(self) {
            return;
        }
        let began = tsc_clock::nanoseconds() / MICROSECOND;
        let (left, mut now) = (OPENERS.remaining(self.waited, began), began);
        while now - began < left && is_any(self) {
            sched_yield();
            now = tsc_clock::nanoseconds() / MICROSECOND;
        }
        self.waited = OPENERS.charge(self.waited, now, now - began);
    }

    /// The broker refuses a listener: no client comes there.
    pub(in crate::light) fn refuses(&mut self, id: u32) {
        let Some(listener) = self.listeners.of_id(id) else { return };
        (listener.is_under_way, listener.is_refused) = (false, true);
        let pending = core::mem::replace(&mut listener.pending, Pending::new());
        self.listeners.waiting -= pending.count();
        self.drop_pending(pending);
    }

    fn drop_pending(&mut self, mut pending: Pending) {
        while pending.count() > 0 {
            let at = pending.first(&mut self.slots);
            pending.remove(&mut self.slots, at);
            self.slots.at(at).clear_flag(Flag::Pending);
            self.close(at);
        }
    }
}

/// A socket listens.
pub(crate) fn listens(fd: c_int) {
    if is_here() {
        connect_accept::listens(fd);
    }
}

/// `epoll_ctl` with a light connection. `None`: the kernel's.
pub(crate) fn change_set(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: UserPtr<'_, libc::epoll_event>,
) -> Option<c_int> {
    let token = token_of(fd)?;
    Some(epoll_calls::change(set, operation, token, event))
}

/// The kernel has done one. `false`: it is to be undone, since light connections in it would not be
/// told of.
pub(crate) fn changed_set(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: UserPtr<'_, libc::epoll_event>,
) -> bool {
    if is_listener(fd) {
        if !epoll_calls::changed(set, fd) {
            stops_listening(fd);
        }
        return true;
    }
    !is_here() || nested_epoll::changed(set, operation, fd, event)
}

/// `sendfile` to a light connection.
pub(crate) fn send_file(
    token: Token,
    from: c_int,
    offset: UserPtrMut<'_, i64>,
    count: usize,
) -> isize {
    let file = borrow(from);
    let mut bytes = [0_u8; PIECE];
    let mut sent = 0;
    let outcome = loop {
        if sent == count {
            break Ok(());
        }
        let most = PIECE.min(count - sent);
        let begin = match offset.read() {
            Some(begin) => u64::try_from(begin).map_err(|_| Errno::INVAL),
            None => tell(file),
        };
        let got = match begin.and_then(|begin| pread(file, &mut bytes[..most], begin)) {
            Ok(0) => break Ok(()),
            Ok(got) => got,
            Err(error) => break Err(error.raw_os_error()),
        };
        let part = [UserPart::of(UserSlice::of(&bytes[..got]))];
        let Ok(done) = usize::try_from(send(token, Parts::new(&part), 0, || {})) else {
            break Err(errno());
        };
        sent += done;
        match offset.read() {
            Some(begin) => offset.write(begin + done as i64),
            None => _ = seek(file, SeekFrom::Current(done as i64)),
        }
        if done < got {
            break Ok(());
        }
    };
    match outcome {
        Err(error) if sent == 0 => fails(error) as isize,
        _ => sent as isize,
    }
}
