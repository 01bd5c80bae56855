//! Defines QPNs, the names of queue pairs.

use crate::newtype::name;
use core::fmt;

name! {
    /// A queue pair number: 24 bits on the wire. In a message it may be any number.
    Qpn(pub u32)
}

impl Qpn {
    /// QP 1, which connection managers talk to (General Services, 13.5.1).
    pub const GENERAL_SERVICES: Qpn = Qpn(1);
    /// Every queue pair that is attached to the group a datagram goes to (10.5.2.1).
    pub const MULTICAST: Qpn = Qpn(0x00ff_ffff);
    /// The largest: 24 bits.
    pub const MAX: Qpn = Qpn(0x00ff_ffff);

    /// What the far end of a link is called by which a queue pair gets what is sent to a group that
    /// it is attached to: `index` counts its groups. No packet can have it.
    #[must_use]
    pub const fn of_group(index: u16) -> Qpn {
        Qpn(Qpn::MAX.0 + 1 + index as u32)
    }

    /// Whether it is one of those.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0 > Qpn::MAX.0 && self.0 <= Qpn::of_group(u16::MAX).0
    }

    /// The number after it, if it is not the last that a message can hold.
    #[must_use]
    pub fn next(self) -> Option<Qpn> {
        self.0.checked_add(1).map(Qpn)
    }
}

impl fmt::Display for Qpn {
    /// Six hexadecimal digits, as the field's tools write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn numbers_of_groups_are_beyond_those_of_packets() {
        assert!(!Qpn::MAX.is_group() && !Qpn::MULTICAST.is_group() && !Qpn(u32::MAX).is_group());
        assert!(Qpn::of_group(0).is_group() && Qpn::of_group(u16::MAX).is_group());
    }

    #[test]
    fn a_qpn_prints_as_other_tools_print_it() {
        assert_eq!(std::format!("{} {:?}", Qpn(0x1f6), Qpn::MAX), "0x0001f6 0xffffff");
    }
}
