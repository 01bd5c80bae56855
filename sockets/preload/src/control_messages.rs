//! Reads and writes control messages: descriptors on unix sockets, and how many bytes are left.
//!
//! What is passed may be received by anybody, and stays open as long as it is under way: a socket
//! that is passed is the kernel's. What is received is somebody's: nothing is known of it.

use core::ffi::c_int;

use omniverb_connection::descriptors::Why;

use crate::{fallback_ledger, table};

/// A message was sent.
///
/// # Safety
/// It is there, as the kernel found it.
pub(crate) unsafe fn sent(message: *const libc::msghdr) {
    // SAFETY: as the caller has promised.
    unsafe {
        each(message, |fd| {
            if table::look(fd).kind().is_stream() {
                fallback_ledger::keep(fd, Why::Passed);
            }
        });
    }
}

/// So many messages of an array were.
///
/// # Safety
/// They are there.
pub(crate) unsafe fn sent_many(messages: *const libc::mmsghdr, count: c_int) {
    for index in 0..count.max(0) as usize {
        // SAFETY: as the caller has promised.
        unsafe { sent(&raw const (*messages.add(index)).msg_hdr) };
    }
}

/// A message was received.
///
/// # Safety
/// It is there, as the kernel wrote it.
pub(crate) unsafe fn received(message: *const libc::msghdr) {
    // SAFETY: as the caller has promised.
    unsafe { each(message, table::forget) };
}

/// So many messages of an array were.
///
/// # Safety
/// They are there.
pub(crate) unsafe fn received_many(messages: *const libc::mmsghdr, count: c_int) {
    for index in 0..count.max(0) as usize {
        // SAFETY: as the caller has promised.
        unsafe { received(&raw const (*messages.add(index)).msg_hdr) };
    }
}

/// Calls with each descriptor in a message.
///
/// # Safety
/// It is there.
pub(crate) unsafe fn each(message: *const libc::msghdr, mut with: impl FnMut(c_int)) {
    // SAFETY: the caller's message, with as much control data as it says; the C library's macros
    // stay within that, and so does the count of numbers that follow a header.
    unsafe {
        if (*message).msg_control.is_null() {
            return;
        }
        let end = (*message).msg_control as usize + (*message).msg_controllen;
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header) as usize;
            let stop = (header as usize).saturating_add((*header).cmsg_len as usize).min(end);
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                for at in (data..stop.saturating_sub(3)).step_by(4) {
                    with((at as *const c_int).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Says in a message how many bytes are left behind those that were received (`TCP_INQ`), as the
/// kernel does where there are `room` bytes for that.
///
/// # Safety
/// They are there.
pub(crate) unsafe fn says_left(message: &mut libc::msghdr, room: usize, left: c_int) {
    // SAFETY: arithmetic.
    let (length, space) =
        unsafe { (libc::CMSG_LEN(size_of::<c_int>() as u32), libc::CMSG_SPACE(4)) };
    if message.msg_control.is_null() || room < length as usize {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let header = message.msg_control.cast::<libc::cmsghdr>();
    // SAFETY: as the caller says; a caller of C may have it anywhere.
    unsafe {
        (&raw mut (*header).cmsg_len).write_unaligned(length as usize);
        (&raw mut (*header).cmsg_level).write_unaligned(libc::IPPROTO_TCP);
        (&raw mut (*header).cmsg_type).write_unaligned(libc::TCP_INQ);
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(left);
    }
    message.msg_controllen = room.min(space as usize);
}
