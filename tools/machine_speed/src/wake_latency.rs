//! Measures the cost of waking a sleeping process through an eventfd.
//!
//! Out: nanoseconds from the write in one process to the return of the read in the other (half the
//! round trip of two sleepers), and of a write without a reader (the bare system call).

use crate::report::{Report, percentile};
use crate::second_process::{Pin, with_partner};
use anyhow::{Context, Result, bail};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Writes without a reader, in one batch.
const BATCH: u32 = 1000;
/// How long a sleeper waits before it takes the partner for dead.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Takes both once.
pub fn measure(pin: Pin, time: Duration, report: &mut Report) -> Result<()> {
    let trips = round_trips(pin, time)?;
    report.add("eventfd_wake_ns", percentile(&trips, 50.0) / 2.0);
    report.add("eventfd_wake_p99_ns", percentile(&trips, 99.0) / 2.0);
    let idle = new_eventfd()?;
    let start = Instant::now();
    for _ in 0..BATCH {
        write(&idle, &1_u64.to_ne_bytes()).context("write to an eventfd")?;
    }
    report.add("eventfd_write_ns", start.elapsed().as_nanos() as f64 / f64::from(BATCH));
    Ok(())
}

fn new_eventfd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")
}

/// Sleeps until `file` has been written, and takes what was written.
fn sleep_on(file: &OwnedFd) -> Result<u64> {
    if poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&PATIENCE)).context("poll")? == 0 {
        bail!("the partner process stopped answering");
    }
    let mut value = [0; 8];
    read(file, &mut value).context("read of an eventfd")?;
    Ok(u64::from_ne_bytes(value))
}

fn round_trips(pin: Pin, time: Duration) -> Result<Vec<f64>> {
    let (there, back) = (new_eventfd()?, new_eventfd()?);
    let (go_on, stop) = (1_u64, 2_u64);
    let theirs = || {
        while sleep_on(&there)? != stop {
            write(&back, &go_on.to_ne_bytes()).context("write to an eventfd")?;
        }
        Ok(())
    };
    let ours = || {
        let mut trips = Vec::with_capacity(1 << 16);
        let start = Instant::now();
        while start.elapsed() < time {
            let begin = Instant::now();
            write(&there, &go_on.to_ne_bytes()).context("write to an eventfd")?;
            sleep_on(&back)?;
            trips.push(begin.elapsed().as_nanos() as f64);
        }
        write(&there, &stop.to_ne_bytes()).context("write to an eventfd")?;
        Ok(trips)
    };
    with_partner(pin, theirs, ours)
}
