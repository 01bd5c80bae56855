//! Payload that stays in the application's region, where the engine has that mapped: it goes from
//! there into packets, and is copied once less. See `omniverb_link::payload_source`.
//!
//! What is left in place is noted until the engine has consumed it: before pages move back, or if
//! the engine cannot reach them, it is put into the ring after all.

use crate::limits::{PAGE_BYTES, SOURCE_REGION_MAX, SOURCE_WORTH};
use crate::memory_region::{NO_RKEY, Region};
use omniverb_link::payload_source::{SOURCES, slot};
use omniverb_link::{Broken, Endpoint, Source, UnfilledRecord};
use omniverb_ring::UserMemory;
use omniverb_terms::Rkey;
use std::collections::VecDeque;

/// What a link knows of payload outside of its ring.
#[derive(Default)]
pub(crate) struct Sources {
    /// Oldest first. The memory is a region's: it lasts until that is deregistered, and before, all
    /// of this is filled.
    unfilled: VecDeque<(UnfilledRecord, UserMemory)>,
    /// Regions that were sent from lately, and how many bytes of each were copied.
    copied: [(Rkey, u64); SOURCES],
    /// Up to here the engine has asked to have records filled, and they are.
    filled: u64,
}

impl Sources {
    /// So many bytes of this region were copied. When it is worth while, the engine is asked to map
    /// it.
    pub(crate) fn note_copied(
        &mut self,
        endpoint: &mut Endpoint,
        origin: &PayloadOrigin,
        bytes: u64,
    ) {
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
    pub(crate) fn note(
        &mut self,
        endpoint: &mut Endpoint,
        record: UnfilledRecord,
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
    /// Puts into the ring what the engine wants there.
    #[inline]
    pub(crate) fn fill_if_wanted(&mut self, endpoint: &mut Endpoint) {
        if !self.unfilled.is_empty() && endpoint.fill_wanted() > self.filled {
            self.fill(endpoint);
        }
    }

    /// Pages are to move back: nothing depends on them afterwards.
    pub(crate) fn revoke(&mut self, endpoint: &mut Endpoint) {
        self.fill(endpoint);
        // Whatever is still sent from will be worth it again.
        self.copied = Default::default();
        endpoint.forget_sources();
    }

    /// Puts everything into the ring that was left in place and is not consumed. The engine takes a
    /// payload that it can reach from where it was all the same.
    #[cold]
    fn fill(&mut self, endpoint: &mut Endpoint) {
        if self.unfilled.is_empty() {
            return;
        }
        for (record, payload) in self.unfilled.drain(..) {
            if endpoint.request_consumed(record.end()) == Ok(false) {
                endpoint.fill(&record, payload);
            }
        }
        self.filled = endpoint.request_position();
        endpoint.publish_filled();
    }
}

/// Where the payload of a request is.
#[derive(Clone, Copy)]
pub(crate) struct PayloadOrigin {
    pub(super) source: Source,
    /// The engine reaches it, so it need not be copied.
    pub(super) is_reached: bool,
    /// After so many bytes that were copied it should.
    worth: u64,
}

impl PayloadOrigin {
    /// Where a payload is, if it may stay there, now or later. `region`: the one that it lies in.
    /// `reaches`: whether the engine has the region of a key mapped.
    pub(super) fn of(
        region: &Region,
        part: &UserMemory,
        reaches: impl FnOnce(Rkey) -> bool,
    ) -> Option<PayloadOrigin> {
        let (begin, end) = (region.memory.address(), region.memory.address() + region.memory.len());
        let whole = begin.next_multiple_of(PAGE_BYTES)..end - end % PAGE_BYTES;
        let inside = part.address() >= whole.start && part.address() + part.len() <= whole.end;
        let named = region.rkey != NO_RKEY && region.iova == begin as u64;
        let large = region.memory.len() > SOURCE_REGION_MAX;
        if !inside || !named || large {
            return None;
        }
        let (key, address) = (region.rkey, part.address() as u64);
        let is_reached = reaches(key);
        if !is_reached {
            region.moved.note(part.len() as u64);
        }
        let worth = SOURCE_WORTH.max(region.memory.len() as u64);
        Some(PayloadOrigin { source: Source { key, address }, is_reached, worth })
    }
}
