//! What clients are told, and what is done if they do not take it.

use crate::outbox::{Letter, Sent};
use crate::server::Server;
use crate::timers::Timer;
use crate::token;
use omniverb_tenancy::SessionId;
use std::time::Duration;

/// When to try again after clients held too many of our descriptors unread.
const DESCRIPTORS_AGAIN: Duration = Duration::from_millis(10);

impl Server {
    /// Answers a call.
    pub(super) fn answer(&mut self, id: SessionId, tag: u64, letter: Letter) {
        let sent = self.clients.get_mut(id).and_then(|client| client.answer(tag, letter));
        self.after_answer(id, sent);
    }

    pub(super) fn flush_calls(&mut self, id: SessionId) {
        let sent = self.clients.get_mut(id).and_then(|client| client.flush_answers());
        self.after_answer(id, sent);
    }

    /// Waits for what the rest of a client's answers need; until then it is not listened to.
    fn after_answer(&mut self, id: SessionId, sent: Option<Sent>) {
        let (Some(client), Some(sent)) = (self.clients.get(id), sent) else { return };
        let token = token::new(token::CALLS, id.0);
        let _ = self.poller.watch(client.calls(), token, sent == Sent::All, sent == Sent::Room);
        match sent {
            Sent::All | Sent::Room => {}
            Sent::Descriptors => self.flush_later(id),
            Sent::Over => self.part(id, "does not take its answers"),
        }
    }

    fn flush_later(&mut self, id: SessionId) {
        if let Some(client) = self.clients.get_mut(id)
            && client.wants_flush_timer()
        {
            self.timers.set(DESCRIPTORS_AGAIN, Timer::Flush(id));
        }
    }

    /// The timer set by `flush_later`.
    pub(super) fn flush_due(&mut self, id: SessionId) {
        if let Some(client) = self.clients.get_mut(id) {
            client.flush_timer_due();
        }
        self.flush_calls(id);
        self.flush_events(id);
    }

    /// Tells a client something it did not ask for.
    pub(super) fn tell(&mut self, id: SessionId, letter: Letter) {
        self.with_events(id, Some(letter));
        self.look_at_backlog(id);
    }

    pub(super) fn flush_events(&mut self, id: SessionId) {
        self.with_events(id, None);
    }

    /// Tells the tables whether a client has left more than a little of what it was told.
    pub(super) fn look_at_backlog(&mut self, id: SessionId) {
        let change = self.clients.get_mut(id).and_then(|client| client.backlog_change());
        if let Some(behind) = change {
            self.tenancy.behind(id, behind);
        }
    }

    /// Sends a client's events, then waits for what the rest of them need.
    fn with_events(&mut self, id: SessionId, letter: Option<Letter>) {
        let most = self.settings.queued_descriptors;
        let Some(sent) = self.clients.tell(id, letter, most) else { return };
        if let Some(events) = self.clients.get(id).and_then(|client| client.events()) {
            let token = token::new(token::EVENTS, id.0);
            let _ = self.poller.watch(events, token, true, sent == Sent::Room);
        }
        match sent {
            Sent::All | Sent::Room => {}
            Sent::Descriptors => self.flush_later(id),
            Sent::Over => self.part(id, "does not take its events"),
        }
    }
}
