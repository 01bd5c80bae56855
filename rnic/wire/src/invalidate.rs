//! Invalidate extended transport header (9.3.7): SEND with invalidate.

use omniverb_terms::Rkey;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The R_Key that the responder is to invalidate.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ieth(U32);

impl Ieth {
    /// Its length in bytes: of SENDs that invalidate, behind the BTH.
    pub const BYTES: usize = 4;

    /// Carries `key`.
    pub fn new(key: Rkey) -> Ieth {
        Ieth(U32::new(key.0))
    }
    /// Of the region or window that the receiver shall not let anybody use any more.
    pub fn key(&self) -> Rkey {
        Rkey(self.0.get())
    }
}
