//! The two sockets to the daemon.
//!
//! Calls are strictly one at a time: the lock is held from question to answer. Events are read by
//! the progress thread alone.

use crate::{NoDevice, VirtualNic, daemon, errno_of, lock};
use omniverb_session::body::{Hello, ROLE_VERBS, Welcome};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, decode, encode};
use omniverb_sys::socket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

pub(crate) struct Session {
    calls: Mutex<Calls>,
    events: Mutex<Option<Arc<OwnedFd>>>,
}

struct Calls {
    socket: Option<OwnedFd>,
    tag: u64,
}

/// What a call fails with when the daemon is gone. An answer of the daemon never carries it.
const LOST: i32 = libc::EPIPE;

/// Whether an errno of a call means that the daemon is gone.
pub(crate) fn is_lost(errno: i32) -> bool {
    errno == LOST
}

impl Session {
    /// Connects to the first daemon that answers.
    pub(crate) fn connect() -> Result<(Session, VirtualNic, OwnedFd), NoDevice> {
        let (calls, Welcomed { events, area, nic }) = open(false)?;
        let calls = Calls { socket: Some(calls), tag: 1 };
        let events = Mutex::new(Some(Arc::new(events)));
        Ok((Session { calls: Mutex::new(calls), events }, nic, area))
    }

    /// Connects anew after the daemon went away, and has `announce` tell it what we hold, before
    /// anybody else can call. `None`: another thread has done so meanwhile.
    pub(crate) fn reopen(
        &self,
        announce: impl FnOnce(&mut dyn FnMut(&Message) -> Result<Message, i32>) -> Result<(), i32>,
    ) -> Result<Option<(VirtualNic, OwnedFd)>, i32> {
        let mut calls = lock(&self.calls);
        if calls.socket.is_some() && self.events().is_some() {
            return Ok(None);
        }
        let (socket, Welcomed { events, area, nic }) = open(true).map_err(|error| match error {
            NoDevice::NoDaemon(_, _) => libc::EPIPE,
            NoDevice::Refused(_, errno) | NoDevice::Resources(errno) => errno,
        })?;
        let mut tag = 1;
        announce(&mut |message| exchange(socket.as_fd(), &mut tag, message))?;
        *calls = Calls { socket: Some(socket), tag };
        *lock(&self.events) = Some(Arc::new(events));
        Ok(Some((nic, area)))
    }

    /// One question, one answer.
    pub(crate) fn call(&self, message: &Message) -> Result<Message, i32> {
        let mut calls = lock(&self.calls);
        let Calls { socket, tag } = &mut *calls;
        let Some(open) = socket else { return Err(libc::EPIPE) };
        let answer = exchange(open.as_fd(), tag, message);
        if let Err(errno) = answer
            && is_lost(errno)
        {
            *socket = None;
        }
        answer
    }

    /// The events socket, while there is a daemon.
    pub(crate) fn events(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.events).clone()
    }

    /// Whether there is a daemon to call, as far as we know.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.calls).socket.is_some()
    }

    /// The daemon closed the events socket.
    pub(crate) fn lost_events(&self, which: &Arc<OwnedFd>) {
        let mut events = lock(&self.events);
        if events.as_ref().is_some_and(|now| Arc::ptr_eq(now, which)) {
            *events = None;
            drop(events);
            lock(&self.calls).socket = None;
        }
    }
}

/// What a daemon says to a hello.
struct Welcomed {
    /// Our end of the events socket.
    events: OwnedFd,
    /// The statistics area.
    area: OwnedFd,
    nic: VirtualNic,
}

fn open(resume: bool) -> Result<(OwnedFd, Welcomed), NoDevice> {
    let mut failure = None;
    for path in daemon::sockets() {
        let name = path.display().to_string();
        match socket::connect(&path) {
            Ok(socket) => {
                let welcomed =
                    greet(&socket, resume).map_err(|errno| NoDevice::Refused(name, errno))?;
                return Ok((socket, welcomed));
            }
            Err(error) => {
                failure.get_or_insert(NoDevice::NoDaemon(name, errno_of(&error)));
            }
        }
    }
    Err(failure.unwrap_or(NoDevice::Resources(libc::ENOENT)))
}

fn greet(socket: &OwnedFd, resume: bool) -> Result<Welcomed, i32> {
    let hello = Hello { role: ROLE_VERBS, resume: u32::from(resume), name: process_name() };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(0, &hello.into(), &mut bytes);
    socket::send(socket.as_fd(), &bytes[..length], &[]).map_err(|e| errno_of(&e))?;
    let (length, descriptors) =
        socket::receive(socket.as_fd(), &mut bytes, true).map_err(|e| errno_of(&e))?;
    if length == 0 {
        return Err(libc::ECONNRESET);
    }
    match decode(&bytes[..length]) {
        Ok((_, Message::Welcome(welcome))) => {
            let [events, area] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| libc::EPROTO)?;
            let Welcome { node_guid, qp_max, mr_max, link_max, .. } = welcome;
            let nic = VirtualNic { node_guid, qp_max, mr_max, link_max };
            Ok(Welcomed { events, area, nic })
        }
        Ok((_, Message::Failed(errno))) => Err(errno as i32),
        _ => Err(libc::EPROTO),
    }
}

fn exchange(socket: BorrowedFd<'_>, tag: &mut u64, message: &Message) -> Result<Message, i32> {
    *tag += 1;
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(*tag, message, &mut bytes);
    let transport = |error: std::io::Error| match errno_of(&error) {
        libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => LOST,
        other => other,
    };
    socket::send(socket, &bytes[..length], &[]).map_err(transport)?;
    let (length, _) = socket::receive(socket, &mut bytes, true).map_err(transport)?;
    if length == 0 {
        return Err(LOST);
    }
    match decode(&bytes[..length]) {
        Ok((answered, _)) if answered != *tag => Err(libc::EPROTO),
        // ENOTCONN, say, is about a QP, not about the connection to the daemon.
        Ok((_, Message::Failed(errno))) if errno as i32 == LOST => Err(libc::EIO),
        Ok((_, Message::Failed(errno))) => Err(errno as i32),
        Ok((_, answer)) => Ok(answer),
        Err(_) => Err(libc::EPROTO),
    }
}

/// `comm`, for `omniverb status`.
fn process_name() -> [u8; 16] {
    let mut name = [0; 16];
    let comm = rustix::thread::name().unwrap_or_default();
    let bytes = comm.as_bytes();
    let length = bytes.len().min(15);
    name[..length].copy_from_slice(&bytes[..length]);
    name
}
