//! A token bucket. Time is an argument.
//!
//! Whoever finds it not empty may send, and then owes what the packet took beyond that: so the
//! average is exact whatever the size of packets, and a burst is exceeded by one train at most.

/// How much a vNIC may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits of Ethernet frames, as tc(8) counts them: headers included, preamble and checksum not.
    pub bits_per_second: u64,
    /// Bytes that may be sent at once after a time without traffic.
    pub burst_bytes: u64,
}

const SECOND: u128 = 1_000_000_000;

/// The state of a limit.
#[derive(Debug)]
pub(crate) struct Bucket {
    limit: Limit,
    /// Bit-nanoseconds per second: level times 10^9, so that nothing is ever rounded.
    level: i128,
    filled_at: u64,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(limit: Limit, now: u64) -> Bucket {
        let mut bucket = Bucket { limit, level: 0, filled_at: now };
        bucket.level = bucket.capacity();
        bucket
    }

    fn capacity(&self) -> i128 {
        i128::from(self.limit.burst_bytes.max(1)) * 8 * SECOND.cast_signed()
    }

    /// Another limit from now on. What was earned or is owed stays.
    pub(crate) fn change(&mut self, limit: Limit, now: u64) {
        self.fill(now);
        self.limit = limit;
        // A debt made at a high rate would last long at a low one: a burst's worth is enough.
        self.level = self.level.clamp(-self.capacity(), self.capacity());
    }

    fn fill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        let earned = i128::from(passed) * i128::from(self.limit.bits_per_second);
        self.level = (self.level + earned).min(self.capacity());
    }

    /// Whether something may be sent now; if not, when it may.
    pub(crate) fn ready(&mut self, now: u64) -> Result<(), u64> {
        self.fill(now);
        if self.level > 0 {
            return Ok(());
        }
        let rate = i128::from(self.limit.bits_per_second.max(1));
        let wait = (-self.level).div_euclid(rate) + 1;
        Err(now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX / 2)))
    }

    /// Whether half of a burst may be sent at once.
    pub(crate) fn is_half_full(&mut self, now: u64) -> bool {
        self.fill(now);
        self.level * 2 >= self.capacity()
    }

    /// So many bytes were sent.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.level -= i128::from(bytes) * 8 * SECOND.cast_signed();
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, Limit};
    use proptest::prelude::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let limit = Limit { bits_per_second: 8_000, burst_bytes: 1000 };
        let mut bucket = Bucket::new(limit, 0);
        assert_eq!(bucket.ready(0), Ok(()));
        bucket.take(1500);
        // 500 bytes too many at 1000 bytes a second.
        assert_eq!(bucket.ready(0), Err(500_000_001));
        assert_eq!(bucket.ready(500_000_000), Err(500_000_001));
        assert_eq!(bucket.ready(500_000_001), Ok(()));
        // However long nobody sends, no more than a burst is saved up.
        assert_eq!(bucket.ready(3_600_000_000_000), Ok(()));
        bucket.take(1000);
        assert!(bucket.ready(3_600_000_000_000).is_err());
    }

    #[test]
    fn a_change_takes_effect_at_once() {
        let mut bucket = Bucket::new(Limit { bits_per_second: 8, burst_bytes: 100 }, 0);
        bucket.take(200);
        bucket.change(Limit { bits_per_second: 8_000_000, burst_bytes: 100 }, 0);
        assert_eq!(bucket.ready(0), Err(100_001));
    }

    proptest! {
        /// Over any time, what is sent is the burst and the rate, give or take one packet.
        #[test]
        fn the_rate_is_kept(
            rate in 1_000_000_u64..100_000_000,
            packets in proptest::collection::vec(64_u64..9000, 200..400),
        ) {
            let mut bucket = Bucket::new(Limit { bits_per_second: rate, burst_bytes: 10_000 }, 0);
            let (mut now, mut sent) = (0, 0);
            for packet in &packets {
                while let Err(at) = bucket.ready(now) {
                    prop_assert!(at > now);
                    now = at;
                }
                bucket.take(*packet);
                sent += packet;
            }
            let allowed = 10_000 + u128::from(now) * u128::from(rate) / 8 / 1_000_000_000;
            prop_assert!(u128::from(sent) <= allowed + 9000);
            prop_assert!(u128::from(sent) + 9000 + 10_000 >= allowed);
        }
    }
}
