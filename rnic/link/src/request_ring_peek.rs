//! Reads ahead in the request ring, at the engine's end of a link: requests stay in the ring until
//! the network has acknowledged them, so that the ring is the retransmission buffer.

use crate::endpoint::Endpoint;
use crate::payload_source::Source;
use crate::record::Request;
use omniverb_ring::{Broken, Record};

/// A request that stays in the ring.
pub struct PeekedRequest {
    /// Decoded and checked.
    pub request: Request,
    /// Where its payload is, if not in the ring.
    pub source: Option<Source>,
    /// Where it lies in the ring: for its payload.
    pub record: Record,
    /// Position right behind it: where the next one begins.
    pub end: u64,
}

impl Endpoint {
    /// The request at `position` (0, or the end of the one before); `None`: not there yet. It stays
    /// in the ring.
    pub fn request_after(&self, position: u64) -> Result<Option<PeekedRequest>, Broken> {
        let Some((record, end)) = self.requests_in.look_ahead(position)? else { return Ok(None) };
        let found = Request::decode_from(&self.requests_in, &record).ok_or(Broken)?;
        Ok(Some(PeekedRequest { request: found.0, source: found.1, record, end }))
    }

    /// Up to where requests are passed: where the first one is that stays.
    pub fn requests_passed(&self) -> u64 {
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
}
