//! Implements a stream socket: an identifier of rdma_cm, its phase, and the connection when there
//! is one.
//!
//! All of it is locked while it changes, verbs and questions to the daemon included: none of them
//! calls back, and the progress thread takes no socket's lock. A sleeper has it unlocked.

use core::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use libc::{O_NONBLOCK, sockaddr};
use omniverb_abi::*;
use omniverb_sys::lock;
use omniverb_sys::seqpacket::BlockingMode;
use omniverb_terms::Errno;

use super::buffer_settings::Settings;
use super::queue_pair::Queues;
use super::readiness_wait::{WaitableSocket, WaitableState};
use super::stored_options::Options;
use super::stream_connection::{ConnectionState, Stream, StreamEndpoint};
use super::waiter_election::WaiterElection;
use super::wire_format::Hello;
use crate::event_channel::ChannelShell;
use crate::id_state::{IdShell, Kind};
use crate::refusal_log::{AttemptedStep, LoggedCall};
use crate::{
    ack_cm_event, address_calls, cm_id, connection_calls, device, event, process_id_across_fork,
};

/// An identifier that is destroyed with its socket.
pub(crate) struct OwnedCmId(pub(crate) *mut rdma_cm_id);

// SAFETY: identifiers are for any thread.
unsafe impl Send for OwnedCmId {}

impl OwnedCmId {
    /// A new one, whose calls do not wait.
    pub(crate) fn new(space: u32, service: u32) -> Result<OwnedCmId, Errno> {
        device::check_present()?;
        let kind = Kind { context: core::ptr::null_mut(), space, qp_type: service };
        let id = OwnedCmId(cm_id::create(core::ptr::null_mut(), &kind)?);
        id.do_not_wait();
        Ok(id)
    }

    /// Calls return `EAGAIN` from now on where they would wait.
    pub(crate) fn do_not_wait(&self) {
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(self.fd(), libc::F_SETFL, O_NONBLOCK) };
    }

    /// The descriptor of its channel.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: live.
        unsafe { (*(*self.0).channel).fd }
    }

    /// Whether there is an event of it.
    pub(crate) fn has_event(&self) -> bool {
        // SAFETY: live, and so is its channel.
        unsafe { !ChannelShell::of((*self.0).channel).queue.is_empty() }
    }

    /// Takes an event.
    fn take(&self) -> Result<u32, Errno> {
        // SAFETY: live, and so is its channel; the event is acknowledged once.
        unsafe {
            let event = event::take_for_call(ChannelShell::of((*self.0).channel))?;
            let kind = (*event).event;
            ack_cm_event::ov_rdma_ack_cm_event(event);
            Ok(kind)
        }
    }
}

impl Drop for OwnedCmId {
    fn drop(&mut self) {
        // SAFETY: live, for the last time.
        unsafe { cm_id::ov_rdma_destroy_id(self.0) };
    }
}

/// How far a socket is.
pub(crate) enum Phase {
    /// Nothing was done with it but giving it an address, perhaps.
    New,
    Listening,
    /// We have asked for a connection.
    Connecting(Box<StreamEndpoint>),
    /// We have accepted one.
    Accepting(Box<Stream>),
    /// There is one, or was.
    Made(Box<Stream>),
    /// There will be none.
    Failed,
}

/// A stream socket: listens, or is or was to be one connection.
pub(crate) struct Socket {
    /// What the program calls it: the descriptor of its channel.
    pub(crate) number: c_int,
    /// Held for a whole call, so that the data of two calls do not mix.
    pub(crate) sending: Mutex<()>,
    pub(crate) receiving: Mutex<()>,
    /// Which made it: it is not for forked children.
    process: i32,
    inner: Mutex<Inner>,
}

/// A stream socket, but for its number: a call has all of it locked.
pub(crate) struct Inner {
    // In front of the identifier, whose queue pair it has: it goes first.
    pub(crate) phase: Phase,
    pub(crate) id: OwnedCmId,
    pub(crate) gate: WaiterElection,
    pub(crate) settings: Settings,
    pub(crate) options: Options,
    /// What `SO_ERROR` says next.
    pub(crate) error: c_int,
    /// `O_NONBLOCK` and what else `F_SETFL` said.
    pub(crate) flags: c_int,
    /// What `F_SETFD` said.
    pub(crate) descriptor_flags: c_int,
    /// The connection's end was told to the peer's connection manager.
    is_disconnected: bool,
}

impl Inner {
    fn with(id: OwnedCmId, phase: Phase) -> Inner {
        Inner {
            phase,
            id,
            gate: WaiterElection::default(),
            settings: Settings::default(),
            options: Options::default(),
            error: 0,
            flags: 0,
            descriptor_flags: 0,
            is_disconnected: false,
        }
    }

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Connecting(_) | Phase::Accepting(_))
    }

    /// Of a call with these flags.
    pub(crate) fn mode(&self, flags: c_int) -> BlockingMode {
        match (self.flags & O_NONBLOCK, flags & libc::MSG_DONTWAIT) {
            (0, 0) => BlockingMode::Blocking,
            _ => BlockingMode::NonBlocking,
        }
    }

    /// The connection, of which the peer knows.
    ///
    /// # Errors
    /// `ENOTCONN`: there is none, and was none.
    pub(crate) fn stream(&mut self) -> Result<&mut Stream, Errno> {
        match &mut self.phase {
            Phase::Made(stream) => Ok(stream),
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// The connection, even if the peer is not known to have it yet: for what needs no peer.
    ///
    /// # Errors
    /// `EINVAL`: there is none.
    pub(crate) fn any_stream(&mut self) -> Result<&mut Stream, Errno> {
        match &mut self.phase {
            Phase::Made(stream) | Phase::Accepting(stream) => Ok(stream),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether that holds of the connection, or there is none of which it could.
    pub(crate) fn is(&self, test: impl FnOnce(&Stream) -> bool) -> bool {
        match &self.phase {
            Phase::Made(stream) => test(stream),
            _ => true,
        }
    }

    fn fail(&mut self, errno: Errno) {
        self.phase = Phase::Failed;
        self.error = errno.raw();
    }

    /// Takes notice of what has happened.
    pub(crate) fn progress(&mut self) {
        // A sleeper on the channel is to see its events first.
        let may_take = self.gate.is_open() && self.id.has_event();
        match &mut self.phase {
            Phase::Made(stream) => {
                stream.progress();
                if may_take
                    && stream.link() == ConnectionState::Up
                    && let Ok(kind) = self.id.take()
                    && kind != RDMA_CM_EVENT_ESTABLISHED
                {
                    // What the peer sent before has been placed by now.
                    stream.progress();
                    stream.mark_broken();
                }
            }
            Phase::Connecting(_) | Phase::Accepting(_) if may_take => self.advance(),
            _ => {}
        }
    }

    /// The peer, or the daemon, has answered.
    fn advance(&mut self) {
        // SAFETY: live.
        match unsafe { event::complete(self.id.0) } {
            Err(Errno::EAGAIN) => {}
            Err(errno) => self.fail(errno),
            Ok(()) => self.completed(),
        }
    }

    /// The peer has agreed.
    fn completed(&mut self) {
        match core::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::Accepting(stream) => self.phase = Phase::Made(stream),
            Phase::Connecting(ends) => match self.hello() {
                Some(hello) => self.phase = Phase::Made(Box::new(Stream::new(*ends, hello))),
                None => {
                    self.disconnect();
                    drop(ends);
                    self.fail(Errno::EOPNOTSUPP);
                }
            },
            other => self.phase = other,
        }
    }

    /// What the peer said with its request or its answer.
    fn hello(&self) -> Option<Hello> {
        // SAFETY: live; an event that was not acknowledged has its data.
        unsafe {
            let parameters = (*self.id.0).event.as_ref()?.param.conn;
            let data = parameters.private_data.cast::<u8>();
            let length = usize::from(parameters.private_data_len);
            if data.is_null() {
                return None;
            }
            Hello::decode(core::slice::from_raw_parts(data, length))
        }
    }

    /// Has the connection managers forget the connection.
    pub(crate) fn disconnect(&mut self) {
        if !self.is_disconnected {
            self.is_disconnected = true;
            // SAFETY: live. What becomes of it is not waited for.
            let _ = unsafe { connection_calls::disconnect(self.id.0) };
        }
    }

    /// Asks for a connection.
    ///
    /// # Safety
    /// `to` is as long as its family says.
    pub(crate) unsafe fn connect(&mut self, to: *const sockaddr) -> Result<(), Errno> {
        let id = self.id.0;
        // SAFETY: the caller's promise; live.
        let asked = unsafe {
            let begin = || {
                address_calls::resolve_address(id, core::ptr::null(), to)?;
                address_calls::resolve_route(id)?;
                let ends = Box::new(StreamEndpoint::new(id, &self.settings)?);
                let hello = ends.hello();
                let parameters = rdma_conn_param {
                    private_data: hello.as_ptr().cast(),
                    private_data_len: hello.len() as u8,
                    flow_control: 1,
                    retry_count: 7,
                    rnr_retry_count: 7,
                    ..core::mem::zeroed()
                };
                // An answer may be there already.
                match connection_calls::connect(id, &parameters) {
                    Ok(()) => Ok((ends, true)),
                    Err(Errno::EAGAIN) => Ok((ends, false)),
                    Err(errno) => Err(errno),
                }
            };
            begin()
        };
        let (ends, has_answer) = asked.inspect_err(|&errno| self.fail(errno))?;
        self.phase = Phase::Connecting(ends);
        if has_answer {
            self.completed();
        }
        Ok(())
    }

    /// Accepts the request that the identifier comes from.
    fn accept(&mut self) -> Result<(), Errno> {
        let hello = self.hello().ok_or(Errno::EPROTO)?;
        let id = self.id.0;
        // SAFETY: live; its event is not acknowledged.
        unsafe {
            let ends = StreamEndpoint::new(id, &self.settings)?;
            let said = ends.hello();
            let parameters = rdma_conn_param {
                private_data: said.as_ptr().cast(),
                private_data_len: said.len() as u8,
                responder_resources: 0,
                initiator_depth: 0,
                ..(*(*id).event).param.conn
            };
            let stream = Box::new(Stream::new(ends, hello));
            self.phase = match connection_calls::accept(id, &parameters) {
                Ok(()) => Phase::Made(stream),
                Err(Errno::EAGAIN) => Phase::Accepting(stream),
                Err(errno) => return Err(errno),
            };
        }
        Ok(())
    }
}

impl WaitableState for Inner {
    fn progress(&mut self) {
        Inner::progress(self);
    }

    fn fd(&self) -> c_int {
        self.id.fd()
    }

    fn queues(&self) -> Option<&Queues> {
        match &self.phase {
            Phase::Made(stream) => Some(stream.queues()),
            _ => None,
        }
    }

    fn gate(&mut self) -> &mut WaiterElection {
        &mut self.gate
    }

    fn is_for_all(&self) -> bool {
        // A listener's requests go to the first caller: there is nothing to hold back.
        !matches!(self.phase, Phase::Listening | Phase::Failed)
    }
}

impl WaitableSocket for Socket {
    type Inner = Inner;

    fn lock(&self) -> MutexGuard<'_, Inner> {
        Socket::lock(self)
    }
}

impl Socket {
    fn with(inner: Inner) -> Socket {
        Socket {
            number: inner.id.fd(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            process: process_id_across_fork::this(),
            inner: Mutex::new(inner),
        }
    }

    /// A new one for addresses of this family, with what `F_SETFL` would say.
    ///
    /// # Errors
    /// `ENODEV`: there is no device; a quota's `ENOMEM`.
    pub(crate) fn new(family: c_int, flags: c_int) -> Result<Socket, Errno> {
        let id = OwnedCmId::new(RDMA_PS_TCP, IBV_QPT_RC)?;
        // SAFETY: live, and ours alone.
        unsafe { (*id.0).route.addr.src_storage.ss_family = family as u16 };
        Ok(Socket::with(Inner { flags, ..Inner::with(id, Phase::New) }))
    }

    /// Whether this process made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == process_id_across_fork::this()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The next connection that a peer asked for at this listener.
    ///
    /// # Errors
    /// `EAGAIN`: none now. `ENODEV`: its daemon is gone, and no request will come any more.
    pub(crate) fn accept(&self) -> Result<Socket, Errno> {
        static ACCEPT: LoggedCall = LoggedCall::new("raccept", AttemptedStep::Accept);
        loop {
            let mut inner = {
                let mut listener = self.lock();
                // Its event stays where it is, for all sleepers on the descriptor.
                // SAFETY: live.
                if unsafe { IdShell::of(listener.id.0) }.handle().is_err() {
                    listener.fail(Errno::ENODEV);
                    return Err(Errno::ENODEV);
                }
                // SAFETY: live.
                let id = OwnedCmId(unsafe { crate::endpoint::next_request(listener.id.0) }?);
                id.do_not_wait();
                Inner {
                    settings: listener.settings,
                    options: listener.options,
                    flags: listener.flags,
                    descriptor_flags: listener.descriptor_flags,
                    ..Inner::with(id, Phase::New)
                }
            };
            match inner.accept() {
                Ok(()) => return Ok(Socket::with(inner)),
                // A peer that speaks otherwise, or is too much for us, is refused; the next may
                // be accepted.
                // SAFETY: live.
                Err(errno) => unsafe {
                    let _ = ACCEPT.explain(Err::<(), _>(errno));
                    connection_calls::ov_rdma_reject(inner.id.0, core::ptr::null(), 0);
                },
            }
        }
    }
}
