//! Clients come and go, and what they say until then.

use crate::journal::Level;
use crate::outbox::Letter;
use crate::server::Server;
use crate::timers::Timer;
use crate::token;
use omniverb_session::{Header, Message, decode};
use omniverb_sys::{clock, socket};
use omniverb_tenancy::{Arrived, Channel, SessionId};
use omniverb_terms::Errno;
use std::os::fd::AsFd;
use std::time::Duration;

/// Connections accepted, and events read from one client, before others get their turn.
const TURN: usize = 32;

impl Server {
    pub(super) fn accept(&mut self) {
        for _ in 0..TURN {
            match socket::accept(self.place.listener().as_fd()) {
                Ok(Some(calls)) => self.admit(calls),
                Ok(None) => return,
                Err(error) => {
                    // Out of descriptors, most likely. Others keep what they have.
                    self.journal.log(Level::Warning, format_args!("cannot accept: {error}"));
                    let _ = self.poller.remove(self.place.listener());
                    return self.timers.set(Duration::from_millis(100), Timer::Accept);
                }
            }
        }
    }

    pub(super) fn accept_again(&mut self) {
        let token = token::new(token::LISTENER, 0);
        if self.poller.add(self.place.listener(), token).is_err() {
            self.timers.set(Duration::from_millis(100), Timer::Accept);
        }
    }

    /// One call: who called waits for the answer, and has no other call to make.
    pub(super) fn calls_ready(&mut self, id: SessionId) {
        self.flush_calls(id);
        // Who does not take its answers is not asked for more.
        if !self.clients.get(id).is_some_and(|client| client.listens()) {
            return;
        }
        let Some((bytes, length)) = self.receive(id, Channel::Calls) else { return };
        self.call(id, &bytes[..length]);
        self.carry_on();
    }

    pub(super) fn events_ready(&mut self, id: SessionId) {
        self.flush_events(id);
        for _ in 0..TURN {
            let Some((bytes, length)) = self.receive(id, Channel::Events) else { return };
            match decode(&bytes[..length]) {
                Ok((tag, message)) => self.hand_over(id, Channel::Events, tag, message),
                Err(_) => {
                    self.part(id, "sent something that is no message");
                }
            }
            self.carry_on();
        }
    }

    fn call(&mut self, id: SessionId, bytes: &[u8]) {
        let Some(vnic) = self.clients.get(id).map(|client| client.vnic()) else { return };
        let own = vnic.unwrap_or(self.registry.home());
        let refused = vnic.err();
        match decode(bytes) {
            Ok((tag, _)) if refused.is_some() => {
                let answer = Message::Failed(refused.unwrap_or(Errno::EPERM));
                self.answer(id, tag, Letter::of(answer));
                self.part(id, "is not allowed, or in a network namespace that is not served");
            }
            Ok((tag, Message::QueryStatus(m))) => {
                let answer = self.status_slice(Some(own), m.from);
                self.answer(id, tag, Letter::of(answer));
            }
            Ok((tag, Message::QueryVnic(_))) => {
                let answer = self.policy_slice(own);
                self.answer(id, tag, Letter::of(answer));
            }
            Ok((tag, message)) => self.hand_over(id, Channel::Calls, tag, message),
            Err(_) => {
                // Another version, most likely: say so in the part that all versions share.
                if let Some(tag) = tag_of(bytes) {
                    self.answer(id, tag, Letter::of(Message::Failed(Errno::EPROTO)));
                }
                self.part(id, "sent something that is no message");
            }
        }
    }

    /// A message for the tables, with what is to be known about the memory it brings.
    fn hand_over(&mut self, id: SessionId, channel: Channel, tag: u64, message: Message) {
        let memory = match &message {
            Message::Adopted(adopted) => {
                let file = self.tenancy.file_asked_for(adopted.token);
                file.and_then(|file| self.extents.facts(file))
            }
            _ => None,
        };
        let arrived = Arrived { channel, tag, message, memory };
        let actions = self.tenancy.handle(id, &arrived, clock::now());
        self.work.extend(actions);
        self.carry_on();
    }
}

/// The tag of something that starts like a message.
pub(super) fn tag_of(bytes: &[u8]) -> Option<u64> {
    let start = std::mem::offset_of!(Header, tag);
    Some(u64::from_ne_bytes(bytes.get(start..start + 8)?.try_into().ok()?))
}
