//! Replaces the C library's functions that make, change and close descriptors.
//!
//! Each does the call by the next library's function and records its result.

use core::ffi::c_int;

use omniverb_connection::descriptors::{Kind, Why};
use rustix::io::fcntl_getfd;

use crate::borrowed_fd::borrow;
use crate::carry::{File, OwnDescriptors, SendfileRequest};
use crate::descriptor_changes_by_calls::{self, Call};
use crate::descriptor_tables::DESCRIPTORS;
use crate::errno::{fails, keeping_errno, set_errno};
use crate::hook_macros::watched;
use crate::next_library;
use crate::user_memory::{UserBuffer, UserPtrMut};
use crate::{carry, fork_refcount, library_fds, light, sockets_observed_by_broker, vfork_check};

/// For the program there is nothing at this descriptor.
fn nothing_there() -> c_int {
    set_errno(libc::EBADF);
    -1
}

/// A descriptor of the library's own, in a process that knows it.
#[inline]
fn is_own(fd: c_int) -> bool {
    library_fds::has(fd) && vfork_check::is_this_process()
}

functions! {
    ov_socket(family: int, of: int, protocol: int) -> c_int {
        let call = Call::Made(kind(family, of, protocol));
        watched(call, || next_library::socket(family, of, protocol))
    }

    ov_socketpair(family: int, of: int, protocol: int, pair: pair) -> c_int {
        watched(Call::Pair(pair.as_const()), || {
            next_library::socketpair(family, of, protocol, pair)
        })
    }

    ov_listen(fd: int, backlog: int) -> c_int {
        let result = watched(Call::Listen(fd), || next_library::listen(fd, backlog));
        if result == 0 {
            light::listens(fd);
        }
        result
    }

    ov_connect(fd: int, address: value) -> c_int {
        carry::may_wait(fd);
        if let Some(result) = light::connect(fd, address, || carry::close(fd)) {
            return result;
        }
        carry::leave(fd);
        let made = watched(Call::Connect(fd), || next_library::connect(fd, address));
        if made == 0 && sockets_observed_by_broker::is_wanted(fd) {
            // The program may be done with it soon.
            keeping_errno(|| carry::offers(fd));
        }
        made
    }

    ov_accept(fd: int, address: buffer) -> c_int {
        carry::may_wait(fd);
        if light::is_listener(fd) {
            return accept_light(fd, address, 0);
        }
        watched(Call::Accept(fd), || next_library::accept(fd, address))
    }

    ov_accept4(fd: int, address: buffer, flags: int) -> c_int {
        carry::may_wait(fd);
        if light::is_listener(fd) {
            return accept_light(fd, address, flags);
        }
        watched(Call::Accept(fd), || next_library::accept4(fd, address, flags))
    }

    ov_shutdown(fd: int, how: int) -> c_int {
        if light::token_of(fd).is_some() {
            return light::shut(fd, how);
        }
        carry::shutdown(fd, how);
        let done = watched(Call::Shutdown(fd), || next_library::shutdown(fd, how));
        if done == 0 && how != libc::SHUT_WR {
            light::stops_listening(fd);
        }
        done
    }

    ov_setsockopt(fd: int, level: int, name: int, value: value) -> c_int {
        if let Some(at) = light::token_of(fd) {
            return light::set(at, (level, name), value);
        }
        if descriptor_changes_by_calls::changes_receiving(level, name) {
            carry::leave(fd);
        } else if !descriptor_changes_by_calls::is_harmless(level, name) {
            carry::leave_unread_here(fd);
        }
        let call = Call::Option { fd, level, name };
        let set = watched(call, || next_library::setsockopt(fd, level, name, value));
        if set == 0
            && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ)
            && let Some(number) = value.array(0)
        {
            carry::set_inq(fd, c_int::from_ne_bytes(number));
        }
        if set == 0 {
            light::was_set(fd, level, name);
        }
        set
    }

    ov_getsockname(fd: int, address: buffer) -> c_int {
        match light::token_of(fd) {
            Some(at) => light::name(at, light::ConnectionEnd::Own, address),
            None => next_library::getsockname(fd, address),
        }
    }

    ov_getpeername(fd: int, address: buffer) -> c_int {
        match light::token_of(fd) {
            Some(at) => light::name(at, light::ConnectionEnd::Peers, address),
            None => next_library::getpeername(fd, address),
        }
    }

    ov_sendfile(to: int, from: int, offset: offset, count: usize) -> isize {
        if let Some(at) = light::token_of(to) {
            carry::may_sleep();
            return light::send_file(at, from, offset, count);
        }
        // What is no socket of TCP has no bytes to overtake.
        let is_plain = !carry::is_on() || !DESCRIPTORS.look(to).kind().is_stream();
        let asked = match if is_plain { None } else { offset.read() } {
            Some(begin) => File::of(from, begin, count),
            None => SendfileRequest::Other,
        };
        let native = || next_library::sendfile(to, from, offset, count);
        match asked {
            SendfileRequest::Part(file) => return send_part(to, offset, file, native),
            SendfileRequest::Unknown => return carry::send_file(to, None, native),
            SendfileRequest::Other => {}
        }
        fork_refcount::may_outlive_close(to);
        carry::stop_sending(to);
        carry::may_wait(to);
        native()
    }

    ov_fork() -> c_int {
        fork(next_library::fork)
    }

    ov_raw_fork() -> c_int {
        fork(next_library::raw_fork)
    }

    ov_close(fd: int) -> c_int {
        if is_own(fd) {
            return nothing_there();
        }
        carry::close(fd);
        light::closes(fd);
        watched(Call::Close(fd), || next_library::close(fd))
    }

    /// Leaves our own open.
    ov_close_range(first: u32, last: u32, flags: int) -> c_int {
        if flags & (libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC) as c_int == 0 {
            carry::close_range(first, last);
            light::closes_range(first, last);
        } else if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
            carry::stop();
        }
        let call = Call::CloseRange { first, last, flags };
        if !library_fds::is_among(first, last) || !vfork_check::is_this_process() {
            return watched(call, || next_library::close_range(first, last, flags));
        }
        watched(call, || {
            let mut result = 0;
            library_fds::between(first, last, |first, last| {
                result |= next_library::close_range(first, last, flags);
            });
            result
        })
    }

    ov_closefrom(first: int) -> () {
        let begin = first.max(0).unsigned_abs();
        carry::close_range(begin, u32::MAX);
        light::closes_range(begin, u32::MAX);
        let call = Call::CloseRange { first: begin, last: u32::MAX, flags: 0 };
        call.before();
        if !library_fds::is_among(begin, u32::MAX) || !vfork_check::is_this_process() {
            next_library::closefrom(first);
            call.after(descriptor_changes_by_calls::PriorState::default(), 0);
            return;
        }
        library_fds::between(begin, u32::MAX, |first, last| {
            // Where the kernel has no such call, what is ours goes with the rest.
            if next_library::close_range(first, last, 0) != 0 {
                next_library::closefrom(first as c_int);
            }
        });
        call.after(descriptor_changes_by_calls::PriorState::default(), 0);
    }

    ov_dup(fd: int) -> c_int {
        if is_own(fd) {
            return nothing_there();
        }
        carry::duplicate(fd, None);
        let new = watched(Call::Dup(fd), || next_library::dup(fd));
        carry::duplicate(fd, Some(new));
        light::duplicated(fd, new);
        new
    }

    ov_dup2(from: int, to: int) -> c_int {
        if makes_way(from, to) {
            return nothing_there();
        }
        put(from, to, || {
            watched(Call::DupTo { from, to }, || next_library::dup2(from, to))
        })
    }

    ov_dup3(from: int, to: int, flags: int) -> c_int {
        if flags & !libc::O_CLOEXEC != 0 && light::is_on() {
            // The kernel refuses it, and closes nothing.
            return next_library::dup3(from, to, flags);
        }
        if makes_way(from, to) {
            return nothing_there();
        }
        put(from, to, || {
            watched(Call::DupTo { from, to }, || next_library::dup3(from, to, flags))
        })
    }

    ov_fcntl(fd: int, given: command) -> c_int {
        if is_own(fd) {
            return nothing_there();
        }
        let (command, argument) = (given.command(), given.argument());
        let is_duplicate = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
        if let Some(at) = light::token_of(fd)
            && !is_duplicate
            && let Some(result) = light::control(at, command, argument)
        {
            return result;
        }
        if is_duplicate {
            carry::duplicate(fd, None);
        } else if descriptor_changes_by_calls::is_about_signals(command, argument) {
            light::is_unlike(fd);
            carry::leave(fd);
        }
        let call = Call::Control { fd, command, argument };
        let result = watched(call, || next_library::fcntl(fd, given));
        if is_duplicate {
            carry::duplicate(fd, Some(result));
            light::duplicated(fd, result);
        } else if command == libc::F_SETFL {
            carry::mode_changed(fd);
        }
        result
    }

    ov_ioctl(fd: int, given: request) -> c_int {
        if let Some(at) = light::token_of(fd) {
            return light::request(fd, at, given);
        }
        let request = given.request();
        if descriptor_changes_by_calls::SIGNAL_REQUESTS.contains(&request) {
            light::is_unlike(fd);
            carry::leave(fd);
        }
        let call = Call::Request { fd, request };
        let native = || watched(call, || next_library::ioctl(fd, given));
        if let Some(count) = given.number().filter(|_| request == libc::FIONREAD) {
            return carry::queued(fd, count, native);
        }
        let result = native();
        if request == libc::FIONBIO {
            carry::mode_changed(fd);
        }
        result
    }

    ov_epoll_create(size: int) -> c_int {
        watched(Call::Made(Kind::Set), || next_library::epoll_create(size))
    }

    ov_epoll_create1(flags: int) -> c_int {
        watched(Call::Made(Kind::Set), || next_library::epoll_create1(flags))
    }

    ov_epoll_ctl(set: int, operation: int, fd: int, event: event) -> c_int {
        if let Some(result) = light::change_set(set, operation, fd, event.as_const()) {
            return result;
        }
        let change = |operation| {
            let call = Call::Member { set, operation, fd, event: event.as_const() };
            watched(call, || next_library::epoll_ctl(set, operation, fd, event))
        };
        let given = event.as_const();
        let result = carry::change_set(set, operation, fd, given, || change(operation));
        if result == 0 && !light::changed_set(set, operation, fd, event.as_const()) {
            if operation == libc::EPOLL_CTL_ADD {
                change(libc::EPOLL_CTL_DEL);
            }
            return fails(libc::ENOSPC);
        }
        result
    }
}

/// Makes a process that has a copy of everything.
fn fork(native: impl FnOnce() -> c_int) -> c_int {
    light::forks();
    let forking = carry::before_fork();
    let child = native();
    carry::after_fork(forking, child, own_descriptors());
    if child == 0 {
        // It begins anew, and gives back what it has copies of.
        _ = light::is_on();
    }
    child
}

/// What `socket` makes of its arguments.
fn kind(family: c_int, of: c_int, protocol: c_int) -> Kind {
    let is_stream = matches!(family, libc::AF_INET | libc::AF_INET6)
        && of & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM
        && matches!(protocol, libc::IPPROTO_IP | libc::IPPROTO_TCP);
    if is_stream { Kind::Fresh } else { Kind::Other }
}

/// Accepts where light connections come to, or the kernel's.
fn accept_light(fd: c_int, address: UserBuffer<'_>, flags: c_int) -> c_int {
    light::accept(fd, address, flags, || {
        let new = watched(Call::Accept(fd), || next_library::accept4(fd, address, flags));
        if new >= 0 && light::has_come_from_afar(new) {
            keeping_errno(|| sockets_observed_by_broker::accepted(new, carry::offers));
        }
        new
    })
}

/// Puts a duplicate at a descriptor, of which it is known what is closed there.
#[inline]
fn put(from: c_int, to: c_int, make: impl FnOnce() -> c_int) -> c_int {
    carry::duplicate(from, None);
    if from != to && (carry::has(to) || light::is_on()) && is_open(from) {
        carry::close(to);
        light::closes(to);
    }
    let result = make();
    if result < 0 && carry::has(to) && DESCRIPTORS.look(to).why() == Why::Shared {
        // What there was is there still, and a process was made meanwhile.
        carry::leave(to);
    }
    carry::duplicate(from, Some(result));
    light::duplicated(from, result);
    result
}

/// There is something at a descriptor.
fn is_open(fd: c_int) -> bool {
    fd >= 0 && fcntl_getfd(borrow(fd)).is_ok()
}

/// Before something is put at a descriptor: what is ours there goes elsewhere. True if what is to
/// be put there is nothing for the program.
fn makes_way(from: c_int, to: c_int) -> bool {
    if is_own(from) {
        return true;
    }
    if is_own(to) {
        library_fds::give_way(to);
    }
    false
}

/// `sendfile` of a part of a file.
fn send_part(
    to: c_int,
    offset: UserPtrMut<'_, i64>,
    file: File,
    native: impl Fn() -> isize,
) -> isize {
    let begin = offset.read().unwrap_or(0);
    let sent = carry::send_file(to, Some(file), native);
    if sent > 0 {
        offset.write(begin + sent as i64);
    }
    sent
}

/// What a child does with our descriptors: where there may be light connections it looks for all
/// that are there.
fn own_descriptors() -> OwnDescriptors {
    if light::is_begun() { OwnDescriptors::Keep } else { OwnDescriptors::Close }
}
