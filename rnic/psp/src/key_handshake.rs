//! Takes a number and its key from a receiver to a sender of the same tenant, sealed under the
//! tenant's key.
//!
//! | message | bytes | what |
//! |---|---|---|
//! | request | 8 | name, version, 1 |
//! | | 16 | the sender's random number |
//! | | 16 | proof that it has the tenant's key |
//! | answer | 8 | name, version, 2 |
//! | | 16 | the receiver's random number |
//! | | 24 + 16 | SPI, key and its lifetime in milliseconds, sealed |
//!
//! Each message is sealed by AES-128-GCM with a key of its own, made from the tenant's by AES-CMAC
//! ([`TenantKey::derive`]) of its purpose and of both random numbers that there are by then. So no
//! key seals twice, and the nonce is 0. What is authenticated besides is the whole transcript: who
//! asks whom, and the request as it was.
//!
//! * **Freshness.** An answer is to one request: that of its random number. An old answer is to no
//!   request that is open, and each is closed with the first that fits.
//! * **Requests that a stranger sends again** get answers that only holders of the tenant's key can
//!   read, with the number that was given for them first ([`crate::Receiver::give`]). How many
//!   requests are answered is for the caller to bound.
//! * Without the tenant's key nobody gets an answer.

use crate::packet_keys::{PacketKey, Spi};
use crate::sender::Sender;
use omniverb_vgid::TenantKey;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::net::IpAddr;
use zeroize::Zeroizing;

/// The name of the protocol, and its version.
const NAME: [u8; 7] = *b"OVPSP\0\x01";
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const SALT_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const BEGIN_BYTES: usize = NAME.len() + 1 + SALT_BYTES;
const SECRET_BYTES: usize = 4 + 16 + 4;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = BEGIN_BYTES + TAG_BYTES;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = BEGIN_BYTES + SECRET_BYTES + TAG_BYTES;

/// A random number that nobody can guess, and that never comes twice.
pub type Salt = [u8; SALT_BYTES];

/// Who asks whom: addresses on the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeAddresses {
    /// The host that is to send.
    pub sender: IpAddr,
    /// The host that is to receive.
    pub receiver: IpAddr,
}

impl HandshakeAddresses {
    fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        bytes[..16].copy_from_slice(&octets(self.sender));
        bytes[16..].copy_from_slice(&octets(self.receiver));
        bytes
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Pending {
    key: TenantKey,
    ends: HandshakeAddresses,
    request: [u8; REQUEST_BYTES],
}

/// A request that a receiver has accepted.
#[derive(Debug)]
pub struct Accepted {
    key: TenantKey,
    ends: HandshakeAddresses,
    request: [u8; REQUEST_BYTES],
}

/// The cipher of one message.
fn cipher(key: &TenantKey, label: &[&[u8]]) -> Option<LessSafeKey> {
    let derived = key.derive(label);
    UnboundKey::new(&AES_128_GCM, &*derived).ok().map(LessSafeKey::new)
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn begin(kind: u8, salt: &Salt) -> [u8; BEGIN_BYTES] {
    let mut bytes = [0; BEGIN_BYTES];
    bytes[..NAME.len()].copy_from_slice(&NAME);
    bytes[NAME.len()] = kind;
    bytes[NAME.len() + 1..].copy_from_slice(salt);
    bytes
}

/// The random number of a message that is of this kind.
fn salt_of(message: &[u8], kind: u8) -> Option<Salt> {
    let begins = message.first_chunk::<BEGIN_BYTES>()?;
    let salt = *begins.last_chunk::<SALT_BYTES>()?;
    (*begins == begin(kind, &salt)).then_some(salt)
}

fn request_cipher(key: &TenantKey, salt: &Salt) -> Option<LessSafeKey> {
    cipher(key, &[b"omniverb psp request", salt])
}

fn answer_cipher(key: &TenantKey, asked: &Salt, answered: &Salt) -> Option<LessSafeKey> {
    cipher(key, &[b"omniverb psp answer", asked, answered])
}

impl Pending {
    /// A request. The same `salt` must never be used again. `None` cannot be but by a broken
    /// library.
    #[must_use]
    pub fn new(key: &TenantKey, ends: HandshakeAddresses, salt: Salt) -> Option<Pending> {
        let mut request = [0; REQUEST_BYTES];
        let (begins, proof) = request.split_at_mut(BEGIN_BYTES);
        begins.copy_from_slice(&begin(REQUEST, &salt));
        let said = [begins, &ends.encode()[..]].concat();
        let cipher = request_cipher(key, &salt)?;
        let tag = cipher.seal_in_place_separate_tag(nonce(), Aad::from(said), &mut []).ok()?;
        proof.copy_from_slice(tag.as_ref());
        Some(Pending { key: key.clone(), ends, request })
    }

    /// What is to be sent to the receiver, again as long as it does not answer.
    #[must_use]
    pub fn request(&self) -> &[u8; REQUEST_BYTES] {
        &self.request
    }

    /// The receiver has answered: packets may be sealed. Otherwise the request goes on waiting.
    ///
    /// # Errors
    /// It is no answer to this request.
    pub fn finish(self, answer: &[u8]) -> Result<Sender, Pending> {
        match self.read(answer) {
            Some((spi, key, lifetime)) => Ok(Sender::new(spi, key, lifetime)),
            None => Err(self),
        }
    }

    fn read(&self, answer: &[u8]) -> Option<(Spi, PacketKey, u32)> {
        let answer: &[u8; ANSWER_BYTES] = answer.try_into().ok()?;
        let answered = salt_of(answer, ANSWER)?;
        let asked = salt_of(&self.request, REQUEST)?;
        let (begins, sealed) = answer.split_at(BEGIN_BYTES);
        let said = [begins, &self.request, &self.ends.encode()].concat();
        let mut secret = Zeroizing::new(sealed.to_vec());
        let cipher = answer_cipher(&self.key, &asked, &answered)?;
        let opened = cipher.open_in_place(nonce(), Aad::from(said), &mut secret).ok()?;
        let (spi, opened) = opened.split_first_chunk::<4>()?;
        let (key, lifetime) = opened.split_first_chunk::<16>()?;
        let lifetime = u32::from_be_bytes(lifetime.try_into().ok()?);
        Some((Spi::new(u32::from_be_bytes(*spi)), PacketKey::new(*key), lifetime))
    }
}

impl Accepted {
    /// A request, if it was made with one of these keys, for these ends. Nobody is told why it was
    /// not.
    #[must_use]
    pub fn new(keys: &[&TenantKey], ends: HandshakeAddresses, message: &[u8]) -> Option<Accepted> {
        let request: [u8; REQUEST_BYTES] = message.try_into().ok()?;
        let salt = salt_of(&request, REQUEST)?;
        let (begins, proof) = request.split_at(BEGIN_BYTES);
        let said = [begins, &ends.encode()].concat();
        let key = keys.iter().find(|key| {
            let mut proof = proof.to_vec();
            request_cipher(key, &salt).is_some_and(|cipher| {
                cipher.open_in_place(nonce(), Aad::from(&said), &mut proof).is_ok()
            })
        })?;
        Some(Accepted { key: (*key).clone(), ends, request })
    }

    /// What was asked, by which [`crate::Receiver::give`] knows it again.
    #[must_use]
    pub fn request(&self) -> &[u8; REQUEST_BYTES] {
        &self.request
    }

    /// The answer: a number and its key, which nobody else was given, and for how many milliseconds
    /// from the request on packets of it are opened at least. The same `salt` must never be used
    /// again.
    #[must_use]
    pub fn answer(
        self,
        (spi, key): (Spi, &PacketKey),
        lifetime_ms: u32,
        salt: Salt,
    ) -> Option<[u8; ANSWER_BYTES]> {
        let asked = salt_of(&self.request, REQUEST)?;
        let begins = begin(ANSWER, &salt);
        let said = [&begins[..], &self.request, &self.ends.encode()].concat();
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        secret[..4].copy_from_slice(&spi.number().to_be_bytes());
        secret[4..20].copy_from_slice(key.bytes());
        secret[20..].copy_from_slice(&lifetime_ms.to_be_bytes());
        let cipher = answer_cipher(&self.key, &asked, &salt)?;
        let secret = &mut secret[..];
        let tag = cipher.seal_in_place_separate_tag(nonce(), Aad::from(said), secret).ok()?;
        let mut answer = [0; ANSWER_BYTES];
        answer[..BEGIN_BYTES].copy_from_slice(&begins);
        answer[BEGIN_BYTES..BEGIN_BYTES + SECRET_BYTES].copy_from_slice(secret);
        answer[BEGIN_BYTES + SECRET_BYTES..].copy_from_slice(tag.as_ref());
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: HandshakeAddresses = HandshakeAddresses {
        sender: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
        receiver: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    };

    fn key(n: u8) -> TenantKey {
        TenantKey::new([n; 16])
    }

    fn given() -> (Spi, PacketKey) {
        (Spi::new(0x8000_0007), PacketKey::new([9; 16]))
    }

    #[test]
    fn a_key_arrives_where_it_was_asked_for_and_nowhere_else() {
        let pending = Pending::new(&key(1), ENDS, [3; 16]).unwrap();
        let request = *pending.request();
        let accept = |keys: &[&TenantKey], ends| Accepted::new(keys, ends, &request);
        assert!(accept(&[&key(2)], ENDS).is_none(), "another tenant");
        assert!(accept(&[], ENDS).is_none());
        let other = HandshakeAddresses { sender: ENDS.receiver, receiver: ENDS.sender };
        assert!(accept(&[&key(1)], other).is_none(), "another host");
        let accepted = accept(&[&key(2), &key(1)], ENDS).unwrap();
        let (spi, packet_key) = given();
        let answer = accepted.answer((spi, &packet_key), 5000, [4; 16]).unwrap();
        // It is in nobody's words.
        assert!(!answer.windows(4).any(|window| *window == spi.number().to_be_bytes()));

        let again = Pending::new(&key(1), ENDS, [5; 16]).unwrap();
        assert!(again.finish(&answer).is_err(), "an answer to another request");
        let elsewhere = Pending::new(&key(1), other, [3; 16]).unwrap();
        assert!(elsewhere.finish(&answer).is_err());
        let foreign = Pending::new(&key(2), ENDS, [3; 16]).unwrap();
        assert!(foreign.finish(&answer).is_err());
        let reflected = pending.finish(&request).unwrap_err();
        let sender = reflected.finish(&answer).unwrap();
        assert_eq!((sender.spi(), sender.lifetime_ms()), (spi, 5000));
    }

    #[test]
    fn every_changed_bit_shows() {
        let mut pending = Pending::new(&key(1), ENDS, [3; 16]).unwrap();
        let request = *pending.request();
        let accept = |request: &[u8]| Accepted::new(&[&key(1)], ENDS, request);
        for bit in 0..REQUEST_BYTES * 8 {
            let mut changed = request;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(accept(&changed).is_none(), "bit {bit}");
        }
        let (spi, packet_key) = given();
        let answer = accept(&request).unwrap().answer((spi, &packet_key), 5000, [4; 16]).unwrap();
        for bit in 0..ANSWER_BYTES * 8 {
            let mut changed = answer;
            changed[bit / 8] ^= 1 << (bit % 8);
            pending = pending.finish(&changed).unwrap_err();
        }
        for end in 0..ANSWER_BYTES {
            pending = pending.finish(&answer[..end]).unwrap_err();
            assert!(end >= REQUEST_BYTES || accept(&request[..end]).is_none());
        }
        assert!(pending.finish(&answer).is_ok());
    }
}
