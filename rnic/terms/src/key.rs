//! Names of memory: what a local and a remote key stand for differs, though the numbers of one
//! region are often the same.

use crate::name::name;
use core::fmt;

name! {
    /// A local key: what a process's own work requests name its memory by (10.6.3).
    Lkey(pub u32)
}

name! {
    /// A remote key: what a peer names memory by that it was told of (10.6.3).
    Rkey(pub u32)
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

hexadecimal!(Lkey Rkey);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn they_are_written_as_others_write_them() {
        assert_eq!(std::format!("{} {:?}", Lkey(0x102), Rkey(7)), "0x00000102 0x00000007");
    }
}
