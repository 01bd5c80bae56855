//! Gets random numbers from the kernel.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// 64 bits that cannot be guessed.
///
/// # Panics
/// If the kernel has no random numbers to give, which ends with the first moments after boot: going
/// on with guessable ones would be worse.
#[must_use]
pub fn number() -> u64 {
    let mut bytes = [0u8; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Fills bytes with random bits that nobody can guess.
///
/// # Panics
/// As [`number`].
pub fn fill(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => panic!("the kernel gives no random numbers: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_numbers_differ() {
        assert_ne!(super::number(), super::number());
    }
}
