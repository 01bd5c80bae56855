//! Keeps rings of processes, by the numbers of the daemon's questions.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Pins that are kept at a time: each has a descriptor.
pub(super) const PINS_MAX: usize = 4096;

/// All of them, and how many bytes that is.
#[derive(Default)]
pub(super) struct KeptRings {
    rings: BTreeMap<u64, (OwnedFd, u64)>,
    bytes: u64,
}

impl KeptRings {
    pub(super) fn len(&self) -> usize {
        self.rings.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn has(&self, token: u64) -> bool {
        self.rings.contains_key(&token)
    }

    pub(super) fn ring(&self, token: u64) -> Option<&OwnedFd> {
        self.rings.get(&token).map(|(ring, _)| ring)
    }

    /// Numbers, rings, and how many bytes each keeps.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &OwnedFd, u64)> {
        self.rings.iter().map(|(token, (ring, bytes))| (*token, ring, *bytes))
    }

    pub(super) fn add(&mut self, token: u64, ring: OwnedFd, bytes: u64) {
        self.let_go(token);
        self.bytes = self.bytes.saturating_add(bytes);
        self.rings.insert(token, (ring, bytes));
    }

    pub(super) fn let_go(&mut self, token: u64) {
        if let Some((_, bytes)) = self.rings.remove(&token) {
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }
}
