//! What the tables decided is carried out.

use crate::journal::Level;
use crate::memory;
use crate::namespaces::Opening;
use crate::outbox::{Outbox, Parcel, Sent};
use crate::probes;
use crate::server::{Server, Timer, token};
use omniverb_session::Message;
use omniverb_sys::{clock, socket};
use omniverb_tenancy::{Action, LinkEnd, ProbeId, SessionId, VnicKey, errno};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// When to try again after clients held too many of our descriptors unread.
const DESCRIPTORS_AGAIN: Duration = Duration::from_millis(10);

/// Datagrams read from a vNIC's port in one turn.
const DATAGRAMS_PER_TURN: usize = 64;

/// Datagrams thrown away at most before a handshake: as many small ones as a socket holds.
const DATAGRAMS_DRAINED: usize = 512;

impl Server {
    pub(crate) fn execute(&mut self, action: Action) {
        match action {
            Action::Reply { session, tag, message: message @ Message::Welcome(_) } => {
                self.welcome(session, tag, &message);
            }
            Action::Reply { session, tag, message } => {
                self.answer(session, tag, &message, Vec::new());
            }
            Action::Event { session, message } => self.tell(session, &message, Vec::new()),
            Action::CreateLink { first, second } => self.create_link(&first, &second),
            Action::Grant { session, granted } => {
                if let Some(file) = self.attached.take() {
                    self.tell(session, &Message::Granted(granted), vec![Arc::new(file)]);
                }
            }
            Action::Probe { id, vnic, interface, destination } => {
                self.start_probe(id, vnic, interface, destination);
            }
            Action::ForgetProbe { id } => self.probes.forget(id),
            Action::ReadAddresses { vnic } => self.namespaces.read_addresses(vnic),
            Action::OpenPort { vnic } => {
                // Without privilege there are no other namespaces to look for.
                if self.privileged {
                    self.namespaces.open_port(vnic);
                }
            }
            Action::Drop { session, reason } => self.part(session, reason),
            Action::VnicGone { vnic } => {
                if let Some(entry) = self.namespaces.get_mut(vnic) {
                    entry.port = Opening::No;
                }
            }
        }
    }

    fn welcome(&mut self, id: SessionId, tag: u64, message: &Message) {
        self.fully_open(id);
        if self.tenancy.is_tool(id) {
            return self.answer(id, tag, message, Vec::new());
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        let made = socket::pair().and_then(|(ours, theirs)| {
            self.poller.add(&ours, token::new(token::EVENTS, id.0))?;
            client.events = Some(ours);
            Ok(theirs)
        });
        match made {
            Ok(theirs) => self.answer(id, tag, message, vec![Arc::new(theirs)]),
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no events socket: {error}"));
                self.answer(id, tag, &Message::Failed(errno::ENOMEM), Vec::new());
                self.part(id, "could not be served");
            }
        }
    }

    /// Answers a call.
    pub(crate) fn answer(
        &mut self,
        id: SessionId,
        tag: u64,
        message: &Message,
        parcels: Vec<Parcel>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let idle = client.calls_box.is_empty();
        let sent = client.calls_box.push(client.calls.as_fd(), tag, message, parcels);
        if !idle || sent != Sent::All {
            self.after_answer(id, sent);
        }
    }

    pub(crate) fn flush_calls(&mut self, id: SessionId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.calls_box.is_empty() {
            return;
        }
        let sent = client.calls_box.flush(client.calls.as_fd());
        self.after_answer(id, sent);
    }

    /// Waits for what the rest of a client's answers need; until then it is not listened to.
    fn after_answer(&mut self, id: SessionId, sent: Sent) {
        let Some(client) = self.clients.get(&id) else { return };
        let token = token::new(token::CALLS, id.0);
        let _ = self.poller.watch(&client.calls, token, sent == Sent::All, sent == Sent::Room);
        match sent {
            Sent::All | Sent::Room => {}
            Sent::Descriptors => self.flush_later(id),
            Sent::Over => self.part(id, "does not take its answers"),
        }
    }

    fn flush_later(&mut self, id: SessionId) {
        if let Some(client) = self.clients.get_mut(&id)
            && !std::mem::replace(&mut client.flush_timer, true)
        {
            self.set_timer(DESCRIPTORS_AGAIN, Timer::Flush(id));
        }
    }

    /// The timer set by `flush_later`.
    pub(crate) fn flush_due(&mut self, id: SessionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.flush_timer = false;
        }
        self.flush_calls(id);
        self.flush_events(id);
    }

    /// Tells a client something it did not ask for.
    fn tell(&mut self, id: SessionId, message: &Message, parcels: Vec<Parcel>) {
        self.with_events(id, |outbox, events| outbox.push(events, 0, message, parcels));
    }

    pub(crate) fn flush_events(&mut self, id: SessionId) {
        let waiting = self.clients.get(&id).is_some_and(|client| !client.events_box.is_empty());
        if waiting {
            self.with_events(id, Outbox::flush);
        }
    }

    /// Does something with a client's events, then waits for what the rest of them need.
    fn with_events(
        &mut self,
        id: SessionId,
        act: impl FnOnce(&mut Outbox, BorrowedFd<'_>) -> Sent,
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(events) = &client.events else { return };
        let (idle, held) = (client.events_box.is_empty(), client.events_box.descriptors());
        let sent = act(&mut client.events_box, events.as_fd());
        if idle && sent == Sent::All {
            return;
        }
        let token = token::new(token::EVENTS, id.0);
        let _ = self.poller.watch(events, token, true, sent == Sent::Room);
        let mut over = sent == Sent::Over;
        if let Ok(key) = client.vnic
            && let Some(entry) = self.namespaces.get_mut(key)
        {
            entry.queued = entry.queued - held + client.events_box.descriptors();
            over |= entry.queued > self.settings.queued_descriptors;
        }
        if over {
            self.part(id, "does not take its events");
        } else if sent == Sent::Descriptors {
            self.flush_later(id);
        }
    }

    fn create_link(&mut self, first: &LinkEnd, second: &LinkEnd) {
        match memory::make(&first.ready) {
            Ok(shared) => {
                self.tell(first.session, &first.ready.into(), shared.first);
                self.tell(second.session, &second.ready.into(), shared.second);
            }
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no memory for a link: {error}"));
                let (one, other) = (first.ready.qpn, second.ready.qpn);
                let actions = self.tenancy.link_failed(one, other, clock::now());
                self.work.extend(actions);
            }
        }
    }

    fn start_probe(&mut self, id: ProbeId, vnic: VnicKey, interface: u32, destination: [u8; 16]) {
        let now = clock::now();
        let port = self.namespaces.get_mut(vnic).map(|entry| &entry.port);
        match port {
            Some(Opening::Open(_) | Opening::Asked) => {
                if self.probes.is_empty() {
                    self.drain_ports();
                }
                // The datagram itself is sent by the timers, after this.
                self.probes.start(id, vnic, interface, destination, now);
            }
            Some(Opening::No | Opening::Failed) | None => {
                let actions = self.tenancy.probe_failed(id, now);
                self.work.extend(actions);
            }
        }
    }

    pub(crate) fn send_probe(&mut self, id: ProbeId, vnic: VnicKey, to: IpAddr, interface: u32) {
        let Some(entry) = self.namespaces.get_mut(vnic) else { return };
        if let Opening::Open(port) = &entry.port {
            // No route, or a packet filter: the same as no answer.
            let _ = port.send(&probes::datagram(id), to, interface);
        }
    }

    /// Handshake sockets are looked at only while a handshake is under way: nobody can keep the
    /// daemon busy by sending to them.
    pub(crate) fn watch_ports(&mut self) {
        if self.probes.is_empty() {
            return self.unwatch_ports();
        }
        if self.ports_watched {
            return;
        }
        self.ports_watched = true;
        for (number, port) in self.namespaces.ports() {
            for socket in port.sockets() {
                let _ = self.poller.add(socket, token::new(token::PORT, number));
            }
        }
    }

    /// What came while nobody looked is no answer to anything.
    fn drain_ports(&self) {
        for (_, port) in self.namespaces.ports() {
            let junk = (0..DATAGRAMS_DRAINED).take_while(|_| port.receive(&mut [0; 1]).is_some());
            let _ = junk.count();
        }
    }

    pub(crate) fn unwatch_ports(&mut self) {
        if std::mem::take(&mut self.ports_watched) {
            for socket in self.namespaces.ports().flat_map(|(_, port)| port.sockets()) {
                let _ = self.poller.remove(socket);
            }
        }
    }

    pub(crate) fn port_ready(&mut self, number: u64) {
        let mut numbers = Vec::new();
        let Some((vnic, port)) = self.namespaces.by_number(number) else { return };
        let mut buffer = [0; probes::DATAGRAM_BYTES + 1];
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some(length) = port.receive(&mut buffer) else { break };
            numbers.extend(probes::number(&buffer[..length]));
        }
        for id in numbers {
            let actions = self.tenancy.probe_arrived(id, vnic, clock::now());
            self.work.extend(actions);
        }
    }
}
