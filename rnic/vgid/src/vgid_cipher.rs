//! Enciphers and deciphers vGIDs: where a vNIC is, as one AES-128 block (FIPS 197) under its
//! tenant's key.
//!
//! The block, most significant bits first:
//!
//! | bits | what |
//! |---|---|
//! | 32 | virtual IP |
//! | 24 | QPN offset, of which the last 8 bits are the number of the *draw* |
//! | 72 | underlay: IPv4 40 zero bits and the address; IPv6 the last 72 bits of the address |
//!
//! **Names that mean something else.** A block may come out as all zeros, a link-local address, a
//! group or a mapped IPv4 address, which the stack treats in its own ways: about one in 170 does.
//! Then the next draw is taken, of 16. A vNIC's vGID is that of the first draw that fits, and no
//! other: so it has one name, and draws cost no redundancy.
//!
//! **Forgeries.** A block that was not made with the key deciphers to random bits. It is accepted
//! only if what it says enciphers to the very same block again. For that, with IPv4, 48 bits have
//! to be right: 40 zeros, 8 of offset and draw, and each bit of the tenant's virtual prefix
//! besides. So of tries without the key one in 2^47 passes while two keys are valid
//! ([`Codec::redundancy`]). With IPv6 the 40 bits are those by which the underlay prefix is longer
//! than 56. So a prefix of 56 bits alone leaves 8, which is no protection: networks that leave less
//! than 40, in a time of one key, are refused. IPv6 needs 32 bits more of prefixes than that, on
//! the underlay, of the tenant's virtual addresses, or of both together.
//!
//! A forgery that passes names an address and QPNs at random. The host there still checks source,
//! QPN range and tenant.

use crate::network_prefixes::{UnderlayNetwork, VirtualNetwork};
use crate::tenant_key::TenantKey;
use crate::virtual_qpn::QpnOffset;
use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt};
use omniverb_terms::Gid;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use subtle::ConstantTimeEq;

/// Draws at most: that all of them are reserved happens to one vNIC in 2^118.
const DRAWS: u32 = 16;
/// Bits of redundancy that networks have to leave: at a million tries a second a forgery passes
/// after twelve days.
const REDUNDANCY_MIN: u32 = 40;

/// Networks whose vGIDs could be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooWide {
    /// The redundancy that they leave.
    pub redundancy: u32,
}

impl fmt::Display for TooWide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = self.redundancy;
        write!(
            f,
            "cannot protect vGIDs of these networks: {has} bits of redundancy of the \
             {REDUNDANCY_MIN} that are required; make the IPv6 prefix of the hosts or the \
             tenant's virtual prefix longer, by {} bits together",
            REDUNDANCY_MIN.saturating_sub(has)
        )
    }
}

impl std::error::Error for TooWide {}

/// Where a vNIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VnicAddress {
    /// Its address among the vNICs of its tenant.
    pub virtual_ip: Ipv4Addr,
    /// What is added to its QPNs.
    pub offset: QpnOffset,
    /// Its host, or its policy's address there: packets to it go there.
    pub underlay: IpAddr,
}

/// Which of a tenant's keys made a vGID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// The one that new vGIDs are made with.
    Current,
    /// The one before it, while it is valid.
    Previous,
}

/// What a genuine vGID says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deciphered {
    /// Where its vNIC is.
    pub address: VnicAddress,
    /// Which key it was made with.
    pub generation: Generation,
}

/// Makes and reads the vGIDs of a tenant.
#[derive(Clone)]
pub struct Codec {
    current: Aes128,
    previous: Option<Aes128>,
    virtual_network: VirtualNetwork,
    underlay: UnderlayNetwork,
}

impl Codec {
    /// With one key, for vNICs and hosts of these networks.
    ///
    /// # Errors
    /// The prefixes are so short that a forgery would pass soon: an IPv6 one of 56 bits without a
    /// virtual prefix, for example.
    pub fn new(
        key: &TenantKey,
        virtual_network: VirtualNetwork,
        underlay: UnderlayNetwork,
    ) -> Result<Codec, TooWide> {
        check_networks(virtual_network, underlay)?;
        Ok(Codec { current: key.cipher(), previous: None, virtual_network, underlay })
    }

    /// vGIDs are made with another key from now on. Those of the one before it remain valid until
    /// [`Codec::retire`]; those of the one before that are valid no more.
    pub fn rotate(&mut self, key: &TenantKey) {
        self.previous = Some(std::mem::replace(&mut self.current, key.cipher()));
    }

    /// vGIDs of the key before this one are valid no more.
    pub fn retire(&mut self) {
        self.previous = None;
    }

    /// The vGID of a vNIC. `None`: its addresses are not of the tenant's networks.
    #[must_use]
    pub fn encipher(&self, vnic: VnicAddress) -> Option<Gid> {
        self.encipher_by(&self.current, vnic)
    }

    /// Where the vNIC of a vGID is. `None`: there is none, whatever the reason.
    #[must_use]
    pub fn decipher(&self, gid: Gid) -> Option<Deciphered> {
        if is_reserved(gid) {
            return None;
        }
        let keys = [
            (Some(&self.current), Generation::Current),
            (self.previous.as_ref(), Generation::Previous),
        ];
        keys.into_iter().find_map(|(cipher, generation)| {
            let address = self.decipher_by(cipher?, gid)?;
            Some(Deciphered { address, generation })
        })
    }

    /// Bits that have to be right for a block that was made without the key to be accepted: a try
    /// succeeds once in two to the power of this.
    #[must_use]
    pub fn redundancy(&self) -> u32 {
        let keys = u32::from(self.previous.is_some());
        redundancy_of(self.virtual_network, self.underlay) - keys
    }

    fn encipher_by(&self, cipher: &Aes128, vnic: VnicAddress) -> Option<Gid> {
        let underlay = self.underlay.encode(vnic.underlay)?;
        if !self.virtual_network.contains(vnic.virtual_ip) {
            return None;
        }
        (0..DRAWS).find_map(|draw| {
            let mut block = [0; 16];
            block[..4].copy_from_slice(&vnic.virtual_ip.octets());
            block[4..7].copy_from_slice(&(vnic.offset.number() | draw).to_be_bytes()[1..]);
            block[7..].copy_from_slice(&underlay);
            let mut block = block.into();
            cipher.encrypt_block(&mut block);
            let gid = Gid::new(block.into());
            (!is_reserved(gid)).then_some(gid)
        })
    }

    fn decipher_by(&self, cipher: &Aes128, gid: Gid) -> Option<VnicAddress> {
        let mut block = gid.bytes().into();
        cipher.decrypt_block(&mut block);
        let block: [u8; 16] = block.into();
        let [a, b, c, d, high, middle, _draw, underlay @ ..] = block;
        let vnic = VnicAddress {
            virtual_ip: Ipv4Addr::new(a, b, c, d),
            offset: QpnOffset::new(u32::from_be_bytes([0, high, middle, 0]))?,
            underlay: self.underlay.decode(underlay)?,
        };
        // The one block that this vNIC may have: how much of another is right, no time says.
        let made = self.encipher_by(cipher, vnic)?;
        bool::from(made.bytes().ct_eq(&gid.bytes())).then_some(vnic)
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Codec { virtual_network, underlay, .. } = self;
        write!(f, "Codec({virtual_network:?}, {underlay:?}, ..)")
    }
}

/// Checks that a forged vGID of these networks would show, in a time of one key.
///
/// # Errors
/// As [`Codec::new`].
pub fn check_networks(
    virtual_network: VirtualNetwork,
    underlay: UnderlayNetwork,
) -> Result<(), TooWide> {
    match redundancy_of(virtual_network, underlay) {
        redundancy if redundancy < REDUNDANCY_MIN => Err(TooWide { redundancy }),
        _ => Ok(()),
    }
}

/// Bits that have to be right while one key is valid.
fn redundancy_of(virtual_network: VirtualNetwork, underlay: UnderlayNetwork) -> u32 {
    u32::from(underlay.redundancy()) + 8 + u32::from(virtual_network.length())
}

/// Whether a GID means something to the stack, or looks as if it did: no vGID is one of those. All
/// zeros, IPv4 addresses written as IPv6 ones, `::1`, link-local and site-local ones, groups.
#[must_use]
pub fn is_reserved(gid: Gid) -> bool {
    let bytes = gid.bytes();
    let site_local = bytes[0] == 0xfe && bytes[1] & 0xc0 == 0xc0;
    bytes[..10] == [0; 10] || bytes[0] == 0xff || gid.is_link_local() || site_local
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn codec(key: u8) -> Codec {
        Codec::new(&TenantKey::new([key; 16]), VirtualNetwork::ANY, UnderlayNetwork::Ipv4).unwrap()
    }

    fn vnic(ip: u32, granule: u32, underlay: u32) -> VnicAddress {
        VnicAddress {
            virtual_ip: Ipv4Addr::from_bits(ip),
            offset: QpnOffset::new(granule * QpnOffset::GRANULE).unwrap(),
            underlay: Ipv4Addr::from_bits(underlay).into(),
        }
    }

    #[test]
    fn the_block_is_fips_197_in_the_documented_order() {
        let address = vnic(0x0a000001, 0x0123, 0xc0a80102);
        let mut block = 0x0a00_0001_0123_0000_0000_0000_c0a8_0102_u128.to_be_bytes().into();
        TenantKey::new([9; 16]).cipher().encrypt_block(&mut block);
        assert_eq!(codec(9).encipher(address).unwrap().bytes(), <[u8; 16]>::from(block));
        // FIPS 197, appendix C.1.
        let key = TenantKey::new(0x00010203_04050607_08090a0b_0c0d0e0f_u128.to_be_bytes());
        let mut block = 0x00112233_44556677_8899aabb_ccddeeff_u128.to_be_bytes().into();
        key.cipher().encrypt_block(&mut block);
        let block: [u8; 16] = block.into();
        assert_eq!(u128::from_be_bytes(block), 0x69c4e0d8_6a7b0430_d8cdb780_70b4c55a);
    }

    #[test]
    fn two_generations_are_valid() {
        let mut codec = codec(1);
        let address = vnic(7, 8, 9);
        let old = codec.encipher(address).unwrap();
        codec.rotate(&TenantKey::new([2; 16]));
        let new = codec.encipher(address).unwrap();
        let found = |codec: &Codec, gid| codec.decipher(gid).map(|found| found.generation);
        assert_ne!(old, new);
        assert_eq!(found(&codec, old), Some(Generation::Previous));
        assert_eq!(found(&codec, new), Some(Generation::Current));
        assert_eq!(codec.redundancy(), 47);
        codec.retire();
        assert_eq!((found(&codec, old), found(&codec, new)), (None, Some(Generation::Current)));
        assert_eq!(codec.redundancy(), 48);
        codec.rotate(&TenantKey::new([3; 16]));
        codec.rotate(&TenantKey::new([4; 16]));
        assert_eq!(found(&codec, new), None);
        assert!(format!("{codec:?}").ends_with(", ..)"));
    }

    #[test]
    fn no_vgid_is_reserved_and_each_vnic_has_one() {
        let (codec, mut draws) = (codec(5), 0);
        for n in 0..20_000 {
            let address = vnic(n, 1 + n % 60_000, !n);
            let gid = codec.encipher(address).unwrap();
            assert!(!is_reserved(gid) && !gid.is_multicast() && gid.ipv4().is_none());
            assert_eq!(codec.decipher(gid).unwrap().address, address);
            // What other draws come to is nobody's name.
            let (mut block, mut other) = (gid.bytes().into(), [0; 16]);
            codec.current.decrypt_block(&mut block);
            other.copy_from_slice(&block);
            draws += u32::from(other[6]);
            other[6] += 1;
            let mut block = other.into();
            codec.current.encrypt_block(&mut block);
            assert_eq!(codec.decipher(Gid::new(block.into())), None);
        }
        assert!((60..200).contains(&draws), "one in 170: {draws}");
        for text in ["::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "fec0::1", "ff0e::1"]
        {
            let address: std::net::Ipv6Addr = text.parse().unwrap();
            assert!(is_reserved(address.into()) && codec.decipher(address.into()).is_none());
        }
    }

    #[test]
    fn networks_in_which_a_forgery_would_pass_are_refused() {
        let prefix: std::net::Ipv6Addr = "2001:db8::".parse().unwrap();
        let made = |length, virtual_length| {
            let underlay = UnderlayNetwork::ipv6(prefix, length).unwrap();
            let virtual_network = VirtualNetwork::new(Ipv4Addr::UNSPECIFIED, virtual_length);
            Codec::new(&TenantKey::new([1; 16]), virtual_network.unwrap(), underlay)
        };
        let redundancy = |length, of| made(length, of).map(|codec| codec.redundancy());
        assert_eq!(redundancy(56, 0), Err(TooWide { redundancy: 8 }));
        assert_eq!(redundancy(64, 23), Err(TooWide { redundancy: 39 }));
        assert_eq!((redundancy(64, 24), redundancy(88, 0)), (Ok(40), Ok(40)));
        let text = made(56, 0).unwrap_err().to_string();
        assert!(text.ends_with("virtual prefix longer, by 32 bits together"), "{text}");
    }

    proptest! {
        #[test]
        fn what_is_enciphered_is_deciphered(
            ip in any::<u32>(),
            granule in 1_u32..0xffff,
            low in any::<u128>(),
            key in any::<[u8; 16]>(),
            length in 88_u8..=128,
        ) {
            let prefix = 0x20010db8_0000ff00_u128 << 64;
            let fixed = u128::MAX.checked_shr(length.into()).unwrap_or(0);
            let underlay = std::net::Ipv6Addr::from_bits(prefix | low & fixed).into();
            let address = VnicAddress { underlay, ..vnic(ip, granule, 0) };
            let net = UnderlayNetwork::ipv6(std::net::Ipv6Addr::from_bits(prefix), length).unwrap();
            let codec = Codec::new(&TenantKey::new(key), VirtualNetwork::ANY, net).unwrap();
            let gid = codec.encipher(address).unwrap();
            prop_assert_eq!(codec.decipher(gid).unwrap().address, address);
            prop_assert_eq!(codec.redundancy(), u32::from(length) - 56 + 8);
            // A tenant of another network does not take it for its own.
            let mine = Ipv4Addr::from_bits(!ip & 0xff00_0000);
            let other = VirtualNetwork::new(mine, 8).unwrap();
            let other = Codec::new(&TenantKey::new(key), other, net).unwrap();
            prop_assert_eq!((other.encipher(address), other.decipher(gid)), (None, None));
        }
    }
}
