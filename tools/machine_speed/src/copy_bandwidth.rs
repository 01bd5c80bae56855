//! Measures copy bandwidth for the two ways a message crosses between processes.
//!
//! One copy, as a mapped WRITE does: one process copies from a private buffer, to another private
//! buffer (`memcpy_private`) or to shared memory (`memcpy_shared`). Two copies, as a SEND does:
//! one process copies into a 256 KiB shared ring while the other copies out of it. Buffers are
//! used again and again, as bandwidth tests do. Out: bytes a second.

use crate::report::Report;
use crate::second_process::{Pin, spin, with_partner};
use crate::shared_memfd::{LINE, Window};
use anyhow::Result;
use std::hint::black_box;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

const SIZES: [(usize, &str); 2] = [(64 << 10, "64k"), (1 << 20, "1m")];
/// Bytes of the shared ring of the two-copy pipeline, and of one step through it.
const RING: usize = 256 << 10;
const CHUNK: usize = 16 << 10;
/// Where the ring's words are; the bytes follow on the second page.
const WRITTEN: usize = 0;
const READ: usize = 2 * LINE;
const STOP: usize = 4 * LINE;
const BYTES: usize = PAGE;
const PAGE: usize = 4096;

/// Takes each form and size once.
pub fn measure(pin: Pin, time: Duration, report: &mut Report) -> Result<()> {
    for (size, name) in SIZES {
        // These run on the CPU of the measuring side: `pingpong` has bound this process to it.
        report.add(&format!("memcpy_private_{name}_bytes_per_s"), to_private(size, time));
        report.add(&format!("memcpy_shared_{name}_bytes_per_s"), to_shared(size, time)?);
        report.add(&format!("two_copies_{name}_bytes_per_s"), pipeline(pin, size, time)?);
    }
    Ok(())
}

/// Repeats `copy` for `time`; bytes a second.
fn rate(size: usize, time: Duration, mut copy: impl FnMut()) -> f64 {
    copy();
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < time {
        for _ in 0..8 {
            copy();
        }
        bytes += 8 * size;
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// A private buffer that starts on a page, as the buffers of bandwidth tests do.
struct Buffer {
    bytes: Vec<u8>,
    size: usize,
}

impl Buffer {
    fn new(size: usize) -> Self {
        Self { bytes: vec![1; size + PAGE], size }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        let start = self.bytes.as_ptr().align_offset(PAGE);
        &mut self.bytes[start..start + self.size]
    }
}

fn to_private(size: usize, time: Duration) -> f64 {
    let (mut from, mut to) = (Buffer::new(size), Buffer::new(size));
    let (from, to) = (from.as_mut(), to.as_mut());
    rate(size, time, || black_box(&mut *to).copy_from_slice(black_box(from)))
}

fn to_shared(size: usize, time: Duration) -> Result<f64> {
    let mut from = Buffer::new(size);
    let from = from.as_mut();
    let window = Window::new(size)?;
    Ok(rate(size, time, || window.copy_in(0, black_box(from))))
}

/// Bytes a second through the ring, messages of `size` bytes at both ends.
fn pipeline(pin: Pin, size: usize, time: Duration) -> Result<f64> {
    let window = Window::new(BYTES + RING)?;
    let theirs = || {
        let window = window.again()?;
        let mut to = Buffer::new(size);
        let to = to.as_mut();
        let mut done = 0;
        loop {
            let more = spin(|| {
                let written = window.word(WRITTEN).load(Acquire);
                (written > done)
                    .then_some(true)
                    .or_else(|| (window.word(STOP).load(Acquire) == done + 1).then_some(false))
            })?;
            if !more {
                return Ok(());
            }
            let offset = done as usize % size;
            window.copy_out(BYTES + done as usize % RING, &mut to[offset..offset + CHUNK]);
            black_box(&mut *to);
            done += CHUNK as u64;
            window.word(READ).store(done, Release);
        }
    };
    let ours = || {
        let mut from = Buffer::new(size);
        let from = from.as_mut();
        let mut done = 0;
        let start = Instant::now();
        while start.elapsed() < time {
            for offset in (0..size).step_by(CHUNK) {
                spin(|| (window.word(READ).load(Acquire) + RING as u64 > done).then_some(()))?;
                window.copy_in(BYTES + done as usize % RING, &from[offset..offset + CHUNK]);
                done += CHUNK as u64;
                window.word(WRITTEN).store(done, Release);
            }
        }
        spin(|| (window.word(READ).load(Acquire) == done).then_some(()))?;
        let elapsed = start.elapsed();
        window.word(STOP).store(done + 1, Relaxed);
        Ok(done as f64 / elapsed.as_secs_f64())
    };
    with_partner(pin, theirs, ours)
}
