//! Names of queue pairs: QPNs.

use crate::name::name;
use core::fmt;

name! {
    /// A queue pair number: 24 bits on the wire. In a message it may be any number.
    Qpn(pub u32)
}

impl Qpn {
    /// QP 1, which connection managers talk to (General Services, 13.5.1).
    pub const GENERAL_SERVICES: Qpn = Qpn(1);
    /// The largest: 24 bits.
    pub const MAX: Qpn = Qpn(0x00ff_ffff);

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
    fn it_is_written_as_others_write_it() {
        assert_eq!(std::format!("{} {:?}", Qpn(0x1f6), Qpn::MAX), "0x0001f6 0xffffff");
    }
}
