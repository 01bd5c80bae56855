//! XRC extended transport header (annex A14): in every request of an extended reliable connection.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header as it is on the wire.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct XrcEth {
    number: U32,
}

impl XrcEth {
    /// Its length in bytes: of XRC requests, behind the BTH.
    pub const BYTES: usize = 4;

    /// For the SRQ of this number, of which 24 bits count.
    #[inline]
    pub fn new(number: u32) -> XrcEth {
        XrcEth { number: U32::new(number & 0xff_ffff) }
    }

    /// The number of the SRQ that the request is for.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.get() & 0xff_ffff
    }
}
