//! FLUSH extended transport header (A19): what of a region is to be flushed, and how far.

use omniverb_terms::{Placement, Selectivity};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Selectivity starts at this bit, and has two; placement has the four before it.
const SELECTIVITY: u32 = 4;
const SELECTIVITY_MASK: u32 = 3;
const PLACEMENT_MASK: u32 = 0xf;

/// The header as it is on the wire.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Feth(U32);

impl Feth {
    /// Its length in bytes: of FLUSHes, before the RETH.
    pub const BYTES: usize = 4;

    /// How far, and how much.
    pub fn new(placement: Placement, selectivity: Selectivity) -> Feth {
        let selectivity = u32::from(selectivity.code()) << SELECTIVITY;
        Feth(U32::new(u32::from(placement.bits()) | selectivity))
    }
    /// How far; `None`: this is nothing that exists.
    pub fn placement(&self) -> Option<Placement> {
        Placement::from_bits((self.0.get() & PLACEMENT_MASK) as u8)
    }
    /// How much; `None`: this is nothing that exists.
    pub fn selectivity(&self) -> Option<Selectivity> {
        Selectivity::from_code((self.0.get() >> SELECTIVITY & SELECTIVITY_MASK) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_annex_has_them() {
        let range = Feth::new(Placement::GLOBAL, Selectivity::Range);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0x01]);
        let region = Feth::new(Placement::PERSISTENT, Selectivity::Region);
        assert_eq!(region.as_bytes(), [0, 0, 0, 0x12]);
        assert_eq!(region.placement(), Some(Placement::PERSISTENT));
        assert_eq!(region.selectivity(), Some(Selectivity::Region));
        for bad in [0, 4, 8, 0xf] {
            assert_eq!(Feth(U32::new(bad)).placement(), None, "{bad}");
        }
        assert_eq!(Feth(U32::new(0x21)).selectivity(), None);
        // Reserved bits are not looked at.
        assert_eq!(Feth(U32::new(0xffff_ff41)).selectivity(), Some(Selectivity::Range));
    }
}
