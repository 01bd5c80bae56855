//! Sources: payload of a request that is not in the ring but where the application has it, in a
//! region whose pages the far end has mapped.
//!
//! Such a record has its place for the payload in the ring all the same, empty. It is filled, and
//! the payload taken from there, if the far end cannot reach the region any more: before the
//! application takes pages back it fills what the peer has not consumed, and it does so when the
//! far end asks for it. So a source is a shortcut that can be closed at any time.
//!
//! **Words.** The application writes which regions it sends from; the far end which of those it has
//! mapped, with the application's EPOCH at that time. The far end writes up to where it wants
//! records filled, the application up to where they are.
//!
//! **Ordering.** The application fills, then writes FILLED with release (SYNC: filled), then, if it
//! takes pages back, EPOCH. The far end loads FILLED with acquire (SYNC: filled): seeing it, it
//! sees the payload. What it read from a region counts if EPOCH is afterwards what it was before
//! (SYNC: revoked); if not, it looks at FILLED again, and finds it. The model is
//! `support/ring/tests/loom/payload_source_revocation.rs`.

use crate::endpoint::Endpoint;
use crate::layout::word;
use crate::record::{OPERATION, Request, SEND, SOURCE, WRITE_FIRST, WRITE_MORE};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{Broken, Consumer, Record, UserMemory, WordMemory};
use omniverb_terms::Rkey;

/// Regions of a link that may be sources at the same time.
pub const SOURCES: usize = 4;
/// What no region is named by.
const NO_KEY: Rkey = Rkey(0);

/// Where a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// R_Key of the region.
    pub key: Rkey,
    /// Address of the first byte.
    pub address: u64,
}

/// A record whose payload is elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct UnfilledRecord {
    at: usize,
    extra: usize,
    /// Where it ends in the ring.
    end: u64,
}

impl UnfilledRecord {
    /// Position right behind it.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// Which of the words is this key's.
pub fn slot(key: Rkey) -> usize {
    (key.0.wrapping_mul(0x9e37_79b9) >> 30) as usize
}

fn offered(key: Rkey, epoch: u64) -> u64 {
    u64::from(key.0) | epoch << 32
}

impl Request {
    /// As [`Request::encode`], of one whose payload is elsewhere. `None`: it carries none.
    fn encode_from(&self, source: Source) -> Option<(u32, [u64; 4], usize)> {
        let (tag, words, _) = self.encode();
        let key = u64::from(source.key.0) << 32;
        let (words, extra) = match *self {
            Request::WriteFirst { total, .. } if total >> 32 == 0 => {
                ([words[0], words[1], total | key, source.address], 4)
            }
            Request::WriteMore { .. } | Request::Send { .. } => {
                ([words[0] | key, source.address, 0, 0], 2)
            }
            _ => return None,
        };
        Some((tag | SOURCE, words, extra))
    }

    /// Reads the request at the head, its payload perhaps elsewhere. `None`: not a request.
    pub(crate) fn decode_from<M: WordMemory>(
        ring: &Consumer<M>,
        record: &Record,
    ) -> Option<(Request, Option<Source>)> {
        if record.tag & SOURCE == 0 {
            return Some((Request::decode(ring, record)?, None));
        }
        // Each word once: the other side may change it.
        let word = |i| ring.extra(record, i);
        let high = |word: u64| (word >> 32) as u32;
        let key = |word: u64| Rkey(high(word));
        let flags = record.tag & !OPERATION & !SOURCE;
        Some(match (record.tag & OPERATION, record.extra) {
            (WRITE_FIRST, 4) => {
                let (address, keys, last) = (word(0), word(1), word(2));
                let (rkey, immediate, total) = (Rkey(keys as u32), high(keys), last & 0xffff_ffff);
                let request = Request::WriteFirst { flags, address, rkey, immediate, total };
                (request, Some(Source { key: key(last), address: word(3) }))
            }
            (operation @ (WRITE_MORE | SEND), 2) => {
                let (first, address) = (word(0), word(1));
                let (key, immediate) = (key(first), first as u32);
                let request = match operation {
                    SEND => Request::Send { flags, immediate },
                    _ => Request::WriteMore { flags, immediate },
                };
                (request, Some(Source { key, address }))
            }
            _ => return None,
        })
    }
}

impl Endpoint {
    /// Whether the peer has this region mapped.
    #[inline]
    pub fn peer_reaches(&self, key: Rkey) -> bool {
        let epoch = self.epoch();
        let word = word::SOURCES + 8 * slot(key);
        key != NO_KEY && self.theirs.load(word, Ordering::Acquire) == offered(key, epoch)
    }

    /// Asks the peer to map this region, to send from.
    pub fn want_source(&mut self, key: Rkey) {
        let word = word::SOURCES_WANTED + 8 * slot(key);
        if self.ours.load(word, Ordering::Relaxed) != u64::from(key.0) {
            self.ours.store(word, u64::from(key.0), Ordering::Release);
        }
    }

    /// Wants no region any more.
    pub fn forget_sources(&mut self) {
        for slot in 0..SOURCES {
            self.ours.store(word::SOURCES_WANTED + 8 * slot, 0, Ordering::Release);
        }
    }

    /// As [`Endpoint::send_request`], but the payload stays where it is. `None`: no room now.
    pub fn send_request_from(
        &mut self,
        request: &Request,
        length: usize,
        source: Source,
    ) -> Result<Option<UnfilledRecord>, Broken> {
        let Some((tag, words, extra)) = request.encode_from(source) else { return Ok(None) };
        let Some(at) = self.requests_out.reserve(extra, length)? else { return Ok(None) };
        for (index, word) in words.iter().enumerate().take(extra) {
            self.requests_out.extra(at, index, *word);
        }
        self.requests_out.publish(at, tag, extra, length);
        self.notify();
        Ok(Some(UnfilledRecord { at, extra, end: self.requests_out.position() }))
    }

    /// Puts the payload of a record, which the peer must not have consumed, where it belongs.
    pub fn fill(&mut self, record: &UnfilledRecord, payload: UserMemory) {
        self.requests_out.payload(record.at, record.extra, 0, payload);
    }

    /// All records sent until now are filled.
    pub fn publish_filled(&mut self) {
        // SYNC: filled
        self.ours.store(word::FILLED, self.requests_out.position(), Ordering::Release);
        self.notify_peer();
    }

    /// Up to where the peer wants records filled.
    #[inline]
    pub fn fill_wanted(&self) -> u64 {
        self.theirs.load(word::FILL, Ordering::Acquire)
    }

    /// At the engine's end: the regions that the peer sends from; 0: none.
    pub fn sources_wanted(&self) -> [Rkey; SOURCES] {
        let word = |slot: usize| word::SOURCES_WANTED + 8 * slot;
        std::array::from_fn(|slot| Rkey(self.theirs.load(word(slot), Ordering::Acquire) as u32))
    }

    /// At the engine's end: this region was mapped when the peer's revocation count was `epoch`.
    pub fn publish_source(&mut self, key: Rkey, epoch: u64) {
        self.ours.store(word::SOURCES + 8 * slot(key), offered(key, epoch), Ordering::Release);
    }

    /// At the engine's end: this region is out of reach.
    pub fn withdraw_source(&mut self, key: Rkey) {
        let word = word::SOURCES + 8 * slot(key);
        if self.ours.load(word, Ordering::Relaxed) as u32 == key.0 {
            self.ours.store(word, 0, Ordering::Release);
        }
    }

    /// At the engine's end: whether the peer's records up to `position` are filled.
    #[inline]
    pub fn is_filled(&self, position: u64) -> bool {
        // SYNC: filled
        self.theirs.load(word::FILLED, Ordering::Acquire) >= position
    }

    /// At the engine's end: the peer is to fill its records up to `position`.
    pub fn want_filled(&mut self, position: u64) {
        if self.ours.load(word::FILL, Ordering::Relaxed) < position {
            self.ours.store(word::FILL, position, Ordering::Release);
            self.notify_peer();
        }
    }
}
