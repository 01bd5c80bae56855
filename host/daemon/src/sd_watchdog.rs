//! Tells whether the service manager wants signs of life (sd_watchdog_enabled(3)).

use omniverb_control::SignOfLife;
use omniverb_sys::sd_notify;
use std::time::Duration;

/// How often the service manager wants to hear that we go on, if it does.
pub(crate) fn sign_of_life() -> Option<SignOfLife> {
    let (time, process) = (std::env::var("WATCHDOG_USEC"), std::env::var("WATCHDOG_PID"));
    let every = half_of(&time.ok()?, process.ok().as_deref(), std::process::id())?;
    Some(SignOfLife { every, send: || sd_notify::tell("WATCHDOG=1") })
}

/// Half of the time after which it takes us for dead, if it is us that it means.
fn half_of(microseconds: &str, process: Option<&str>, own: u32) -> Option<Duration> {
    let meant = process.is_none_or(|pid| pid.parse() == Ok(own));
    let time = microseconds.parse().ok().filter(|time| *time > 0 && meant)?;
    Some(Duration::from_micros(time) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_come_at_half_of_our_interval() {
        let half = Some(Duration::from_secs(5));
        assert_eq!(half_of("10000000", None, 7), half);
        assert_eq!(half_of("10000000", Some("7"), 7), half);
        for (time, process) in [("10000000", "8"), ("10000000", ""), ("0", "7"), ("-1", "7")] {
            assert_eq!(half_of(time, Some(process), 7), None, "{time} {process}");
        }
    }
}
