//! Defines keys. Those of memory are its names: what a local and a remote key stand for differs,
//! though the numbers of one region are often the same. That of a queue pair is a password.

use crate::newtype::name;
use core::fmt;

name! {
    /// A local key: what a process's own work requests name its memory by (10.6.3).
    Lkey(pub u32)
}

name! {
    /// A remote key: what a peer names memory by that it was told of (10.6.3).
    Rkey(pub u32)
}

name! {
    /// A queue key: what a datagram must bear to be taken by a queue pair (10.2.5).
    Qkey(pub u32)
}

impl Qkey {
    /// That of QP 1, which connection managers talk to (3.5.3).
    pub const GENERAL_SERVICES: Qkey = Qkey(0x8001_0000);

    /// Whether its highest bit is set: not every program may have such a one, and a work request
    /// with it means the key of the queue pair that sends (10.2.5).
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 >> 31 != 0
    }
}

macro_rules! hexadecimal {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            /// Hexadecimal, as the field's tools write it.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }
    )*};
}

hexadecimal!(Lkey Rkey Qkey);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn they_are_written_as_others_write_them() {
        assert_eq!(std::format!("{} {:?}", Lkey(0x102), Rkey(7)), "0x00000102 0x00000007");
        assert_eq!(Qkey::GENERAL_SERVICES.to_string(), "0x80010000");
    }

    #[test]
    fn the_highest_bit_is_reserved() {
        assert!(Qkey::GENERAL_SERVICES.is_controlled() && Qkey(u32::MAX).is_controlled());
        assert!(!Qkey(0).is_controlled() && !Qkey(0x7fff_ffff).is_controlled());
    }
}
