//! What clients send is taken, and their sockets are let go of, without ever discarding anything
//! of theirs in this thread: see `omniverb_sys::descriptors`.

use crate::journal::Level;
use crate::server::Server;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_sys::descriptors::{self, Plain};
use omniverb_sys::{clock, memfd, socket};
use omniverb_tenancy::{Channel, SessionId};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A message, its length, and what came with it.
pub(crate) type Received = ([u8; MESSAGE_BYTES_MAX], usize);

impl Server {
    /// Notes that a client's connection is to end.
    pub(crate) fn part(&mut self, id: SessionId, reason: &'static str) {
        if self.clients.contains_key(&id) {
            self.parting.push((id, reason));
        }
    }

    /// Ends a client's connection; everything it had goes.
    pub(crate) fn end(&mut self, id: SessionId, reason: &'static str) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.refused -= usize::from(client.vnic.is_err());
        let pid = client.peer.pid;
        self.journal.log(Level::Debug, format_args!("client {} (pid {pid}): {reason}", id.0));
        let _ = self.poller.remove(&client.calls);
        if let Some(events) = &client.events {
            let _ = self.poller.remove(events);
        }
        if let Some(pidfd) = &client.pidfd {
            let _ = self.poller.remove(pidfd);
        }
        if let Ok(key) = client.vnic
            && let Some(entry) = self.namespaces.get_mut(key)
        {
            entry.queued -= client.events_box.descriptors();
            entry.half_open.remove(&id);
        }
        self.half_open_of.remove(&id);
        let actions = self.tenancy.end(id, clock::now());
        self.work.extend(actions);
        // While its namespace is still known: the engine must hear of what is closed.
        while let Some(action) = self.work.pop_front() {
            self.execute(action);
        }
        if let Ok(key) = client.vnic {
            self.leave(key);
        }
        self.let_go(client.calls);
        if let Some(events) = client.events {
            self.let_go(events);
        }
    }

    /// The next message of a client; notes its end if that is what there is.
    pub(crate) fn receive(&mut self, id: SessionId, channel: Channel) -> Option<Received> {
        let parting = self.parting.iter().any(|(session, _)| *session == id);
        let client = self.clients.get(&id).filter(|_| !parting)?;
        let from: BorrowedFd<'_> = match channel {
            Channel::Calls => client.calls.as_fd(),
            Channel::Events => client.events.as_ref()?.as_fd(),
        };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        match descriptors::receive(from, &mut bytes) {
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
    pub(crate) fn let_go(&mut self, socket: OwnedFd) {
        if descriptors::is_spent(&socket) {
            return;
        }
        self.disposal.bin().put(socket);
    }

    /// Has a descriptor closed that came with a message. What is no memory file stays open:
    /// closing even a copy of it may ask a file system that never answers.
    pub(crate) fn keep(&mut self, file: OwnedFd) {
        match memfd::seals(file.as_fd()) {
            Ok(_) => self.disposal.bin().put(file),
            Err(_) => std::mem::forget(file),
        }
    }

    /// Lets go of everything that others have a hand in, before the daemon ends. Links go on.
    pub(crate) fn close(&mut self) {
        self.place.close();
        self.operators_place.close();
        for client in std::mem::take(&mut self.clients).into_values() {
            self.let_go(client.calls);
            if let Some(events) = client.events {
                self.let_go(events);
            }
        }
        for arrival in std::mem::take(&mut self.arrivals).into_values() {
            self.let_go(arrival.calls);
        }
        for id in self.operators.keys().copied().collect::<Vec<_>>() {
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
