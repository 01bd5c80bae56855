//! Runs the second process of a measurement, and waits for it.
//!
//! In: what each side does. Out: the result of this side. The partner dies with us, and a wait
//! that takes seconds means that it died first, so nothing here can hang.

// UNSAFETY: fork, _exit and waitpid. This program has one thread, so the child may run any code.
#![expect(unsafe_code)]

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

/// Looks before a spinning wait gives up: several seconds.
const LOOKS: u64 = 1 << 34;

/// Which CPUs the two processes run on.
#[derive(Clone, Copy)]
pub struct Pin(Option<[usize; 2]>);

impl Pin {
    /// Binds the calling process to its CPU: side 0 is the measuring one.
    fn apply(self, side: usize) -> Result<()> {
        let Some(cpus) = self.0 else { return Ok(()) };
        let mut set = CpuSet::new();
        set.set(cpus[side]);
        sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {}", cpus[side]))
    }
}

/// Two CPUs this process may use, on different cores where there are two.
fn two_cores() -> Result<[usize; 2], String> {
    let allowed = sched_getaffinity(None).map_err(|error| format!("sched_getaffinity: {error}"))?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let first = cpus.next().ok_or("no CPU")?;
    let others: Vec<usize> = cpus.collect();
    let path = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
    let siblings = read_list(&std::fs::read_to_string(path).unwrap_or_default());
    let other = others.iter().find(|cpu| !siblings.contains(cpu)).or(others.first());
    Ok([first, *other.ok_or("two spinning processes need two CPUs; this process may use one")?])
}

/// The numbers of a kernel CPU list such as `0-1,4`; what is not a number is skipped.
fn read_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse().ok()?..=to.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => return Ok(Self(None)),
            "auto" => return two_cores().map(|cpus| Self(Some(cpus))),
            _ => {}
        }
        let parse = |cpu: &str| cpu.parse().ok().filter(|cpu| *cpu < CpuSet::MAX_CPU);
        match text.split_once(',').map(|(one, two)| (parse(one), parse(two))) {
            Some((Some(one), Some(two))) if one != two => Ok(Self(Some([one, two]))),
            _ => {
                Err("expected two different CPUs such as \"0,1\", or \"auto\", or \"none\"".into())
            }
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some([one, two]) => write!(f, "{one},{two}"),
            None => write!(f, "none"),
        }
    }
}

/// Runs `theirs` in a second process while `ours` runs in this one.
pub fn with_partner<R>(
    pin: Pin,
    theirs: impl FnOnce() -> Result<()>,
    ours: impl FnOnce() -> Result<R>,
) -> Result<R> {
    // SAFETY: single-threaded program, so the child's copy of every lock and buffer is usable.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(std::io::Error::last_os_error()).context("fork"),
        0 => {
            let done = catch_unwind(AssertUnwindSafe(|| {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                pin.apply(1)?;
                theirs()
            }));
            let code = i32::from(!matches!(done, Ok(Ok(()))));
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        _ => {
            let result = pin.apply(0).and_then(|()| ours());
            if result.is_err() {
                // SAFETY: our own child, which has not been waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            let mut status = 0;
            // SAFETY: `status` is a valid place for the answer.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            let result = result?;
            if waited != child || status != 0 {
                bail!("the partner process failed");
            }
            Ok(result)
        }
    }
}

/// Spins until `look` returns something.
#[inline(always)]
pub fn spin<T>(mut look: impl FnMut() -> Option<T>) -> Result<T> {
    for _ in 0..LOOKS {
        if let Some(value) = look() {
            return Ok(value);
        }
    }
    bail!("the partner process stopped answering")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(read_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(read_list(""), [] as [usize; 0]);
    }

    #[test]
    fn pins() {
        assert_eq!("3,1".parse::<Pin>().expect("valid").to_string(), "3,1");
        for bad in ["1,1", "1", "a,b", "0,99999", ""] {
            assert!(bad.parse::<Pin>().is_err(), "{bad:?} must be refused");
        }
    }
}
