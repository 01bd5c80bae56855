//! Keeps the windows that an agent has: the machine's own, and pair windows with their doorbells.
//!
//! Of several that claim to be the machine's own window (`guest_window_discovery.rs`) it goes by
//! one, and by the next if the host does not know that one's number in time.

use super::guest_window_discovery::{FoundWindows, OwnWindow, Shared};
use super::pair_window_wakes::{Side, WakeBridge};
use super::serial_port_multiplexer::Voice;
use anyhow::Context;
use omniverb_session::pair_window::take_number;
use omniverb_session::{Message, written};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the host may take to know the number of a window, where there are several.
const PATIENCE: Duration = Duration::from_secs(1);

/// The windows of a machine.
pub(super) struct Sharing {
    found: FoundWindows,
    /// Those that may be the machine's own, and the one that is gone by.
    claims: Vec<OwnWindow>,
    claim: usize,
    /// When that began.
    since: Instant,
    /// Windows shared with neighbours, by number.
    pairs: BTreeMap<u8, Shared>,
    bridge: WakeBridge,
    /// A neighbour may have rung for a thread here.
    rung: bool,
}

impl Sharing {
    /// Goes by the first that may be the machine's own.
    pub(super) fn new(found: FoundWindows) -> io::Result<Sharing> {
        let (claims, pairs) = (found.own(), BTreeMap::new());
        let (since, bridge) = (Instant::now(), WakeBridge::new(Side::Machine)?);
        let mut sharing = Sharing { found, claims, claim: 0, since, pairs, bridge, rung: false };
        sharing.look()?;
        Ok(sharing)
    }

    /// Drops all that belongs to a gone window.
    fn look(&mut self) -> io::Result<()> {
        self.since = Instant::now();
        self.bridge = WakeBridge::new(Side::Machine)?;
        let own = self.claims.get(self.claim);
        self.pairs = own.map(|own| self.found.pairs(own)).unwrap_or_default();
        let bridge = &mut self.bridge;
        // Of one that cannot be mapped the host is not told.
        self.pairs.retain(|number, shared| {
            bridge.add(*number, &shared.file, shared.data, shared.whose).is_ok()
        });
        Ok(())
    }

    /// A device has come. Whether the machine has another pair window by it.
    pub(super) fn add(&mut self, device: OwnedFd) -> bool {
        if self.found.add(device).is_err() {
            return false;
        }
        self.add_found()
    }

    /// Those that may be its own are as many as before, but say more: what comes later is none.
    fn renew_claims(&mut self) {
        let mut all = self.found.own();
        all.truncate(self.claims.len());
        self.claims = all;
    }

    /// Whether the machine has another one than before.
    fn add_found(&mut self) -> bool {
        self.renew_claims();
        let own = self.claims.get(self.claim);
        let before = self.pairs.len();
        for (number, shared) in own.map(|own| self.found.pairs(own)).unwrap_or_default() {
            if !self.pairs.contains_key(&number)
                && self.bridge.add(number, &shared.file, shared.data, shared.whose).is_ok()
            {
                self.pairs.insert(number, shared);
            }
        }
        self.pairs.len() > before
    }

    /// Takes the host's list of pair windows, bit `number - 1` for each: of mapped ones the machine
    /// sees nothing by itself. Releases those that are to go, before they do; and those replaced by
    /// another one that this machine was not told of in time.
    pub(super) fn look_again(&mut self, present: u64) {
        self.found.look_at_names();
        self.renew_claims();
        let own = self.claims.get(self.claim);
        let gone = |number: &u8, shared: &mut Shared| {
            let is_there = present >> (number - 1) & 1 != 0
                && own.is_some_and(|own| shared.is_called(*number, own));
            shared.is_mapped && !is_there
        };
        for (number, _) in self.pairs.extract_if(.., gone) {
            self.bridge.remove(number);
        }
        self.found.look_at_places(present);
        self.add_found();
    }

    /// The machine's own window, for all that is known, and its number.
    pub(super) fn own(&self) -> Option<(Arc<OwnedFd>, u64)> {
        self.claims.get(self.claim).map(|own| (own.file.clone(), own.number))
    }

    /// Whether it may be another one. `known`: the host knows its number.
    pub(super) fn is_doubtful(&self, known: bool) -> bool {
        self.claims.len() > 1 && !known
    }

    /// Goes by the next one if it is time to; then all begins anew.
    pub(super) fn try_next(&mut self, known: bool) -> io::Result<bool> {
        let due = self.is_doubtful(known) && self.since.elapsed() > PATIENCE;
        if due {
            self.claim = (self.claim + 1) % self.claims.len();
            self.look()?;
        }
        Ok(due)
    }

    /// The other end has no proxy.
    pub(super) fn end(&self) {
        self.bridge.speak_by(None);
    }

    /// The proxy at the other end begins anew; wakes go to it by this.
    pub(super) fn begin(&mut self, voice: Arc<Voice>) {
        self.since = Instant::now();
        self.bridge.speak_by(Some(voice));
        self.bridge.wake_all();
    }

    /// Which windows there are: bit `number - 1` of each.
    pub(super) fn bits(&self) -> u64 {
        self.pairs.keys().fold(0, |bits, number| bits | 1_u64 << (number - 1))
    }

    /// Removes the number of a pair window from a message to a process. Returns that window, if it
    /// is not the machine's own, and the message without it.
    ///
    /// # Errors
    /// If there is no such window.
    pub(super) fn taken_off(
        &self,
        tag: u64,
        message: &mut Message,
    ) -> anyhow::Result<Option<(Arc<OwnedFd>, Vec<u8>)>> {
        let Some(number) = take_number(message) else { return Ok(None) };
        let shared = self
            .pairs
            .get(&number)
            .context("a session names a pair window that this machine does not have")?;
        Ok(Some((shared.file.clone(), written(tag, message))))
    }

    /// Readable when a neighbour is to be woken.
    pub(super) fn rung(&self) -> BorrowedFd<'_> {
        self.bridge.rung()
    }

    /// Whether the host is to be told that.
    pub(super) fn take(&self) -> bool {
        self.bridge.take();
        !self.pairs.is_empty()
    }

    /// A neighbour has rung these doorbells; none: any of them.
    pub(super) fn hear(&mut self, names: &[u8]) {
        self.rung |= names.is_empty();
        self.bridge.wake_named(names);
    }

    /// Wakes sleeping threads, if that is so.
    pub(super) fn wake(&mut self) {
        if std::mem::take(&mut self.rung) {
            self.bridge.wake();
        }
    }
}
