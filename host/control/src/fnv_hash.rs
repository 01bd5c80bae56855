//! Hashes bytes by FNV-1a: short, fixed for ever, and for what does not depend on its strength.

/// Where the hash of 64 bits begins.
pub(crate) const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash that every daemon computes alike, from this beginning on.
pub(crate) fn fnv1a(basis: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(basis, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_one() {
        assert_eq!(fnv1a(BASIS, b""), BASIS);
        assert_eq!(fnv1a(BASIS, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(BASIS, b"foobar"), 0x8594_4171_f739_67e8);
    }
}
