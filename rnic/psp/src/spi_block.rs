//! Divides numbers (SPIs) into blocks, so that tunnels that share a port have none in common.

use crate::packet_keys::Spi;
use std::ops::Range;

/// Bits that tell blocks from each other, below the one that selects the master key.
const BLOCK_BITS: u32 = 8;
/// Bits of a number within its block.
const NUMBER_BITS: u32 = 31 - BLOCK_BITS;

/// A part of all numbers, which one tunnel gives out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiBlock(u8);

impl SpiBlock {
    /// How many there are.
    pub const COUNT: usize = 1 << BLOCK_BITS;

    /// One of them.
    #[must_use]
    pub const fn new(block: u8) -> SpiBlock {
        SpiBlock(block)
    }

    /// The block that a number is of, under either master key.
    #[must_use]
    pub const fn of(spi: Spi) -> SpiBlock {
        SpiBlock((spi.number() >> NUMBER_BITS) as u8)
    }

    /// Its numbers under the first master key.
    pub(crate) fn numbers(self) -> Range<u32> {
        let start = u32::from(self.0) << NUMBER_BITS;
        start..start + (1 << NUMBER_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_of_one_block_under_both_master_keys() {
        for block in 0..=u8::MAX {
            let numbers = SpiBlock::new(block).numbers();
            for number in [numbers.start, numbers.start + 1, numbers.end - 1] {
                for selector in [0, Spi::SELECTOR] {
                    let spi = Spi::new(number | selector);
                    assert_eq!(SpiBlock::of(spi), SpiBlock::new(block));
                }
            }
        }
        assert_eq!(SpiBlock::new(u8::MAX).numbers().end, Spi::SELECTOR);
    }
}
