//! Measures the raw limits of this machine, in the layout of a two-process RDMA test.
//!
//! In: how often to repeat, how long each measurement lasts, which two CPUs to use. Out: a table
//! or JSON with a median per limit. These numbers are the yardstick of `make bench`, so they are
//! taken by the simplest code that can reach the limit and share nothing with the library.

mod copy_bandwidth;
mod pingpong;
mod report;
mod ring_rate;
mod second_process;
mod shared_memfd;
mod wake_latency;

use anyhow::{Context, Result};
use clap::Parser;
use report::Report;
use second_process::Pin;
use std::time::Duration;

/// Measures what two processes of this machine can reach at best: cache-line round trip,
/// message ring, memcpy, eventfd wake-up.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// How often each measurement is taken; the rounds are interleaved and medians are shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Length of one measurement in milliseconds
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    milliseconds: u64,
    /// CPUs of the two processes, such as "0,1"; "auto" takes two cores, "none" leaves the choice
    /// to the kernel
    #[arg(long, default_value = "auto")]
    pin: Pin,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let pin = arguments.pin;
    let time = Duration::from_millis(arguments.milliseconds);
    let mut report = Report::default();
    for round in 1..=arguments.repeats {
        if !arguments.json {
            eprint!("\rround {round} of {} ", arguments.repeats);
        }
        pingpong::measure(pin, time, &mut report).context("cache-line ping-pong")?;
        ring_rate::measure(pin, time, &mut report).context("message ring")?;
        copy_bandwidth::measure(pin, time, &mut report).context("memcpy")?;
        wake_latency::measure(pin, time, &mut report).context("eventfd wake-up")?;
    }
    if arguments.json {
        println!("{}", report.json(pin));
    } else {
        eprint!("\r");
        print!("{}", report.table(pin));
    }
    Ok(())
}
