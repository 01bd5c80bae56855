//! Holds one sender to a rate: keeps the time from which on it may send again.
//!
//! A packet moves that time forward by its duration at the rate. A silent sender has that time
//! behind it, by the duration of its burst at most. A sender that finds it in the past may send a
//! packet of any size: so the average is exact for any size of packets, and a burst is exceeded by
//! one packet at most.

/// How much may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits of Ethernet frames, as tc(8) counts them: headers included, preamble and checksum not.
    pub bits_per_second: u64,
    /// Bytes that may be sent at once after a time without traffic.
    pub burst_bytes: u64,
}

/// Nanoseconds that a byte takes at one bit a second.
const BYTE: u64 = 8_000_000_000;

/// What an operation is in a tree that limits operations instead of bytes: the bytes of a turn. So
/// siblings begin one each, and a thread takes one ahead.
pub const OPERATION: u64 = 4096;

impl Limit {
    /// So many operations a second, each of which is [`OPERATION`] bytes. After a time without any,
    /// those of a millisecond may begin at once, and one at least.
    #[must_use]
    pub fn of_operations(per_second: u32) -> Limit {
        let per_second = u64::from(per_second);
        // What finds its time in the past may begin one more, so a burst is one less.
        let burst = (per_second / 1000).saturating_sub(1) * OPERATION;
        // Two nanoseconds more: times are whole ones.
        let more = per_second * OPERATION / 500_000_000 + 1;
        Limit { bits_per_second: per_second * OPERATION * 8, burst_bytes: burst + more }
    }

    /// Nanoseconds that so many bytes take, and the part of one that is left over, in
    /// `bits_per_second`ths.
    fn takes(self, bytes: u64, rest: u64) -> (i64, u64) {
        let rate = self.bits_per_second.max(1);
        // Nearly always: bytes of a packet, and a division that takes a few nanoseconds.
        let small = bytes.checked_mul(BYTE).and_then(|bits| bits.checked_add(rest));
        if let Some(all) = small {
            return ((all / rate).cast_signed(), all % rate);
        }
        let all = u128::from(bytes) * u128::from(BYTE) + u128::from(rest);
        let rate = u128::from(rate);
        (i64::try_from(all / rate).unwrap_or(FOREVER), (all % rate) as u64)
    }
}

/// Credit that is kept at least while a sender waited for others, or its thread for a processor, in
/// nanoseconds.
pub(crate) const CATCH_UP: u64 = 1_000_000;
/// That credit in bytes: those of a turn. While all others have theirs, a sender that may have less
/// than an even share of its group's rate earns no more.
const CATCH_UP_BYTES: u64 = OPERATION;

/// As long as anything takes: a century.
const FOREVER: i64 = 100 * 366 * 86_400 * 1_000_000_000;

/// The state of a limit.
#[derive(Clone, Debug)]
pub struct Limiter {
    limit: Limit,
    /// From then on more may be sent.
    free_at: i64,
    /// The part of a nanosecond that `free_at` lacks, in `bits_per_second`ths: nothing is rounded.
    rest: u64,
}

fn signed(now: u64) -> i64 {
    i64::try_from(now).unwrap_or(i64::MAX)
}

impl Limiter {
    /// One whose sender was silent until now.
    #[must_use]
    pub fn new(limit: Limit, now: u64) -> Limiter {
        let mut limiter = Limiter { limit, free_at: 0, rest: 0 };
        limiter.free_at = signed(now) - limiter.burst();
        limiter
    }

    /// Nanoseconds that a burst takes. It is seldom needed, so that a limiter is half a cache line.
    fn burst(&self) -> i64 {
        self.limit.takes(self.limit.burst_bytes, 0).0.clamp(1, FOREVER)
    }

    /// Which rate and burst hold now.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// Changes the limit. Credit and debt stay, in bytes.
    pub fn change(&mut self, limit: Limit, now: u64) {
        self.keep_credit(0, now);
        let new = Limiter::new(limit, now);
        let burst = i128::from(new.burst());
        let bits = i128::from(self.free_at - signed(now)) * i128::from(self.limit.bits_per_second);
        let owed = bits / i128::from(limit.bits_per_second.max(1));
        // A debt made at a high rate would last long at a low one: a burst's worth is enough. Not
        // less than an operation: else each change would be good for one.
        let most = burst.max(limit.takes(OPERATION, 0).0.into());
        let owed = owed.clamp(-burst, most) as i64;
        *self = Limiter { free_at: signed(now) + owed, ..new };
    }

    /// Forgets what a silent sender has earned beyond its burst, or `least` nanoseconds' worth if
    /// that is more.
    pub(crate) fn keep_credit(&mut self, least: u64, now: u64) {
        if self.free_at >= signed(now) - signed(least) {
            return;
        }
        let earliest = signed(now) - self.burst().max(signed(least));
        if self.free_at < earliest {
            (self.free_at, self.rest) = (earliest, 0);
        }
    }

    /// Forgets what a sender has earned, while it waited for others, beyond its burst and what is
    /// kept at least.
    pub(crate) fn keep_while_waiting(&mut self, now: u64) {
        if self.free_at < signed(now) - signed(CATCH_UP) {
            let bytes = self.limit.takes(CATCH_UP_BYTES, 0).0.clamp(0, FOREVER).cast_unsigned();
            self.keep_credit(bytes.max(CATCH_UP), now);
        }
    }

    /// The nanosecond from which on something may be sent.
    #[must_use]
    pub fn ready_at(&self) -> u64 {
        u64::try_from(self.free_at + 1).unwrap_or(0)
    }

    /// Whether something may be sent now.
    #[must_use]
    pub fn is_ready(&self, now: u64) -> bool {
        self.free_at < signed(now)
    }

    /// Whether something may be sent now, by a sender that has earned no more than its burst; if
    /// not, when it may.
    ///
    /// # Errors
    /// That time.
    pub fn ready(&mut self, now: u64) -> Result<(), u64> {
        self.keep_credit(0, now);
        if self.is_ready(now) { Ok(()) } else { Err(self.ready_at()) }
    }

    /// Whether half of a burst may be sent at once.
    #[must_use]
    pub fn is_half_full(&self, now: u64) -> bool {
        let burst = self.burst();
        signed(now) - self.free_at >= burst - burst / 2
    }

    /// So many bytes were sent.
    pub fn take(&mut self, bytes: u64) {
        let (time, rest) = self.limit.takes(bytes, self.rest);
        self.free_at = self.free_at.saturating_add(time).min(i64::MAX / 2);
        self.rest = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let limit = Limit { bits_per_second: 8_000, burst_bytes: 1000 };
        let mut limiter = Limiter::new(limit, 0);
        assert_eq!(limiter.ready(0), Ok(()));
        limiter.take(1500);
        // 500 bytes too many at 1000 bytes a second.
        assert_eq!(limiter.ready(0), Err(500_000_001));
        assert_eq!(limiter.ready(500_000_000), Err(500_000_001));
        assert_eq!(limiter.ready(500_000_001), Ok(()));
        // After any silence no more than a burst is saved up.
        assert_eq!(limiter.ready(3_600_000_000_000), Ok(()));
        assert!(limiter.is_half_full(3_600_000_000_000));
        limiter.take(1000);
        assert!(limiter.ready(3_600_000_000_000).is_err());
        assert!(!limiter.is_half_full(3_600_000_000_000));
    }

    #[test]
    fn operations_of_a_millisecond_begin_at_once() {
        for (per_second, at_once) in [(1, 1), (999, 1), (1000, 1), (5000, 5), (100_000, 100)] {
            let mut limiter = Limiter::new(Limit::of_operations(per_second), 0);
            let now = 3_600_000_000_000;
            let begun = (0..1000).take_while(|_| {
                let may = limiter.ready(now).is_ok();
                if may {
                    limiter.take(OPERATION);
                }
                may
            });
            assert_eq!(begun.count(), at_once, "{per_second}/s");
        }
        // The most that there can be: none takes less than nothing.
        let mut limiter = Limiter::new(Limit::of_operations(u32::MAX), 0);
        (0..u32::MAX / 1000).for_each(|_| limiter.take(OPERATION));
        assert!(limiter.ready_at().abs_diff(1) <= 1, "{}", limiter.ready_at());
    }

    #[test]
    fn a_change_takes_effect_at_once() {
        let mut limiter = Limiter::new(Limit { bits_per_second: 8, burst_bytes: 100 }, 0);
        limiter.take(200);
        limiter.change(Limit { bits_per_second: 8_000_000, burst_bytes: 100 }, 0);
        assert_eq!(limiter.ready(0), Err(100_001));
    }

    #[test]
    fn a_change_is_good_for_no_operation() {
        for per_second in [1, 100, 1999] {
            let limit = Limit::of_operations(per_second);
            let mut limiter = Limiter::new(limit, 0);
            limiter.take(OPERATION);
            for _ in 0..100 {
                limiter.change(limit, 1);
                assert!(!limiter.is_ready(1), "{per_second}");
            }
        }
    }

    #[test]
    fn rates_at_which_a_byte_takes_no_whole_number_of_anything_are_exact() {
        // 26.67 ps a byte: rounded to picoseconds, it would be 2.6 % off.
        let limit = Limit { bits_per_second: 300_000_000_000, burst_bytes: 1 };
        let mut limiter = Limiter::new(limit, 0);
        (0..3_000_000).for_each(|_| limiter.take(1250));
        // 3.75 GB at 37.5 GB a second.
        assert_eq!(limiter.ready_at(), 100_000_000);
        // The most that there can be of both.
        let mut limiter = Limiter::new(Limit { bits_per_second: 1, burst_bytes: u64::MAX }, 0);
        assert_eq!(limiter.ready(u64::MAX), Ok(()));
        (0..9).for_each(|_| limiter.take(u64::MAX));
        assert!(limiter.ready(u64::MAX / 4).is_err());
    }

    proptest! {
        /// Over any time, what is sent is the burst and the rate, give or take one packet.
        #[test]
        fn the_rate_is_kept(
            rate in 1_000_000_u64..100_000_000,
            packets in proptest::collection::vec(64_u64..9000, 200..400),
        ) {
            let limit = Limit { bits_per_second: rate, burst_bytes: 10_000 };
            let mut limiter = Limiter::new(limit, 0);
            let (mut now, mut sent) = (0, 0);
            for packet in &packets {
                while let Err(at) = limiter.ready(now) {
                    prop_assert!(at > now);
                    now = at;
                }
                limiter.take(*packet);
                sent += packet;
            }
            let allowed = 10_000 + u128::from(now) * u128::from(rate) / 8 / 1_000_000_000;
            prop_assert!(u128::from(sent) <= allowed + 9000);
            prop_assert!(u128::from(sent) + 9000 + 10_000 >= allowed);
        }

        /// Operations are those of a model that counts them, within one: a sender with pauses, and
        /// a counter that fills up by the rate and holds those of a millisecond, or one.
        #[test]
        fn operations_are_counted(
            per_second in 1_u32..200_000,
            steps in proptest::collection::vec((0_u64..3_000_000, 0_u32..3000), 1..200),
        ) {
            let limit = Limit::of_operations(per_second);
            let (mut limiter, rate) = (Limiter::new(limit, 0), f64::from(per_second) / 1e9);
            let most = (f64::from(per_second) / 1000.0).floor().max(1.0);
            let (mut now, mut left) = (0_u64, most);
            let (mut begun, mut model) = (0_i64, 0_i64);
            for (passes, wanted) in steps {
                now += passes;
                left = (left + passes as f64 * rate).min(most);
                for _ in 0..wanted {
                    let may = limiter.ready(now).is_ok();
                    if may {
                        limiter.take(OPERATION);
                        begun += 1;
                    }
                    if left >= 1.0 {
                        left -= 1.0;
                        model += 1;
                    }
                    if !may && left < 1.0 {
                        break;
                    }
                }
                prop_assert!((begun - model).abs() <= 1, "{begun} operations, not {model}");
            }
        }

        /// Changes neither give nor take more than a burst.
        #[test]
        fn changes_are_hitless(
            rates in proptest::collection::vec(1_000_000_u64..1_000_000_000, 2..20),
        ) {
            let limit = |rate| Limit { bits_per_second: rate, burst_bytes: 3000 };
            let mut limiter = Limiter::new(limit(rates[0]), 0);
            limiter.take(3000);
            let (mut now, mut sent, mut allowed) = (0_u64, 0_u64, 0_u128);
            for rate in rates {
                limiter.change(limit(rate), now);
                let end = now + 50_000_000;
                while let at = limiter.ready_at() && at < end {
                    limiter.take(1500);
                    sent += 1500;
                    now = now.max(at);
                }
                now = end;
                allowed += u128::from(rate) * 50_000_000 / 8;
            }
            let error = i128::from(sent) - (allowed / 1_000_000_000).cast_signed();
            prop_assert!(error.abs() <= 2 * 1500, "{error} bytes");
        }
    }
}
