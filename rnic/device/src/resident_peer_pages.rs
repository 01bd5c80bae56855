//! Finds which pages of a peer's region are in memory, so that the peer pays for them and not we.
//!
//! A page that is not there would be made by the process that touches it first, and be charged to
//! that process's memory cgroup. So the kernel is asked first, and an operation that would touch
//! such a page is left to the owner. An owner can take a page away at any time after that: what was
//! found is believed until the process has gone through so many different pages that those which
//! could have been charged to it meanwhile are as many as it can afford. A process that moves
//! within less than that asks once.

use crate::limits::{PAGE_BYTES, PAGES_BELIEVED};
use crate::platform::Host;
use omniverb_ring::Window;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Pages that the kernel is asked about at a time.
const AT_ONCE: usize = 512;

/// How far all QPs of a process have gone; when it was too far, everything is asked for anew.
#[derive(Default)]
pub(crate) struct ResidencyGeneration {
    generation: AtomicU32,
    gone: AtomicUsize,
}

impl ResidencyGeneration {
    fn pay(&self, pages: usize) {
        if self.gone.fetch_add(pages, Ordering::Relaxed) + pages >= PAGES_BELIEVED {
            self.gone.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What pages of an extent lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file: pages that are not in memory are made by the process that touches them.
    File,
    /// Memory that was plugged into this machine: all of it is there, and it is charged to no
    /// process here.
    Device,
}

/// What is known of the pages of an extent.
pub(crate) struct Pages {
    /// Of this generation.
    generation: u32,
    /// Found to be in memory, and paid for: may be touched.
    paid: Box<[u64]>,
    /// Found to be in memory.
    there: Box<[u64]>,
    count: usize,
    backing: Backing,
}

impl Pages {
    /// Nothing is known of so many bytes.
    pub(crate) fn of(bytes: usize, backing: Backing) -> Pages {
        let count = bytes.div_ceil(PAGE_BYTES);
        let words = |word| vec![word; count.div_ceil(64)].into_boxed_slice();
        let paid = match backing {
            Backing::File => words(0),
            Backing::Device => words(u64::MAX),
        };
        Pages { generation: 0, paid, there: words(0), count, backing }
    }

    /// Whether all pages of a range are in memory, or were a moment ago.
    #[inline(always)]
    pub(crate) fn at_hand(
        &mut self,
        (toll, host): (&ResidencyGeneration, &dyn Host),
        window: &Window,
        offset: usize,
        length: usize,
    ) -> bool {
        let first = offset / PAGE_BYTES;
        let last = (offset + length.max(1) - 1) / PAGE_BYTES;
        let same = self.generation == toll.generation.load(Ordering::Relaxed);
        if same && first / 64 == last / 64 {
            let mask = u64::MAX >> (63 - (last - first)) << (first % 64);
            if self.paid.get(first / 64).is_some_and(|word| word & mask == mask) {
                return true;
            }
        }
        length == 0 || self.look((toll, host), window, (first, last))
    }

    #[inline(never)]
    fn look(
        &mut self,
        (toll, host): (&ResidencyGeneration, &dyn Host),
        window: &Window,
        (first, last): (usize, usize),
    ) -> bool {
        let generation = toll.generation.load(Ordering::Relaxed);
        if self.backing == Backing::Device {
            self.generation = generation;
            return last < self.count;
        }
        if self.generation != generation {
            self.generation = generation;
            self.paid.fill(0);
            self.there.fill(0);
        }
        let mut new = 0;
        for page in first..=last {
            let (word, bit) = (page / 64, 1u64 << (page % 64));
            if self.paid.get(word).is_some_and(|paid| paid & bit != 0) {
                continue;
            }
            if self.there.get(word).is_none_or(|there| there & bit == 0)
                && !self.ask(host, window, page)
            {
                return false;
            }
            new += 1;
        }
        for page in first..=last {
            if let Some(paid) = self.paid.get_mut(page / 64) {
                *paid |= 1 << (page % 64);
            }
        }
        toll.pay(new);
        true
    }

    /// Asks the kernel about a page and those behind it.
    fn ask(&mut self, host: &dyn Host, window: &Window, page: usize) -> bool {
        let mut found = [0; AT_ONCE];
        let count = self.count.saturating_sub(page).min(AT_ONCE);
        let Some(found) = found.get_mut(..count) else { return false };
        if !host.resident(window, page * PAGE_BYTES, found) {
            return false;
        }
        for (index, there) in found.iter().enumerate().map(|(i, byte)| (page + i, byte & 1 != 0)) {
            if let Some(word) = self.there.get_mut(index / 64).filter(|_| there) {
                *word |= 1 << (index % 64);
            }
        }
        found.first().is_some_and(|byte| byte & 1 != 0)
    }
}
