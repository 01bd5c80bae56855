//! Wraps identifiers of rdma_cm: the listener for other gateways, and one end of a connection.
#![allow(unsafe_code, reason = "functions of C")]

use crate::limits::{ANSWER, BACKLOG, NETWORK_MS};
use crate::rdma_libraries::rdma;
use core::ptr::null_mut;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use omniverb_abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_TCP, ibv_context,
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use omniverb_formats::gateway_message::{HELLO, hello, is_hello};
use omniverb_sys::eventfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Of a connection that was rejected: "invalid service ID" (IB specification, 12.6.7.2).
const NOBODY_LISTENS: i32 = 8;

/// A channel on which events come.
struct EventChannel(*mut rdma_event_channel);

impl EventChannel {
    fn new() -> io::Result<Self> {
        // SAFETY: no arguments.
        let events = unsafe { (rdma().rdma_create_event_channel)() };
        if events.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(events)) }
    }

    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as this.
        unsafe { BorrowedFd::borrow_raw((*self.0).fd) }
    }

    /// The next event, once it is there.
    fn next(&self) -> io::Result<Event> {
        let mut event = null_mut();
        // SAFETY: open, and a place for a pointer.
        call(unsafe { (rdma().rdma_get_cm_event)(self.0, &mut event) })?;
        Ok(Event(event))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: no identifier has it any more.
        unsafe { (rdma().rdma_destroy_event_channel)(self.0) };
    }
}

/// An event, which is given back.
struct Event(*mut rdma_cm_event);

impl Event {
    fn kind(&self) -> u32 {
        // SAFETY: not given back yet.
        unsafe { (*self.0).event }
    }

    /// What one means that was not hoped for.
    fn failure(&self) -> io::ErrorKind {
        // SAFETY: as above.
        let status = unsafe { (*self.0).status };
        match self.kind() {
            RDMA_CM_EVENT_REJECTED if status == NOBODY_LISTENS => io::ErrorKind::ConnectionRefused,
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR | RDMA_CM_EVENT_UNREACHABLE => {
                io::ErrorKind::HostUnreachable
            }
            _ => io::ErrorKind::ConnectionAborted,
        }
    }

    /// Its private data begin as a gateway's.
    fn is_gateway(&self) -> bool {
        // SAFETY: as above; it has so many bytes, if any.
        unsafe {
            let (data, bytes) = ((*self.0).param.conn.private_data, (*self.0).param.conn);
            let bytes = usize::from(bytes.private_data_len);
            !data.is_null() && is_hello(core::slice::from_raw_parts(data.cast(), bytes))
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: once.
        unsafe { (rdma().rdma_ack_cm_event)(self.0) };
    }
}

/// One end of a connection, with a channel of its own. Its queue pair goes before.
pub(crate) struct CmId {
    id: *mut rdma_cm_id,
    events: EventChannel,
}

// SAFETY: the calls of rdma_cma.h are for any thread.
unsafe impl Send for CmId {}

impl CmId {
    /// Finds the way from an address of ours to another gateway.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn resolve(from: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let id = Self::new()?;
        let (mut from, mut to) = (storage(SocketAddr::new(from, 0)), storage(to));
        let [own, others] = [&raw mut from, &raw mut to].map(<*mut _>::cast::<sockaddr>);
        // SAFETY: live, and addresses.
        call(unsafe { (rdma().rdma_resolve_addr)(id.id, own, others, NETWORK_MS) })?;
        id.expect(RDMA_CM_EVENT_ADDR_RESOLVED)?;
        // SAFETY: live.
        call(unsafe { (rdma().rdma_resolve_route)(id.id, NETWORK_MS) })?;
        id.expect(RDMA_CM_EVENT_ROUTE_RESOLVED)?;
        Ok(id)
    }

    fn new() -> io::Result<Self> {
        let (events, mut id) = (EventChannel::new()?, null_mut());
        // SAFETY: an open channel, and a place for a pointer.
        call(unsafe { (rdma().rdma_create_id)(events.0, &mut id, null_mut(), RDMA_PS_TCP) })?;
        Ok(Self { id, events })
    }

    /// Waits for that event. `true`: it comes from a gateway.
    fn expect(&self, what: u32) -> io::Result<bool> {
        // Its own patience ends first, mostly.
        let limit = Duration::from_millis(4 * NETWORK_MS.unsigned_abs() as u64);
        if !eventfd::readable(self.events.file(), Some(limit))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let event = self.events.next()?;
        if event.kind() == what { Ok(event.is_gateway()) } else { Err(event.failure().into()) }
    }

    /// Connects, if a gateway is there.
    ///
    /// # Errors
    /// It is none, or nobody is there, or does not want to.
    pub(crate) fn connect(&self) -> io::Result<()> {
        let hello = hello();
        // SAFETY: live; the data are there for the call.
        call(unsafe { (rdma().rdma_connect)(self.id, &mut parameters(&hello)) })?;
        self.established()
    }

    /// Accepts a gateway that has said what it is, unless it is to make way for others.
    ///
    /// # Errors
    /// The other gateway is gone, makes way, or says nothing for as long as [`ANSWER`].
    pub(crate) fn accept(&self, eviction: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let hello = hello();
        // SAFETY: as in `connect`.
        call(unsafe { (rdma().rdma_accept)(self.id, &mut parameters(&hello)) })?;
        let files = [Some(self.events.file()), eviction].into_iter().flatten();
        let mut wanted: Vec<_> =
            files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: (ANSWER / 1_000_000_000) as i64, tv_nsec: 0 };
        poll(&mut wanted, Some(&limit))?;
        if wanted[0].revents().is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.expect(RDMA_CM_EVENT_ESTABLISHED).map(|_| ())
    }

    fn established(&self) -> io::Result<()> {
        let is_gateway = self.expect(RDMA_CM_EVENT_ESTABLISHED)?;
        if is_gateway { Ok(()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    /// Ends the connection, if there is one.
    pub(crate) fn disconnect(&self) {
        // SAFETY: live. It may have ended already.
        unsafe { (rdma().rdma_disconnect)(self.id) };
    }

    /// Readable once something has happened to a connection: it has ended, or is about to.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.file()
    }

    /// The device by which the other end is reached.
    pub(crate) fn device(&self) -> *mut ibv_context {
        // SAFETY: live.
        unsafe { (*self.id).verbs }
    }

    /// What it is for other functions of C.
    pub(crate) fn raw(&self) -> *mut rdma_cm_id {
        self.id
    }

    /// The addresses of this end and the other one.
    pub(crate) fn addresses(&self) -> Option<[IpAddr; 2]> {
        // SAFETY: live.
        let all = unsafe { (*self.id).route.addr };
        Some([address(&all.src_storage)?, address(&all.dst_storage)?])
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: live, and no event of its is kept.
        unsafe { (rdma().rdma_destroy_id)(self.id) };
    }
}

/// Who listens for other gateways.
pub(crate) struct Listener(CmId);

impl Listener {
    /// At a port of all addresses, of both families.
    ///
    /// # Errors
    /// There is no device, or the port is taken.
    pub(crate) fn new(port: u16) -> io::Result<Self> {
        let id = CmId::new()?;
        let mut any = storage(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
        // SAFETY: live, and an address.
        call(unsafe { (rdma().rdma_bind_addr)(id.id, (&raw mut any).cast()) })?;
        // SAFETY: live, and bound.
        call(unsafe { (rdma().rdma_listen)(id.id, BACKLOG) })?;
        Ok(Self(id))
    }

    /// The next gateway that wants to connect. `None`: there was somebody else.
    ///
    /// # Errors
    /// There is no device any more.
    pub(crate) fn next(&self) -> io::Result<Option<CmId>> {
        let event = self.0.events.next()?;
        if event.kind() != RDMA_CM_EVENT_CONNECT_REQUEST {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let is_gateway = event.is_gateway();
        // SAFETY: not given back yet; the identifier is ours.
        let id = unsafe { (*event.0).id };
        drop(event);
        let refuse = || {
            // SAFETY: ours, and nobody else's.
            unsafe {
                (rdma().rdma_reject)(id, core::ptr::null(), 0);
                (rdma().rdma_destroy_id)(id);
            }
        };
        let Ok(events) = EventChannel::new() else {
            refuse();
            return Ok(None);
        };
        // SAFETY: both are ours; no event of its is kept.
        let is_moved = unsafe { (rdma().rdma_migrate_id)(id, events.0) } == 0;
        if !is_gateway || !is_moved {
            refuse();
            return Ok(None);
        }
        Ok(Some(CmId { id, events }))
    }
}

/// For calls that return zero, or -1 and set `errno`.
pub(crate) fn call(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Patience with those who are not ready; no READs.
fn parameters(hello: &[u8; HELLO]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: hello.as_ptr().cast(),
        private_data_len: HELLO as u8,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

fn storage(of: SocketAddr) -> sockaddr_storage {
    // SAFETY: numbers only: zero is valid for all.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    match of {
        SocketAddr::V4(of) => {
            // SAFETY: there is room for that, and it is aligned for any.
            let it = unsafe { &mut *(&raw mut storage).cast::<sockaddr_in>() };
            it.sin_family = libc::AF_INET as u16;
            it.sin_port = of.port().to_be();
            it.sin_addr.s_addr = u32::from_ne_bytes(of.ip().octets());
        }
        SocketAddr::V6(of) => {
            // SAFETY: as above.
            let it = unsafe { &mut *(&raw mut storage).cast::<sockaddr_in6>() };
            it.sin6_family = libc::AF_INET6 as u16;
            it.sin6_port = of.port().to_be();
            it.sin6_addr.s6_addr = of.ip().octets();
        }
    }
    storage
}

fn address(of: &sockaddr_storage) -> Option<IpAddr> {
    match i32::from(of.ss_family) {
        libc::AF_INET => {
            // SAFETY: one of that family, which has room there.
            let it = unsafe { &*(&raw const *of).cast::<sockaddr_in>() };
            Some(IpAddr::from(it.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let it = unsafe { &*(&raw const *of).cast::<sockaddr_in6>() };
            Some(Ipv6Addr::from(it.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_they_were() {
        for text in ["10.1.2.3:65535", "[fd77::1]:1", "0.0.0.0:0"] {
            let of: SocketAddr = text.parse().unwrap();
            assert_eq!(address(&storage(of)), Some(of.ip()));
        }
        let mapped = storage("[::ffff:10.1.2.3]:7".parse().unwrap());
        assert_eq!(address(&mapped), Some(IpAddr::from([10, 1, 2, 3])), "that is the same");
        // SAFETY: zero is valid.
        assert_eq!(address(&unsafe { core::mem::zeroed() }), None);
    }
}
