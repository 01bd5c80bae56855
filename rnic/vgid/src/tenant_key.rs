//! Keeps a tenant's key: 128 bits that nobody reads, and that are gone when it is dropped.

use aes::Aes128;
use cmac::{Cmac, KeyInit, Mac};
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The key of a tenant. Only daemons have it, never a process or a container.
#[derive(Clone)]
pub struct TenantKey(Zeroizing<[u8; 16]>);

/// A key for one purpose, made from a tenant's.
pub type DerivedKey = Zeroizing<[u8; 16]>;

impl TenantKey {
    /// From its bytes. What they were copied from is the caller's to clear.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> TenantKey {
        TenantKey(Zeroizing::new(bytes))
    }

    /// A key for another purpose than vGIDs: the AES-CMAC (RFC 4493) of what it is for, under this
    /// key.
    ///
    /// It cannot be mistaken for a vGID. A label is no whole number of blocks long, so CMAC
    /// enciphers it combined with a secret that is itself made with the key.
    #[must_use]
    pub fn derive(&self, label: &[&[u8]]) -> DerivedKey {
        let mut mac = Cmac::<Aes128>::new(&(*self.0).into());
        for part in label {
            mac.update(&(part.len() as u32).to_be_bytes());
            mac.update(part);
        }
        Zeroizing::new(mac.finalize().into_bytes().into())
    }

    /// The cipher of vGIDs.
    pub(crate) fn cipher(&self) -> Aes128 {
        Aes128::new(&(*self.0).into())
    }
}

/// For telling whether a file holds another key than before, in the same time whatever it is.
impl PartialEq for TenantKey {
    fn eq(&self, other: &TenantKey) -> bool {
        self.0.ct_eq(&*other.0).into()
    }
}

impl Eq for TenantKey {}

impl fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4493, section 4: the key, examples 1 to 3.
    #[test]
    fn the_mac_is_that_of_rfc_4493() {
        let key: [u8; 16] = 0x2b7e1516_28aed2a6_abf71588_09cf4f3c_u128.to_be_bytes();
        let text: Vec<u8> = [
            0x6bc1bee2_2e409f96_e93d7e11_7393172a_u128,
            0xae2d8a57_1e03ac9c_9eb76fac_45af8e51,
            0x30c81c46_a35ce411,
        ]
        .iter()
        .flat_map(|block| block.to_be_bytes())
        .collect();
        let mac = |text: &[u8]| {
            let mut mac = Cmac::<Aes128>::new(&key.into());
            mac.update(text);
            u128::from_be_bytes(mac.finalize().into_bytes().into())
        };
        assert_eq!(mac(b""), 0xbb1d6929_e9593728_7fa37d12_9b756746);
        assert_eq!(mac(&text[..16]), 0x070a16b4_6b4d4144_f79bdd9d_d04a287c);
        let forty: Vec<u8> = [&text[..32], &text[40..48]].concat();
        assert_eq!(mac(&forty), 0xdfa66747_de9ae630_30ca3261_1497c827);
    }

    #[test]
    fn purposes_have_keys_of_their_own_and_nothing_shows_them() {
        let key = TenantKey::new([7; 16]);
        assert_eq!(key.derive(&[b"a"]), key.derive(&[b"a"]));
        assert_ne!(key.derive(&[b"ab", b"c"]), key.derive(&[b"a", b"bc"]));
        assert_ne!(key.derive(&[b"a"]), TenantKey::new([8; 16]).derive(&[b"a"]));
        assert_eq!(format!("{key:?}"), "TenantKey(..)");
    }
}
