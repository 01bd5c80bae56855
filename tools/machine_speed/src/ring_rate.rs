//! Measures the message rate of an ideal SPSC ring of 16-byte records.
//!
//! A record is a payload word and a valid word that holds its sequence number, so the consumer
//! needs no other line and nothing is ever cleared. The consumer returns room a quarter of the
//! ring at a time. Two forms: the consumer takes record by record, or a whole line (four
//! records) at once, which is the fewest cache-line transfers possible. Out: messages a second.

use crate::report::Report;
use crate::second_process::{Pin, spin, with_partner};
use crate::shared_memfd::{LINE, Window};
use anyhow::{Result, ensure};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Records in the ring (128 KiB).
const RECORDS: u64 = 8192;
/// Records in one cache line.
const IN_LINE: u64 = 4;
/// Records between two looks at the clock.
const BATCH: u64 = 65536;
/// Words before the ring: one line each for the consumed count, the total and the check sum.
const HEAD: usize = 4 * LINE / 8;
const CONSUMED: usize = 0;
const TOTAL: usize = LINE / 8;
const SUM: usize = 2 * LINE / 8;

/// Takes both forms once.
pub fn measure(pin: Pin, time: Duration, report: &mut Report) -> Result<()> {
    report.add("ring_records_per_s", run::<1>(pin, time)?);
    report.add("ring_lines_per_s", run::<IN_LINE>(pin, time)?);
    Ok(())
}

/// The payload of record `sequence`; any function that differs from record to record will do.
#[inline(always)]
fn payload(sequence: u64) -> u64 {
    sequence ^ 0x5555_aaaa_5555_aaaa
}

/// Where record `sequence` lives: index of its payload word.
#[inline(always)]
fn place(sequence: u64) -> usize {
    (sequence % RECORDS * 2) as usize
}

/// Messages a second when the consumer takes `STEP` records at a time.
fn run<const STEP: u64>(pin: Pin, time: Duration) -> Result<f64> {
    let window = Window::new(HEAD * 8 + RECORDS as usize * 16)?;
    let theirs = || {
        let window = window.again()?;
        consume::<STEP>(window.words())
    };
    let ours = || produce(window.words(), time);
    with_partner(pin, theirs, ours)
}

fn consume<const STEP: u64>(words: &[AtomicU64]) -> Result<()> {
    let (head, ring) = words.split_at(HEAD);
    let mut next = 0;
    let mut sum = 0_u64;
    loop {
        let last = place(next + STEP - 1) + 1;
        // A total other than zero ends the run; it is a multiple of STEP.
        let over = spin(|| {
            if ring[last].load(Acquire) == next + STEP {
                return Some(false);
            }
            (head[TOTAL].load(Acquire) == next && next > 0).then_some(true)
        })?;
        if over {
            break;
        }
        for sequence in next..next + STEP {
            sum = sum.wrapping_add(ring[place(sequence)].load(Relaxed));
        }
        next += STEP;
        if next.is_multiple_of(RECORDS / 4) {
            head[CONSUMED].store(next, Release);
        }
    }
    head[SUM].store(sum, Relaxed);
    head[CONSUMED].store(next + 1, Release);
    Ok(())
}

fn produce(words: &[AtomicU64], time: Duration) -> Result<f64> {
    let (head, ring) = words.split_at(HEAD);
    let mut room = RECORDS;
    let mut next = 0;
    let mut expected = 0_u64;
    let start = Instant::now();
    while start.elapsed() < time {
        for sequence in next..next + BATCH {
            if sequence == room {
                room = RECORDS
                    + spin(|| {
                        let consumed = head[CONSUMED].load(Acquire);
                        (consumed + RECORDS > sequence).then_some(consumed)
                    })?;
            }
            let at = place(sequence);
            ring[at].store(payload(sequence), Relaxed);
            ring[at + 1].store(sequence + 1, Release);
        }
        next += BATCH;
    }
    head[TOTAL].store(next, Release);
    spin(|| (head[CONSUMED].load(Acquire) == next + 1).then_some(()))?;
    let elapsed = start.elapsed();
    for sequence in 0..next {
        expected = expected.wrapping_add(payload(sequence));
    }
    ensure!(head[SUM].load(Relaxed) == expected, "the ring lost or changed a message");
    Ok(next as f64 / elapsed.as_secs_f64())
}
