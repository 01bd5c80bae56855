//! Seals fields that are secret: etcd has tenants' keys in a form that only hosts can read.
//!
//! A sealed field is the text `sealed:1:` and hexadecimal digits: a nonce of 12 bytes, and the
//! field's JSON under AES-256-GCM with a tag of 16 bytes. The object's kind and name and the
//! field's name are authenticated, so a sealed key of one tenant is not taken for another's.

use crate::object_name::{Fields, Kind, ObjectId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::Value;
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the key that hosts have in common.
pub const SEAL_KEY_BYTES: usize = 32;
/// The prefix of a sealed field.
const MARK: &str = "sealed:1:";

/// Whether etcd has this field in sealed form only.
#[must_use]
pub fn is_secret(kind: Kind, field: &str) -> bool {
    kind == Kind::Tenant && matches!(field, "key" | "keys" | "key_before")
}

/// The key that hosts of a cluster have in common, and etcd does not have.
pub struct SealKey(LessSafeKey);

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

impl SealKey {
    /// The key that a file has: 64 hexadecimal digits and nothing else but white space.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn from_text(text: &str) -> Result<SealKey, String> {
        let bytes = Zeroizing::new(unhex(text.trim()).unwrap_or_default());
        if bytes.len() != SEAL_KEY_BYTES {
            return Err(format!("it does not have {} hexadecimal digits", 2 * SEAL_KEY_BYTES));
        }
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| "it is no key".to_owned())?;
        Ok(SealKey(LessSafeKey::new(key)))
    }

    /// The fields, with those sealed that are secret. `nonce` gives random bytes, others each time.
    ///
    /// # Errors
    /// There are none as long as fields are shorter than 64 GiB.
    pub fn seal(
        &self,
        id: &ObjectId,
        fields: &Fields,
        mut nonce: impl FnMut() -> [u8; NONCE_LEN],
    ) -> Result<Fields, String> {
        let mut sealed = fields.clone();
        for (field, value) in sealed.iter_mut().filter(|(field, _)| is_secret(id.kind, field)) {
            let nonce = nonce();
            let mut bytes = value.to_string().into_bytes();
            let tag = self.0.seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                about(id, field),
                &mut bytes,
            );
            let tag = tag.map_err(|_| format!("{field} cannot be sealed"))?;
            *value = format!("{MARK}{}{}{}", hex(&nonce), hex(&bytes), hex(tag.as_ref())).into();
        }
        Ok(sealed)
    }

    fn open(&self, id: &ObjectId, field: &str, text: &str) -> Option<Value> {
        let mut bytes = unhex(text)?;
        let (nonce, sealed) = bytes.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.0.open_in_place(nonce, about(id, field), sealed).ok()?;
        let value = serde_json::from_slice(plain).ok();
        plain.zeroize();
        value
    }
}

/// The fields, with those opened that are sealed.
///
/// # Errors
/// Which field cannot be opened, and why. A secret that is not sealed is refused.
pub fn open(id: &ObjectId, fields: &Fields, key: Option<&SealKey>) -> Result<Fields, String> {
    let mut opened = fields.clone();
    for (field, value) in opened.iter_mut().filter(|(field, _)| is_secret(id.kind, field)) {
        let sealed = value.as_str().and_then(|text| text.strip_prefix(MARK));
        let sealed = sealed.ok_or_else(|| {
            format!("the field {field:?} is not sealed: apply it with --seal-key-file")
        })?;
        let key =
            key.ok_or_else(|| format!("the field {field:?} is sealed: it needs --seal-key-file"))?;
        *value = key.open(id, field, sealed).ok_or_else(|| {
            format!("the field {field:?} was sealed with another key, or for another object")
        })?;
    }
    Ok(opened)
}

/// Whether there is something to seal.
#[must_use]
pub fn has_secrets(id: &ObjectId, fields: &Fields) -> bool {
    fields.keys().any(|field| is_secret(id.kind, field))
}

/// Whether all that is secret is sealed already.
#[must_use]
pub fn is_sealed(id: &ObjectId, fields: &Fields) -> bool {
    let mut secrets = fields.iter().filter(|(field, _)| is_secret(id.kind, field));
    secrets.all(|(_, value)| value.as_str().is_some_and(|text| text.starts_with(MARK)))
}

fn about(id: &ObjectId, field: &str) -> Aad<Vec<u8>> {
    Aad::from(format!("omniverb/v1/{}/{}/{field}", id.kind.word(), id.name).into_bytes())
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.as_bytes().chunks(2).map(|pair| Some((digit(pair[0])? << 4) | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(byte: u8) -> SealKey {
        SealKey::from_text(&format!("{}\n", hex(&[byte; SEAL_KEY_BYTES]))).unwrap()
    }

    fn fields() -> Fields {
        json!({ "key": "00ff", "adoption": "exact" }).as_object().unwrap().clone()
    }

    #[test]
    fn a_sealed_field_opens_with_its_key_for_its_object_only() {
        let id = ObjectId::new(Kind::Tenant, "blue");
        let sealed = key(1).seal(&id, &fields(), || [7; 12]).unwrap();
        let text = sealed["key"].as_str().unwrap();
        assert!(text.starts_with(MARK) && !text.contains("00ff") && sealed["adoption"] == "exact");
        assert_eq!(open(&id, &sealed, Some(&key(1))), Ok(fields()));
        let refused = |id: &ObjectId, fields: &Fields, key: Option<&SealKey>, word: &str| {
            let error = open(id, fields, key).unwrap_err();
            assert!(error.contains(word), "{error}");
        };
        refused(&id, &sealed, Some(&key(2)), "another key");
        refused(&id, &sealed, None, "needs --seal-key-file");
        refused(&ObjectId::new(Kind::Tenant, "red"), &sealed, Some(&key(1)), "another object");
        refused(&id, &fields(), Some(&key(1)), "not sealed");
        for place in 0..text.len() - MARK.len() {
            let mut bytes = text.as_bytes().to_vec();
            let at = MARK.len() + place;
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let mut other = sealed.clone();
            other["key"] = String::from_utf8(bytes).unwrap().into();
            refused(&id, &other, Some(&key(1)), "another key");
        }
        for end in 0..text.len() - MARK.len() {
            let mut other = sealed.clone();
            other["key"] = text[..MARK.len() + end].into();
            refused(&id, &other, Some(&key(1)), "another key");
        }
    }

    #[test]
    fn a_vnic_has_no_secrets() {
        let id = ObjectId::new(Kind::Vnic, "web");
        assert_eq!(key(1).seal(&id, &fields(), || [0; 12]), Ok(fields()));
        assert!(!has_secrets(&id, &fields()));
    }

    #[test]
    fn a_file_that_has_no_key_is_refused() {
        for text in ["", "00", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            assert!(SealKey::from_text(text).is_err(), "{text}");
        }
    }
}
