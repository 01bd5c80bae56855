//! CRC-32 by folding 256 bytes at a time, for whole packets.
//!
//! The method is Intel's ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction", 2009): bytes are coefficients of a polynomial, and a block is moved on over others
//! by multiplying its halves with a power of x modulo the CRC's polynomial. What differs from
//! `crc32fast` is the two ends: zeros before the first byte, which change nothing, make the length
//! a multiple of 64; and the sixteen lanes are moved to the end at once, not one over the other.
#![expect(unsafe_code)]
// UNSAFETY: a function that uses instructions which not every processor has may only be called
// where they were found. Nothing else here is unsafe: bytes are read through slices.

use crate::ip_identification::POLYNOMIAL;
use std::arch::x86_64::*;
use std::sync::LazyLock;

/// Shorter ones are left to others.
const LEAST: usize = 256;
/// Bytes of a block: one register.
const BLOCK: usize = 64;

/// x^`bits` modulo the polynomial, as a factor: reflected, one bit up.
const fn power(bits: u32) -> i64 {
    let mut value = 1_u32 << 31;
    let mut bit = 0;
    while bit < bits {
        value = value >> 1 ^ POLYNOMIAL & (value & 1).wrapping_neg();
        bit += 1;
    }
    (value as i64) << 1
}

/// Factors for the high and the low half of 16 bytes, to move them on by so many bytes.
const fn on(bytes: u32) -> [i64; 2] {
    [power(8 * bytes - 32), power(8 * bytes + 32)]
}

/// The same for each of four lanes.
const fn all_on(bytes: u32) -> [[i64; 2]; 4] {
    [on(bytes); 4]
}

const BY_64: [[i64; 2]; 4] = all_on(64);
const BY_128: [[i64; 2]; 4] = all_on(128);
const BY_192: [[i64; 2]; 4] = all_on(192);
const BY_256: [[i64; 2]; 4] = all_on(256);
/// Each of the first three lanes onto the last; highest first.
const TO_LAST: [[i64; 2]; 4] = [[0; 2], on(16), on(32), on(48)];
const X_64: i64 = power(64);
const X_96: i64 = power(96);
/// The polynomial, and x^64 divided by it; both with bit 32.
const BARRETT: [i64; 2] = [0x1_f701_1641, 0x1_db71_0641];

static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
});

/// As [`super::go_on`]. `None`: the processor cannot, or it is not worth while.
#[inline]
pub(super) fn go_on(crc: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.len() < LEAST || !bytes.len().is_multiple_of(4) || !*AVAILABLE {
        return None;
    }
    let first = bytes.first_chunk::<BLOCK>()?;
    let missing = bytes.len().wrapping_neg() % BLOCK;
    let rest = bytes.get(BLOCK - missing..)?;
    // SAFETY: the processor was asked for each of the instructions just now.
    Some(!unsafe { whole(!crc, first, missing, rest) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn factors(lanes: [[i64; 2]; 4]) -> __m512i {
    let [[d1, d0], [c1, c0], [b1, b0], [a1, a0]] = lanes;
    _mm512_set_epi64(d1, d0, c1, c0, b1, b0, a1, a0)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; BLOCK]) -> __m512i {
    let [a, b, c, d, e, f, g, h]: [i64; 8] = zerocopy::transmute!(*block);
    _mm512_set_epi64(h, g, f, e, d, c, b, a)
}

/// `block`, moved on as the factors say, onto `other`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(block: __m512i, factors: __m512i, other: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128(block, factors, 0x00);
    let high = _mm512_clmulepi64_epi128(block, factors, 0x11);
    _mm512_ternarylogic_epi64(low, high, other, 0x96)
}

/// `register` taken through `missing` zeros less than a block, then through `first` without its
/// last `missing` bytes, then through `rest`, which is whole blocks.
#[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq")]
fn whole(register: u32, first: &[u8; BLOCK], missing: usize, rest: &[u8]) -> u32 {
    // In words of four bytes: the first ones are zeros, then comes what `first` begins with.
    let words = (missing / 4) as i32;
    let from = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let from = _mm512_sub_epi32(from, _mm512_set1_epi32(words));
    let begun = _mm512_maskz_permutexvar_epi32(u16::MAX << words, from, load(first));
    let register = _mm512_maskz_set1_epi32(1 << words, register.cast_signed());
    let mut latest = _mm512_xor_si512(begun, register);

    let (blocks, _) = rest.as_chunks::<BLOCK>();
    let (single, fours) = blocks.split_at(blocks.len() % 4);
    let by_64 = factors(BY_64);
    for block in single {
        latest = fold(latest, by_64, load(block));
    }
    let mut lanes =
        [_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), latest];
    let by_256 = factors(BY_256);
    for four in fours.as_chunks::<4>().0 {
        for (lane, block) in lanes.iter_mut().zip(four) {
            *lane = fold(*lane, by_256, load(block));
        }
    }
    let [a, b, c, d] = lanes;
    let end = fold(b, factors(BY_128), fold(c, by_64, d));
    let end = fold(a, factors(BY_192), end);
    let end = fold(end, factors(TO_LAST), _mm512_maskz_mov_epi64(0b1100_0000, end));
    let half = _mm512_castsi512_si256(end);
    let half = _mm256_xor_si256(half, _mm512_extracti64x4_epi64(end, 1));
    let last = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    reduce(last)
}

/// The remainder of 16 bytes and of as many zeros as the register has.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq")]
fn reduce(bytes: __m128i) -> u32 {
    let low_32 = _mm_set_epi32(0, 0, 0, -1);
    // To 96 bits, and to 64.
    let moved = _mm_clmulepi64_si128(bytes, _mm_set_epi64x(X_96, 0), 0x10);
    let bits = _mm_xor_si128(moved, _mm_srli_si128(bytes, 8));
    let moved = _mm_clmulepi64_si128(_mm_and_si128(bits, low_32), _mm_set_epi64x(0, X_64), 0x00);
    let bits = _mm_xor_si128(moved, _mm_srli_si128(bits, 4));
    // Barrett: how often the polynomial goes into them, and what is left.
    let barrett = _mm_set_epi64x(BARRETT[0], BARRETT[1]);
    let times = _mm_clmulepi64_si128(_mm_and_si128(bits, low_32), barrett, 0x10);
    let product = _mm_clmulepi64_si128(_mm_and_si128(times, low_32), barrett, 0x00);
    _mm_extract_epi32(_mm_xor_si128(bits, product), 1).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn plain(crc: u32, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(crc);
        hasher.update(bytes);
        hasher.finalize()
    }

    #[test]
    fn pclmul_equals_the_table_at_every_length() {
        let bytes: Vec<u8> = (0..9100_u32).map(|at| ((at * at) >> 3) as u8).collect();
        for length in (0..=bytes.len()).step_by(4) {
            let wide = super::go_on(7, &bytes[..length]);
            assert_eq!(wide.is_some(), length >= super::LEAST && *super::AVAILABLE, "{length}");
            assert!(wide.is_none_or(|crc| crc == plain(7, &bytes[..length])), "{length}");
        }
    }

    proptest! {
        #[test]
        fn pclmul_equals_the_table_for_any_bytes(
            crc: u32,
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
        ) {
            let expected = plain(crc, &bytes);
            prop_assert!(super::go_on(crc, &bytes).is_none_or(|found| found == expected));
            prop_assert_eq!(crate::crc::go_on(crc, &bytes), expected);
        }
    }
}
