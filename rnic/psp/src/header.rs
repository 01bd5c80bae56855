//! Reads and writes the 16 bytes in front of a packet (PSP architecture specification, "PSP
//! header").
//!
//! | bytes | what |
//! |---|---|
//! | 0 | next header: the IP protocol of what is inside |
//! | 1 | length in units of 8 bytes, the first 8 not counted: 1, with a cookie 2 |
//! | 2 | crypt offset (6 bits): how many words of 4 bytes behind these 16 are not encrypted |
//! | 3 | sample, drop, version (4 bits), cookie is present, 1 |
//! | 4-7 | SPI, of which the first bit selects the master key |
//! | 8-15 | initialization vector |

use crate::packet_keys::Spi;

/// Bytes of a header without its cookie.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a virtualization cookie.
const COOKIE_BYTES: usize = 8;
/// The most words that are not encrypted.
const CRYPT_OFFSET_MAX: u8 = 0x3f;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The IP protocol of what is inside.
    pub next_header: u8,
    /// Words of 4 bytes behind the header that are not encrypted, a cookie's among them: 63 at
    /// most.
    pub crypt_offset: u8,
    /// The receiver may sample the packet.
    pub is_sampled: bool,
    /// The receiver drops the packet when it was authenticated.
    pub is_to_drop: bool,
    /// 0: AES-GCM with keys of 128 bits.
    pub version: u8,
    /// A cookie of 8 bytes follows.
    pub has_cookie: bool,
    /// Whose key it is.
    pub spi: Spi,
    /// Never the same twice for an SPI.
    pub iv: u64,
}

/// Bytes that are no packet of PSP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Header {
    /// Of version 0, without a cookie.
    #[must_use]
    pub fn new(next_header: u8, crypt_offset: u8, spi: Spi, iv: u64) -> Header {
        Header {
            next_header,
            crypt_offset,
            is_sampled: false,
            is_to_drop: false,
            version: 0,
            has_cookie: false,
            spi,
            iv,
        }
    }

    /// As packets have it. `None`: a field is too large for its place.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; HEADER_BYTES]> {
        if self.crypt_offset > CRYPT_OFFSET_MAX || self.version > 0xf {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.next_header;
        bytes[1] = 1 + u8::from(self.has_cookie);
        bytes[2] = self.crypt_offset;
        bytes[3] = u8::from(self.is_sampled) << 7
            | u8::from(self.is_to_drop) << 6
            | self.version << 2
            | u8::from(self.has_cookie) << 1
            | 1;
        bytes[4..8].copy_from_slice(&self.spi.number().to_be_bytes());
        bytes[8..].copy_from_slice(&self.iv.to_be_bytes());
        Some(bytes)
    }

    /// Reads the header of a packet, which has room for all that it announces, and for the ICV.
    ///
    /// # Errors
    /// It is none. Reserved bits are not looked at.
    pub fn decode(packet: &[u8]) -> Result<Header, Malformed> {
        let (bytes, rest) = packet.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed)?;
        let [next_header, length, offset, bits, spi @ ..] = *bytes;
        let [a, b, c, d, iv @ ..] = spi;
        let header = Header {
            next_header,
            crypt_offset: offset & CRYPT_OFFSET_MAX,
            is_sampled: bits >> 7 & 1 == 1,
            is_to_drop: bits >> 6 & 1 == 1,
            version: bits >> 2 & 0xf,
            has_cookie: bits >> 1 & 1 == 1,
            spi: Spi::new(u32::from_be_bytes([a, b, c, d])),
            iv: u64::from_be_bytes(iv),
        };
        let cookie = if header.has_cookie { COOKIE_BYTES } else { 0 };
        let fits = bits & 1 == 1
            && length == 1 + u8::from(header.has_cookie)
            && rest.len() >= header.clear_bytes().max(cookie) + crate::ICV_BYTES;
        if fits { Ok(header) } else { Err(Malformed) }
    }

    /// Bytes behind the header that are not encrypted.
    #[must_use]
    pub fn clear_bytes(&self) -> usize {
        usize::from(self.crypt_offset) * 4
    }

    /// The nonce of AES-GCM: SPI and IV.
    pub(crate) fn nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.spi.number().to_be_bytes());
        nonce[4..].copy_from_slice(&self.iv.to_be_bytes());
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_fields_are_where_the_specification_has_them() {
        let header = Header::new(17, 5, Spi::new(0x8123_4567), 0x0102_0304_0506_0708);
        let bytes = header.encode().unwrap();
        assert_eq!(u128::from_be_bytes(bytes), 0x11010501_81234567_01020304_05060708);
        let all = Header { is_sampled: true, is_to_drop: true, version: 3, ..header };
        assert_eq!(Header { has_cookie: true, ..all }.encode().unwrap()[..4], [17, 2, 5, 0xcf]);
        assert_eq!(Header { crypt_offset: 64, ..header }.encode(), None);
        assert_eq!(Header { version: 16, ..header }.encode(), None);
        let packet = [&bytes[..], &[0; 20 + 16]].concat();
        assert_eq!(Header::decode(&packet), Ok(header));
        for end in 0..packet.len() {
            assert_eq!(Header::decode(&packet[..end]), Err(Malformed));
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(header) = Header::decode(&bytes) {
                let mut written = bytes[..HEADER_BYTES].to_vec();
                written[2] &= 0x3f;
                prop_assert_eq!(header.encode().unwrap().to_vec(), written);
                prop_assert!(bytes.len() >= HEADER_BYTES + header.clear_bytes() + 16);
            }
        }
    }
}
