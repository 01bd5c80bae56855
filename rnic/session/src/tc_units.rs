//! Reads and writes rates and sizes as tc(8) does, for the numbers in messages.

/// What a rate's unit stands for, in bits per second.
const RATES: [(&str, u64); 19] = [
    ("", 1),
    ("bit", 1),
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
    ("tbit", 1_000_000_000_000),
    ("kibit", 1 << 10),
    ("mibit", 1 << 20),
    ("gibit", 1 << 30),
    ("tibit", 1 << 40),
    ("bps", 8),
    ("kbps", 8_000),
    ("mbps", 8_000_000),
    ("gbps", 8_000_000_000),
    ("tbps", 8_000_000_000_000),
    ("kibps", 8 << 10),
    ("mibps", 8 << 20),
    ("gibps", 8 << 30),
    ("tibps", 8 << 40),
];

/// What a size's unit stands for, in bytes.
const SIZES: [(&str, u64); 8] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
];

/// A burst that suits a rate if nobody says another: 10 ms of it, at least 64 KiB, at most 16 MiB.
#[must_use]
pub fn burst_for(bits_per_second: u64) -> u64 {
    (bits_per_second / 800).next_multiple_of(1024).clamp(64 << 10, 16 << 20)
}

/// Bits per second: `300mbit`, `1.5gbit`, `20mbps` (bytes).
///
/// # Errors
/// The fault of the text, for people.
pub fn rate(text: &str) -> Result<u64, String> {
    number(text, &RATES).ok_or_else(|| {
        format!("{text:?} is no rate: use a number and bit, kbit, mbit, gbit, bps, kbps or mbps")
    })
}

/// Bytes: `64k`, `1mb`, `9000`.
///
/// # Errors
/// The fault of the text, for people.
pub fn size(text: &str) -> Result<u64, String> {
    number(text, &SIZES)
        .ok_or_else(|| format!("{text:?} is no size: use a number and b, k, m or g"))
}

/// The most control operations per second that may be said.
pub const OPERATIONS_MAX: u32 = 1_000_000;
/// The most operations of the data path.
pub const OPS_MAX: u32 = 1_000_000_000;

/// Control operations per second: `1000/s`, `2.5k/s`, or without the `/s`.
///
/// # Errors
/// The fault of the text, for people.
pub fn operations(text: &str) -> Result<u32, String> {
    per_second(text, OPERATIONS_MAX)
}

/// Operations of the data path per second: `100k`, `1.5m`, or with `/s`.
///
/// # Errors
/// The fault of the text, for people.
pub fn ops(text: &str) -> Result<u32, String> {
    per_second(text, OPS_MAX)
}

fn per_second(text: &str, most: u32) -> Result<u32, String> {
    let count = text.strip_suffix("/s").unwrap_or(text);
    let found = number(count, &[("", 1), ("k", 1000), ("m", 1_000_000)]);
    let found = found.and_then(|count| u32::try_from(count).ok());
    found
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| format!("{text:?} is no rate of operations: use 1/s to {most}/s, or none"))
}

fn number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = unit.to_ascii_lowercase();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if digits.is_empty() || whole.len() + part.len() == 0 || part.contains('.') || part.len() > 9 {
        return None;
    }
    let factor = u128::from(*factor);
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let tenths = 10u128.pow(u32::try_from(part.len()).ok()?);
    let part: u128 = if part.is_empty() { 0 } else { part.parse().ok()? };
    u64::try_from(whole.checked_mul(factor)?.checked_add(part * factor / tenths)?).ok()
}

/// A rate for people, with the largest unit that needs no fraction.
#[must_use]
pub fn show_rate(bits_per_second: u64) -> String {
    let units = [("tbit", 12), ("gbit", 9), ("mbit", 6), ("kbit", 3)];
    show(bits_per_second, units.map(|(unit, zeroes)| (unit, 10u64.pow(zeroes))), "bit")
}

/// Operations per second for people, likewise.
#[must_use]
pub fn show_ops(per_second: u64) -> String {
    show(per_second, [("m/s", 1_000_000), ("k/s", 1000)], "/s")
}

/// A size for people, likewise.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    show(bytes, [("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)], "b")
}

fn show<const N: usize>(number: u64, units: [(&str, u64); N], least: &str) -> String {
    let fits = |(_, factor): &(&str, u64)| number != 0 && number.is_multiple_of(*factor);
    match units.into_iter().find(fits) {
        Some((unit, factor)) => format!("{}{unit}", number / factor),
        None => format!("{number}{least}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_a_rate_of_their_own() {
        for (text, count) in [("1000/s", 1000), ("2.5k/s", 2500), ("7", 7), ("1m/s", 1_000_000)] {
            assert_eq!(operations(text), Ok(count), "{text}");
        }
        for text in ["", "/s", "0/s", "0", "-1/s", "10/m", "1000001/s", "0.5/s", "1e3/s", "1/s/s"] {
            assert!(operations(text).is_err(), "{text}");
        }
    }

    #[test]
    fn operations_of_the_data_path_may_be_more() {
        for (text, count) in [("100k", 100_000), ("1.5m/s", 1_500_000), ("1000m", OPS_MAX)] {
            assert_eq!(ops(text), Ok(count), "{text}");
            assert_eq!(ops(&show_ops(count.into())), Ok(count), "{text}");
        }
        assert_eq!((show_ops(1_500_000), show_ops(100_000)), ("1500k/s".into(), "100k/s".into()));
        for text in ["0", "1001m", "5g", "100kbit", "none"] {
            assert!(ops(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_those_of_tc() {
        for (text, bits) in [
            ("300mbit", 300_000_000),
            ("1.5gbit", 1_500_000_000),
            ("20Mbps", 160_000_000),
            ("8000", 8000),
            ("1kibit", 1024),
            (".5kbit", 500),
            ("0", 0),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for text in ["", "mbit", "5 mbit", "-1mbit", "1.2.3mbit", "5mb", ".", "99999999999tbit"] {
            assert!(rate(text).is_err(), "{text}");
        }
        // The whole part fits the widest number there is, just not with what comes behind it.
        assert!(rate("340282366920938463463374607431768211.999kbit").is_err());
    }

    #[test]
    fn sizes_are_those_of_tc() {
        for (text, bytes) in [("64k", 65536), ("1.5mb", 3 << 19), ("9000", 9000), ("2G", 2 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert!(size("64kbit").is_err());
    }

    #[test]
    fn printed_units_parse_to_the_same() {
        for number in [0, 1, 999, 1000, 300_000_000, 1_500_000_000, 1 << 30, u64::MAX] {
            assert_eq!(rate(&show_rate(number)), Ok(number));
            assert_eq!(size(&show_size(number)), Ok(number));
        }
        assert_eq!(show_rate(300_000_000), "300mbit");
        assert_eq!(show_size(65536), "64k");
    }
}
