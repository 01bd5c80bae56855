//! Measures round trip times, and tells when an answer is overdue.

use crate::Time;

/// Smoothed round trip time, after RFC 6298.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Time>,
    variation: Time,
    least: Option<Time>,
}

impl RoundTrip {
    /// Takes a sample.
    pub(crate) fn sample(&mut self, time: Time) {
        match self.smoothed {
            None => {
                self.smoothed = Some(time);
                self.variation = time / 2;
            }
            Some(smoothed) => {
                self.variation = (3 * self.variation + smoothed.abs_diff(time)) / 4;
                self.smoothed = Some((7 * smoothed + time) / 8);
            }
        }
        self.least = Some(self.least.map_or(time, |least| least.min(time)));
    }

    /// The smoothed time.
    pub(crate) fn smoothed(&self) -> Option<Time> {
        self.smoothed
    }

    /// The smallest time ever seen.
    pub(crate) fn least(&self) -> Option<Time> {
        self.least
    }

    /// How long to wait for an answer, at least `floor`.
    pub(crate) fn overdue(&self, floor: Time) -> Time {
        match self.smoothed {
            Some(smoothed) => (4 * smoothed).max(smoothed + 4 * self.variation).max(floor),
            None => 4 * floor,
        }
    }
}
