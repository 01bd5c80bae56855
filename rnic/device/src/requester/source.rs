//! Payload that stays in the application's region, where the engine has that mapped: it goes from
//! there into packets, and is copied once less. See `omniverb_link::source`.
//!
//! What is left in place is noted until the engine has consumed it: before pages move back, or if
//! the engine cannot reach them, it is put into the ring after all.

use crate::limits::{SOURCE_MIN, SOURCE_REGION_MAX, SOURCE_WORTH};
use crate::qp::{Inner, LinkEnd, Qp};
use crate::region::NO_RKEY;
use omniverb_link::source::{SOURCES, slot};
use omniverb_link::{Broken, Endpoint, Source, Unfilled};
use omniverb_ring::UserMemory;
use omniverb_terms::{Rkey, Service};
use std::collections::VecDeque;

const PAGE_BYTES: usize = 4096;

/// What a link knows of payload outside of its ring.
#[derive(Default)]
pub(crate) struct Sources {
    /// Oldest first. The memory is a region's: it lasts until that is deregistered, and before, all
    /// of this is filled.
    unfilled: VecDeque<(Unfilled, UserMemory)>,
    /// Regions that were sent from lately, and how many bytes of each were copied.
    copied: [(Rkey, u64); SOURCES],
    /// Up to here the engine has asked to have records filled, and they are.
    filled: u64,
}

impl Sources {
    /// So many bytes of this region were copied. When it is worth while, the engine is asked to map
    /// it.
    pub(super) fn note_copied(&mut self, endpoint: &mut Endpoint, origin: &Origin, bytes: u64) {
        let key = origin.source.key;
        let copied = &mut self.copied[slot(key)];
        if copied.0 != key {
            *copied = (key, 0);
        }
        copied.1 = copied.1.saturating_add(bytes);
        if copied.1 >= origin.worth {
            endpoint.want_source(key);
        }
    }

    /// A record was sent whose payload is there.
    pub(super) fn note(
        &mut self,
        endpoint: &mut Endpoint,
        record: Unfilled,
        payload: UserMemory,
    ) -> Result<(), Broken> {
        while let Some((oldest, _)) = self.unfilled.front()
            && endpoint.request_consumed(oldest.end())?
        {
            self.unfilled.pop_front();
        }
        self.unfilled.push_back((record, payload));
        Ok(())
    }
}

impl LinkEnd {
    /// Voids the grants that the peer holds on our regions; nothing depends on them afterwards.
    pub(crate) fn revoke(&mut self) {
        self.fill();
        // Whatever is still sent from will be worth it again.
        self.sources.copied = Default::default();
        self.endpoint.forget_sources();
        self.endpoint.advance_epoch();
    }

    /// Puts into the ring what the engine wants there.
    #[inline]
    pub(super) fn fill_if_wanted(&mut self) {
        if !self.sources.unfilled.is_empty() && self.endpoint.fill_wanted() > self.sources.filled {
            self.fill();
        }
    }

    /// Puts everything into the ring that was left in place and is not consumed. The engine takes a
    /// payload that it can reach from where it was all the same.
    #[cold]
    fn fill(&mut self) {
        if self.sources.unfilled.is_empty() {
            return;
        }
        for (record, payload) in self.sources.unfilled.drain(..) {
            if self.endpoint.request_consumed(record.end()) == Ok(false) {
                self.endpoint.fill(&record, payload);
            }
        }
        self.sources.filled = self.endpoint.request_position();
        self.endpoint.publish_filled();
    }
}

/// Where the payload of a request is.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) source: Source,
    /// The engine reaches it.
    pub(super) stays: bool,
    /// After so many bytes that were copied it should.
    worth: u64,
}

impl Inner {
    /// Where the payload of a request is, if it may stay there, now or later.
    #[inline]
    pub(super) fn origin(&self, qp: &Qp, parts: &[UserMemory]) -> Option<Origin> {
        let [part] = parts else { return None };
        // Inline data is shorter: what is long is in the region that was looked up for it.
        if part.len() < SOURCE_MIN || qp.service != Service::Rc {
            return None;
        }
        let region = self.send_cache.latest()?;
        let (begin, end) = (region.memory.address(), region.memory.address() + region.memory.len());
        let whole = begin.next_multiple_of(PAGE_BYTES)..end - end % PAGE_BYTES;
        let inside = part.address() >= whole.start && part.address() + part.len() <= whole.end;
        let named = region.rkey != NO_RKEY && region.iova == begin as u64;
        let large = region.memory.len() > SOURCE_REGION_MAX;
        if !inside || !named || large {
            return None;
        }
        let (key, address) = (region.rkey, part.address() as u64);
        let stays = self.links.first().is_some_and(|link| link.endpoint.peer_reaches(key));
        if !stays {
            region.moved.note(part.len() as u64);
        }
        let worth = SOURCE_WORTH.max(region.memory.len() as u64);
        Some(Origin { source: Source { key, address }, stays, worth })
    }
}
