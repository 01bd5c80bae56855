//! Names of memory: what a local and a remote key stand for differs, though the numbers of one
//! region are often the same.

use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            /// Hexadecimal, as the field's tools write it.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

keys! {
    /// A local key: what a process's own work requests name its memory by (10.6.3).
    Lkey
    /// A remote key: what a peer names memory by that it was told of (10.6.3).
    Rkey
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn they_are_written_as_others_write_them() {
        assert_eq!(std::format!("{} {:?}", Lkey(0x102), Rkey(7)), "0x00000102 0x00000007");
    }
}
