//! Immediate data (9.3.6): four bytes that the two applications agree on.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Passed on in the order the bytes arrived in; verbs call the type `__be32`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Its length in bytes: the last before the payload.
    pub const BYTES: usize = 4;
}
