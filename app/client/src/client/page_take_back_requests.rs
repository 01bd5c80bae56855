//! Handles requests of the daemon to take pages back from peers, and calls that wait for it.

use super::pages_granted_to_peers::{GrantedPages, RevocationMode};
use crate::moved_or_pinned_extent::Extent;
use crate::page_take_back_thread::{PageOwner, PageQuestion};
use omniverb_session::Message;
use omniverb_session::body::{TAKE_ALL, TAKE_EXTENT, TakeBack};
use omniverb_terms::{Errno, Rkey};
use std::collections::BTreeSet;

impl GrantedPages {
    /// The daemon says what is to be taken back.
    pub(super) fn hear_take_back(&self, ask: &TakeBack) {
        match ask.what {
            TAKE_EXTENT => {
                self.take_back_those(ask.number, |rkey, extent| {
                    (rkey, extent.start() as u64) == (ask.rkey, ask.start)
                });
            }
            TAKE_ALL => {
                // For this once: a new question is judged by the daemon.
                let qps = self.qps.all();
                qps.iter().for_each(|qp| qp.forget_grants());
                self.take_all_back();
            }
            _ => {}
        }
    }

    pub(super) fn answer_adopt(&self, PageQuestion { ask, to }: PageQuestion) {
        let answer = self.adopt(ask);
        self.progress.answer(&to, answer.into());
    }

    /// What was granted must not stay so, and it is not known what exactly.
    pub(super) fn take_all_back(&self) {
        self.take_back_those(0, |_, _| true);
    }

    /// Another daemon is there, which does not know the extents that were made for the one before:
    /// nor whether the links are there still by which they were granted.
    pub(super) fn take_older_back(&self, era: u64) {
        self.taking.restart();
        self.take_back_those(0, |_, extent| extent.era() < era);
    }

    /// Has these taken back. `number`: what the daemon calls that, or 0.
    pub(super) fn take_back_those(&self, number: u64, which: impl Fn(Rkey, &Extent) -> bool) {
        self.taking.ask(&self.me, number, &self.keys.extents(which));
    }

    /// The answer to a call that may have ended a link. Without one it is not known what was
    /// granted by it.
    pub(super) fn link_ended(&self, answer: Result<Message, Errno>) {
        match answer {
            Ok(Message::Done(done)) => self.taking.wait(done.take_back),
            Ok(_) => {}
            // Another's by now, or unknown: nothing was granted by it.
            Err(Errno::ENOENT) => {}
            Err(_) => self.take_all_back(),
        }
    }
}

impl PageOwner for GrantedPages {
    fn take_back(&self, which: &BTreeSet<(Rkey, usize)>) -> Result<(), Errno> {
        let is_one = |rkey, extent: &Extent| which.contains(&(rkey, extent.start()));
        // An attempt has all peers let go of all that they have: none is made for what cannot be
        // had, which may be so for as long as the program runs.
        let held = self.keys.extents(|rkey, extent| is_one(rkey, extent) && extent.is_held());
        let held = held.into_iter().collect::<BTreeSet<_>>();
        let free =
            |rkey, extent: &Extent| is_one(rkey, extent) && !held.contains(&(rkey, extent.start()));
        let outcome = self.withdraw(free, RevocationMode::Kindly);
        if held.is_empty() { outcome } else { outcome.and(Err(Errno::EBUSY)) }
    }

    fn answer(&self, question: PageQuestion) {
        self.answer_adopt(question);
    }
}
