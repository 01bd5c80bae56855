//! Measures the round trip of a cache line between two spinning processes.
//!
//! Out: nanoseconds a round trip, averaged over short batches; the median of the batches is the
//! limit, the 99th percentile shows how noisy the machine was. Two forms: both sides write the
//! same line, and each side writes a line of its own (which is what a pair of rings does).

use crate::report::{Report, percentile};
use crate::second_process::{Pin, spin, with_partner};
use crate::shared_memfd::{LINE, Window};
use anyhow::Result;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Round trips in one batch: long enough to hide the clock, short enough to see disturbances.
const BATCH: u64 = 500;
/// Tells the partner to leave. Sequence numbers never reach it.
const STOP: u64 = u64::MAX;

/// Takes both forms once.
pub fn measure(pin: Pin, time: Duration, report: &mut Report) -> Result<()> {
    for (name, there, back) in [("one_line", 0, 0), ("two_lines", 0, 2 * LINE)] {
        let batches = run(pin, time, there, back)?;
        let key = format!("pingpong_{name}_ns");
        report.add(&key, percentile(&batches, 50.0));
        report.add(&format!("pingpong_{name}_p99_ns"), percentile(&batches, 99.0));
    }
    Ok(())
}

/// Round-trip time of each batch. Odd numbers travel there, even numbers come back.
fn run(pin: Pin, time: Duration, there: usize, back: usize) -> Result<Vec<f64>> {
    let window = Window::new(4096)?;
    let theirs = || {
        let window = window.again()?;
        let (there, back) = (window.word(there), window.word(back));
        let mut expected = 1;
        loop {
            let seen = spin(|| {
                let value = there.load(Acquire);
                (value == expected || value == STOP).then_some(value)
            })?;
            if seen == STOP {
                return Ok(());
            }
            back.store(seen + 1, Release);
            expected += 2;
        }
    };
    let ours = || {
        let (there, back) = (window.word(there), window.word(back));
        let mut batches = Vec::with_capacity(1 << 16);
        let mut sequence = 1;
        let start = Instant::now();
        while start.elapsed() < time {
            let begin = Instant::now();
            for _ in 0..BATCH {
                there.store(sequence, Release);
                spin(|| (back.load(Acquire) == sequence + 1).then_some(()))?;
                sequence += 2;
            }
            batches.push(begin.elapsed().as_nanos() as f64 / BATCH as f64);
        }
        there.store(STOP, Release);
        Ok(batches)
    };
    with_partner(pin, theirs, ours)
}
