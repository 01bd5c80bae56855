//! Sending and receiving.

use core::ffi::c_int;
use std::sync::MutexGuard;

use libc::iovec;
use omniverb_sys::lock;
use omniverb_terms::Errno;

use super::flow_control::{PieceLength, ReadMode};
use super::iovec::IovecCursor;
use super::readiness_wait::{WaitLimit, until};
use super::stream_connection::{ConnectionState, OpenDirections, Stream};
use super::stream_socket::{Inner, Phase, Socket};

/// Seconds for which the end of a connection waits for the peer, whatever else that one does.
const LINGER: u32 = 10;

/// Waits, if the call may, until there is a connection.
fn connected(socket: &Socket, flags: c_int) -> Result<WaitLimit, Errno> {
    let (patience, is_opening) = {
        let inner = socket.lock();
        (WaitLimit::of(inner.mode(flags)), inner.is_opening())
    };
    if is_opening {
        drop(until(socket, patience, |inner| !inner.is_opening())?);
    }
    Ok(patience)
}

/// The socket, locked, when the test holds of its connection.
fn when(
    socket: &Socket,
    patience: WaitLimit,
    test: impl Fn(&Stream) -> bool,
) -> Result<MutexGuard<'_, Inner>, Errno> {
    let inner = socket.lock();
    if inner.is(&test) {
        return Ok(inner);
    }
    drop(inner);
    until(socket, patience, |inner| inner.is(&test))
}

/// What a call returns that has done something, or failed.
fn count(total: usize, left: usize, result: Result<(), Errno>) -> Result<usize, Errno> {
    match result {
        Err(errno) if left == total => Err(errno),
        _ => Ok(total - left),
    }
}

/// Tells the peer of buffers that it was lent meanwhile.
fn announce_maps(socket: &Socket, patience: WaitLimit) -> Result<(), Errno> {
    loop {
        let mut inner = socket.lock();
        let stream = inner.stream()?;
        stream.announce_maps()?;
        if !stream.has_unannounced() || !stream.is_writable() {
            return Ok(());
        }
        drop(inner);
        drop(when(socket, patience, |stream| stream.can_say() || !stream.is_writable())?);
    }
}

/// Sends.
///
/// # Errors
/// `ENOTCONN`; `ECONNRESET`: nothing can be sent any more; `EAGAIN`, `EINTR`.
///
/// # Safety
/// The parts have their bytes.
pub(crate) unsafe fn send(socket: &Socket, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let _whole = lock(&socket.sending);
    let patience = connected(socket, flags)?;
    announce_maps(socket, patience)?;
    // SAFETY: the caller's promise.
    let mut data = unsafe { IovecCursor::new(parts) };
    let (total, mut steps) = (data.left(), PieceLength::new());
    let mut go = || {
        while data.left() > 0 {
            let mut inner = when(socket, patience, |s| s.can_send() || !s.is_writable())?;
            let stream = inner.stream()?;
            if !stream.is_writable() {
                return Err(Errno::ECONNRESET);
            }
            // SAFETY: the caller's promise.
            unsafe { stream.send(&mut data, &mut steps) }?;
        }
        Ok(())
    };
    let result = go();
    count(total, data.left(), result)
}

/// Writes to a buffer that the peer lends.
///
/// # Errors
/// As [`send`].
///
/// # Safety
/// The parts have their bytes.
pub(crate) unsafe fn write_at(
    socket: &Socket,
    parts: &[iovec],
    mut offset: u64,
    flags: c_int,
) -> Result<usize, Errno> {
    let _whole = lock(&socket.sending);
    let patience = connected(socket, flags)?;
    announce_maps(socket, patience)?;
    // The peer may have lent some meanwhile.
    socket.lock().progress();
    // SAFETY: the caller's promise.
    let mut data = unsafe { IovecCursor::new(parts) };
    let (total, mut steps) = (data.left(), PieceLength::new());
    let mut go = || {
        while data.left() > 0 {
            let mut inner = when(socket, patience, |s| s.has_room() || !s.is_writable())?;
            let stream = inner.stream()?;
            if !stream.is_writable() {
                return Err(Errno::ECONNRESET);
            }
            // SAFETY: the caller's promise.
            if !unsafe { stream.write(&mut data, &mut offset, &mut steps) }? {
                break;
            }
        }
        Ok(())
    };
    let result = go();
    count(total, data.left(), result)
}

/// Receives. Nothing: the peer has ended the stream.
///
/// # Errors
/// `ENOTCONN`; `ECONNRESET`: the connection broke; `EAGAIN`, `EINTR`.
///
/// # Safety
/// The parts have room for their bytes.
pub(crate) unsafe fn receive(
    socket: &Socket,
    parts: &[iovec],
    flags: c_int,
) -> Result<usize, Errno> {
    let _whole = lock(&socket.receiving);
    let patience = connected(socket, flags)?;
    // SAFETY: the caller's promise.
    let mut data = unsafe { IovecCursor::new(parts) };
    let (total, reading) = (data.left(), reading(flags));
    let mut go = || {
        loop {
            let mut inner = when(socket, patience, |s| s.unread() > 0 || !s.is_readable())?;
            let stream = inner.stream()?;
            if stream.unread() == 0 {
                let is_broken = stream.link() == ConnectionState::Broken;
                return if is_broken { Err(Errno::ECONNRESET) } else { Ok(()) };
            }
            // SAFETY: the caller's promise.
            unsafe { stream.read(&mut data, reading) };
            if data.left() == 0 || reading == ReadMode::Peek || flags & libc::MSG_WAITALL == 0 {
                return Ok(());
            }
        }
    };
    let result = go();
    count(total, data.left(), result)
}

/// Ends the connection, or one direction of it, when what was sent has arrived. Signals do not keep
/// it from that: what was accepted is not lost by them.
///
/// # Errors
/// `ENOTCONN`; `EAGAIN`: the peer leaves no room to tell it so.
pub(crate) fn shut(socket: &Socket, which: OpenDirections) -> Result<(), Errno> {
    let patience = WaitLimit::seconds(LINGER);
    let message = {
        let mut inner = socket.lock();
        match inner.stream()?.shut(which) {
            Some(message) => message,
            None => {
                finish(&mut inner);
                return Ok(());
            }
        }
    };
    let gone = |stream: &Stream| stream.link() != ConnectionState::Up;
    let mut inner = when(socket, patience, |s| s.has_control() || gone(s))?;
    let stream = inner.stream()?;
    if stream.link() == ConnectionState::Up {
        stream.say(message);
    }
    drop(inner);
    let waited = until(socket, patience, |inner| inner.is(|s| s.is_idle() || gone(s)));
    match waited {
        Ok(mut inner) => finish(&mut inner),
        // The peer is there, and takes nothing.
        Err(Errno::EAGAIN) => {}
        Err(errno) => return Err(errno),
    }
    Ok(())
}

/// Closes a connection. A thread that still waits for something of it is told.
pub(crate) fn close(socket: &Socket) {
    let _ = shut(socket, OpenDirections::Both);
    let mut inner = socket.lock();
    if let Phase::Made(_) = &inner.phase {
        inner.disconnect();
    }
}

/// Has the connection managers forget a connection that has ended.
fn finish(inner: &mut Inner) {
    if let Phase::Made(stream) = &inner.phase
        && stream.link() != ConnectionState::Up
    {
        inner.disconnect();
    }
}

/// What a call with these flags does with the bytes that it reads.
pub(crate) fn reading(flags: c_int) -> ReadMode {
    if flags & libc::MSG_PEEK == 0 { ReadMode::Take } else { ReadMode::Peek }
}
