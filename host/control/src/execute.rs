//! What the tables decided is carried out.

use crate::journal::Level;
use crate::memory::{self, Shared};
use crate::outbox::{Outbox, Parcel, Sent};
use crate::server::{Server, Timer, token};
use omniverb_session::Message;
use omniverb_session::body::Welcome;
use omniverb_sys::{clock, descriptors, socket};
use omniverb_tenancy::{Action, LinkEnd, SessionId};
use omniverb_terms::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of messages, with what the kernel needs to keep them, that a client may leave unread and
/// not count as behind: some thirty messages.
const UNREAD_MAX: usize = 32 << 10;

/// When to try again after clients held too many of our descriptors unread.
const DESCRIPTORS_AGAIN: Duration = Duration::from_millis(10);

impl Server {
    pub(crate) fn execute(&mut self, action: Action) {
        match action {
            Action::Reply { session, tag, message: Message::Welcome(welcome) } => {
                self.welcome(session, tag, &welcome);
            }
            Action::Reply { session, tag, message } => {
                self.answer(session, tag, &message, Vec::new());
            }
            Action::Event { session, message } => self.tell(session, &message, Vec::new()),
            Action::LookAgain { session } => self.look_at_backlog(session),
            Action::CreateLink { first, second } => self.create_link(&first, &second),
            Action::AttachEngine(end) => self.attach_engine(*end),
            Action::DetachEngine { vnic, qpn, peer_qpn } => {
                self.detach_engine(vnic, qpn, peer_qpn);
            }
            Action::Adopt { session, adopt, file, new_file } => {
                self.adopt(session, &adopt, (file, new_file));
            }
            Action::ForgetFile { file } => self.forget_file(file),
            Action::EmptyPlace { place } => self.extents.empty(&place),
            Action::Grant { session, file, granted } => {
                if let Some(file) = self.extents.file(file) {
                    self.tell(session, &Message::Granted(granted), vec![file]);
                }
            }
            Action::GrantEngine { vnic, file, granted } => {
                if let Some(file) = self.extents.file(file) {
                    self.engine.grant(vnic, &granted, file);
                }
            }
            Action::DenyEngine { vnic, denied } => self.engine.deny(vnic, &denied),
            Action::BeginTrace { session } => self.begin_trace(session),
            Action::EndTrace { session } => self.end_trace(session),
            Action::Trace(end) => self.trace(&end),
            Action::Untrace { session, qpn, peer_qpn } => self.untrace(session, qpn, peer_qpn),
            Action::Probe { id, vnic, interface, destination } => {
                self.start_probe(id, vnic, interface, destination);
            }
            Action::ForgetProbe { id } => self.probes.forget(id),
            Action::ReadAddresses { vnic } => {
                self.namespaces.read_addresses(vnic, clock::now());
            }
            Action::OpenPort { vnic } => {
                self.namespaces.port_is_coming(vnic, clock::now());
            }
            Action::Audit(audited) => self.audit(&audited),
            Action::Drop { session, reason } => self.part(session, reason),
            Action::VnicGone { vnic } => self.close_port(vnic),
        }
    }

    fn welcome(&mut self, id: SessionId, tag: u64, welcome: &Welcome) {
        self.fully_open(id);
        let Some(client) = self.clients.get_mut(&id) else { return };
        let made = socket::pair().and_then(|(ours, theirs)| {
            let area = client.make_area()?;
            if self.settings.refuse_descriptors {
                let _ = descriptors::refuse(ours.as_fd());
            }
            self.poller.add(&ours, token::new(token::EVENTS, id.0))?;
            client.events = Some(ours);
            Ok((vec![Arc::new(theirs), area.file.clone()], memory::said(&area)))
        });
        match made {
            Ok((files, area)) => {
                let message = Welcome { area, ..*welcome }.into();
                self.answer(id, tag, &message, files);
            }
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no events socket: {error}"));
                self.answer(id, tag, &Message::Failed(Errno::ENOMEM), Vec::new());
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
    pub(crate) fn tell(&mut self, id: SessionId, message: &Message, parcels: Vec<Parcel>) {
        self.with_events(id, |outbox, events| outbox.push(events, 0, message, parcels));
        self.look_at_backlog(id);
    }

    /// Tells the tables whether a client has left more than a little of what it was told.
    fn look_at_backlog(&mut self, id: SessionId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(events) = &client.events else { return };
        let unread = || socket::unread(events.as_fd()).unwrap_or(0);
        let behind = !client.events_box.is_empty() || unread() > UNREAD_MAX;
        if client.behind != behind {
            client.behind = behind;
            self.tenancy.behind(id, behind);
        }
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
        match Shared::make(&first.ready) {
            Ok(shared) => {
                for end in [first, second] {
                    let (ready, files) = shared.told(&end.ready);
                    self.tell(end.session, &ready.into(), files);
                }
            }
            Err(error) => {
                self.journal.log(Level::Warning, format_args!("no memory for a link: {error}"));
                let (one, other) = (first.ready.qpn, second.ready.qpn);
                let actions = self.tenancy.link_failed(one, other, clock::now());
                self.work.extend(actions);
            }
        }
    }
}
