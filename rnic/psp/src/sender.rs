//! Seals packets with a key that their receiver gave: no initialization vector is used twice.
//!
//! The vector is a thread's number and a counter of its packets (NIST SP 800-38D, 8.2.1: a fixed
//! field and an invocation field). Numbers of threads are given out once by a [`Sender`], and a
//! sender is made once of an answer to a handshake: a process that starts again asks for another
//! SPI.

use crate::header::{HEADER_BYTES, Header};
use crate::packet_keys::{PacketKey, Spi};
use crate::{ICV_BYTES, NEXT_UDP};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Packets of a thread under one key. With packets of 4 KiB, those of 256 threads are 2^64 blocks
/// in all only after 2^56; it ends long before.
const COUNT_MAX: u64 = 1 << 40;
/// Where the number of a thread is in an initialization vector.
pub(crate) const THREAD_SHIFT: u32 = 56;

/// There are no more initialization vectors for this key: another handshake is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// A key and the SPI of packets sealed with it.
#[derive(Debug)]
pub struct Sender {
    spi: Spi,
    key: PacketKey,
    lifetime_ms: u32,
    threads: u16,
}

/// Seals packets of one thread.
pub struct Sealer {
    spi: Spi,
    key: LessSafeKey,
    /// The next initialization vector, and one past the last.
    next: u64,
    end: u64,
}

/// Bytes of a packet that holds so many.
#[must_use]
pub const fn sealed_bytes(payload: usize) -> usize {
    HEADER_BYTES + payload + ICV_BYTES
}

pub(crate) fn cipher(key: &PacketKey) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_128_GCM, key.bytes()).ok().map(LessSafeKey::new)
}

impl Sender {
    /// Of a key that nobody has sealed anything with: only a handshake makes one.
    pub(crate) fn new(spi: Spi, key: PacketKey, lifetime_ms: u32) -> Sender {
        Sender { spi, key, lifetime_ms, threads: 0 }
    }

    /// For one more thread; there are 256.
    ///
    /// # Errors
    /// There were so many.
    pub fn sealer(&mut self) -> Result<Sealer, Exhausted> {
        let thread = u8::try_from(self.threads).map_err(|_| Exhausted)?;
        let key = cipher(&self.key).ok_or(Exhausted)?;
        self.threads += 1;
        let next = u64::from(thread) << THREAD_SHIFT;
        Ok(Sealer { spi: self.spi, key, next, end: next + COUNT_MAX })
    }

    /// What its packets are known by.
    #[must_use]
    pub fn spi(&self) -> Spi {
        self.spi
    }

    /// For how many milliseconds, from the first request on, the receiver opens its packets.
    #[must_use]
    pub fn lifetime_ms(&self) -> u32 {
        self.lifetime_ms
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealer({:?}, {}% used)", self.spi, self.used_percent())
    }
}

impl Sealer {
    /// What its packets are known by.
    #[must_use]
    pub fn spi(&self) -> Spi {
        self.spi
    }

    /// Adds to `packets` a sealed packet that holds UDP. The first `clear` words of 4 bytes of it
    /// can be read by anybody, and changed by nobody; with 5 these are the headers of UDP and BTH.
    ///
    /// # Errors
    /// The key is used up. The packet is nowhere.
    pub fn seal(
        &mut self,
        clear: u8,
        payload: &[u8],
        packets: &mut Vec<u8>,
    ) -> Result<(), Exhausted> {
        self.seal_parts(clear, (&[], payload), packets)
    }

    /// As [`Sealer::seal`], of a payload in two parts, the second behind the first.
    ///
    /// # Errors
    /// The key is used up. The packet is nowhere.
    pub fn seal_parts(
        &mut self,
        clear: u8,
        (first, second): (&[u8], &[u8]),
        packets: &mut Vec<u8>,
    ) -> Result<(), Exhausted> {
        if self.next >= self.end {
            return Err(Exhausted);
        }
        // No more words than there are.
        let words = (first.len() + second.len()) / 4;
        let clear = clear.min(0x3f).min(u8::try_from(words).unwrap_or(u8::MAX));
        let header = Header::new(NEXT_UDP, clear, self.spi, self.next);
        let bytes = header.encode().ok_or(Exhausted)?;
        self.next += 1;
        let start = packets.len();
        packets.extend_from_slice(&bytes);
        packets.extend_from_slice(first);
        packets.extend_from_slice(second);
        let (open, secret) = packets[start..].split_at_mut(HEADER_BYTES + header.clear_bytes());
        let nonce = Nonce::assume_unique_for_key(header.nonce());
        match self.key.seal_in_place_separate_tag(nonce, Aad::from(&*open), secret) {
            Ok(tag) => {
                packets.extend_from_slice(tag.as_ref());
                Ok(())
            }
            Err(_) => {
                packets.truncate(start);
                Err(Exhausted)
            }
        }
    }

    /// How much of the key is used up, in percent: the next handshake is due long before 100.
    #[must_use]
    pub fn used_percent(&self) -> u64 {
        (COUNT_MAX - (self.end - self.next)) * 100 / COUNT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_vector_comes_twice_and_a_key_ends() {
        let mut sender = Sender::new(Spi::new(7), PacketKey::new([1; 16]), 1);
        let mut sealers: Vec<_> = (0..256).map(|_| sender.sealer().unwrap()).collect();
        assert!(sender.sealer().is_err());
        let mut seen = std::collections::HashSet::new();
        for sealer in &mut sealers {
            for round in 0..3 {
                let mut packets = Vec::new();
                if round == 2 {
                    sealer.next = sealer.end - 1;
                }
                sealer.seal(0, b"1234", &mut packets).unwrap();
                assert!(seen.insert(packets[8..16].to_vec()));
                assert_eq!(packets.len(), sealed_bytes(4));
            }
            let mut packets = vec![5];
            assert_eq!(sealer.seal(0, b"1234", &mut packets), Err(Exhausted));
            assert_eq!((packets, sealer.used_percent()), (vec![5], 100));
        }
    }
}
