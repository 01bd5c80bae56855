//! The one place that reads a clock; everybody else is told the time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some fixed point in the past, never going back.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_goes_forward() {
        let before = super::now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let passed = super::now() - before;
        assert!((2_000_000..2_000_000_000).contains(&passed), "{passed}");
    }
}
