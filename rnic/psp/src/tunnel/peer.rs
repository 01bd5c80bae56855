//! Holds what a tunnel knows of one address: the key to send with, and packets that wait for one.

use crate::key_handshake::Pending;
use crate::sender::{Sealer, Sender};
use std::collections::VecDeque;

const MILLISECOND: u64 = 1_000_000;
/// When a request is sent again, in nanoseconds after the first.
const TRIES: [u64; 7] = [
    20 * MILLISECOND,
    60 * MILLISECOND,
    140 * MILLISECOND,
    300 * MILLISECOND,
    500 * MILLISECOND,
    800 * MILLISECOND,
    1500 * MILLISECOND,
];
/// With this one it is said that there is no answer.
const REFUSED_WITH: usize = 6;
/// When a request without an answer is given up, in nanoseconds after the first.
const GIVEN_UP: u64 = 2500 * MILLISECOND;
/// How long a peer is not asked again that has not answered, in nanoseconds.
pub(super) const ASKED_AGAIN: u64 = 1000 * MILLISECOND;
/// Budget: how long one is not asked again for the sake of copies for groups, if it has not
/// answered again and again: twice as long each time, up to this, in nanoseconds. When it has
/// something to receive, it introduces itself.
pub(super) const COPIES_ASKED_AGAIN_MAX: u64 = 64 * ASKED_AGAIN;
/// Budget: a word that a number is unknown has a peer asked at most once in so many nanoseconds.
pub(super) const HEEDED_AGAIN: u64 = 250 * MILLISECOND;
/// Budget: bytes of packets to one address that wait for its answer.
pub(super) const HELD_BYTES_MAX: usize = 128 << 10;

/// The key that packets to a peer are sealed with.
#[derive(Debug)]
pub(super) struct CurrentKey {
    pub(super) sealer: Sealer,
    /// Another one is asked for after this time.
    pub(super) renewed_at: u64,
    /// It is not used after this time.
    pub(super) ends_at: u64,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) pending: Pending,
    pub(super) begun_at: u64,
    tries: usize,
}

/// Packets that wait for a key.
#[derive(Debug)]
pub(super) struct HeldTrain {
    pub(super) source_port: u16,
    pub(super) segment: usize,
    pub(super) bytes: Vec<u8>,
}

/// One address that packets go to or come from.
#[derive(Debug)]
pub(super) struct Peer {
    /// By which the receiver knows its numbers.
    pub(super) owner: u64,
    /// The interface that it is reached through, if it is link-local; otherwise 0.
    pub(super) interface: u32,
    pub(super) key: Option<CurrentKey>,
    pub(super) asking: Option<PendingRequest>,
    /// It did not answer: it is not asked before this time.
    pub(super) asked_again_at: u64,
    /// How often in a row it has not answered.
    pub(super) silences: u32,
    /// A word of it that a number is unknown is not heeded before this time.
    pub(super) heeded_again_at: u64,
    /// It was said that it does not encrypt.
    pub(super) is_refusal_told: bool,
    /// It has had nothing but copies of packets to groups, and has said nothing.
    pub(super) is_for_copies: bool,
    pub(super) held: VecDeque<HeldTrain>,
    pub(super) held_bytes: usize,
    /// When something was sent there, or arrived from there.
    pub(super) used_at: u64,
}

impl PendingRequest {
    pub(super) fn new(pending: Pending, now: u64) -> PendingRequest {
        PendingRequest { pending, begun_at: now, tries: 0 }
    }

    /// The key of an answer to it.
    pub(super) fn finish(self, answer: &[u8]) -> Result<Sender, PendingRequest> {
        let PendingRequest { pending, begun_at, tries } = self;
        pending.finish(answer).map_err(|pending| PendingRequest { pending, begun_at, tries })
    }

    /// When something is due for it.
    pub(super) fn due(&self) -> u64 {
        self.begun_at.saturating_add(TRIES.get(self.tries).copied().unwrap_or(GIVEN_UP))
    }

    /// Something is due: whether the request is sent once more. Otherwise it is given up.
    pub(super) fn tries_again(&mut self) -> bool {
        self.tries += 1;
        self.tries <= TRIES.len()
    }

    /// Whether it is to be said that there is no answer, now that it was sent once more.
    pub(super) fn is_refused(&self) -> bool {
        self.tries == REFUSED_WITH
    }
}

impl Peer {
    pub(super) fn new(owner: u64, interface: u32, now: u64) -> Peer {
        Peer {
            owner,
            interface,
            key: None,
            asking: None,
            asked_again_at: 0,
            silences: 0,
            heeded_again_at: 0,
            is_refusal_told: false,
            is_for_copies: false,
            held: VecDeque::new(),
            held_bytes: 0,
            used_at: now,
        }
    }

    /// A request was not answered. One for the sake of copies is repeated ever more rarely.
    pub(super) fn note_silence(&mut self, now: u64) {
        self.asking = None;
        let longer = ASKED_AGAIN.saturating_mul(1 << self.silences.min(16));
        self.silences = self.silences.saturating_add(1);
        let pause =
            if self.is_for_copies { longer.min(COPIES_ASKED_AGAIN_MAX) } else { ASKED_AGAIN };
        self.asked_again_at = now.saturating_add(pause);
    }

    /// It gets more than copies from now on: it is asked as others are.
    pub(super) fn note_packet(&mut self) {
        if std::mem::take(&mut self.is_for_copies) {
            self.asked_again_at = 0;
        }
    }

    /// It has said something: what waits for it is asked for at once.
    pub(super) fn note_word(&mut self) {
        self.is_for_copies = false;
        (self.asked_again_at, self.silences) = (0, 0);
    }

    /// It was asked for the sake of copies alone, and has not answered: another may have its place.
    pub(super) fn is_silent_to_copies(&self) -> bool {
        self.is_for_copies && self.key.is_none() && self.asking.is_none()
    }

    /// Packets wait for the key. False: too many do.
    pub(super) fn hold(&mut self, source_port: u16, train: &[u8], segment: usize) -> bool {
        if self.held_bytes + train.len() > HELD_BYTES_MAX {
            return false;
        }
        self.held_bytes += train.len();
        self.held.push_back(HeldTrain { source_port, segment, bytes: train.to_vec() });
        true
    }

    /// What has waited; how many bytes.
    pub(super) fn take_held(&mut self) -> (VecDeque<HeldTrain>, usize) {
        (std::mem::take(&mut self.held), std::mem::take(&mut self.held_bytes))
    }
}
