//! Converts QPNs between what programs of a tenant see and what packets carry.

use omniverb_terms::Qpn;
use std::fmt;

/// A QPN as a program in a tenant sees it. 0 and 1 belong to management and are nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualQpn(u32);

/// A QPN as packets carry it, unique on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalQpn(u32);

/// What is added to a vNIC's virtual QPNs: where its range begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpnOffset(u32);

/// The QPNs of a vNIC: all that follow an offset, as many as it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpnRange {
    offset: QpnOffset,
    count: u32,
}

impl VirtualQpn {
    /// The first that a queue pair may have.
    pub const FIRST: VirtualQpn = VirtualQpn(2);

    /// A number that an ordinary queue pair may have.
    #[must_use]
    pub fn new(number: u32) -> Option<VirtualQpn> {
        (VirtualQpn::FIRST.0..QpnRange::COUNT_MAX).contains(&number).then_some(VirtualQpn(number))
    }

    /// As verbs has it.
    #[must_use]
    pub fn qpn(self) -> Qpn {
        Qpn(self.0)
    }
}

impl PhysicalQpn {
    /// The last that an ordinary queue pair may have: 0xffffff is multicast.
    pub const LAST: PhysicalQpn = PhysicalQpn(0x00ff_fffe);

    /// A number that packets to an ordinary queue pair may carry.
    #[must_use]
    pub fn new(number: Qpn) -> Option<PhysicalQpn> {
        (2..=PhysicalQpn::LAST.0).contains(&number.0).then_some(PhysicalQpn(number.0))
    }

    /// As packets have it.
    #[must_use]
    pub fn qpn(self) -> Qpn {
        Qpn(self.0)
    }
}

impl QpnOffset {
    /// Ranges begin at multiples of this: the bits below are 0, and in a vGID show a forgery.
    pub const GRANULE: u32 = 256;

    /// An offset that a range may have.
    #[must_use]
    pub fn new(offset: u32) -> Option<QpnOffset> {
        let fits = offset.is_multiple_of(QpnOffset::GRANULE)
            && (QpnOffset::GRANULE..PhysicalQpn::LAST.0).contains(&offset);
        fits.then_some(QpnOffset(offset))
    }

    /// What is added to a virtual QPN.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// What packets carry for a peer's virtual QPN, if its host can have such a number. Whether it
    /// is within the peer's range its own host knows.
    #[must_use]
    pub fn physical(self, number: VirtualQpn) -> Option<PhysicalQpn> {
        PhysicalQpn::new(Qpn(self.0 + number.0))
    }
}

impl QpnRange {
    /// The most QPNs that a vNIC can have.
    pub const COUNT_MAX: u32 = 1 << 16;

    /// So many QPNs behind an offset, rounded up to whole granules.
    #[must_use]
    pub fn new(offset: QpnOffset, count: u32) -> Option<QpnRange> {
        if !(1..=QpnRange::COUNT_MAX).contains(&count) {
            return None;
        }
        let count = count.next_multiple_of(QpnOffset::GRANULE);
        // The last granule of all is not whole: 0xffffff is multicast.
        (offset.0 + count - 1 <= PhysicalQpn::LAST.0).then_some(QpnRange { offset, count })
    }

    /// Where it begins.
    #[must_use]
    pub fn offset(self) -> QpnOffset {
        self.offset
    }

    /// How many it has, 0 and 1 included, which are nobody's.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// One past its last number.
    pub(crate) fn end(self) -> u32 {
        self.offset.0 + self.count
    }

    /// What packets carry for one of its virtual QPNs.
    #[must_use]
    pub fn physical(self, number: VirtualQpn) -> Option<PhysicalQpn> {
        (number.0 < self.count).then(|| self.offset.physical(number))?
    }

    /// What a program sees for a QPN of the range; `None` if it is of another vNIC.
    #[must_use]
    pub fn virtual_of(self, number: PhysicalQpn) -> Option<VirtualQpn> {
        let number = number.0.checked_sub(self.offset.0)?;
        (number < self.count).then(|| VirtualQpn::new(number))?
    }
}

impl fmt::Display for VirtualQpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qpn().fmt(f)
    }
}

impl fmt::Display for PhysicalQpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qpn().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back_within_a_range_only() {
        let offset = QpnOffset::new(0x1_2300).unwrap();
        let range = QpnRange::new(offset, 300).unwrap();
        assert_eq!((range.count(), range.end()), (512, 0x1_2500));
        let virtual_qpn = VirtualQpn::new(17).unwrap();
        let physical = range.physical(virtual_qpn).unwrap();
        assert_eq!(physical.qpn(), Qpn(0x1_2311));
        assert_eq!(range.virtual_of(physical), Some(virtual_qpn));
        for outside in [0x1_22ff, 0x1_2300, 0x1_2301, 0x1_2500].map(Qpn) {
            assert_eq!(range.virtual_of(PhysicalQpn::new(outside).unwrap()), None);
        }
        assert_eq!(range.physical(VirtualQpn::new(512).unwrap()), None);
        for number in [0, 1, QpnRange::COUNT_MAX, u32::MAX] {
            assert_eq!(VirtualQpn::new(number), None);
        }
        for number in [0, 1, 0x00ff_ffff, u32::MAX] {
            assert_eq!(PhysicalQpn::new(Qpn(number)), None);
        }
        for number in [0, 1, 0x101, 0x0100_0000, u32::MAX] {
            assert_eq!(QpnOffset::new(number), None);
        }
        assert_eq!(QpnRange::new(QpnOffset::new(0x00ff_ff00).unwrap(), 1), None, "multicast");
        assert_eq!(QpnRange::new(offset, QpnRange::COUNT_MAX + 1), None);
        let last = QpnOffset::new(0x00ff_ff00).unwrap();
        assert_eq!(last.physical(VirtualQpn::new(0xff).unwrap()), None, "multicast");
    }
}
