//! Says what the name of an object may be.

/// Bytes of the longest name of an object.
pub(crate) const NAME_BYTES_MAX: usize = 63;

/// Whether an object can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_sign)
}
