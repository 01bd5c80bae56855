//! Opens another process's queue pair that receives in an XRC domain (`ibv_open_qp`). The maker's
//! side is in `shared_qp_open_requests.rs`; what they say to each other then is in `shared_qp/`.
//!
//! The opener listens at a socket whose number the kernel draws, and asks all parts of the domain
//! (`xrc_domain_discovery.rs`) for the maker. The maker connects to that socket, and says by what
//! number. As for requests that are handed over, both state in the domain's file what they say, and
//! are heard only from the socket of their part. The maker looks for the statement once more when
//! it is connected: the process that made it is alive, and so the socket is that process's.

use super::xrc_srqs_of_other_processes::serve_domain;
use super::{Client, Membership};
use crate::errno_conversion::errno_of;
use crate::shared_qp::{MakerConnection, WatchedProcess};
use crate::xrc_domain_discovery::{ASKED_MAX, DomainMember, PAUSE, SendOutcome};
use omniverb_device::{Qp, QpSpec};
use omniverb_ring::Window;
use omniverb_session::body::OpenQp;
use omniverb_session::limits::STATISTICS_SLOT_BYTES;
use omniverb_session::shared_qp_messages::{self, Ask, Attributes};
use omniverb_sys::{autobind_socket, clock};
use omniverb_terms::{Errno, Qpn, Service};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A queue pair of another process, as long as this process has it open.
pub struct OpenedQp {
    /// In its place: of its number, without a connection. Its events come to this one's cookie.
    pub qp: Arc<Qp>,
    client: Arc<Client>,
    line: Option<Arc<MakerConnection>>,
    heard: Vec<u64>,
}

impl OpenedQp {
    fn new(client: &Arc<Client>, number: Qpn, socket: OwnedFd) -> Result<OpenedQp, Errno> {
        let spec = QpSpec::bare(&client.shared, Service::XrcRecv, None);
        // Those that count are the maker's.
        let statistics = Window::private(STATISTICS_SLOT_BYTES);
        let qp = Qp::new(&client.shared, spec, number, statistics).ok_or(Errno::ENOMEM)?;
        let watched = socket.try_clone().map_err(|error| errno_of(&error));
        let line = Arc::new(MakerConnection::new(socket, qp.clone()));
        let (client, heard) = (client.clone(), Vec::new());
        let mut opened = OpenedQp { qp, client, line: Some(line.clone()), heard };
        opened.heard.push(opened.client.service.add(line.clone())?);
        if let Some(watched) = WatchedProcess::of(watched?.as_fd(), &line) {
            opened.heard.push(opened.client.service.add(watched)?);
        }
        Ok(opened)
    }

    /// The program has an object for it, and the cookie names that: it hears what happens from
    /// now on, and what has happened since the queue pair was found.
    pub fn begin_events(&self) {
        if let Some(line) = &self.line {
            line.begin();
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Attributes, Errno> {
        if !self.client.is_ours() {
            return Err(Errno::EIO);
        }
        self.line.as_ref().ok_or(Errno::EIO)?.ask(ask)
    }

    /// Its attributes; once the end of its maker is known, those that were known last, in ERR.
    ///
    /// # Errors
    /// errno: `ETIMEDOUT`: the maker does not answer; `EIO` in a forked child.
    pub fn query(&self) -> Result<Attributes, Errno> {
        let remains = || self.line.as_ref().and_then(|line| line.remains());
        match self.ask(&Ask::QUERY) {
            Err(Errno::EIO) if self.client.is_ours() => remains().ok_or(Errno::EIO),
            answer => answer,
        }
    }

    /// Changes it.
    ///
    /// # Errors
    /// errno: as for a queue pair of this process; `EIO`: its maker has ended; `ETIMEDOUT`: it does
    /// not answer.
    pub fn modify(&self, mask: u32, attributes: Attributes) -> Result<Attributes, Errno> {
        self.ask(&Ask { what: shared_qp_messages::MODIFY, mask, attributes, ..Ask::QUERY })
    }
}

impl Drop for OpenedQp {
    fn drop(&mut self) {
        // A forked child: all of it is its parent's.
        if !self.client.is_ours() {
            std::mem::forget(self.line.take());
            return;
        }
        self.heard.iter().for_each(|number| self.client.service.remove(*number));
        if let Some(line) = self.line.take() {
            line.end();
        }
        self.qp.destroy();
    }
}

impl Membership {
    /// Opens a queue pair that another process of the domain has made, of those that have these
    /// parts. It lives as long as a process has it open, and its maker.
    ///
    /// # Errors
    /// errno: `EINVAL`: there is none of this number; `ENOMEM`: too many have it open; `ETIMEDOUT`:
    /// a part does not answer; `EMFILE`, `EIO` in a forked child.
    pub fn open_qp(&self, number: Qpn, parts: Vec<u32>) -> Result<OpenedQp, Errno> {
        if !self.client.is_ours() {
            return Err(Errno::EIO);
        }
        let place = &self.place;
        serve_domain(&self.client.me, place)?;
        let (listener, door) = autobind_socket::listen().map_err(|error| errno_of(&error))?;
        let ask = OpenQp { qpn: number, door, part: place.part.number, reserved: 0 };
        place.attend(door);
        let found = search(place, &ask, listener.as_fd(), parts);
        place.leave(door);
        place.take_back(ask.statement());
        // Others may have connected there.
        drop(listener);
        OpenedQp::new(&self.client, number, found?)
    }
}

/// Asks all these parts, until one has connected to the door that has the queue pair.
fn search(
    place: &DomainMember,
    ask: &OpenQp,
    door: BorrowedFd<'_>,
    mut parts: Vec<u32>,
) -> Result<OwnedFd, Errno> {
    let (begun, mut pause, mut full) = (clock::now(), PAUSE.0, false);
    loop {
        // The program may have closed another descriptor of the file.
        place.state(ask.statement())?;
        parts.retain(|part| place.tell(*part, &(*ask).into()) != SendOutcome::Nobody);
        let until = clock::now() + pause;
        while !parts.is_empty() && clock::now() < until {
            let left = Duration::from_nanos(until.saturating_sub(clock::now()));
            for (answer, part) in place.answers(ask.door, left) {
                match answer.errno {
                    Errno::NONE if answer.qpn == ask.qpn => {
                        let is_stated = place.is_stated(answer.statement(part));
                        if is_stated && let Some(socket) = admitted(door, answer.by)? {
                            return Ok(socket);
                        }
                    }
                    errno => {
                        full |= errno == Errno::ENOMEM;
                        parts.retain(|other| *other != part);
                    }
                }
            }
        }
        if parts.is_empty() {
            return Err(if full { Errno::ENOMEM } else { Errno::EINVAL });
        }
        if clock::now().saturating_sub(begun) >= ASKED_MAX {
            return Err(Errno::ETIMEDOUT);
        }
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// The process that has connected to a listener by this number, if it has.
fn admitted(door: BorrowedFd<'_>, by: u32) -> Result<Option<OwnedFd>, Errno> {
    while let Some((socket, from)) =
        autobind_socket::accept(door).map_err(|error| errno_of(&error))?
    {
        if from == Some(by) {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}
