//! The calls that send and receive.

use core::ffi::{c_int, c_void};
use core::ptr::null;
use core::slice::from_raw_parts;

use libc::{PROT_NONE, PROT_WRITE, iovec, msghdr, off_t, sockaddr, socklen_t};
use omniverb_terms::Errno;

use super::datagram::calls::tell;
use super::fd_table::Entry;
use super::socket_calls::ov_rgetpeername;
use super::stream_connection::LentTo;
use super::{fd_table, send_recv};
use crate::errno::{of, outcome, set_errno};

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
        fd_table::of(number).and_then(|socket| match socket {
            Entry::Stream(socket) => send_recv::send(&socket, buffers(parts, count)?, flags),
            Entry::Datagrams(socket) => socket.send(buffers(parts, count)?, flags, null(), 0),
        })
    })
}

/// # Safety
/// `parts` has `count` entries, and they room for their bytes.
unsafe fn receive(number: c_int, parts: *const iovec, count: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    counted(unsafe {
        fd_table::of(number).and_then(|socket| match socket {
            Entry::Stream(socket) => send_recv::receive(&socket, buffers(parts, count)?, flags),
            Entry::Datagrams(socket) => {
                socket.receive(buffers(parts, count)?, flags).map(|(count, ..)| count)
            }
        })
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

/// Sends; a stream to no other address than its peer's.
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
    match fd_table::of(number) {
        Ok(Entry::Datagrams(socket)) => {
            let part = [iovec { iov_base: data.cast_mut(), iov_len: bytes }];
            // SAFETY: the caller's promise.
            counted(unsafe { socket.send(&part, flags, to, length) })
        }
        Ok(_) if !to.is_null() || length != 0 => counted(Err(of(libc::EISCONN))),
        // SAFETY: the caller's promise.
        _ => unsafe { ov_rsend(number, data, bytes, flags) },
    }
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
        let (parts, count) = ((*message).msg_iov, (*message).msg_iovlen);
        if let Ok(Entry::Datagrams(socket)) = fd_table::of(number) {
            let length = (*message).msg_namelen;
            // As the kernel has it: without a length there is no address.
            let to = if length == 0 { null() } else { (*message).msg_name.cast_const().cast() };
            let sent = buffers(parts, count);
            return counted(sent.and_then(|parts| socket.send(parts, flags, to, length)));
        }
        send(number, parts, count, flags)
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

/// Receives, and names the sender.
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
    if let Ok(Entry::Datagrams(socket)) = fd_table::of(number) {
        let part = [iovec { iov_base: data, iov_len: bytes }];
        // SAFETY: the caller's promise.
        return counted(unsafe {
            socket.receive(&part, flags).map(|(count, _, sender)| {
                tell(sender, from, length);
                count
            })
        });
    }
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
        let (parts, count) = ((*message).msg_iov, (*message).msg_iovlen);
        if let Ok(Entry::Datagrams(socket)) = fd_table::of(number) {
            let received = buffers(parts, count).and_then(|parts| socket.receive(parts, flags));
            return counted(received.map(|(count, was_longer, sender)| {
                let length = &raw mut (*message).msg_namelen;
                tell(sender, (*message).msg_name.cast(), length);
                (*message).msg_flags = if was_longer { libc::MSG_TRUNC } else { 0 };
                count
            }));
        }
        receive(number, parts, count, flags)
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
    let lent = fd_table::stream(number).and_then(|socket| {
        if prot & !(PROT_WRITE | PROT_NONE) != 0 {
            return Err(Errno::EINVAL);
        }
        let offset = if offset == -1 { start.addr() as off_t } else { offset };
        let mut inner = socket.lock();
        let stream = inner.any_stream()?;
        let to = if prot & PROT_WRITE == 0 { LentTo::Nobody } else { LentTo::Peer };
        // SAFETY: the caller's promise.
        unsafe { stream.lend(start, bytes, offset.cast_unsigned(), to) }?;
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
    outcome(fd_table::stream(number).and_then(|socket| {
        let mut inner = socket.lock();
        inner.any_stream()?.take_back(start.addr(), bytes)
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
    let written = fd_table::stream(number).and_then(|socket| unsafe {
        send_recv::write_at(&socket, &part, offset.cast_unsigned(), flags)
    });
    counted(written).cast_unsigned()
}
