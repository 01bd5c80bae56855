//! Reads and writes faults of a network as text, `loss=1%,delay=2ms`, for what travels in messages.
//!
//! Words, percentages and times are those of tc-netem(8). Used by the command line, by the
//! configuration file and by the daemon when it shows what is set.

use std::fmt::Write;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What is done to the packets that arrive for a vNIC. All zeros: nothing.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Faults {
    /// Nanoseconds that every packet is late.
    pub delay: u64,
    /// By so many nanoseconds more or less.
    pub jitter: u64,
    /// The same seed, the same decisions.
    pub seed: u64,
    /// Chance to be lost, in a million, like the following.
    pub loss: u32,
    /// To arrive twice.
    pub duplicate: u32,
    /// To arrive behind what was sent later.
    pub reorder: u32,
    /// To be damaged.
    pub corrupt: u32,
    /// To arrive with the mark "congestion experienced".
    pub mark: u32,
    /// Packets that may be delayed at a time; more are lost.
    pub limit: u32,
}

/// A probability of one, in millionths.
const WHOLE: u32 = 1_000_000;
/// Longest delay, in nanoseconds: longer than any retry of RDMA lasts.
const DELAY_MAX: u64 = 10_000_000_000;
/// Packets that may be delayed at a time if nobody says how many; that of netem.
const LIMIT: u32 = 1000;
/// At most: 400 MiB of the longest packets.
const LIMIT_MAX: u32 = 100_000;
/// The seed if nobody says one.
const SEED: u64 = 1;
/// What can be said.
const WORDS: &str = "loss, duplicate, reorder, corrupt, mark, delay, jitter, limit or seed";

impl Faults {
    /// Nothing is done to packets.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        let Faults { delay, loss, duplicate, reorder, corrupt, mark, .. } = *self;
        delay == 0 && [loss, duplicate, reorder, corrupt, mark] == [0; 5]
    }

    /// No number is a mistake. `None` for all zeros.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn checked(self) -> Result<Option<Faults>, String> {
        if self == Faults::default() {
            return Ok(None);
        }
        let chances = [self.loss, self.duplicate, self.reorder, self.corrupt, self.mark];
        if chances.iter().any(|chance| *chance > WHOLE) {
            return Err("no fault can be more frequent than 100%".into());
        }
        if self.jitter > self.delay {
            return Err("the jitter cannot be longer than the delay".into());
        }
        if self.delay > DELAY_MAX {
            return Err("the delay can be at most 10s".into());
        }
        if !(1..=LIMIT_MAX).contains(&self.limit) {
            return Err(format!("the limit is between 1 and {LIMIT_MAX} packets"));
        }
        if self.is_nothing() {
            return Err("there is no fault in it; `none` means no faults".into());
        }
        Ok(Some(self))
    }

    /// As people write it, the shortest way.
    #[must_use]
    pub fn show(&self) -> String {
        let mut out = String::new();
        let mut add = |name: &str, value: String| {
            let comma = if out.is_empty() { "" } else { "," };
            let _ = write!(out, "{comma}{name}={value}");
        };
        for (name, chance) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("mark", self.mark),
        ] {
            if chance != 0 {
                add(name, show_percent(chance));
            }
        }
        for (name, time) in [("delay", self.delay), ("jitter", self.jitter)] {
            if time != 0 {
                add(name, show_time(time));
            }
        }
        if self.limit != LIMIT {
            add("limit", self.limit.to_string());
        }
        add("seed", self.seed.to_string());
        out
    }
}

/// `loss=1%,duplicate=0.5%,delay=2ms`; `none` for `None`.
///
/// # Errors
/// What is wrong with the text, for people.
pub fn faults(text: &str) -> Result<Option<Faults>, String> {
    if text == "none" {
        return Ok(None);
    }
    let mut faults = Faults { limit: LIMIT, seed: SEED, ..Faults::default() };
    let mut seen = Vec::new();
    for part in text.split(',') {
        let Some((word, value)) = part.split_once('=') else {
            return Err(format!("{part:?} is no fault: write it as loss=1%,delay=2ms, or none"));
        };
        if seen.contains(&word) {
            return Err(format!("{word} is there twice"));
        }
        seen.push(word);
        match word {
            "loss" => faults.loss = percent(value)?,
            "duplicate" => faults.duplicate = percent(value)?,
            "reorder" => faults.reorder = percent(value)?,
            "corrupt" => faults.corrupt = percent(value)?,
            "mark" => faults.mark = percent(value)?,
            "delay" => faults.delay = time(value)?,
            "jitter" => faults.jitter = time(value)?,
            "limit" => faults.limit = whole(value)?,
            "seed" => faults.seed = whole(value)?,
            _ => return Err(format!("{word:?} is no fault: use {WORDS}")),
        }
    }
    faults.checked()
}

fn whole<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no whole number, or too large"))
}

/// `0.5%`, in a million.
fn percent(text: &str) -> Result<u32, String> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    let chance = decimal(digits, 4).ok_or_else(|| {
        format!("{text:?} is no percentage: use 1% or 0.05%, with four decimals at most")
    })?;
    u32::try_from(chance)
        .ok()
        .filter(|chance| *chance <= WHOLE)
        .ok_or_else(|| format!("{text} is more than 100%"))
}

/// `2ms`, in nanoseconds.
fn time(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let decimals = match unit.to_ascii_lowercase().as_str() {
        "s" | "sec" | "secs" => Some(9),
        "ms" | "msec" | "msecs" => Some(6),
        "us" | "usec" | "usecs" => Some(3),
        _ => None,
    };
    decimals
        .and_then(|decimals| decimal(digits, decimals))
        .ok_or_else(|| format!("{text:?} is no time: use a number and s, ms or us"))
}

/// A decimal number times ten to `decimals`, more than which it must not have.
fn decimal(text: &str, decimals: u32) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let fits = whole.len() <= 9 && part.len() <= decimals as usize;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !fits || whole.len() + part.len() == 0 || !digits(whole) || !digits(part) {
        return None;
    }
    format!("{whole}{part:0<width$}", width = decimals as usize).parse().ok()
}

fn show_percent(chance: u32) -> String {
    decimal_text(chance.into(), 4) + "%"
}

fn show_time(nanoseconds: u64) -> String {
    let (decimals, unit) = match nanoseconds {
        1_000_000_000.. => (9, "s"),
        1_000_000.. => (6, "ms"),
        _ => (3, "us"),
    };
    decimal_text(nanoseconds, decimals) + unit
}

fn decimal_text(number: u64, decimals: u32) -> String {
    let one = 10_u64.pow(decimals);
    let text = format!("{}.{:0width$}", number / one, number % one, width = decimals as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_survives_text() {
        let text = "loss=1%,duplicate=0.5%,reorder=1%,corrupt=0.1%,delay=2ms,jitter=1ms,mark=100%,\
                    limit=50,seed=7";
        let expected = Faults {
            delay: 2_000_000,
            jitter: 1_000_000,
            seed: 7,
            loss: 10_000,
            duplicate: 5000,
            reorder: 10_000,
            corrupt: 1000,
            mark: 1_000_000,
            limit: 50,
        };
        assert_eq!(faults(text), Ok(Some(expected)));
        assert_eq!(faults("none"), Ok(None));
        let short = faults("loss=0.0001,delay=.5s").unwrap().unwrap();
        assert_eq!((short.loss, short.delay, short.limit), (1, 500_000_000, LIMIT));
    }

    #[test]
    fn printed_settings_parse_to_the_same() {
        for text in [
            "loss=1%,seed=1",
            "duplicate=0.0001%,mark=99.9999%,delay=1.5us,jitter=0.001us,seed=7",
            "reorder=12.5%,corrupt=100%,delay=10s,limit=1,seed=18446744073709551615",
        ] {
            assert_eq!(faults(text).unwrap().unwrap().show(), text);
        }
    }

    #[test]
    fn errors_are_one_line() {
        for (text, word) in [
            ("", "loss=1%"),
            ("loss", "loss=1%"),
            ("los=1%", "\"los\""),
            ("loss=1%,loss=2%", "twice"),
            ("loss=101%", "100%"),
            ("loss=-1%", "percentage"),
            ("loss=%", "percentage"),
            ("loss=+1%", "percentage"),
            ("loss=1.00001%", "four decimals"),
            ("loss=99999999999%", "percentage"),
            ("loss=1% ,mark=1%", "percentage"),
            ("delay=2", "ms"),
            ("delay=2h", "ms"),
            ("delay=11s", "10s"),
            ("delay=1ms,jitter=2ms", "jitter"),
            ("jitter=2ms", "jitter"),
            ("loss=1%,limit=0", "limit"),
            ("loss=1%,limit=1000000", "limit"),
            ("loss=1%,seed=x", "\"x\""),
            ("loss=0%", "no fault"),
            ("seed=5", "no fault"),
        ] {
            let error = faults(text).unwrap_err();
            assert!(error.contains(word) && error.lines().count() == 1, "{text:?}: {error}");
        }
    }

    #[test]
    fn numbers_of_a_message_are_checked() {
        let good = faults("loss=1%").unwrap().unwrap();
        assert_eq!(good.checked(), Ok(Some(good)));
        assert_eq!(Faults::default().checked(), Ok(None));
        for bad in [
            Faults { loss: WHOLE + 1, ..good },
            Faults { jitter: 1, ..good },
            Faults { delay: u64::MAX, jitter: u64::MAX, ..good },
            Faults { limit: 0, ..good },
        ] {
            assert!(bad.checked().is_err(), "{bad:?}");
        }
    }
}
