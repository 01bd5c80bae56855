//! Derives the keys of packets from a receiver's master key.

use aes::Aes256;
use cmac::{Cmac, KeyInit, Mac};
use std::fmt;
use zeroize::Zeroizing;

/// The number of a key (security parameters index). Its first bit says of which master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spi(u32);

impl Spi {
    /// The bit that selects the master key.
    pub(crate) const SELECTOR: u32 = 1 << 31;

    /// Any number: a packet may have any.
    #[must_use]
    pub const fn new(number: u32) -> Spi {
        Spi(number)
    }

    /// As packets have it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Which of two master keys it is of.
    #[must_use]
    pub(crate) const fn selector(self) -> usize {
        (self.0 >> 31) as usize
    }
}

/// What a receiver derives its keys from: 256 random bits that never leave it.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; 32]>);

/// The key of packets with one SPI.
#[derive(Clone)]
#[cfg_attr(test, derive(PartialEq, Eq))]
pub struct PacketKey(Zeroizing<[u8; 16]>);

impl MasterKey {
    /// From its bytes. What they were copied from is the caller's to clear.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> MasterKey {
        MasterKey(Zeroizing::new(bytes))
    }

    /// The key of version 0 for an SPI: AES-256-CMAC (RFC 4493's construction, NIST SP 800-38B) of
    /// a block, in counter mode as in NIST SP 800-108. The block is a counter of 1, the label
    /// `Pv0`, a zero byte, the SPI, and the length in bits.
    #[must_use]
    pub fn derive(&self, spi: Spi) -> PacketKey {
        let mut mac = Cmac::<Aes256>::new(&(*self.0).into());
        mac.update(&1_u32.to_be_bytes());
        mac.update(b"Pv0\0");
        mac.update(&spi.number().to_be_bytes());
        mac.update(&128_u32.to_be_bytes());
        PacketKey(Zeroizing::new(mac.finalize().into_bytes().into()))
    }
}

impl PacketKey {
    /// From its bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> PacketKey {
        PacketKey(Zeroizing::new(bytes))
    }

    /// For the cipher, and for sealing it itself.
    pub(crate) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

impl fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PacketKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_that_of_the_specification() {
        let master = MasterKey::new(std::array::from_fn(|n| n as u8));
        let key = master.derive(Spi::new(0x1234_5678));
        assert_eq!(u128::from_be_bytes(*key.bytes()), 0x4d867167_433163e6_eea6f172_bae5fcb2);
        assert_ne!(key, master.derive(Spi::new(0x9234_5678)));
        assert_eq!(format!("{master:?} {key:?}"), "MasterKey(..) PacketKey(..)");
    }
}
