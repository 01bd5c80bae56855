//! Gathers packets to one destination, so that one system call sends them (GSO).
//!
//! All are as long as the first; the last may be shorter. The kernel cuts them apart again.

use omniverb_wire::{BatchSize, DATAGRAM_MAX, IcrcFlow, PreparedIcrc};

/// Bytes of a train: what fits into one IP packet.
const BYTES_MAX: usize = 65_000;

/// The packets of one train.
pub struct Train {
    buffer: Box<[u8]>,
    length: usize,
    segment: usize,
    count: usize,
    /// So many of them have their ICRC.
    sealed: usize,
    /// For packets as the latest ones.
    prepared: Option<PreparedIcrc>,
    /// Its last packet is shorter: nothing can follow.
    closed: bool,
}

impl Train {
    /// One without packets.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it takes 64 KiB")]
    pub fn new() -> Train {
        let buffer = vec![0; BYTES_MAX + DATAGRAM_MAX].into_boxed_slice();
        Train { buffer, length: 0, segment: 0, count: 0, sealed: 0, prepared: None, closed: false }
    }

    /// Where the next packet is to be written.
    pub fn tail(&mut self) -> &mut [u8] {
        &mut self.buffer[self.length..][..DATAGRAM_MAX]
    }

    /// Whether a packet of this length, written to the tail, belongs to the train.
    pub fn accepts(&self, length: usize, count_max: usize) -> bool {
        self.count == 0
            || !self.closed
                && length <= self.segment
                && self.count < count_max
                && self.length + length <= BYTES_MAX
    }

    /// The packet at the tail belongs to the train.
    pub fn append(&mut self, length: usize) {
        if self.count == 0 {
            self.segment = length;
        }
        self.closed = length < self.segment;
        self.length += length;
        self.count += 1;
    }

    /// The packet of `length` bytes that was appended last.
    pub fn latest(&self, length: usize) -> &[u8] {
        &self.buffer[self.length - length.min(self.length)..self.length]
    }

    /// The packet that was appended last and the room behind it, and how many more like it fit.
    pub fn behind(&mut self, count_max: usize) -> (&mut [u8], usize) {
        let bytes = BYTES_MAX.saturating_sub(self.length) / self.segment.max(1);
        let count = if self.closed { 0 } else { bytes.min(count_max.saturating_sub(self.count)) };
        (&mut self.buffer[self.length - self.segment.min(self.length)..], count)
    }

    /// So many more like it were written.
    pub fn extend(&mut self, count: usize) {
        self.length += count * self.segment;
        self.count += count;
    }

    /// No packet as long as those it has fits in.
    pub fn is_full(&self, count_max: usize) -> bool {
        self.closed || self.count >= count_max || self.length + self.segment > BYTES_MAX
    }

    /// How many packets it has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// It has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of a packet that others follow.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// Its packets, in the order in which they were appended, each with room for the ICRC.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.buffer[..self.length].chunks(self.segment.max(1))
    }

    /// Writes the ICRCs that are missing, and gives the train. Best done packet by packet, while
    /// they are in the nearest cache.
    pub fn seal(&mut self, flow: &IcrcFlow) -> &[u8] {
        let train = &mut self.buffer[..self.length];
        let alike = if self.count > 1 { BatchSize::Several } else { BatchSize::One };
        let equal = PreparedIcrc::reuse(&mut self.prepared, flow, self.segment, alike);
        let packets = train.chunks_mut(self.segment.max(1)).enumerate();
        for (index, packet) in packets.skip(self.sealed) {
            // The kernel numbers the packets of a train from zero.
            let id = u16::try_from(index).unwrap_or(u16::MAX);
            match &equal {
                Some(prepared) => prepared.seal(packet, id),
                None => flow.seal(packet, id),
            }
        }
        self.sealed = self.count;
        train
    }

    /// The train has left; a packet of `length` bytes at the tail begins the next one.
    pub fn restart(&mut self, length: usize) {
        self.buffer.copy_within(self.length..self.length + length, 0);
        self.clear();
        self.append(length);
    }

    /// The train has left.
    pub fn clear(&mut self) {
        (self.length, self.segment, self.count, self.closed) = (0, 0, 0, false);
        self.sealed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Train;

    #[test]
    fn equal_packets_and_a_shorter_one() {
        let mut train = Train::new();
        for (length, fits) in [(100, true), (100, true), (60, true), (60, false)] {
            train.tail()[..length].fill(length as u8);
            assert_eq!(train.accepts(length, 64), fits);
            if fits {
                train.append(length);
            }
        }
        let lengths: Vec<usize> = train.packets().map(<[u8]>::len).collect();
        assert_eq!(lengths, [100, 100, 60]);
        train.restart(60);
        assert_eq!(train.packets().collect::<Vec<_>>(), [&[60; 60][..]]);
        assert!(!train.accepts(61, 64), "longer than the first");
        assert!(!train.accepts(60, 1), "as many as the kernel takes");
        train.clear();
        assert!(train.is_empty() && train.accepts(4000, 1));
    }
}
