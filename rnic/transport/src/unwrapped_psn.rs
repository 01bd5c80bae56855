//! Numbers packets without wrapping: PSNs as this crate counts them inside.
//!
//! The low 24 bits are the PSN. A PSN from a packet stands for the number nearest to one we know;
//! two that are in use at the same time are less than half of all PSNs apart (9.7.1).

use omniverb_terms::Psn;
use std::ops::{Add, AddAssign, Sub};

/// PSNs that there are.
const SPACE: u64 = Psn::MAX.number() as u64 + 1;

/// The number of a packet; a difference of two is a count of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sequence(u64);

impl Sequence {
    /// The first of a connection: far enough from zero for duplicates to exist before it.
    pub(crate) fn first(psn: Psn) -> Sequence {
        Sequence(SPACE + u64::from(psn.number()))
    }

    /// The number nearest to this one that has this PSN.
    pub(crate) fn nearest(self, psn: Psn) -> Sequence {
        Sequence(self.0.saturating_add_signed(psn.distance(self.psn()).into()))
    }

    /// What packets carry.
    pub(crate) fn psn(self) -> Psn {
        Psn::new(self.0 as u32)
    }

    /// Packets from `earlier` to here; none if that is not earlier.
    pub(crate) fn since(self, earlier: Sequence) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Sequence {
    type Output = Sequence;
    fn add(self, packets: u64) -> Sequence {
        Sequence(self.0 + packets)
    }
}

impl AddAssign<u64> for Sequence {
    fn add_assign(&mut self, packets: u64) {
        self.0 += packets;
    }
}

impl Sub<u64> for Sequence {
    type Output = Sequence;
    fn sub(self, packets: u64) -> Sequence {
        Sequence(self.0 - packets)
    }
}

impl Sub for Sequence {
    type Output = u64;
    fn sub(self, earlier: Sequence) -> u64 {
        self.0 - earlier.0
    }
}

#[cfg(test)]
mod tests {
    use super::{Psn, SPACE, Sequence};

    #[test]
    fn nearest_number_is_found_across_the_wrap() {
        let near = Sequence::first(Psn::new(0xff_fffe));
        let half = SPACE / 2;
        for distance in [0, 1, 2, 100, half - 1] {
            assert_eq!(near.nearest((near + distance).psn()), near + distance);
            assert_eq!(near.nearest((near - distance).psn()), near - distance);
        }
        assert_eq!(near.nearest((near + half).psn()), near - half);
        assert_eq!(Sequence(SPACE * 7).nearest(Psn::MAX), Sequence(SPACE * 7 - 1));
        assert_eq!(Sequence(5).nearest(Psn::MAX), Sequence(0), "nothing is before zero");
    }
}
