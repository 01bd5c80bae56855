//! Atomic extended transport header (9.3.4) and its answer (9.5.3).

use omniverb_terms::Rkey;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What CompareSwap and FetchAdd carry.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AtomicEth {
    address: U64,
    key: U32,
    swap_or_add: U64,
    compare: U64,
}

impl AtomicEth {
    /// Its length in bytes: of atomic requests.
    pub const BYTES: usize = 28;

    /// Target, R_Key, operands. FetchAdd has no use for `compare`.
    pub fn new(address: u64, key: Rkey, swap_or_add: u64, compare: u64) -> AtomicEth {
        AtomicEth {
            address: U64::new(address),
            key: U32::new(key.0),
            swap_or_add: U64::new(swap_or_add),
            compare: U64::new(compare),
        }
    }
    /// Virtual address at the responder.
    pub fn address(&self) -> u64 {
        self.address.get()
    }
    /// R_Key of the region at the responder.
    pub fn key(&self) -> Rkey {
        Rkey(self.key.get())
    }
    /// The value to swap in or to add.
    pub fn swap_or_add(&self) -> u64 {
        self.swap_or_add.get()
    }
    /// The value to compare with.
    pub fn compare(&self) -> u64 {
        self.compare.get()
    }
}

/// What the memory held before.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AtomicAckEth(U64);

impl AtomicAckEth {
    /// Its length in bytes: of the answers, behind the AETH.
    pub const BYTES: usize = 8;

    /// Carries `original`.
    pub fn new(original: u64) -> AtomicAckEth {
        AtomicAckEth(U64::new(original))
    }
    /// What the memory held before.
    pub fn original(&self) -> u64 {
        self.0.get()
    }
}
