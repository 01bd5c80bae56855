//! Handles pinned pages for the agent: passes questions and answers between host, processes and
//! pinner.
//!
//! Questions to processes and their answers go to the pinner (`page_pinner.rs`), its findings go to
//! the host, and as long as pages are kept the host is asked whether they still have to be.

use super::page_pinner::{FOLDER, Heard, Pinner};
use super::serial_port_multiplexer::{Channel, Relay};
use omniverb_arguments::InPlace;
use omniverb_session::pinned_pages::PINS_MAX;
use omniverb_session::vm::{FrameKind, Message, PinsOver, QueryPins, TellPinned, decode, written};
use omniverb_session::{Message as Said, decode as decode_said, written as written_said};
use omniverb_sys::clock;
use omniverb_terms::Errno;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// How often the host is asked, in milliseconds.
const ASK_MS: u64 = 1000;

/// Kept pages, as far as the agent knows.
pub(super) struct Keeping {
    pinner: Option<Pinner>,
    /// Questions that processes have not answered, by their sessions.
    asked_of: BTreeSet<(u32, u64)>,
    /// The numbers of what is kept.
    kept: BTreeSet<u64>,
    /// When the host was asked last, and up to which of them.
    asked: u64,
    last: u64,
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    Host,
    Process,
}

/// The pinner has ended, and only the processes keep their pages now, while they live.
pub(super) struct Lost;

impl Keeping {
    pub(super) fn begin(in_place: InPlace) -> Keeping {
        let pinner = Pinner::start(in_place, Path::new(FOLDER)).unwrap_or_else(|error| {
            eprintln!("omniverb: no pages of processes are left where they are: {error}");
            None
        });
        Keeping::of(pinner)
    }

    pub(super) fn of(pinner: Option<Pinner>) -> Keeping {
        let (asked_of, kept) = (BTreeSet::new(), BTreeSet::new());
        Keeping { pinner, asked_of, kept, asked: 0, last: 0 }
    }

    /// No pages are kept.
    #[cfg(test)]
    pub(super) fn none() -> Keeping {
        Keeping::of(None)
    }

    /// Where it has something to say.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.pinner.as_ref().map(Pinner::socket)
    }

    /// Takes a message between the host and a process; true: it was about pages of the process, and
    /// is checked first. The host's question goes to a process that may have pages kept; the host
    /// gets the findings instead of the process's answer. Unasked answers are ignored, and a
    /// refusal counts once.
    pub(super) fn takes(
        &mut self,
        relay: &mut Relay,
        speaker: Speaker,
        (session, channel): (u32, Channel),
        bytes: &[u8],
    ) -> bool {
        if channel != Channel::Events {
            return false;
        }
        let (token, epoch) = match (speaker, decode_said(bytes)) {
            (Speaker::Process, Ok((_, Said::Adopted(said)))) => {
                self.asked_of.remove(&(session, said.token));
                return false;
            }
            (Speaker::Host, Ok((_, Said::Pin(asked)))) => (asked.token, 0),
            (Speaker::Process, Ok((_, Said::Pinned(said)))) => {
                if !self.asked_of.remove(&(session, said.token)) {
                    return true;
                }
                (said.token, said.epoch)
            }
            _ => return false,
        };
        let Some(calls) = relay.calls(session) else { return true };
        let errno = match &self.pinner {
            Some(pinner) if pinner.look(session, calls, bytes) => return true,
            // There is no room for more questions.
            Some(_) => Errno::EAGAIN,
            None => Errno::EPERM,
        };
        let refused = TellPinned::new(token, epoch, Err(errno));
        relay.say(FrameKind::Pinned, session, written(0, &refused.into()));
        true
    }

    /// Takes the pinner's findings.
    ///
    /// # Errors
    /// The pinner has ended, and had kept some.
    pub(super) fn hear(&mut self, relay: &mut Relay) -> Result<(), Lost> {
        let Some(pinner) = &mut self.pinner else { return Ok(()) };
        match pinner.heard() {
            Ok(None) => {}
            Ok(Some(Heard::TakenOver(tokens))) => self.kept.extend(tokens),
            // While it was looked at the process may have ended.
            Ok(Some(Heard::MayBeAsked { session, .. })) if !relay.has(session) => {}
            Ok(Some(Heard::MayBeAsked { session, pin })) => {
                self.asked_of.insert((session, pin.token));
                let asked = written_said(0, &pin.into());
                relay.tell(session, Channel::Events, asked, Vec::new());
            }
            Ok(Some(Heard::Looked { session, told })) => {
                if told.errno == Errno::NONE {
                    self.kept.insert(told.token);
                }
                // If the process is gone meanwhile, the host does not know the number.
                relay.say(FrameKind::Pinned, session, written(0, &(*told).into()));
            }
            Err(_) => {
                self.pinner = None;
                eprintln!("omniverb: the process that keeps pinned pages has ended");
                if !std::mem::take(&mut self.kept).is_empty() {
                    return Err(Lost);
                }
            }
        }
        Ok(())
    }

    /// A session is over, and answers nothing.
    pub(super) fn gone(&mut self, session: u32) {
        let its: Vec<_> =
            self.asked_of.range((session, 0)..=(session, u64::MAX)).copied().collect();
        its.iter().for_each(|asked| _ = self.asked_of.remove(asked));
    }

    /// So are all.
    pub(super) fn begin_anew(&mut self) {
        self.asked_of.clear();
    }

    /// How many milliseconds may pass until there is something to do.
    pub(super) fn limit(&self) -> Option<i64> {
        (!self.kept.is_empty()).then_some(ASK_MS as i64)
    }

    /// Asks the host whether pages still need to be kept, if it is time, and a proxy has `begun`.
    pub(super) fn ask(&mut self, relay: &mut Relay) {
        if self.kept.is_empty() || !relay.has_begun() {
            return;
        }
        let now = clock::now();
        if now.saturating_sub(self.asked) < ASK_MS * 1_000_000 {
            return;
        }
        self.asked = now;
        let rest = self.kept.range(self.last.saturating_add(1)..).take(PINS_MAX);
        let mut some: Vec<u64> = rest.copied().collect();
        if some.is_empty() {
            some = self.kept.iter().take(PINS_MAX).copied().collect();
        }
        self.last = some.last().copied().unwrap_or(0);
        relay.say(FrameKind::Pins, 0, written(0, &QueryPins::new(&some).into()));
    }

    /// Takes the host's answer.
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
