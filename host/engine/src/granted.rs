//! Pages of an application's regions that were granted to one link, mapped here.
//!
//! In: keys and ranges that a peer names; grants of the control plane. Out: bytes copied to and
//! from the pages themselves, and keys to ask the control plane for. The rules are those of a peer
//! on this host ("Mapped operations" in docs/architecture.md), and two more, because the memory is
//! a tenant's and the process that touches it is the daemon: what is mapped is bounded for each
//! vNIC, and only pages that are in memory are touched.

use omniverb_link::Endpoint;
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_sys::window::residency;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

/// `IBV_ACCESS_REMOTE_WRITE`.
pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`.
pub(crate) const REMOTE_READ: u32 = 1 << 2;
/// Keys that one link may ask for until something is revoked; as many as a peer on this host.
const KEYS_PER_LINK: usize = 64;
/// Mappings that all links of a vNIC may hold: the kernel allows the daemon 65530.
const VNIC_MAPPINGS: usize = 512;
/// Bytes of them. A tenant that means harm can make so much memory count as the daemon's.
const VNIC_BYTES: usize = 1 << 30;
/// Mappings and bytes of all vNICs together.
const ALL_MAPPINGS: usize = 4096;
const ALL_BYTES: usize = 64 << 30;
const PAGE_BYTES: usize = 4096;
/// Pages that the kernel is asked about at a time.
const PAGES_AT_ONCE: usize = 32;
/// How long its answer is taken for true, in nanoseconds.
const RESIDENT_TIME: u64 = 1_000_000;

/// What is mapped, counted.
#[derive(Default)]
struct Count {
    mappings: AtomicUsize,
    bytes: AtomicUsize,
}

impl Count {
    /// False: that would be too much, and nothing is taken. Two threads may see too little of each
    /// other for a moment and both be refused; they are never both let in.
    fn take(&self, bytes: usize, mappings_max: usize, bytes_max: usize) -> bool {
        let mappings = self.mappings.fetch_add(1, Ordering::Relaxed) + 1;
        let held = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = mappings <= mappings_max && held <= bytes_max;
        if !fits {
            self.give(bytes);
        }
        fits
    }

    fn give(&self, bytes: usize) {
        self.mappings.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What all vNICs have mapped, and who takes mappings down.
#[derive(Clone, Default)]
pub(crate) struct Mappings {
    all: Arc<Count>,
    undertaker: Option<mpsc::Sender<Mapped>>,
}

impl Mappings {
    /// Taking down a large mapping takes the kernel milliseconds that a packet thread does not
    /// have: whoever holds the other end of `undertaker` has them.
    pub(crate) fn new(undertaker: mpsc::Sender<Mapped>) -> Mappings {
        Mappings { all: Arc::default(), undertaker: Some(undertaker) }
    }

    /// For one more vNIC.
    pub(crate) fn budget(&self) -> Budget {
        Budget { vnic: Arc::default(), mappings: self.clone() }
    }
}

/// What the links of a vNIC have mapped together.
#[derive(Clone, Default)]
pub(crate) struct Budget {
    vnic: Arc<Count>,
    mappings: Mappings,
}

impl Budget {
    /// Room for one more mapping of so many bytes.
    pub(crate) fn share(&self, bytes: usize) -> Option<Share> {
        if !self.vnic.take(bytes, VNIC_MAPPINGS, VNIC_BYTES) {
            return None;
        }
        if !self.mappings.all.take(bytes, ALL_MAPPINGS, ALL_BYTES) {
            self.vnic.give(bytes);
            return None;
        }
        Some(Share { bytes, budget: self.clone() })
    }
}

/// A part of a budget; given back when it is dropped.
pub(crate) struct Share {
    bytes: usize,
    budget: Budget,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.vnic.give(self.bytes);
        self.budget.mappings.all.give(self.bytes);
    }
}

/// A mapping and its part of the budget, in the order in which they are to go.
pub(crate) struct Mapped {
    window: Window,
    share: Share,
}

/// One grant: the whole pages of a region.
pub(crate) struct Grant {
    key: u32,
    access: u32,
    /// First address that is mapped.
    start: u64,
    mapped: Option<Mapped>,
    /// These bytes are in memory, or were a moment ago.
    resident: Range<usize>,
    /// Until when that is believed.
    until: u64,
}

impl Grant {
    pub(crate) fn new(key: u32, access: u32, start: u64, window: Window, share: Share) -> Grant {
        let mapped = Some(Mapped { window, share });
        Grant { key, access, start, mapped, resident: 0..0, until: 0 }
    }

    /// The window, if touching these bytes neither waits for a disk nor makes pages.
    fn at_hand(&mut self, offset: usize, length: usize, now: u64) -> Option<&Window> {
        let window = &self.mapped.as_ref()?.window;
        let end = offset.checked_add(length).filter(|end| *end <= window.len())?;
        if now >= self.until || offset < self.resident.start || end > self.resident.end {
            let first = offset - offset % PAGE_BYTES;
            let needed = (end - first).div_ceil(PAGE_BYTES);
            let count = needed.max(PAGES_AT_ONCE).min((window.len() - first) / PAGE_BYTES);
            let mut pages = [0; PAGES_AT_ONCE];
            let pages = pages.get_mut(..count)?;
            residency(window, first, pages).ok()?;
            let there = pages.iter().take_while(|page| **page & 1 != 0).count();
            self.resident = first..first + there * PAGE_BYTES;
            self.until = now + RESIDENT_TIME;
        }
        (end <= self.resident.end).then_some(window)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let Some(mapped) = self.mapped.take() else { return };
        // Without an undertaker it goes here and now.
        if let Some(undertaker) = &mapped.share.budget.mappings.undertaker {
            let _ = undertaker.clone().send(mapped);
        }
    }
}

/// What a peer wants to reach.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// What a link was granted, and what it asked for.
#[derive(Default)]
pub(crate) struct Grants {
    epoch: u64,
    list: Vec<Grant>,
    asked: Vec<u32>,
    /// Those of them that the control plane has not been told.
    wanted: Vec<u32>,
}

impl Grants {
    /// Whether a whole message can be executed here. A key that is not known is asked for, once.
    pub(crate) fn reach(&mut self, endpoint: &Endpoint, target: Target, access: u32) -> bool {
        self.follow(endpoint.peer_epoch());
        if self.list.iter().any(|grant| grant.key == target.key) {
            return self.find(target, access).is_some();
        }
        if !self.asked.contains(&target.key) && self.asked.len() < KEYS_PER_LINK {
            self.asked.push(target.key);
            self.wanted.push(target.key);
        }
        false
    }

    /// When the application takes something back, everything is void.
    fn follow(&mut self, epoch: u64) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.list.clear();
            self.asked.clear();
            self.wanted.clear();
        }
    }

    fn find(&mut self, target: Target, access: u32) -> Option<(&mut Grant, usize)> {
        let grant = self.list.iter_mut().find(|grant| grant.key == target.key)?;
        let mapped = grant.mapped.as_ref()?.window.len() as u64;
        let offset = target.address.checked_sub(grant.start)?;
        let inside = offset <= mapped && target.length <= mapped - offset;
        (inside && grant.access & access == access).then_some((grant, offset as usize))
    }

    /// Writes a part of a message, `offset` bytes behind its beginning; its last bytes, if they are
    /// the message's, become visible last. False: it has to take the other way, and nothing that
    /// counts was written.
    pub(crate) fn write(
        &mut self,
        endpoint: &Endpoint,
        (target, offset): (Target, u64),
        data: &[u8],
        ends: bool,
        now: u64,
    ) -> bool {
        self.access(endpoint, (target, offset), REMOTE_WRITE, data.len(), now, |window, at| {
            UserMemory::lend(data, |memory| match ends {
                true => window.fill_last_byte_last(at, memory),
                false => window.fill(at, memory),
            });
        })
    }

    /// Reads, likewise. False: what is in `bytes` now does not count.
    pub(crate) fn read(
        &mut self,
        endpoint: &Endpoint,
        (target, offset): (Target, u64),
        bytes: &mut [u8],
        now: u64,
    ) -> bool {
        self.access(endpoint, (target, offset), REMOTE_READ, bytes.len(), now, |window, at| {
            UserMemory::lend_mut(bytes, |memory| window.drain(at, memory));
        })
    }

    fn access(
        &mut self,
        endpoint: &Endpoint,
        (target, offset): (Target, u64),
        access: u32,
        length: usize,
        now: u64,
        act: impl FnOnce(&Window, usize),
    ) -> bool {
        let epoch = endpoint.peer_epoch();
        self.follow(epoch);
        if !endpoint.peer_is_open() || offset + length as u64 > target.length {
            return false;
        }
        let Some((grant, start)) = self.find(target, access) else { return false };
        let at = start + offset as usize;
        let Some(window) = grant.at_hand(at, length, now) else { return false };
        act(window, at);
        // If the pages went back meanwhile, it may have missed them.
        endpoint.peer_epoch_afterwards() == epoch
    }

    /// Something to ask the control plane for.
    pub(crate) fn take_wanted(&mut self) -> Option<u32> {
        self.wanted.pop()
    }

    /// The control plane could not be asked; another time.
    pub(crate) fn not_asked(&mut self, key: u32) {
        self.asked.retain(|asked| *asked != key);
    }

    /// The control plane granted. Ignored unless it was asked for since the last revocation.
    pub(crate) fn insert(&mut self, endpoint: &Endpoint, grant: Grant) {
        self.follow(endpoint.peer_epoch());
        if self.asked.contains(&grant.key) {
            self.list.retain(|other| other.key != grant.key);
            self.list.push(grant);
        }
    }
}
