//! What clients send is taken, and their sockets are let go of, without ever discarding anything
//! of theirs in this thread: see `omniverb_sys::descriptors`.

use crate::journal::Level;
use crate::server::Server;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_sys::descriptors::{self, Plain};
use omniverb_sys::{clock, memfd, socket};
use omniverb_tenancy::{Channel, SessionId};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A message, its length, and what came with it.
pub(super) type Received = ([u8; MESSAGE_BYTES_MAX], usize);

impl Server {
    /// Notes that a client's connection is to end.
    pub(super) fn part(&mut self, id: SessionId, reason: &'static str) {
        if self.clients.has(id) {
            self.parting.push((id, reason));
        }
    }

    /// Ends a client's connection; everything it had goes.
    pub(super) fn end(&mut self, id: SessionId, reason: &'static str) {
        let Some(client) = self.clients.remove(id) else { return };
        let (pid, vnic) = (client.pid(), client.vnic());
        self.journal.log(Level::Debug, format_args!("client {} (pid {pid}): {reason}", id.0));
        let files = [Some(client.calls()), client.events(), client.pidfd()];
        for file in files.into_iter().flatten() {
            let _ = self.poller.remove(file);
        }
        let actions = self.tenancy.end(id, clock::now());
        self.work.extend(actions);
        // While its namespace is still known: the engine must hear of what is closed.
        self.carry_on();
        if let Ok(vnic) = vnic {
            self.leave(vnic);
        }
        client.into_sockets().for_each(|socket| self.let_go(socket));
    }

    /// The next message of a client; notes its end if that is what there is.
    pub(super) fn receive(&mut self, id: SessionId, channel: Channel) -> Option<Received> {
        let parting = self.parting.iter().any(|(session, _)| *session == id);
        let client = self.clients.get(id).filter(|_| !parting)?;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match client.receive(channel, &mut bytes)? {
            Ok(Plain::Message(0)) => self.part(id, "closed its connection"),
            Ok(Plain::Message(length)) => return Some((bytes, length)),
            // Nobody brings any. They stay in the socket, which somebody else closes.
            Ok(Plain::Descriptors) => self.part(id, "sent descriptors"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                self.part(id, "broke its connection");
            }
            Err(_) => self.part(id, "sent something that is no message"),
        }
        None
    }

    /// Closes a socket whose other end somebody else has.
    pub(super) fn let_go(&mut self, socket: OwnedFd) {
        if descriptors::is_spent(&socket) {
            return;
        }
        self.disposal.bin().put(socket);
    }

    /// Has a descriptor closed that came with a message. What is no memory file stays open:
    /// closing even a copy of it may ask a file system that never answers.
    pub(super) fn keep(&mut self, file: OwnedFd) {
        match memfd::seals(file.as_fd()) {
            Ok(_) => self.disposal.bin().put(file),
            Err(_) => std::mem::forget(file),
        }
    }

    /// Lets go of everything that others have a hand in, before the daemon ends. Links go on.
    pub(super) fn close(&mut self) {
        self.place.close();
        self.operators_place.close();
        for client in self.clients.drain() {
            client.into_sockets().for_each(|socket| self.let_go(socket));
        }
        for arrival in self.arrivals.drain() {
            self.let_go(arrival.calls);
        }
        for id in self.operators.all() {
            self.end_operator(id);
        }
        // Nobody can connect any more; those who have may have sent something.
        while let Ok(Some(calls)) = socket::accept(self.place.listener().as_fd()) {
            self.let_go(calls);
        }
        while let Ok(Some(operator)) = socket::accept(self.operators_place.listener().as_fd()) {
            self.let_go(operator);
        }
        self.disposal.turn(&mut self.journal);
    }
}
