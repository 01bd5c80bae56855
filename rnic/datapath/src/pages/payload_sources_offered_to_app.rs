//! Offers mapped regions to the application as sources of payload.
//!
//! In: the keys that the application wants to send from. Out: keys to ask the control plane for, as
//! for those that a peer names, and offers. Payload that the application leaves in place because of
//! an offer is read from its pages when packets are made; see `omniverb_link::payload_source`.

use crate::pages::mapped_pages::MappedPages;
use omniverb_link::Endpoint;
use omniverb_link::payload_source::SOURCES;
use omniverb_terms::Rkey;

/// A region that could not be reached is not offered for so long, in nanoseconds: its pages may be
/// on their way out of memory.
const PAUSE: u64 = 100_000_000;

/// The offers to a link.
#[derive(Default)]
pub struct Sources {
    /// The keys wanted at the last check, and the revocation count of that time.
    seen: ([Rkey; SOURCES], u64),
    /// All of it is offered.
    settled: bool,
    /// Nothing is offered before this time.
    paused_until: u64,
}

impl Sources {
    /// Offers what is wanted and mapped; has asked for what is not.
    pub fn look(&mut self, endpoint: &mut Endpoint, grants: &mut impl MappedPages, now: u64) {
        let (wanted, epoch) = (endpoint.sources_wanted(), endpoint.peer_epoch());
        if self.settled && self.seen == (wanted, epoch) || now < self.paused_until {
            return;
        }
        self.seen = (wanted, epoch);
        self.settled = true;
        for key in wanted.into_iter().filter(|key| *key != Rkey(0)) {
            if grants.has(endpoint, key) {
                endpoint.publish_source(key, epoch);
            } else {
                self.settled = false;
            }
        }
    }

    /// This one cannot be reached now.
    pub fn withdraw(&mut self, endpoint: &mut Endpoint, key: Rkey, now: u64) {
        endpoint.withdraw_source(key);
        (self.settled, self.paused_until) = (false, now + PAUSE);
    }
}
