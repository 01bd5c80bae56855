//! RDMA extended transport header (9.3.3): WRITE and READ requests.

use omniverb_terms::Rkey;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header as it is on the wire.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Reth {
    address: U64,
    key: U32,
    length: U32,
}

impl Reth {
    /// Its length in bytes: of WRITEs, READs and FLUSHes.
    pub const BYTES: usize = 16;

    /// Virtual address, R_Key, length of the whole message.
    #[inline]
    pub fn new(address: u64, key: Rkey, length: u32) -> Reth {
        Reth { address: U64::new(address), key: U32::new(key.0), length: U32::new(length) }
    }
    /// Virtual address at the responder.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address.get()
    }
    /// R_Key of the region at the responder.
    #[inline]
    pub fn key(&self) -> Rkey {
        Rkey(self.key.get())
    }
    /// Bytes of the whole message.
    #[inline]
    pub fn length(&self) -> u32 {
        self.length.get()
    }
}
