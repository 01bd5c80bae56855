//! Conversions between static rate codes, multiples of 2.5 Gbit/s, and Mbit/s.

use core::ffi::c_int;

use omniverb_abi::*;

/// Rate code, multiple of 2.5 Gbit/s if it has one, Mbit/s as signalled.
const RATES: [(u32, Option<c_int>, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, Some(1), 2_500),
    (IBV_RATE_5_GBPS, Some(2), 5_000),
    (IBV_RATE_10_GBPS, Some(4), 10_000),
    (IBV_RATE_14_GBPS, None, 14_062),
    (IBV_RATE_20_GBPS, Some(8), 20_000),
    (IBV_RATE_25_GBPS, None, 25_781),
    (IBV_RATE_28_GBPS, Some(11), 28_125),
    (IBV_RATE_30_GBPS, Some(12), 30_000),
    (IBV_RATE_40_GBPS, Some(16), 40_000),
    (IBV_RATE_50_GBPS, Some(20), 53_125),
    (IBV_RATE_56_GBPS, None, 56_250),
    (IBV_RATE_60_GBPS, Some(24), 60_000),
    (IBV_RATE_80_GBPS, Some(32), 80_000),
    (IBV_RATE_100_GBPS, None, 103_125),
    (IBV_RATE_112_GBPS, None, 112_500),
    (IBV_RATE_120_GBPS, Some(48), 120_000),
    (IBV_RATE_168_GBPS, None, 168_750),
    (IBV_RATE_200_GBPS, None, 206_250),
    (IBV_RATE_300_GBPS, None, 309_375),
    (IBV_RATE_400_GBPS, Some(160), 425_000),
    (IBV_RATE_600_GBPS, Some(240), 637_500),
    (IBV_RATE_800_GBPS, Some(320), 850_000),
    (IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

/// The multiple of 2.5 Gbit/s that a rate code means, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_rate_to_mult(rate: u32) -> c_int {
    RATES.iter().find(|row| row.0 == rate).and_then(|row| row.1).unwrap_or(-1)
}

/// The rate code of a multiple of 2.5 Gbit/s, or `IBV_RATE_MAX`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_mult_to_ibv_rate(mult: c_int) -> u32 {
    RATES.iter().find(|row| row.1 == Some(mult)).map_or(IBV_RATE_MAX, |row| row.0)
}

/// The Mbit/s of a rate code, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_rate_to_mbps(rate: u32) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// The rate code of exactly so many Mbit/s, or `IBV_RATE_MAX`.
#[unsafe(no_mangle)]
pub extern "C" fn ov_mbps_to_ibv_rate(mbps: c_int) -> u32 {
    RATES.iter().find(|row| row.2 == mbps).map_or(IBV_RATE_MAX, |row| row.0)
}
