//! Controls congestion: how many packets may be under way, and how fast they leave.
//!
//! Delay above a target shrinks the window in proportion, at most once per round trip (the scheme
//! known as Swift); loss and congestion notifications (A17.9.3) shrink it as well. The
//! specification leaves this to the implementation. Fractions of packets are counted in 1/1024.

use crate::{Config, Time};

const ONE: u64 = 1024;
/// Packets the window begins with.
const INITIAL: u64 = 32;
/// Packets that may leave at once before pacing spreads them, if a system call takes no more.
const BURST: u64 = 8;
/// How often a notification may shrink the window.
const NOTIFICATION_INTERVAL: Time = 50_000;

/// Window and pacer of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    window: u64,
    most: u64,
    least: u64,
    target: Option<Time>,
    /// Packets that may leave at once.
    burst: u64,
    /// Doubling per round trip until the first sign of congestion.
    starting: bool,
    shrunk: Option<Time>,
    notified: Option<Time>,
    /// Estimate of how congested the path is, in 1/1024 (DCQCN's alpha).
    severity: u64,
    /// When the next packet is due, if they are paced.
    due: Time,
}

impl Congestion {
    pub(crate) fn new(config: &Config) -> Congestion {
        let most = config.window * ONE;
        let least = (config.window_floor.max(1) * ONE).min(most);
        Congestion {
            window: (INITIAL * ONE).clamp(least, most),
            most,
            least,
            burst: config.burst.max(BURST),
            target: config.delay_target,
            starting: true,
            shrunk: None,
            notified: None,
            severity: ONE,
            due: 0,
        }
    }

    /// Packets that may be under way.
    pub(crate) fn window(&self) -> u64 {
        (self.window / ONE).max(1)
    }

    /// `packets` were acknowledged; the last of them perhaps told a round trip time.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        packets: u64,
        sample: Option<Time>,
        round_trip: (Option<Time>, Option<Time>),
    ) {
        let (least, smoothed) = round_trip;
        if let (Some(sample), Some(least), Some(target)) = (sample, least, self.target) {
            let target = least + target;
            if sample > target {
                // 0.8 of the part that is too much, at most half.
                let excess = (sample - target) * ONE / sample * 4 / 5;
                self.shrink(now, smoothed, ONE - excess.min(ONE / 2));
                return;
            }
        }
        let growth =
            if self.starting { packets * ONE } else { packets * ONE * ONE / self.window.max(1) };
        self.window = (self.window + growth).min(self.most);
    }

    /// A packet was lost.
    pub(crate) fn on_loss(&mut self, now: Time, smoothed: Option<Time>) {
        self.shrink(now, smoothed, ONE * 7 / 10);
    }

    /// An answer is overdue.
    pub(crate) fn on_timeout(&mut self, now: Time, smoothed: Option<Time>) {
        self.shrink(now, smoothed, ONE / 2);
    }

    /// The peer saw congestion marks.
    pub(crate) fn on_notification(&mut self, now: Time) {
        if self.notified.is_some_and(|time| now < time + NOTIFICATION_INTERVAL) {
            return;
        }
        // The estimate fades by 1/16 for every interval without a notification.
        let quiet = self.notified.map_or(0, |time| (now - time) / NOTIFICATION_INTERVAL);
        for _ in 0..quiet.min(64) {
            self.severity -= self.severity / 16;
        }
        self.severity += (ONE - self.severity) / 16;
        self.notified = Some(now);
        self.starting = false;
        self.window = (self.window * (2 * ONE - self.severity) / (2 * ONE)).max(self.least);
    }

    fn shrink(&mut self, now: Time, smoothed: Option<Time>, factor: u64) {
        self.starting = false;
        let interval = smoothed.unwrap_or(0);
        if self.shrunk.is_some_and(|time| now < time + interval) {
            return;
        }
        self.shrunk = Some(now);
        self.window = (self.window * factor / ONE).max(self.least);
    }

    /// Whether packets may have to wait for their time.
    pub(crate) fn paces(&self) -> bool {
        self.window < self.most
    }

    /// When the next packet may leave; not after now means at once.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// `packets` leave now. Nothing is paced while the window is as wide as it gets.
    pub(crate) fn on_send(&mut self, now: Time, packets: u64, smoothed: Option<Time>) {
        let Some(smoothed) = smoothed.filter(|_| self.paces()) else { return };
        // A quarter faster than one window per round trip, or the window would never be full.
        let interval = smoothed * ONE * 4 / 5 / self.window.max(1);
        let earliest = now.saturating_sub(self.burst * interval);
        self.due = self.due.max(earliest) + packets * interval;
    }
}

#[cfg(test)]
mod tests {
    use super::Congestion;
    use crate::Config;
    use omniverb_terms::Qpn;

    fn config() -> Config {
        Config { window_floor: 4, delay_target: Some(150_000), ..Config::new(Qpn(1)) }
    }

    const TRIP: (Option<u64>, Option<u64>) = (Some(10_000), Some(10_000));

    #[test]
    fn grows_to_the_configured_window_and_is_not_paced_there() {
        let mut congestion = Congestion::new(&config());
        for now in 0..20 {
            congestion.on_ack(now, 32, Some(10_000), TRIP);
        }
        assert_eq!(congestion.window(), 128);
        congestion.on_send(50, 1, Some(10_000));
        assert_eq!(congestion.due(), 0);
    }

    #[test]
    fn delay_shrinks_once_per_round_trip_and_never_below_the_floor() {
        let mut congestion = Congestion::new(&config());
        congestion.on_ack(1_000_000, 1, Some(10_000_000), TRIP);
        assert_eq!(congestion.window(), 16);
        congestion.on_ack(1_000_001, 1, Some(10_000_000), TRIP);
        assert_eq!(congestion.window(), 16);
        for round in 2..20 {
            congestion.on_ack(round * 1_000_000, 1, Some(10_000_000), TRIP);
        }
        assert_eq!(congestion.window(), 4);
    }

    #[test]
    fn a_small_window_is_spread_over_the_round_trip() {
        let mut congestion = Congestion::new(&config());
        congestion.on_loss(1_000_000, Some(100_000));
        let mut sent = 0;
        // One round trip in steps of a microsecond.
        for now in (2_000_000..2_100_000).step_by(1000) {
            while congestion.due() <= now {
                congestion.on_send(now, 1, Some(100_000));
                sent += 1;
            }
        }
        let window = congestion.window();
        assert!((window..=window * 5 / 4 + 10).contains(&sent), "{sent} of {window}");
    }

    #[test]
    fn notifications_shrink_and_fade() {
        let mut congestion = Congestion::new(&config());
        congestion.on_notification(1_000_000);
        assert_eq!(congestion.window(), 16);
        congestion.on_notification(1_010_000);
        assert_eq!(congestion.window(), 16);
        congestion.on_notification(100_000_000);
        assert_eq!(congestion.window(), 15);
    }
}
