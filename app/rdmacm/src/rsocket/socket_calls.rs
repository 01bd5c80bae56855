//! The calls of rsocket.h that make, connect and describe sockets.

use core::ffi::{c_int, c_long, c_void};

use libc::{
    AF_INET, AF_INET6, EBADF, FD_CLOEXEC, IPPROTO_TCP, IPPROTO_UDP, O_NONBLOCK, SHUT_RD, SHUT_RDWR,
    SHUT_WR, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, sockaddr, sockaddr_storage,
    socklen_t,
};
use omniverb_terms::Errno;

use super::datagram::calls::{Datagrams, SocketEnd};
use super::datagram::kernel_socket::IpFamily;
use super::fd_table::Entry;
use super::readiness_wait::{WaitLimit, WaitableSocket, until};
use super::socket_options::give;
use super::stream_connection::OpenDirections;
use super::stream_socket::{Inner, Phase, Socket};
use super::{fd_table, repoll, send_recv};
use crate::address_calls::{bind, ov_rdma_listen};
use crate::errno::{last, of, outcome};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::{c_sockaddr, device};

/// For calls that return a number.
fn numbered(result: Result<c_int, Errno>) -> c_int {
    match result {
        Ok(number) => number,
        Err(errno) => outcome(Err(errno)),
    }
}

/// An address that a program gives, if it is as long as it says it is.
///
/// # Safety
/// `address` has `length` bytes.
unsafe fn checked(address: *const sockaddr, length: socklen_t) -> Result<*const sockaddr, Errno> {
    // SAFETY: the caller's promise: the family is in front.
    let whole = (length as usize) >= size_of::<libc::sa_family_t>()
        && unsafe { (1..=length as usize).contains(&c_sockaddr::length(address)) };
    if whole { Ok(address) } else { Err(Errno::EINVAL) }
}

/// Makes a socket.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rsocket", AttemptedStep::Create);
    let plain = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
    let flags = if kind & SOCK_NONBLOCK == 0 { 0 } else { O_NONBLOCK };
    let descriptor_flags = if kind & SOCK_CLOEXEC == 0 { 0 } else { FD_CLOEXEC };
    let family = match domain {
        AF_INET => IpFamily::Four,
        AF_INET6 => IpFamily::Six,
        _ => return outcome(CALL.explain(Err(Errno::EOPNOTSUPP))),
    };
    let made = match (plain, protocol) {
        (SOCK_STREAM, 0 | IPPROTO_TCP) => Socket::new(domain, flags).map(|socket| {
            socket.lock().descriptor_flags = descriptor_flags;
            fd_table::add(socket)
        }),
        (SOCK_DGRAM, 0 | IPPROTO_UDP) => {
            let made = device::check_present();
            let made = made.and_then(|()| Datagrams::new(family, flags, descriptor_flags));
            made.map(fd_table::add_datagrams)
        }
        _ => Err(Errno::EOPNOTSUPP),
    };
    numbered(CALL.explain(made))
}

/// Gives a socket an address.
///
/// # Safety
/// `to` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rbind(number: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rbind", AttemptedStep::Bind);
    // SAFETY: the caller's promise; live while it is locked.
    outcome(CALL.explain(fd_table::of(number).and_then(|socket| unsafe {
        match socket {
            Entry::Stream(socket) => bind(socket.lock().id.0, checked(to, length)?),
            Entry::Datagrams(socket) => socket.bind(to, length),
        }
    })))
}

/// Waits for connections from now on.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rlisten(number: c_int, backlog: c_int) -> c_int {
    outcome(fd_table::stream(number).and_then(|socket| {
        let mut inner = socket.lock();
        match inner.phase {
            Phase::Listening => return Ok(()),
            Phase::New => {}
            _ => return Err(Errno::EINVAL),
        }
        // SAFETY: live while it is locked.
        if unsafe { ov_rdma_listen(inner.id.0, backlog) } != 0 {
            return Err(last());
        }
        inner.phase = Phase::Listening;
        Ok(())
    }))
}

/// Accepts a connection.
///
/// # Safety
/// `from` is null, or has room for as many bytes as `length` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_raccept(
    number: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let accept = |listener: &Socket| {
        let patience = {
            let inner = listener.lock();
            match inner.phase {
                Phase::Listening => {}
                // As `Socket::accept` has said once.
                Phase::Failed if inner.error != 0 => return Err(of(inner.error)),
                _ => return Err(of(EBADF)),
            }
            WaitLimit::of(inner.mode(0))
        };
        loop {
            match listener.accept() {
                Err(Errno::EAGAIN) => {
                    let asked = |inner: &Inner| inner.id.has_event();
                    drop(until(listener, patience, asked)?);
                }
                other => return other,
            }
        }
    };
    let accepted = fd_table::stream(number).and_then(|listener| accept(&listener));
    numbered(accepted.map(|socket| {
        if !from.is_null() && !length.is_null() {
            // SAFETY: the caller's promise.
            let _ = unsafe { name(&socket, from, length, SocketEnd::Peers) };
        }
        fd_table::add(socket)
    }))
}

/// Asks for a connection.
///
/// # Safety
/// `to` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rconnect(
    number: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    static CALL: LoggedCall = LoggedCall::new("rconnect", AttemptedStep::Connect);
    let connected = fd_table::of(number).and_then(|socket| {
        let socket = match socket {
            Entry::Stream(socket) => socket,
            // SAFETY: the caller's promise.
            Entry::Datagrams(socket) => return unsafe { socket.connect(to, length) },
        };
        let patience = {
            let mut inner = socket.lock();
            match &inner.phase {
                // SAFETY: the caller's promise.
                Phase::New => unsafe { inner.connect(checked(to, length)?) }?,
                Phase::Connecting(_) | Phase::Accepting(_) => {}
                Phase::Made(_) => return Ok(()),
                Phase::Listening => return Err(Errno::EINVAL),
                Phase::Failed => return Err(Errno::ENOTCONN),
            }
            WaitLimit::of(inner.mode(0))
        };
        let inner = until(&*socket, patience, |inner| !inner.is_opening());
        let inner = inner.map_err(|errno| match errno {
            Errno::EAGAIN => of(libc::EINPROGRESS),
            other => other,
        })?;
        match inner.phase {
            Phase::Failed => Err(of(inner.error)),
            _ => Ok(()),
        }
    });
    outcome(CALL.explain(connected))
}

/// Ends a connection, or one direction of it.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rshutdown(number: c_int, how: c_int) -> c_int {
    outcome(fd_table::stream(number).and_then(|socket| match how {
        SHUT_RD => send_recv::shut(&socket, OpenDirections::In),
        SHUT_WR => send_recv::shut(&socket, OpenDirections::Out),
        SHUT_RDWR => send_recv::shut(&socket, OpenDirections::Both),
        _ => Err(Errno::EINVAL),
    }))
}

/// Closes a socket, or a set of `repoll_create` (`EBUSY`, as a positive number: it is not empty).
#[unsafe(no_mangle)]
pub extern "C" fn ov_rclose(number: c_int) -> c_int {
    if let Some(closed) = repoll::close(number) {
        return closed;
    }
    outcome(fd_table::remove(number).map(|socket| match socket {
        Entry::Stream(socket) if socket.is_ours() => send_recv::close(&socket),
        Entry::Datagrams(socket) if socket.is_ours() => socket.close(),
        // A forked child has its parent's, whose memory is not there and whose locks may be
        // held: nothing of it is touched, but the kernel's socket, which keeps the address.
        theirs => {
            if let Entry::Datagrams(socket) = &theirs {
                // SAFETY: this process's own descriptor, which is not used any more.
                unsafe { libc::close(socket.number) };
            }
            core::mem::forget(theirs);
        }
    }))
}

/// # Safety
/// As [`ov_rgetsockname`].
unsafe fn name_of(
    number: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
    whose: SocketEnd,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        match fd_table::of(number)? {
            Entry::Stream(socket) => name(&socket, to, length, whose),
            Entry::Datagrams(socket) => socket.name(to, length, whose),
        }
    }
}

/// # Safety
/// As [`ov_rgetsockname`].
unsafe fn name(
    socket: &Socket,
    to: *mut sockaddr,
    length: *mut socklen_t,
    whose: SocketEnd,
) -> Result<(), Errno> {
    let inner = socket.lock();
    // SAFETY: live while it is locked; the caller's promise.
    unsafe {
        let addresses = &(*inner.id.0).route.addr;
        let address: sockaddr_storage = match whose {
            SocketEnd::Peers => addresses.dst_storage,
            SocketEnd::Own => addresses.src_storage,
        };
        let bytes = c_sockaddr::length((&raw const address).cast());
        if bytes == 0 {
            return Err(match whose {
                SocketEnd::Peers => Errno::ENOTCONN,
                SocketEnd::Own => Errno::EINVAL,
            });
        }
        give(address, to.cast(), length)?;
        length.write(bytes as socklen_t);
    }
    Ok(())
}

/// The socket's own address.
///
/// # Safety
/// `to` has room for as many bytes as `length` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rgetsockname(
    number: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { name_of(number, to, length, SocketEnd::Own) })
}

/// The address of the socket's peer.
///
/// # Safety
/// `to` has room for as many bytes as `length` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rgetpeername(
    number: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { name_of(number, to, length, SocketEnd::Peers) })
}

/// Sets an option.
///
/// # Safety
/// `value` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rsetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(fd_table::of(number).and_then(|socket| unsafe {
        match socket {
            Entry::Stream(socket) => socket.lock().set(level, name, value, length),
            Entry::Datagrams(socket) => socket.set(level, name, value, length),
        }
    }))
}

/// What an option is.
///
/// # Safety
/// `value` has room for as many bytes as `length` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rgetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(fd_table::of(number).and_then(|socket| unsafe {
        match socket {
            Entry::Stream(socket) => socket.lock().get(level, name, value, length),
            Entry::Datagrams(socket) => socket.get(level, name, value, length),
        }
    }))
}

/// The flags of a socket. In C the last argument may be missing; then it is not looked at.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rfcntl(number: c_int, command: c_int, argument: c_long) -> c_int {
    let with = |flags: &mut c_int, descriptor_flags: &mut c_int| {
        let argument = argument as c_int;
        match command {
            libc::F_GETFL => return Ok(*flags),
            libc::F_SETFL => *flags = argument,
            libc::F_GETFD => return Ok(*descriptor_flags),
            libc::F_SETFD => *descriptor_flags = argument,
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(0)
    };
    numbered(fd_table::of(number).and_then(|socket| match socket {
        Entry::Stream(socket) => {
            let inner = &mut *socket.lock();
            with(&mut inner.flags, &mut inner.descriptor_flags)
        }
        Entry::Datagrams(socket) => {
            let inner = &mut *socket.lock();
            with(&mut inner.flags, &mut inner.descriptor_flags)
        }
    }))
}
