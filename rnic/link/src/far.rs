//! What the engine needs at its end of a link beyond what a queue pair does: it reads requests
//! ahead and leaves them in the ring until the network has acknowledged them, so that the ring is
//! the retransmission buffer; and it makes sure of pages that were granted after using them.

use crate::endpoint::Endpoint;
use crate::layout::word;
use crate::record::Request;
use crate::source::Source;
use omniverb_ring::sync::{Ordering, fence};
use omniverb_ring::{Broken, Record, WordMemory};

/// A request that stays in the ring.
pub struct Ahead {
    /// What it is.
    pub request: Request,
    /// Where its payload is, if not in the ring.
    pub source: Option<Source>,
    /// The record.
    pub record: Record,
    /// Where it ends.
    pub end: u64,
}

impl Endpoint {
    /// The request at `position` (0, or the end of the one before); `None`: not there yet. It stays
    /// in the ring.
    pub fn request_after(&self, position: u64) -> Result<Option<Ahead>, Broken> {
        let Some((record, end)) = self.requests_in.look_ahead(position)? else { return Ok(None) };
        let found = Request::decode_from(&self.requests_in, &record).ok_or(Broken)?;
        Ok(Some(Ahead { request: found.0, source: found.1, record, end }))
    }

    /// Where the first request is that is not passed.
    pub fn requests_taken(&self) -> u64 {
        self.requests_in.position()
    }

    /// Done with all requests that end at `position` or before; the peer is told.
    pub fn pass_requests_until(&mut self, position: u64) {
        self.requests_in.pass_until(position);
        self.publish_requests();
    }

    /// Says that what stands behind `offset` bytes of this request's payload is to be read soon.
    #[inline(always)]
    pub fn prefetch_requests_behind(&self, record: &Record, offset: usize, bytes: usize) {
        self.requests_in.prefetch_behind(record, offset, bytes);
    }

    /// How far the peer has consumed what we sent it.
    pub fn peer_consumed(&mut self) -> Result<u64, Broken> {
        self.requests_out.consumed(self.requests_out.position())
    }

    /// The peer's revocation count after we have used pages that it granted. If it is what it was
    /// before, what we wrote was there before the peer began to take its pages back, and what we
    /// read was its own memory still.
    #[inline(always)]
    pub fn peer_epoch_afterwards(&self) -> u64 {
        fence(Ordering::SeqCst); // SYNC: revoked
        self.theirs.load(word::EPOCH, Ordering::Acquire)
    }
}
