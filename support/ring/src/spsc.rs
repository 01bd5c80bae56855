//! Implements the single-producer single-consumer ring of records.
//!
//! ```text
//! record := header word | extra words (0..=7) | payload, padded to 8 bytes
//! header := valid:1 | pad:1 | extra:3 | tag:27 | length:32        (0 = nothing here yet)
//! ```
//!
//! A record never wraps: where it does not fit before the end, a pad record fills up.
//!
//! **Ordering.** There is no shared write index; the header word is the news. The producer
//! writes a zero word behind the record, then extra words and payload, then the header with
//! release (SYNC: published). The consumer loads the header with acquire (SYNC: published): seeing
//! it non-zero, it sees everything before it, the zero behind it included, so the next look finds
//! either that zero or the next header, never stale bytes of an earlier lap. The consumer copies
//! out, then publishes its position with release (SYNC: consumed); the producer loads it with
//! acquire (SYNC: consumed) before it reuses the space, one word more than the record needs, which
//! is where the zero goes.
//!
//! **Trust.** The producer believes the consumed position only if it is between the last one and
//! its own; the consumer believes a header only if the record ends inside the ring. Everything else
//! is [`Broken`].

use crate::shared_atomics::Ordering;
use crate::user_memory::UserMemory;
use crate::word_memory::WordMemory;

const VALID: u64 = 1 << 63;
const PAD: u64 = 1 << 62;
const EXTRA_SHIFT: u32 = 59;
const TAG_SHIFT: u32 = 32;

/// Most extra words of a record.
pub const EXTRA_MAX: usize = 7;
/// Tags are smaller than this.
pub const TAG_END: u32 = 1 << 27;
/// Least bytes of a ring. The model checker takes a smaller one: it goes round sooner.
pub const CAPACITY_MIN: usize = if cfg!(loom) { 64 } else { 256 };

/// The other end wrote something that no correct end writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

#[inline(always)]
const fn record_bytes(extra: usize, length: usize) -> usize {
    8 + extra * 8 + length.next_multiple_of(8)
}

/// Bytes that a record takes wherever in the ring it comes to lie: before it, what is left at the
/// end of the ring may be too short for it.
pub const fn room_of(extra: usize, length: usize) -> u64 {
    2 * record_bytes(extra, length) as u64 - 8
}

/// Positions are less than this, for as long as a computer lasts: sums of them do not wrap.
const POSITION_END: u64 = 1 << 62;

/// Whether a ring can have come this far: records are whole words.
fn is_possible(position: u64) -> bool {
    position.is_multiple_of(8) && position < POSITION_END
}

/// The sending end. There is one per ring.
pub struct Producer<M> {
    ring: M,
    /// Where the consumer publishes its position.
    words: M,
    consumed_word: usize,
    capacity: u64,
    /// Bytes ever written, pads included.
    position: u64,
    /// The consumer's position as last seen.
    consumed: u64,
}

impl<M: WordMemory> Producer<M> {
    /// `ring` is the whole ring (a power of two of at least [`CAPACITY_MIN`], zeroed); the consumer
    /// publishes at byte `consumed_word` of `words`.
    pub fn new(ring: M, words: M, consumed_word: usize) -> Self {
        let capacity = ring.length();
        assert!(capacity.is_power_of_two() && capacity >= CAPACITY_MIN);
        Self { ring, words, consumed_word, capacity: capacity as u64, position: 0, consumed: 0 }
    }

    /// Goes on where another producer of the same ring has ended: so many bytes were ever written.
    /// False: no producer ever ends there.
    #[must_use]
    pub fn resume_at(&mut self, position: u64) -> bool {
        let may = is_possible(position);
        if may {
            self.position = position;
            // The least that a consumer can have said; the first look finds the right one.
            self.consumed = position.saturating_sub(self.capacity);
        }
        may
    }

    /// Largest payload that one record takes: a quarter of the ring, so that several are under way.
    pub fn payload_max(&self) -> usize {
        (self.capacity as usize / 4).saturating_sub(64)
    }

    /// Bytes ever written: the position right behind the last record.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The consumer's position, looked up if `position` is not reached yet as far as we know.
    #[inline(always)]
    pub fn consumed(&mut self, position: u64) -> Result<u64, Broken> {
        if self.consumed < position {
            self.look()?;
        }
        Ok(self.consumed)
    }

    #[inline(always)]
    fn look(&mut self) -> Result<(), Broken> {
        // SYNC: consumed
        let seen = self.words.load(self.consumed_word, Ordering::Acquire);
        if seen < self.consumed || seen > self.position {
            return Err(Broken);
        }
        self.consumed = seen;
        Ok(())
    }

    /// Makes room for a record; returns its byte offset in the ring, or `None` if there is no
    /// room now. Follow with [`Self::extra`], [`Self::payload`] and then [`Self::publish`].
    #[inline(always)]
    pub fn reserve(&mut self, extra: usize, length: usize) -> Result<Option<usize>, Broken> {
        self.reserve_leaving(extra, length, 0)
    }

    /// The same, only if another record of `spare` bytes (see [`room_of`]) fits behind it.
    #[inline(always)]
    pub fn reserve_leaving(
        &mut self,
        extra: usize,
        length: usize,
        spare: u64,
    ) -> Result<Option<usize>, Broken> {
        debug_assert!(extra <= EXTRA_MAX && length <= self.payload_max());
        let bytes = record_bytes(extra, length) as u64;
        let at = self.position & (self.capacity - 1);
        let until_end = self.capacity - at;
        if bytes > until_end {
            if !self.has_room(until_end + bytes + spare)? {
                return Ok(None);
            }
            self.ring.store(0, 0, Ordering::Relaxed);
            // SYNC: published
            self.ring.store(at as usize, VALID | PAD | until_end, Ordering::Release);
            self.position += until_end;
            return Ok(Some(0));
        }
        Ok(self.has_room(bytes + spare)?.then_some(at as usize))
    }

    /// Whether `bytes` and the zero word behind them fit.
    #[inline(always)]
    fn has_room(&mut self, bytes: u64) -> Result<bool, Broken> {
        if self.position + bytes + 8 - self.consumed > self.capacity {
            self.look()?;
            return Ok(self.position + bytes + 8 - self.consumed <= self.capacity);
        }
        Ok(true)
    }

    /// Sets extra word `index` of the reserved record.
    #[inline(always)]
    pub fn extra(&self, at: usize, index: usize, value: u64) {
        self.ring.store(at + 8 + index * 8, value, Ordering::Relaxed);
    }

    /// Copies bytes into the payload of the reserved record, `offset` bytes into it.
    #[inline(always)]
    pub fn payload(&self, at: usize, extra: usize, offset: usize, source: UserMemory) {
        self.ring.fill(at + 8 + extra * 8 + offset, source);
    }

    /// Hands the reserved record to the consumer.
    #[inline(always)]
    pub fn publish(&mut self, at: usize, tag: u32, extra: usize, length: usize) {
        debug_assert!(tag < TAG_END);
        let bytes = record_bytes(extra, length);
        let behind = (at + bytes) & (self.capacity as usize - 1);
        self.ring.store(behind, 0, Ordering::Relaxed);
        let header =
            VALID | ((extra as u64) << EXTRA_SHIFT) | (u64::from(tag) << TAG_SHIFT) | length as u64;
        // SYNC: published
        self.ring.store(at, header, Ordering::Release);
        self.position += bytes as u64;
    }
}

/// A record at the head of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the sender meant; the ring does not look at it.
    pub tag: u32,
    /// How many extra words there are.
    pub extra: usize,
    /// Bytes of payload, without what pads it to words.
    pub length: usize,
    at: usize,
    bytes: usize,
}

/// What a look at a position of the ring found.
enum NextRecord {
    Nothing,
    Pad(usize),
    Record(Record),
}

/// The receiving end. There is one per ring.
pub struct Consumer<M> {
    ring: M,
    words: M,
    consumed_word: usize,
    capacity: usize,
    position: u64,
    published: u64,
}

impl<M: WordMemory> Consumer<M> {
    /// As [`Producer::new`]; this end writes byte `consumed_word` of `words`.
    pub fn new(ring: M, words: M, consumed_word: usize) -> Self {
        let capacity = ring.length();
        assert!(capacity.is_power_of_two() && capacity >= CAPACITY_MIN);
        Self { ring, words, consumed_word, capacity, position: 0, published: 0 }
    }

    /// Goes on where another consumer of the same ring has ended, and publishes that. False: no
    /// consumer ever ends there.
    #[must_use]
    pub fn resume_at(&mut self, position: u64) -> bool {
        let may = is_possible(position);
        if may {
            self.position = position;
            self.publish();
        }
        may
    }

    /// Whether there is something at the head; the cheapest question there is.
    #[inline(always)]
    pub fn has_news(&self) -> bool {
        self.ring.load(self.position as usize & (self.capacity - 1), Ordering::Relaxed) != 0
    }

    /// The record at the head, if any. It stays there until [`Self::pass`].
    #[inline(always)]
    pub fn head(&mut self) -> Result<Option<Record>, Broken> {
        loop {
            match self.read(self.position)? {
                NextRecord::Nothing => return Ok(None),
                NextRecord::Pad(bytes) => self.position += bytes as u64,
                NextRecord::Record(record) => return Ok(Some(record)),
            }
        }
    }

    /// The record at `position`, which is the end of a record not passed yet (or the head), and
    /// the position right behind it; `None` if there is none yet. Everything stays in the ring
    /// until [`Self::pass_until`].
    pub fn look_ahead(&self, position: u64) -> Result<Option<(Record, u64)>, Broken> {
        let mut position = position;
        loop {
            let (record, bytes) = match self.read(position)? {
                NextRecord::Nothing => return Ok(None),
                NextRecord::Pad(bytes) => (None, bytes),
                NextRecord::Record(record) => (Some(record), record.bytes),
            };
            position += bytes as u64;
            // Not passed is never more than the ring holds: such a producer has overwritten what
            // was still ours.
            if position - self.position > self.capacity as u64 {
                return Err(Broken);
            }
            if let Some(record) = record {
                return Ok(Some((record, position)));
            }
        }
    }

    /// Done with everything before `position`, which [`Self::look_ahead`] gave.
    pub fn pass_until(&mut self, position: u64) {
        debug_assert!(position >= self.position);
        self.position = position;
    }

    /// What is at `position`.
    #[inline(always)]
    fn read(&self, position: u64) -> Result<NextRecord, Broken> {
        let at = position as usize & (self.capacity - 1);
        // SYNC: published
        let header = self.ring.load(at, Ordering::Acquire);
        if header == 0 {
            return Ok(NextRecord::Nothing);
        }
        let length = (header & 0xffff_ffff) as usize;
        if header & VALID == 0 {
            return Err(Broken);
        }
        if header & PAD != 0 {
            if at == 0 || at + length != self.capacity {
                return Err(Broken);
            }
            return Ok(NextRecord::Pad(length));
        }
        let extra = (header >> EXTRA_SHIFT) as usize & EXTRA_MAX;
        let bytes = record_bytes(extra, length);
        if bytes > self.capacity - at || bytes + 8 > self.capacity {
            return Err(Broken);
        }
        let tag = (header >> TAG_SHIFT) as u32 & (TAG_END - 1);
        Ok(NextRecord::Record(Record { tag, extra, length, at, bytes }))
    }

    /// Extra word `index` of the record at the head. Read it once: the producer may change it.
    #[inline(always)]
    pub fn extra(&self, record: &Record, index: usize) -> u64 {
        assert!(index < record.extra);
        self.ring.load(record.at + 8 + index * 8, Ordering::Relaxed)
    }

    /// Copies payload bytes out, from `offset` on, as many as `target` has.
    #[inline(always)]
    pub fn payload(&self, record: &Record, offset: usize, target: UserMemory) {
        assert!(offset <= record.length && target.len() <= record.length - offset);
        self.ring.drain(record.at + 8 + record.extra * 8 + offset, target);
    }

    /// Says that what stands in the ring behind `offset` bytes of this record's payload will be
    /// read soon, be it the rest of it or the next record.
    #[inline(always)]
    pub fn prefetch_behind(&self, record: &Record, offset: usize, bytes: usize) {
        let at = (record.at + 8 + record.extra * 8 + offset) & (self.capacity - 1);
        self.ring.prefetch(at..at + bytes);
    }

    /// Done with the record at the head. The producer learns of it by [`Self::publish`].
    #[inline(always)]
    pub fn pass(&mut self, record: &Record) {
        self.position += record.bytes as u64;
    }

    /// Bytes ever passed, pads included.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes passed but not published.
    #[inline(always)]
    pub fn unpublished(&self) -> u64 {
        self.position - self.published
    }

    /// Tells the producer how far we are. Returns whether that was news.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.position == self.published {
            return false;
        }
        self.published = self.position;
        // SYNC: consumed
        self.words.store(self.consumed_word, self.position, Ordering::Release);
        true
    }
}
#[cfg(not(loom))]
impl Producer<crate::Window> {
    /// Where `length` bytes of the payload of the reserved record are, from its beginning: for a
    /// copy that is made elsewhere, and may fail. Then nothing is published. Valid while the ring
    /// is.
    pub fn payload_memory(&self, at: usize, extra: usize, length: usize) -> UserMemory {
        self.ring.memory(at + 8 + extra * 8, length)
    }
}

#[cfg(not(loom))]
impl Consumer<crate::Window> {
    /// Where the payload of a record is, for a copy that is made elsewhere. Valid while the ring
    /// is.
    pub fn payload_memory(&self, record: &Record) -> UserMemory {
        self.ring.memory(record.at + 8 + record.extra * 8, record.length)
    }
}
