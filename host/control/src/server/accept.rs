//! Accepts clients, and takes their messages.

use crate::client_outbox::Letter;
use crate::server::Server;
use crate::server::operation_contexts::Delivery;
use omniverb_session::{Header, Message, decode};
use omniverb_sys::clock;
use omniverb_tenancy::{Arrived, Channel, SessionId};
use omniverb_terms::Errno;

/// Budget: connections accepted, and events read from one client, before others get their turn.
const TURN: usize = 32;

impl Server {
    pub(super) fn accept(&mut self) {
        for _ in 0..TURN {
            let accepted = self.arrivals.listener().accept(&mut self.reactor, &mut self.journal);
            let Some(calls) = accepted else { return };
            self.admit(calls);
        }
    }

    /// One call: its client waits for the answer, and has no other call to make.
    pub(super) fn calls_ready(&mut self, id: SessionId) {
        self.clients.flush_answers(id, &mut self.reactor);
        // A client that does not take its answers is not read from.
        if !self.clients.get(id).is_some_and(|client| client.listens()) {
            return;
        }
        let Some((bytes, length)) = self.clients.receive(id, Channel::Calls) else { return };
        self.call(id, &bytes[..length]);
        self.carry_on();
    }

    pub(super) fn events_ready(&mut self, id: SessionId) {
        self.clients.flush_events(id, &mut self.reactor);
        for _ in 0..TURN {
            let Some((bytes, length)) = self.clients.receive(id, Channel::Events) else { return };
            match decode(&bytes[..length]) {
                Ok((_, Message::LetGo(said))) => self.clients.let_go(id, &said),
                Ok((tag, message)) => self.hand_over(id, Channel::Events, tag, message),
                Err(_) => self.clients.part(id, "sent a malformed message"),
            }
            self.carry_on();
        }
    }

    fn call(&mut self, id: SessionId, bytes: &[u8]) {
        let Some(vnic) = self.clients.get(id).map(|client| client.vnic()) else { return };
        let own = vnic.unwrap_or(self.vnics.registry().home());
        let refused = vnic.err();
        match decode(bytes) {
            Ok((tag, _)) if refused.is_some() => {
                let answer = Message::Failed(refused.unwrap_or(Errno::EPERM));
                self.delivery().answer(id, tag, Letter::of(answer));
                let reason = "is not allowed, or in a network namespace that is not served";
                self.clients.part(id, reason);
            }
            Ok((tag, Message::QueryStatus(m))) => {
                let answer = self.status_rows().status_slice(Some(own), m.from);
                self.delivery().answer(id, tag, Letter::of(answer));
            }
            Ok((tag, Message::QueryVnic(_))) => {
                let answer = self.status_rows().policy_slice(own);
                self.delivery().answer(id, tag, Letter::of(answer));
            }
            Ok((tag, Message::ConnectQp(m)))
                if m.resume == 0 && self.clients.source(id).is_full() =>
            {
                self.delivery().answer(id, tag, Letter::of(Message::Failed(Errno::ENOMEM)));
            }
            Ok((tag, message)) => self.hand_over(id, Channel::Calls, tag, message),
            Err(_) => {
                // Another version, most likely: say so in the part that all versions share.
                if let Some(tag) = tag_of(bytes) {
                    self.delivery().answer(id, tag, Letter::of(Message::Failed(Errno::EPROTO)));
                }
                self.clients.part(id, "sent a malformed message");
            }
        }
    }

    /// A message for the tables, with the facts about the memory that it brings.
    fn hand_over(&mut self, id: SessionId, channel: Channel, tag: u64, mut message: Message) {
        self.tables.note(|tables| tables.read_numbers(id, &mut message));
        let memory = match &message {
            Message::Adopted(adopted) => {
                let file = self.tables.file_asked_for(adopted.token);
                file.and_then(|file| self.extents.facts(file))
            }
            _ => None,
        };
        let going = match &message {
            Message::DestroyQp(m) => {
                let slot = self.tables.slot_of(id, m.qpn);
                slot.map(|slot| (m.qpn, self.clients.get(id).and_then(|c| c.counters(slot))))
            }
            _ => None,
        };
        if matches!(message, Message::ConnectQp(_)) && !self.machines.is_empty() {
            // What comes back of a pair window is emptied first, by a thread of its own.
            self.pair_windows().look_at_pairs_of(id);
            self.tell_pairs();
        }
        let arrived = Arrived { channel, tag, message, memory };
        self.tables.decide(|tables| tables.handle(id, &arrived, clock::now()));
        // One that may not go yet counts when it does.
        if let Some((qpn, words)) = going
            && self.tables.slot_of(id, qpn).is_none()
        {
            words.iter().for_each(|words| self.count(id, words));
            self.clients.drop_links_of(id, qpn);
        }
        self.carry_on();
    }
}

impl Delivery<'_> {
    /// Answers a call.
    pub(super) fn answer(&mut self, id: SessionId, tag: u64, mut letter: Letter) {
        self.tables.note(|tables| tables.show_numbers(id, letter.message_mut()));
        self.clients.answer(id, tag, letter, self.reactor);
    }

    /// Tells a client something it did not ask for.
    pub(super) fn tell(&mut self, id: SessionId, mut letter: Letter) {
        self.tables.note(|tables| tables.show_numbers(id, letter.message_mut()));
        self.clients.tell(id, letter, self.reactor);
        self.look_at_backlog(id);
    }

    /// Tells the tables whether a client has left more than a little unread.
    pub(super) fn look_at_backlog(&mut self, id: SessionId) {
        if let Some(pace) = self.clients.pace_change(id) {
            self.tables.note(|tables| tables.set_pace(id, pace));
        }
    }
}

/// The tag of something that starts like a message.
pub(super) fn tag_of(bytes: &[u8]) -> Option<u64> {
    let start = std::mem::offset_of!(Header, tag);
    Some(u64::from_ne_bytes(bytes.get(start..start + 8)?.try_into().ok()?))
}
