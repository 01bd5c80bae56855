//! The agent's part in pages that stay where they are: what processes say of them goes to who looks
//! (`pinner.rs`), what that one finds goes to the host, and as long as something is kept the host
//! is asked whether it still has to be.

use super::pinner::{Heard, Pinner, Whose};
use super::relay::{Channel, Relay};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::machine::{
    FrameKind, Message, PinsOver, QueryPins, TellPinned, decode, encode,
};
use omniverb_session::pinned::PINS_MAX;
use omniverb_session::{Message as Said, decode as decode_said};
use omniverb_sys::clock;
use omniverb_terms::Errno;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// How often the host is asked, in milliseconds.
const ASK_MS: u64 = 1000;

/// What is kept, as far as the agent knows.
pub(super) struct Keeping {
    pinner: Option<Pinner>,
    /// The numbers of what is kept.
    kept: BTreeSet<u64>,
    /// When the host was asked last, and up to which of them.
    asked: u64,
    last: u64,
}

/// As it travels.
fn written(message: &Message) -> Vec<u8> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(0, message, &mut bytes);
    bytes[..length].to_vec()
}

impl Keeping {
    /// `folder`: where agents' processes find each other.
    pub(super) fn begin(whose: Whose, folder: &Path) -> Keeping {
        let pinner = Pinner::start(whose, folder).unwrap_or_else(|error| {
            eprintln!("omniverb: no pages of processes are left where they are: {error}");
            None
        });
        Keeping { pinner, kept: BTreeSet::new(), asked: 0, last: 0 }
    }

    /// Where it has something to say.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.pinner.as_ref().map(Pinner::socket)
    }

    /// A process has said something; true: it was about pages of its own, and is not for the host.
    pub(super) fn takes(
        &mut self,
        relay: &mut Relay,
        (session, channel): (u32, Channel),
        bytes: &[u8],
    ) -> bool {
        if channel != Channel::Events {
            return false;
        }
        let Ok((_, Said::Pinned(said))) = decode_said(bytes) else { return false };
        let calls = relay.calls(session);
        let looks = self.pinner.as_ref().zip(calls);
        if !looks.is_some_and(|(pinner, calls)| pinner.look(session, calls, bytes)) {
            let refused = TellPinned::new(said.token, said.epoch, Err(Errno::EACCES));
            relay.say(FrameKind::Pinned, session, written(&refused.into()));
        }
        true
    }

    /// Pages were looked at.
    pub(super) fn hear(&mut self, relay: &mut Relay) {
        let Some(pinner) = &mut self.pinner else { return };
        match pinner.heard() {
            Ok(None) => {}
            Ok(Some(Heard::TakenOver(tokens))) => self.kept.extend(tokens),
            Ok(Some(Heard::Looked { session, told })) => {
                if told.errno == Errno::NONE {
                    self.kept.insert(told.token);
                }
                // If the process is gone meanwhile, the host does not know the number.
                relay.say(FrameKind::Pinned, session, written(&(*told).into()));
            }
            Err(_) => {
                // What it kept the processes keep as long as they live.
                self.pinner = None;
                self.kept.clear();
            }
        }
    }

    /// How many milliseconds may pass until there is something to do.
    pub(super) fn limit(&self) -> Option<i64> {
        (!self.kept.is_empty()).then_some(ASK_MS as i64)
    }

    /// Asks the host whether something need not be kept any more, if it is time, and there is
    /// somebody who has `begun`.
    pub(super) fn ask(&mut self, relay: &mut Relay) {
        let now = clock::now();
        let due = now.saturating_sub(self.asked) >= ASK_MS * 1_000_000;
        if self.kept.is_empty() || !due || !relay.has_begun() {
            return;
        }
        self.asked = now;
        let rest = self.kept.range(self.last.saturating_add(1)..).take(PINS_MAX);
        let mut some: Vec<u64> = rest.copied().collect();
        if some.is_empty() {
            some = self.kept.iter().take(PINS_MAX).copied().collect();
        }
        self.last = some.last().copied().unwrap_or(0);
        relay.say(FrameKind::Pins, 0, written(&QueryPins::new(&some).into()));
    }

    /// What the host answers.
    pub(super) fn answered(&mut self, bytes: &[u8]) {
        let Ok((_, Message::PinsOver(over))) = decode(bytes) else { return };
        let those: Vec<u64> =
            over.named().iter().copied().filter(|token| self.kept.contains(token)).collect();
        let over = PinsOver::new(&those);
        if self.pinner.as_ref().is_some_and(|pinner| pinner.over(&over)) {
            those.iter().for_each(|token| _ = self.kept.remove(token));
        }
    }
}
