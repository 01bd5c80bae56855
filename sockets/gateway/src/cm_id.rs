//! Wraps identifiers of rdma_cm: the listener for other gateways, and one end of a connection.
#![allow(unsafe_code, reason = "functions of C")]

use crate::limits::{ANSWER, BACKLOG, NETWORK_MS};
use crate::rdma_libraries::rdma;
use crate::rdma_objects::{Made, NoBytes, Owned, Parameters, Ref};
use crate::socket_address::Address;
use core::ptr::{NonNull, null_mut};
use omniverb_abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_TCP, ibv_context, ibv_qp,
    rdma_cm_event, rdma_cm_id, rdma_event_channel,
};
use omniverb_formats::gateway_message::{hello, is_hello};
use omniverb_sys::eventfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::mem::transmute;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Of a connection that was rejected: "invalid service ID" (IB specification, 12.6.7.2).
const NOBODY_LISTENS: i32 = 8;

/// A channel on which events come.
struct EventChannel(Owned<rdma_event_channel>);

impl EventChannel {
    fn new() -> io::Result<Self> {
        Owned::new((rdma().rdma_create_event_channel)()).map(Self)
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.0.fd(|channel| channel.fd)
    }

    /// The next event, once it is there.
    fn next(&self) -> io::Result<Event> {
        let mut event = Made::NONE;
        call((rdma().rdma_get_cm_event)(self.0.get(), &mut event))?;
        Owned::new(event).map(Event)
    }
}

/// An event, which is given back.
struct Event(Owned<rdma_cm_event>);

impl Event {
    fn kind(&self) -> u32 {
        self.0.look(|event| event.event)
    }

    /// What one means that was not hoped for.
    fn failure(&self) -> io::ErrorKind {
        match self.0.look(|event| (event.event, event.status)) {
            (RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS) => io::ErrorKind::ConnectionRefused,
            (
                RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR | RDMA_CM_EVENT_UNREACHABLE,
                _,
            ) => io::ErrorKind::HostUnreachable,
            _ => io::ErrorKind::ConnectionAborted,
        }
    }

    /// Its private data begin as a gateway's.
    fn is_gateway(&self) -> bool {
        self.0.look(|event| {
            // SAFETY: it has so many bytes, if any; all events that are asked have these.
            unsafe {
                let (data, bytes) =
                    (event.param.conn.private_data, event.param.conn.private_data_len);
                let (data, bytes) = (data.cast::<u8>(), usize::from(bytes));
                !data.is_null() && is_hello(core::slice::from_raw_parts(data, bytes))
            }
        })
    }

    /// What wants to connect, of a request for that.
    fn into_id(self) -> io::Result<Owned<rdma_cm_id>> {
        // SAFETY: the identifier of a request is its receiver's, which has given no other one.
        let id = self.0.look(|event| unsafe { Made::new(event.id) });
        Owned::new(id)
    }
}

/// One end of a connection, with a channel of its own. Its queue pair goes before.
pub(crate) struct CmId {
    id: Owned<rdma_cm_id>,
    events: EventChannel,
}

impl CmId {
    /// Finds the way from an address of ours to another gateway.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn resolve(from: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let id = Self::new()?;
        let (mut from, mut to) = (Address::new(SocketAddr::new(from, 0)), Address::new(to));
        call((rdma().rdma_resolve_addr)(id.raw(), &mut from, &mut to, NETWORK_MS))?;
        id.expect(RDMA_CM_EVENT_ADDR_RESOLVED)?;
        call((rdma().rdma_resolve_route)(id.raw(), NETWORK_MS))?;
        id.expect(RDMA_CM_EVENT_ROUTE_RESOLVED)?;
        Ok(id)
    }

    fn new() -> io::Result<Self> {
        let (events, mut id) = (EventChannel::new()?, Made::NONE);
        call((rdma().rdma_create_id)(events.0.get(), &mut id, null_mut(), RDMA_PS_TCP))?;
        Ok(Self { id: Owned::new(id)?, events })
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
    /// There is no gateway, or it refuses.
    pub(crate) fn connect(&self) -> io::Result<()> {
        let hello = hello();
        call((rdma().rdma_connect)(self.raw(), &mut Parameters::new(&hello)))?;
        self.established()
    }

    /// Accepts a gateway that has said what it is, unless it is to make way for others.
    ///
    /// # Errors
    /// The other gateway is gone, makes way, or says nothing for as long as [`ANSWER`].
    pub(crate) fn accept(&self, eviction: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let hello = hello();
        call((rdma().rdma_accept)(self.raw(), &mut Parameters::new(&hello)))?;
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
        // It may have ended already.
        (rdma().rdma_disconnect)(self.raw());
    }

    /// Readable once something has happened to a connection: it has ended, or is about to.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.file()
    }

    /// The device by which the other end is reached.
    pub(crate) fn device(&self) -> Option<Ref<'static, ibv_context>> {
        let device = NonNull::new(self.id.look(|id| id.verbs))?;
        // SAFETY: librdmacm opens a device once, for good.
        Some(unsafe { Ref::new(device) })
    }

    /// What it is for other functions of C.
    pub(crate) fn raw(&self) -> Ref<'_, rdma_cm_id> {
        self.id.get()
    }

    /// The queue pair that was made for it.
    pub(crate) fn queue_pair(&self) -> Option<NonNull<ibv_qp>> {
        NonNull::new(self.id.look(|id| id.qp))
    }

    /// The addresses of this end and the other one.
    pub(crate) fn addresses(&self) -> Option<[IpAddr; 2]> {
        let all = self.id.look(|id| id.route.addr);
        let ip = |of: libc::sockaddr_storage| {
            // SAFETY: bytes, all of which were written.
            let bytes = unsafe { transmute::<libc::sockaddr_storage, [u8; 128]>(of) };
            Address::from_bytes(bytes).ip()
        };
        Some([ip(all.src_storage)?, ip(all.dst_storage)?])
    }
}

/// Listens for other gateways.
pub(crate) struct Listener(CmId);

impl Listener {
    /// At a port of all addresses, of both families.
    ///
    /// # Errors
    /// There is no device, or the port is taken.
    pub(crate) fn new(port: u16) -> io::Result<Self> {
        let id = CmId::new()?;
        let mut any = Address::new(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
        call((rdma().rdma_bind_addr)(id.raw(), &mut any))?;
        call((rdma().rdma_listen)(id.raw(), BACKLOG))?;
        Ok(Self(id))
    }

    /// The next gateway that wants to connect. `None`: another peer did.
    ///
    /// # Errors
    /// There is no device any more.
    pub(crate) fn next(&self) -> io::Result<Option<CmId>> {
        let event = self.0.events.next()?;
        if event.kind() != RDMA_CM_EVENT_CONNECT_REQUEST {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let is_gateway = event.is_gateway();
        let id = event.into_id()?;
        let events = EventChannel::new()
            .ok()
            .filter(|events| is_gateway && (rdma().rdma_migrate_id)(id.get(), events.0.get()) == 0);
        if events.is_none() {
            (rdma().rdma_reject)(id.get(), None, NoBytes::Zero);
        }
        Ok(events.map(|events| CmId { id, events }))
    }
}

/// For calls that return zero, or -1 and set `errno`.
pub(crate) fn call(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
