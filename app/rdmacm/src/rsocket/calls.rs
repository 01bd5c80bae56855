//! The calls of rsocket.h.

use core::ffi::{c_int, c_long, c_void};
use core::slice::{from_raw_parts, from_raw_parts_mut};

use libc::{
    AF_INET, AF_INET6, EBADF, FD_CLOEXEC, FD_SETSIZE, IPPROTO_TCP, O_NONBLOCK, POLLHUP, POLLIN,
    POLLOUT, PROT_NONE, PROT_WRITE, SHUT_RD, SHUT_RDWR, SHUT_WR, SOCK_CLOEXEC, SOCK_NONBLOCK,
    SOCK_STREAM, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, sockaddr_storage,
    socklen_t, timeval,
};
use omniverb_terms::Errno;

use super::options::give;
use super::socket::{Phase, Socket};
use super::wait::{Patience, until};
use super::{poll, table, transfer};
use crate::address;
use crate::errno::{last, of, outcome, set_errno};
use crate::resolve::{bind, ov_rdma_listen};

/// For calls that return a count, or -1 and set `errno`.
fn counted(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

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
        && unsafe { (1..=length as usize).contains(&address::length(address)) };
    if whole { Ok(address) } else { Err(Errno::EINVAL) }
}

/// Makes a socket.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let plain = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
    let is_stream = plain == SOCK_STREAM && matches!(protocol, 0 | IPPROTO_TCP);
    if !matches!(domain, AF_INET | AF_INET6) || !is_stream {
        return outcome(Err(Errno::EOPNOTSUPP));
    }
    let flags = if kind & SOCK_NONBLOCK == 0 { 0 } else { O_NONBLOCK };
    let made = Socket::new(domain, flags).map(|socket| {
        socket.lock().descriptor_flags = if kind & SOCK_CLOEXEC == 0 { 0 } else { FD_CLOEXEC };
        table::add(socket)
    });
    numbered(made)
}

/// Gives a socket an address.
///
/// # Safety
/// `to` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rbind(number: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's promise; live while it is locked.
    outcome(table::of(number).and_then(|socket| unsafe {
        let to = checked(to, length)?;
        bind(socket.lock().id.0, to)
    }))
}

/// Waits for connections from now on.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rlisten(number: c_int, backlog: c_int) -> c_int {
    outcome(table::of(number).and_then(|socket| {
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
            if !matches!(inner.phase, Phase::Listening) {
                return Err(of(EBADF));
            }
            Patience::of(inner.blocks(0))
        };
        loop {
            match listener.accept() {
                Err(Errno::EAGAIN) => {
                    let asked = |inner: &super::socket::Inner| inner.id.has_event();
                    drop(until(listener, patience, asked)?);
                }
                other => return other,
            }
        }
    };
    let accepted = table::of(number).and_then(|listener| accept(&listener));
    numbered(accepted.map(|socket| {
        if !from.is_null() && !length.is_null() {
            // SAFETY: the caller's promise.
            let _ = unsafe { name(&socket, from, length, true) };
        }
        table::add(socket)
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
    outcome(table::of(number).and_then(|socket| {
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
            Patience::of(inner.blocks(0))
        };
        let inner = until(&socket, patience, |inner| !inner.is_opening());
        let inner = inner.map_err(|errno| match errno {
            Errno::EAGAIN => of(libc::EINPROGRESS),
            other => other,
        })?;
        match inner.phase {
            Phase::Failed => Err(of(inner.error)),
            _ => Ok(()),
        }
    }))
}

/// Ends a connection, or one direction of it.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rshutdown(number: c_int, how: c_int) -> c_int {
    outcome(table::of(number).and_then(|socket| match how {
        SHUT_RD => transfer::shut(&socket, true, false),
        SHUT_WR => transfer::shut(&socket, false, true),
        SHUT_RDWR => transfer::shut(&socket, true, true),
        _ => Err(Errno::EINVAL),
    }))
}

/// Closes a socket.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rclose(number: c_int) -> c_int {
    outcome(table::remove(number).map(|socket| {
        let _ = transfer::shut(&socket, true, true);
    }))
}

/// # Safety
/// As [`ov_rgetsockname`].
unsafe fn name(
    socket: &Socket,
    to: *mut sockaddr,
    length: *mut socklen_t,
    of_peer: bool,
) -> Result<(), Errno> {
    let inner = socket.lock();
    // SAFETY: live while it is locked; the caller's promise.
    unsafe {
        let addresses = &(*inner.id.0).route.addr;
        let address: sockaddr_storage =
            if of_peer { addresses.dst_storage } else { addresses.src_storage };
        let bytes = address::length((&raw const address).cast());
        if bytes == 0 {
            return Err(if of_peer { Errno::ENOTCONN } else { Errno::EINVAL });
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
    outcome(table::of(number).and_then(|socket| unsafe { name(&socket, to, length, false) }))
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
    outcome(table::of(number).and_then(|socket| unsafe { name(&socket, to, length, true) }))
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
    outcome(table::of(number).and_then(|s| unsafe { s.lock().set(level, name, value, length) }))
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
    outcome(table::of(number).and_then(|s| unsafe { s.lock().get(level, name, value, length) }))
}

/// The flags of a socket. In C the last argument may be missing; then it is not looked at.
#[unsafe(no_mangle)]
pub extern "C" fn ov_rfcntl(number: c_int, command: c_int, argument: c_long) -> c_int {
    numbered(table::of(number).and_then(|socket| {
        let mut inner = socket.lock();
        let argument = argument as c_int;
        match command {
            libc::F_GETFL => return Ok(inner.flags),
            libc::F_SETFL => inner.flags = argument,
            libc::F_GETFD => return Ok(inner.descriptor_flags),
            libc::F_SETFD => inner.descriptor_flags = argument,
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(0)
    }))
}

/// Waits for descriptors.
///
/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rpoll(files: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    if files.is_null() || count == 0 {
        // SAFETY: the caller's promise.
        return unsafe { libc::poll(files, count, timeout) };
    }
    // SAFETY: the caller's promise.
    let files = unsafe { from_raw_parts_mut(files, count as usize) };
    numbered(poll::poll(files, timeout))
}

/// Waits for descriptors.
///
/// # Safety
/// As `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    if !(0..=FD_SETSIZE as c_int).contains(&count) {
        return outcome(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's promise; the numbers are within a set.
    unsafe {
        let has = |set: *mut fd_set, fd| !set.is_null() && libc::FD_ISSET(fd, set);
        let mut files = Vec::new();
        for fd in 0..count {
            let input = if has(read, fd) { POLLIN } else { 0 };
            let output = if has(write, fd) { POLLOUT } else { 0 };
            if input | output != 0 || has(except, fd) {
                files.push(pollfd { fd, events: input | output, revents: 0 });
            }
        }
        let wait = timeout.as_ref().map_or(-1, |time| {
            let whole = time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec / 1000);
            c_int::try_from(whole).unwrap_or(c_int::MAX)
        });
        let asked = ov_rpoll(files.as_mut_ptr(), files.len() as nfds_t, wait);
        if asked < 0 {
            return asked;
        }
        for set in [read, write, except] {
            if !set.is_null() {
                libc::FD_ZERO(set);
            }
        }
        let mut ready = 0;
        let mut say = |set: *mut fd_set, file: &pollfd, bits: i16| {
            if !set.is_null() && file.revents & bits != 0 {
                libc::FD_SET(file.fd, set);
                ready += 1;
            }
        };
        for file in &files {
            if file.events & POLLIN != 0 {
                say(read, file, POLLIN | POLLHUP | libc::POLLERR);
            }
            if file.events & POLLOUT != 0 {
                say(write, file, POLLOUT | libc::POLLERR);
            }
            if file.events == 0 {
                say(except, file, !(POLLIN | POLLOUT));
            }
        }
        ready
    }
}

/// The buffers of a call.
///
/// # Safety
/// `parts` has `count` entries.
unsafe fn buffers<'a>(parts: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    if parts.is_null() || count > libc::UIO_MAXIOV as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { from_raw_parts(parts, count) })
}

/// # Safety
/// `parts` has `count` entries, and they their bytes.
unsafe fn send(number: c_int, parts: *const iovec, count: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    counted(unsafe {
        table::of(number).and_then(|socket| transfer::send(&socket, buffers(parts, count)?, flags))
    })
}

/// # Safety
/// `parts` has `count` entries, and they room for their bytes.
unsafe fn receive(number: c_int, parts: *const iovec, count: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    counted(unsafe {
        table::of(number)
            .and_then(|socket| transfer::receive(&socket, buffers(parts, count)?, flags))
    })
}

/// Sends.
///
/// # Safety
/// `data` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rsend(
    number: c_int,
    data: *const c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    let part = iovec { iov_base: data.cast_mut(), iov_len: bytes };
    // SAFETY: the caller's promise.
    unsafe { send(number, &part, 1, flags) }
}

/// Sends; a connected socket to no other address than its peer's.
///
/// # Safety
/// `data` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rsendto(
    number: c_int,
    data: *const c_void,
    bytes: usize,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> isize {
    if !to.is_null() || length != 0 {
        return counted(table::of(number).and(Err(of(libc::EISCONN))));
    }
    // SAFETY: the caller's promise.
    unsafe { ov_rsend(number, data, bytes, flags) }
}

/// Sends several buffers.
///
/// # Safety
/// `message` is valid, without control data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rsendmsg(number: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*message).msg_control.is_null() && (*message).msg_controllen != 0 {
            return counted(Err(Errno::EOPNOTSUPP));
        }
        send(number, (*message).msg_iov, (*message).msg_iovlen as usize, flags)
    }
}

/// Sends.
///
/// # Safety
/// `data` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rwrite(number: c_int, data: *const c_void, bytes: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { ov_rsend(number, data, bytes, 0) }
}

/// Sends several buffers.
///
/// # Safety
/// `parts` has `count` entries, and they their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rwritev(number: c_int, parts: *const iovec, count: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { send(number, parts, usize::try_from(count).unwrap_or(usize::MAX), 0) }
}

/// Receives.
///
/// # Safety
/// `data` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rrecv(
    number: c_int,
    data: *mut c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    let part = iovec { iov_base: data, iov_len: bytes };
    // SAFETY: the caller's promise.
    unsafe { receive(number, &part, 1, flags) }
}

/// Receives, and says from whom.
///
/// # Safety
/// `data` has room for `bytes` bytes; `from` is null, or has room for as many as `length` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rrecvfrom(
    number: c_int,
    data: *mut c_void,
    bytes: usize,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        let count = ov_rrecv(number, data, bytes, flags);
        if count > 0 && !from.is_null() {
            ov_rgetpeername(number, from, length);
        }
        count
    }
}

/// Receives into several buffers.
///
/// # Safety
/// `message` is valid, without control data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rrecvmsg(number: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*message).msg_control.is_null() && (*message).msg_controllen != 0 {
            return counted(Err(Errno::EOPNOTSUPP));
        }
        receive(number, (*message).msg_iov, (*message).msg_iovlen as usize, flags)
    }
}

/// Receives.
///
/// # Safety
/// `data` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rread(number: c_int, data: *mut c_void, bytes: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { ov_rrecv(number, data, bytes, 0) }
}

/// Receives into several buffers.
///
/// # Safety
/// `parts` has `count` entries, and they room for their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rreadv(number: c_int, parts: *const iovec, count: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { receive(number, parts, usize::try_from(count).unwrap_or(usize::MAX), 0) }
}

/// Lends the peer a buffer, by an offset: -1 is the buffer's address. What `prot` is without
/// `PROT_WRITE` is only registered.
///
/// # Safety
/// The buffer is the peer's to write to until it is taken back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_riomap(
    number: c_int,
    start: *mut c_void,
    bytes: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let lent = table::of(number).and_then(|socket| {
        if prot & !(PROT_WRITE | PROT_NONE) != 0 {
            return Err(Errno::EINVAL);
        }
        let offset = if offset == -1 { start.addr() as off_t } else { offset };
        let mut inner = socket.lock();
        let stream = inner.stream().map_err(|_| Errno::EINVAL)?;
        let to_peer = prot & PROT_WRITE != 0;
        // SAFETY: the caller's promise.
        unsafe { stream.lend(start, bytes, offset.cast_unsigned(), to_peer) }?;
        Ok(offset)
    });
    lent.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Takes a buffer back.
#[unsafe(no_mangle)]
pub extern "C" fn ov_riounmap(number: c_int, start: *mut c_void, bytes: usize) -> c_int {
    outcome(table::of(number).and_then(|socket| {
        let mut inner = socket.lock();
        inner.stream().map_err(|_| Errno::EINVAL)?.take_back(start.addr(), bytes)
    }))
}

/// Writes to a buffer that the peer lends.
///
/// # Safety
/// `data` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_riowrite(
    number: c_int,
    data: *const c_void,
    bytes: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let part = [iovec { iov_base: data.cast_mut(), iov_len: bytes }];
    // SAFETY: the caller's promise.
    let written = table::of(number).and_then(|socket| unsafe {
        transfer::write_at(&socket, &part, offset.cast_unsigned(), flags)
    });
    counted(written).cast_unsigned()
}
