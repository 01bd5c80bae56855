//! The calls of rsocket.h, of datagram sockets.

use core::ffi::{c_int, c_void};
use core::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use libc::{AF_UNSPEC, IP_TOS, IPPROTO_IP, MSG_TRUNC, iovec, sockaddr, socklen_t};
use omniverb_sys::lock;
use omniverb_sys::seqpacket::BlockingMode;
use omniverb_terms::Errno;

use super::datagram_socket::Inner;
use super::kernel_socket::IpFamily;
use super::socket_address::{from_c, to_c};
use crate::errno::last;
use crate::process_id_across_fork;
use crate::rsocket::iovec::IovecCursor;
use crate::rsocket::readiness_wait::{WaitLimit, WaitableSocket, until};
use crate::rsocket::send_recv::reading;
use crate::rsocket::socket_options::{SOL_RDMA, give, number};

/// Of the two ends of a socket, whose address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketEnd {
    /// `rgetsockname`.
    Own,
    /// `rgetpeername`: the peer that it was connected to last.
    Peers,
}

/// Seconds for which closing waits until what was sent is under way.
const LINGER: u32 = 1;

/// A datagram socket: the process that made it, and what is locked while a call uses it.
pub(crate) struct Datagrams {
    /// What the program calls it.
    pub(crate) number: c_int,
    process: i32,
    inner: Mutex<Inner>,
}

impl WaitableSocket for Datagrams {
    type Inner = Inner;

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

impl Datagrams {
    /// A new one for such addresses, with what `F_SETFL` and `F_SETFD` would say. It has a socket
    /// of the kernel's, and no queue pair before it sends, or is connected.
    pub(crate) fn new(
        family: IpFamily,
        flags: c_int,
        descriptor_flags: c_int,
    ) -> Result<Self, Errno> {
        let inner = Inner::new(family, flags, descriptor_flags)?;
        let number = inner.kernel.fd();
        Ok(Datagrams { number, process: process_id_across_fork::this(), inner: Mutex::new(inner) })
    }

    /// Whether this process made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == process_id_across_fork::this()
    }

    /// Gives it an address.
    ///
    /// # Safety
    /// `to` has `length` bytes.
    pub(crate) unsafe fn bind(&self, to: *const sockaddr, length: socklen_t) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        self.lock().bind(unsafe { from_c(to, length) }?)
    }

    /// Has it one peer; none with `AF_UNSPEC`.
    ///
    /// # Safety
    /// `to` has `length` bytes.
    pub(crate) unsafe fn connect(
        &self,
        to: *const sockaddr,
        length: socklen_t,
    ) -> Result<(), Errno> {
        if to.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's promise: the family is in front.
        let is_none = c_int::from(unsafe { (*to).sa_family }) == AF_UNSPEC;
        // SAFETY: the caller's promise.
        let peer = if is_none { None } else { Some(unsafe { from_c(to, length) }?) };
        self.lock().connect(peer)
    }

    /// Sends a datagram; to the peer, if `to` is null.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `EMSGSIZE`, `EAGAIN`, `EINTR`; what the kernel says.
    ///
    /// # Safety
    /// The parts have their bytes, and `to` has `length`.
    pub(crate) unsafe fn send(
        &self,
        parts: &[iovec],
        flags: c_int,
        to: *const sockaddr,
        length: socklen_t,
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        let to = if to.is_null() { None } else { Some(unsafe { from_c(to, length) }?) };
        let mut inner = self.lock();
        let mode = inner.mode(flags);
        loop {
            if !inner.can_send() {
                drop(inner);
                inner = until(self, WaitLimit::of(mode), |inner| inner.can_send())?;
            }
            // SAFETY: the caller's promise.
            match unsafe { inner.send(to, &mut IovecCursor::new(parts), mode) } {
                // The queue pair failed meanwhile.
                Err(Errno::EAGAIN) if mode == BlockingMode::Blocking && !inner.can_send() => {}
                other => return other,
            }
        }
    }

    /// Receives a datagram: how many bytes of it there was room for (with `MSG_TRUNC`: how many it
    /// has), whether that was not all, and its sender.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`.
    ///
    /// # Safety
    /// The parts have room for their bytes.
    pub(crate) unsafe fn receive(
        &self,
        parts: &[iovec],
        flags: c_int,
    ) -> Result<(usize, bool, SocketAddr), Errno> {
        // SAFETY: the caller's promise.
        let mut data = unsafe { IovecCursor::new(parts) };
        let room = data.left();
        let mut inner = self.lock();
        let patience = WaitLimit::limited(inner.mode(flags), inner.receive_limit);
        loop {
            // SAFETY: the caller's promise.
            if let Some((bytes, from)) = unsafe { inner.read(&mut data, reading(flags)) } {
                let count = if flags & MSG_TRUNC == 0 { bytes.min(room) } else { bytes };
                return Ok((count, bytes > room, from));
            }
            drop(inner);
            inner = until(self, patience, |inner| inner.has_arrived())?;
        }
    }

    /// Closes it, when what was sent is under way.
    pub(crate) fn close(&self) {
        drop(until(self, WaitLimit::seconds(LINGER), |inner| inner.is_idle()));
    }

    /// Its address, or its peer's.
    ///
    /// # Safety
    /// `to` has room for as many bytes as `length` says.
    pub(crate) unsafe fn name(
        &self,
        to: *mut sockaddr,
        length: *mut socklen_t,
        whose: SocketEnd,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise; the kernel looks at the pointers.
        let said = unsafe {
            match whose {
                SocketEnd::Peers => libc::getpeername(self.number, to, length),
                SocketEnd::Own => libc::getsockname(self.number, to, length),
            }
        };
        if said == 0 { Ok(()) } else { Err(last()) }
    }

    /// Sets an option: sizes of queues here, all others of the kernel's socket.
    ///
    /// # Errors
    /// `EINVAL`: it is too late for this one. `EOPNOTSUPP`: the kernel alone would heed it, to the
    /// harm of the rest. What the kernel says.
    ///
    /// # Safety
    /// `value` has `length` bytes.
    pub(crate) unsafe fn set(
        &self,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> Result<(), Errno> {
        let mut inner = self.lock();
        // SAFETY: the caller's promise.
        let said = unsafe { number(value, length) };
        if level == SOL_RDMA {
            return match inner.is_new() {
                true => inner.settings.set(name, said?),
                false => Err(Errno::EINVAL),
            };
        }
        if is_unheeded(level, name) && said != Ok(0) {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the caller's promise; the kernel looks at the pointer.
        if unsafe { libc::setsockopt(self.number, level, name, value, length) } != 0 {
            return Err(last());
        }
        match (level, name, said) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF, Ok(bytes)) if inner.is_new() => {
                inner.settings.receive_bytes = bytes.cast_unsigned().saturating_mul(2);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF, Ok(bytes)) if inner.is_new() => {
                inner.settings.send_bytes = bytes.cast_unsigned().saturating_mul(2);
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | RECEIVE_TIME_NEW, _) => {
                inner.receive_limit = receive_limit(self.number);
            }
            (IPPROTO_IP, IP_TOS, Ok(class)) => inner.traffic_class = class as u8,
            _ => {}
        }
        Ok(())
    }

    /// What an option is.
    ///
    /// # Safety
    /// `to` has room for as many bytes as `length` says.
    pub(crate) unsafe fn get(
        &self,
        level: c_int,
        name: c_int,
        to: *mut c_void,
        length: *mut socklen_t,
    ) -> Result<(), Errno> {
        if level == SOL_RDMA {
            let size = self.lock().settings.get(name)?;
            // SAFETY: the caller's promise.
            return unsafe { give(size, to, length) };
        }
        // SAFETY: the caller's promise; the kernel looks at the pointers.
        match unsafe { libc::getsockopt(self.number, level, name, to, length) } {
            0 => Ok(()),
            _ => Err(last()),
        }
    }
}

/// `SO_RCVTIMEO_NEW` of `asm-generic/socket.h`: its time has 64 bits everywhere.
const RECEIVE_TIME_NEW: c_int = 66;
/// What has the kernel put errors or times of its socket where they are not taken from, so that
/// each `poll` returns at once (`SO_TIMESTAMPING` of old and new, `SO_WIFI_STATUS`, `SO_TXTIME`).
const TOLD_ASIDE: [c_int; 4] = [37, 65, 41, 61];

/// What the kernel would do with its own socket, to the harm of what comes through it: join or
/// split datagrams (all of UDP's own), or leave errors there.
fn is_unheeded(level: c_int, name: c_int) -> bool {
    match level {
        libc::IPPROTO_UDP => true,
        IPPROTO_IP => name == libc::IP_RECVERR,
        libc::IPPROTO_IPV6 => name == libc::IPV6_RECVERR,
        libc::SOL_SOCKET => TOLD_ASIDE.contains(&name),
        _ => false,
    }
}

/// In nanoseconds, how long a socket of the kernel's is to wait for what it receives.
fn receive_limit(number: c_int) -> Option<u64> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<libc::timeval>() as socklen_t;
    // SAFETY: a place for a time, of that length.
    let said = unsafe {
        let to = (&raw mut time).cast();
        libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_RCVTIMEO, to, &mut length)
    };
    let seconds = u64::try_from(time.tv_sec).ok()?.saturating_mul(1_000_000_000);
    let limit = seconds.saturating_add(u64::try_from(time.tv_usec).ok()?.saturating_mul(1000));
    (said == 0 && limit > 0).then_some(limit)
}

/// Tells a program the sender of a datagram, as far as it has room.
///
/// # Safety
/// The pointers are null, or `to` has room for as many bytes as `length` says.
pub(crate) unsafe fn tell(from: SocketAddr, to: *mut sockaddr, length: *mut socklen_t) {
    if to.is_null() || length.is_null() {
        return;
    }
    let (storage, bytes) = to_c(from);
    // SAFETY: the caller's promise; no more bytes than there are.
    unsafe {
        let count = bytes.min(*length as usize);
        core::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast(), count);
        length.write(bytes as socklen_t);
    }
}
