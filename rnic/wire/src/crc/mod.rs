//! CRC-32 as the ICRC uses it (7.8.1): the one of Ethernet and zlib.
//!
//! `crc32fast` does it. For packets of some KiB the better part of its time is what it does after
//! the last byte, so where the processor can, `wide` does those.

#[cfg(target_arch = "x86_64")]
mod pclmul;

/// The CRC of something that has this CRC, and `bytes` behind it.
#[inline]
pub(crate) fn go_on(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = pclmul::go_on(crc, bytes) {
        return crc;
    }
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}
