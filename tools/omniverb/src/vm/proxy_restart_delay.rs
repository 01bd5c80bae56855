//! Computes the delay before a supervisor starts the next proxy.

use std::time::Duration;

/// How long a guest has to see that the port has no other end.
const SHORT: Duration = Duration::from_secs(1);
/// How long at most, after proxies that all ended soon.
const LONG: Duration = Duration::from_secs(60);
/// A proxy that was there for so long was no try.
const TRIED: Duration = Duration::from_secs(30);

/// Why a proxy has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The daemon had died, so the proxy had no peer: no fault of the guest's.
    Daemon,
    /// Ends that the guest may have caused.
    Other,
}

/// Doubled with each proxy that ended soon, whatever in the guest ends it.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Pause(SHORT)
    }

    /// After a proxy that was there for so long.
    pub(super) fn after(&mut self, lived: Duration, end: End) -> Duration {
        if end == End::Daemon || lived > TRIED {
            self.0 = SHORT;
        }
        let pause = self.0;
        self.0 = (2 * pause).min(LONG);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(3);

    fn seconds(pause: &mut Pause, lived: Duration, end: End) -> u64 {
        pause.after(lived, end).as_secs()
    }

    #[test]
    fn proxies_that_end_soon_are_started_less_and_less_often() {
        let mut pause = Pause::new();
        let found = [(); 8].map(|()| seconds(&mut pause, SOON, End::Other));
        assert_eq!(found, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(seconds(&mut pause, 2 * TRIED, End::Other), 1);
    }

    /// Fifty daemons killed one after another, each a few seconds after the machine was attached,
    /// left it without a device for a minute.
    #[test]
    fn a_daemon_that_died_is_no_fault_of_the_guests() {
        let mut pause = Pause::new();
        assert!((0..50).all(|_| seconds(&mut pause, SOON, End::Daemon) == 1));
        assert_eq!(seconds(&mut pause, SOON, End::Other), 2);
    }
}
