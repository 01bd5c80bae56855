//! Defines packet sequence numbers, PSNs (InfiniBand specification 9.7.1).

use core::fmt;

/// A PSN: 24 bits, and after the last one the first again.
///
/// So there is no least one and no order of all of them; of two that are in use at the same time,
/// which are less than 2^23 apart (9.7.1), [`Psn::distance`] says which is ahead.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Psn(u32);

impl Psn {
    /// The last one before 0.
    pub const MAX: Psn = Psn(0x00ff_ffff);

    /// From the low 24 bits of a number; the others may be anything.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Psn {
        Psn(number & Psn::MAX.0)
    }

    /// As a number, the high 8 bits of which are zero.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The one after it.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Psn {
        self.plus(1)
    }

    /// The one so many after it.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// How many steps of [`Psn::next`] lead here from `earlier`: 0 to 2^24 - 1.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Psn) -> u32 {
        self.0.wrapping_sub(earlier.0) & Psn::MAX.0
    }

    /// How far ahead of `other` it is, by the shorter way: negative if it is behind, -2^23 to
    /// 2^23 - 1 (serial number arithmetic, as in RFC 1982).
    #[inline]
    #[must_use]
    pub const fn distance(self, other: Psn) -> i32 {
        // The sign of the 24 bits becomes that of the number.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Display for Psn {
    /// Decimal, as packets are printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn psns_wrap_at_24_bits() {
        assert_eq!(Psn::MAX.next(), Psn::new(0));
        assert_eq!(Psn::new(0xff00_0007), Psn::new(7));
        assert_eq!(Psn::MAX.plus(u32::MAX), Psn::new(0xff_fffe), "one back");
        assert_eq!(Psn::new(3).since(Psn::MAX), 4);
        assert_eq!(Psn::MAX.since(Psn::new(3)), 0xff_fffc);
    }

    #[test]
    fn the_shorter_way_says_which_is_ahead() {
        let half = 1 << 23;
        for number in [0, 5, half, 0xff_fffe] {
            let psn = Psn::new(number);
            for distance in [0, 1, 2, 100, half - 1] {
                assert_eq!(psn.plus(distance).distance(psn), distance.cast_signed());
                assert_eq!(psn.distance(psn.plus(distance)), -distance.cast_signed());
            }
            assert_eq!(psn.plus(half).distance(psn), -half.cast_signed());
        }
    }

    #[test]
    fn they_are_written_as_packets_write_them() {
        assert_eq!(std::format!("{} {:?}", Psn::new(1003), Psn::MAX), "1003 16777215");
    }
}
