//! Implements `listen`, `connect` and `accept` for light connections.
//!
//! The socket that listens is the kernel's, and TCP comes to it as ever. A process that connects,
//! and has the library, too, needs no other socket of the kernel's.
//!
//! A descriptor of a light connection is a duplicate of one placeholder: a socket that was opened
//! by its path in `/proc` (`O_PATH`), which can be neither read, written nor waited for: a call
//! that is not intercepted says `EBADF`.

use core::ffi::{CStr, c_int};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use omniverb_connection::descriptors::{Kind, Why};
use omniverb_connection::light::connection_slot::Flag;
use omniverb_connection::light::frame::{Endpoint, HEADER};
use omniverb_connection::light::{Endpoints, Frame, Naming};
use omniverb_connection::readiness::Deadline;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::sched_yield;

use super::address_ranges;
use super::broker::{self, ChannelRoute, RouteAnswer};
use super::channel::FOR_ANSWERS;
use super::descriptors::{self, Token};
use super::epoll_calls;
use super::lane_assignment::WaitTarget;
use super::listeners_told_to_broker;
use super::slot_options::{self, SocketOptions};
use super::socket_addresses::{self, Family};
use super::state::{State, with};
use super::supported_socket_options::{self, Options};
use super::waiting::{deadline_after, is_over, until};
use crate::borrowed_fd::{borrow, close_own};
use crate::carry::broker::connection;
use crate::descriptor_tables::{self, DESCRIPTORS};
use crate::errno::{fails, keeping_errno};
use crate::fork_refcount;
use crate::kernel_socket;
use crate::library_fds;
use crate::next_library;
use crate::sockets_observed_by_broker;
use crate::syscall_scan;
use crate::text_buffer::Words;
use crate::tsc_clock;
use crate::user_memory::{UserBuffer, UserSlice};
use crate::vfork_check;

/// Its place among our own descriptors.
static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);
/// First port of those that connect without one, and how many there are.
const PORTS: (u32, u32) = (32768, 28232);

/// Some socket of this process has listened.
static HAS_LISTENED: AtomicBool = AtomicBool::new(false);

/// Listening sockets have to be looked at when they are closed.
pub(super) fn has_listened() -> bool {
    HAS_LISTENED.load(Ordering::Relaxed)
}

/// At the start, and in a child.
pub(super) fn begin() -> bool {
    HAS_LISTENED.store(false, Ordering::Relaxed);
    let Some(file) = nothing() else { return false };
    let Some(place) = library_fds::keep(file.as_raw_fd()) else { return false };
    PLACEHOLDER.store(place as i32, Ordering::Release);
    true
}

/// A descriptor that looks like a socket, and is good for nothing.
fn nothing() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let mut path = [0; 32];
    let mut words = Words::new(&mut path);
    write!(words, "/proc/self/fd/{}\0", socket.as_raw_fd()).ok()?;
    let path = CStr::from_bytes_until_nul(words.written()).ok()?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).or_else(|_| open("/dev/null", flags, Mode::empty())).ok()
}

fn placeholder() -> Option<c_int> {
    library_fds::fd(usize::try_from(PLACEHOLDER.load(Ordering::Acquire)).ok()?)
}

/// Budget: connections that may wait to be accepted where the kernel does not say how many: as it
/// has it by itself (`net.core.somaxconn`).
const BACKLOG: u32 = 4096;

/// How many connections may wait at a listening socket: what `listen` was given, as far as the
/// operator allows.
fn backlog(fd: c_int) -> u32 {
    kernel_socket::Information::of(fd).map_or(BACKLOG, |information| information.backlog())
}

/// All calls of this process about sockets are seen.
fn calls_nothing_unseen() -> bool {
    syscall_scan::calls_past_libraries(tsc_clock::now()) == syscall_scan::Calls::None
}

/// Light connections come to a socket that listens. Whether they do.
#[cold]
pub(super) fn listens(fd: c_int) -> bool {
    let Some((name, is_six)) = socket_addresses::of_socket(fd) else { return false };
    // What makes calls that nothing sees is to have sockets of the kernel's only.
    let options = match address_ranges::may_hear(&name) && calls_nothing_unseen() {
        true => options(fd, (is_six, true)),
        false => None,
    };
    let Some(options) = options else {
        address_ranges::leaves_out(fd, descriptor_tables::look(fd).id());
        return false;
    };
    let (backlog, is_six_only) = (backlog(fd), is_six && kernel_socket::is_six_only(fd));
    let is_there = with(|state| match (state.inherits(&options), state.listeners.add(fd)) {
        (Some(inherited), Some(listener)) => {
            (listener.name, listener.is_six) = (name, is_six);
            (listener.backlog, listener.is_six_only) = (backlog, is_six_only);
            (listener.is_under_way, listener.is_refused) = (true, false);
            listener.inherited = inherited;
            HAS_LISTENED.store(true, Ordering::Relaxed);
            true
        }
        (None, _) | (_, None) => false,
    });
    // There is no room for its options: as where it cannot have them.
    if is_there == Some(false) && with(|state| state.listeners.of(fd).is_some()) == Some(true) {
        keeping_errno(|| listeners_told_to_broker::unlistens(fd));
        with(|state| state.leave_listener(fd));
        address_ranges::leaves_out(fd, descriptor_tables::look(fd).id());
        return false;
    }
    if is_there == Some(true) && !epoll_calls::has_joined(fd) {
        with(|state| state.leave_listener(fd));
        address_ranges::leaves_out(fd, descriptor_tables::look(fd).id());
        return false;
    }
    if is_there == Some(true) {
        let said = keeping_errno(|| listeners_told_to_broker::listens(fd));
        with(|state| {
            if let Some(listener) = state.listeners.of(fd) {
                listener.said = said;
                listener.is_under_way &= said != 0;
            }
        });
    }
    is_there == Some(true)
}

/// What a socket leaves to its connection, or to those that are accepted there. `None`: what a
/// light connection cannot have.
fn options(fd: c_int, how: (bool, bool)) -> Option<SocketOptions> {
    match supported_socket_options::of(fd, descriptor_tables::look(fd)) {
        Options::Fresh => Some(SocketOptions::default()),
        Options::Known => slot_options::find(fd, how),
        Options::Others => None,
    }
}

/// An option of a socket has changed. One that listens gives it to those that come; if they cannot
/// have it they are the kernel's: `false`.
pub(super) fn has_changed(fd: c_int) -> bool {
    let known = with(|state| state.listeners.of(fd).map(|one| one.is_six)).flatten();
    let Some(is_six) = known else { return true };
    let changed = options(fd, (is_six, true)).and_then(|found| {
        with(|state| {
            let inherited = state.inherits(&found)?;
            if let Some(listener) = state.listeners.of(fd) {
                listener.inherited = inherited;
            }
            Some(())
        })
        .flatten()
    });
    if changed.is_none() {
        address_ranges::leaves_out(fd, descriptor_tables::look(fd).id());
    }
    changed.is_some()
}

/// What only the kernel can do with a socket was begun already.
fn is_kernels(why: Why) -> bool {
    let kernels =
        [Why::Stdio, Why::Asynchronous, Why::Spliced, Why::Signals, Why::Flag, Why::Passed];
    kernels.contains(&why)
}

/// `connect`. `None`: it is the kernel's. `closes`: the kernel's socket is about to be closed.
pub(super) fn connect(
    fd: c_int,
    address: UserSlice<'_, u8>,
    closes: impl FnOnce(),
) -> Option<c_int> {
    let was = descriptor_tables::look(fd);
    let is_plain = was.kind() == Kind::Fresh && !was.is_duplicated() && !is_kernels(was.why());
    if !is_plain || !descriptors::has_room(fd) {
        return None;
    }
    let (to, is_six) = socket_addresses::read(address)?;
    if to.is_any() || to.port == 0 || !address_ranges::has(&to) {
        return None;
    }
    if !calls_nothing_unseen() {
        return None;
    }
    let way = match keeping_errno(|| broker::reach(to)) {
        RouteAnswer::Channel(way) => way,
        RouteAnswer::Kernel => return None,
        RouteAnswer::Seen => {
            sockets_observed_by_broker::wants(fd);
            return None;
        }
    };
    let from = way.from;
    let is_closed_on_exec = kernel_socket::is_close_on_exec(fd);
    let does_not_wait = kernel_socket::is_non_blocking(fd);
    let (own, _) = socket_addresses::of_socket(fd)?;
    // What was chosen is for a world that is larger.
    let is_chosen = !own.is_any() && ![to.address, from].contains(&own.address);
    if is_chosen || (1..1024).contains(&own.port) {
        return None;
    }
    let bound = Some(own).filter(|own| own.port != 0);
    let options = options(fd, (is_six, false))?;
    let (member, is_in_others) = member_of(fd, was.id());
    if is_in_others {
        return None;
    }
    // What was chosen (an interface, a mark) may lead elsewhere than the network was seen to.
    let is_far = !Endpoint { address: from, ..to }.leads_to(&to);
    if is_far && was.why() != Why::Free {
        return None;
    }
    // Its set has to have room for it before the kernel forgets the socket.
    if let Some((set, _)) = member {
        with(|state| state.sets.find_or_add(set))??;
    }
    let placeholder = placeholder()?;
    let at = with(|state| {
        let inherited = state.inherits(&options)?;
        let at = state.open(&way, to, bound)?;
        inherited.give(state.slots.at(at));
        Some(at)
    })??;
    closes();
    let cloexec = if is_closed_on_exec { libc::O_CLOEXEC } else { 0 };
    let put = next_library::dup3(placeholder, fd, cloexec);
    with(|state| {
        if put != fd {
            return state.close(at);
        }
        let token = state.token(at);
        let shown = if is_six { Naming::SIX } else { Naming::FOUR };
        let naming = bound.map_or(shown, |name| shown.bound_to(&name));
        let slot = state.slots.at(at);
        (slot.naming, slot.fd_count) = (naming, 1);
        if does_not_wait {
            slot.set_flag(Flag::NonBlocking);
            slot.is_connecting = true;
        }
        descriptors::put(fd, Some(token));
        // The kernel has forgotten the socket that was a member.
        if let Some((set, event)) = member
            && let Some(place) = state.sets.find_or_add(set)
        {
            state.join(place, at, event);
        }
    });
    if put != fd {
        return None;
    }
    descriptor_tables::left(fd, was);
    fork_refcount::release_closed(fd);
    DESCRIPTORS.put(fd, Kind::Other);
    if !does_not_wait {
        return Some(0);
    }
    // As the kernel says, though it is connected at once.
    Some(fails(libc::EINPROGRESS))
}

/// `connect`, once more.
pub(super) fn again(token: Token) -> c_int {
    let is_first = with(|state| {
        state.slot(token).map(|at| core::mem::take(&mut state.slots.at(at).is_connecting))
    });
    if is_first.flatten() == Some(true) {
        return 0;
    }
    fails(libc::EISCONN)
}

/// The set that a socket is in before it connects, as nginx's are, and what that is to tell; and
/// whether there are others.
fn member_of(fd: c_int, id: u32) -> (Option<(u32, libc::epoll_event)>, bool) {
    let (mut found, mut count) = (None, 0);
    descriptor_tables::MEMBERS.of_fd(fd, id, |member| {
        let event = libc::epoll_event { events: member.events, u64: member.data };
        found = Some((member.set, event));
        count += 1;
    });
    (found, count > 1)
}

impl State {
    /// A new connection by a channel. `None`: there is no room, or no listener by it any more.
    fn open(&mut self, way: &ChannelRoute, to: Endpoint, bound: Option<Endpoint>) -> Option<u32> {
        let (from, index) = (way.from, self.channel_named(way.name)?);
        self.progress_channel(index);
        let channel = self.channels[index].as_mut()?;
        let takes = Frame::Open.takes() + FOR_ANSWERS;
        if channel.room(takes) < takes {
            return None;
        }
        let at = self.slots.allocate(index as u16, Endpoints::default())?;
        let Some(id) = channel.ids.allocate(at) else {
            self.slots.free(at);
            return None;
        };
        // As the kernel would; no other connection has the port.
        let own = Endpoint { address: from, port: (PORTS.0 + id / 2 % PORTS.1) as u16 };
        let from = match bound {
            Some(name) if name.is_any() => Endpoint { port: name.port, ..own },
            Some(name) => name,
            None => own,
        };
        let names = Endpoints { from, to };
        let slot = self.slots.at(at);
        (slot.id, slot.names, slot.socket) = (id, names, way.socket as u32);
        slot.begin_connect();
        if !channel.may_open(way.left) {
            channel.ids.release(id);
            self.slots.free(at);
            return None;
        }
        channel.open(id, &names);
        channel.publish();
        channel.clear_opens();
        self.carried.0 += 1;
        Some(at)
    }

    /// Brings one to the front of the queue for whose `Accepted` there is room: a client that does
    /// not hear of it might open the connection elsewhere. Others, whose peers do not read their
    /// frames, are dropped. `false`: there is none.
    fn finds_room_to_accept(&mut self, fd: c_int) -> bool {
        while let Some(listener) = self.listeners.of(fd)
            && let first = listener.pending.first(&mut self.slots)
            && first != 0
        {
            if self.has_room_to_accept(first) {
                return true;
            }
            self.takes_pending(fd);
            self.puts_off(first);
        }
        false
    }

    fn has_room_to_accept(&mut self, at: u32) -> bool {
        let slot = self.slots.at(at);
        let (is_apart, index) = (slot.is_released(), usize::from(slot.channel));
        is_apart
            || self.channels[index].as_mut().is_some_and(|channel| channel.room(HEADER) >= HEADER)
    }

    /// The first of those that wait at a listening socket waits no more.
    fn takes_pending(&mut self, fd: c_int) -> Option<u32> {
        let listener = self.listeners.of(fd)?;
        let at = Some(listener.pending.first(&mut self.slots)).filter(|at| *at != 0)?;
        listener.pending.remove(&mut self.slots, at);
        let slot = self.slots.at(at);
        slot.clear_flag(Flag::Pending);
        self.listeners.waiting -= 1;
        Some(at)
    }

    /// A connection that waits at a listening socket, at a descriptor that it gets now.
    fn take_pending(&mut self, fd: c_int, flags: c_int) -> Option<Result<(c_int, u32), c_int>> {
        let listener = self.listeners.of(fd)?;
        let (is_six, inherited) = (listener.is_six, listener.inherited);
        if !self.finds_room_to_accept(fd) {
            return None;
        }
        let new = match new_descriptor(flags) {
            Ok(new) => new,
            Err(error) => return Some(Err(error)),
        };
        if !descriptors::has_room(new.as_raw_fd()) {
            discard(new);
            return Some(Err(libc::ENOBUFS));
        }
        let new = new.into_raw_fd();
        let at = self.takes_pending(fd)?;
        self.carried.0 += 1;
        let slot = self.slots.at(at);
        let owner = slot.owner();
        slot.queue.charge(&mut self.pool, owner);
        (slot.fd_count, slot.naming) = (1, if is_six { Naming::SIX } else { Naming::FOUR });
        inherited.give(slot);
        if flags & libc::SOCK_NONBLOCK != 0 {
            slot.set_flag(Flag::NonBlocking);
        }
        descriptors::put(new, Some(Token::new(at, slot.generation)));
        DESCRIPTORS.put(new, Kind::Other);
        slot.accept_here();
        let owes = slot.next_owed();
        let index = usize::from(slot.channel);
        if let Some(channel) = self.channels[index].as_mut()
            && owes == Some(Frame::Accepted)
        {
            let slot = self.slots.at(at);
            channel.put_quietly(Frame::Accepted, slot.id);
            slot.frame_sent(Frame::Accepted);
        }
        // What could not be said while it waited.
        if self.slots.at(at).next_owed().is_some() {
            self.owe(at);
            self.pay(index);
        }
        self.settle(at);
        if let Some(channel) = self.channels[index].as_mut() {
            channel.publish();
        }
        Some(Ok((new, at)))
    }
}

/// A descriptor for a light connection.
///
/// # Errors
/// EMFILE, ENFILE.
fn new_descriptor(flags: c_int) -> Result<OwnedFd, c_int> {
    let placeholder = borrow(placeholder().ok_or(libc::ENFILE)?);
    let new = match flags & libc::SOCK_CLOEXEC {
        0 => rustix::io::dup(placeholder),
        _ => fcntl_dupfd_cloexec(placeholder, 0),
    };
    new.map_err(Errno::raw_os_error)
}

/// Closes a descriptor that the program has not seen, without this library's own `close`.
fn discard(new: OwnedFd) {
    close_own(new.into_raw_fd());
}

/// Light connections come to this descriptor, if it listens.
pub(super) fn is_listener(fd: c_int) -> bool {
    let entry = descriptor_tables::look(fd);
    if entry.kind() != Kind::Listening || address_ranges::has_left_out(fd, entry.id()) {
        return false;
    }
    let known = with(|state| {
        let listener = state.listeners.of(fd)?;
        listener.is_used = true;
        // A broker that has come anew, or was not there, does not know of it.
        (listener.said != 0 && listener.said == connection()).then_some(true)
    });
    known.flatten().unwrap_or_else(|| listens(fd))
}

/// `accept4` at such a descriptor. `native`: the kernel's.
pub(crate) fn accept(
    fd: c_int,
    address: UserBuffer<'_>,
    flags: c_int,
    native: impl Fn() -> c_int,
) -> c_int {
    let known = with(|state| state.listeners.of(fd).map(|one| one.inherited.times[0]));
    let waits = match kernel_socket::is_non_blocking(fd) {
        true => Deadline::Never,
        false => deadline_after(known.flatten().unwrap_or(0)),
    };
    let mut sleeps = Deadline::Never;
    loop {
        let outcome = until(sleeps, Some(fd), WaitTarget::Frames, |state| {
            let taken = state.take_pending(fd, flags);
            taken.map(|taken| {
                taken.map(|(new, at)| {
                    let slot = state.slots.at(at);
                    (new, Family::of(slot), slot.names)
                })
            })
        });
        return match outcome {
            Ok(Ok((new, family, names))) => {
                socket_addresses::write(&names.from, family, address);
                new
            }
            Ok(Err(error)) | Err(error) if error != libc::EAGAIN => fails(error),
            // The kernel says that there is none.
            _ if waits == Deadline::Never => native(),
            _ if is_readable(fd) => match by_kernel(fd, &native) {
                Some(new) => new,
                // Another thread was quicker.
                None => continue,
            },
            // As the kernel, which has the descriptor before it sleeps.
            _ if sleeps == Deadline::Never => match new_descriptor(libc::SOCK_CLOEXEC) {
                Ok(new) => {
                    discard(new);
                    sleeps = waits;
                    continue;
                }
                Err(error) => fails(error),
            },
            // Or a handler has interrupted the thread with the lock.
            _ if is_over(waits) || with(|_| ()).is_none() => fails(libc::EAGAIN),
            // Another process was quicker.
            _ => continue,
        };
    }
}

/// The thread that takes a connection of the kernel's, of which there is one at least; 0: none.
static TAKES: AtomicU64 = AtomicU64::new(0);
/// How often one is let go first. It may never come back: a call can be left by `longjmp`.
const TURNS: u32 = 1000;

/// Takes the kernel's connection that was there: one thread at a time, so that none sleeps in the
/// kernel, where no light connection would wake it, since another one was quicker. `None`: it was.
fn by_kernel(fd: c_int, native: impl Fn() -> c_int) -> Option<c_int> {
    let me = vfork_check::this_thread();
    let has = |was| TAKES.compare_exchange(was, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let mut turns = 0;
    let is_nested = loop {
        let who = TAKES.load(Ordering::Relaxed);
        if who == me {
            break true;
        }
        // A thread that has kept it for so long is not in there any more.
        if (who == 0 || turns >= TURNS) && has(who) {
            break false;
        }
        turns += 1;
        sched_yield();
    };
    let taken = is_readable(fd).then(native);
    if !is_nested {
        // Unless another thread has taken this one for gone.
        _ = TAKES.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
    }
    taken
}

/// The kernel has something for this descriptor.
fn is_readable(fd: c_int) -> bool {
    !kernel_socket::events(fd, PollFlags::IN, 0).is_empty()
}
