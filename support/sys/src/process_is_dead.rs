//! Tells whether a process can still run.

/// `PF_EXITING` in the flags of `/proc/PID/stat`.
const EXITING: u64 = 0x4;
/// SIGKILL in the sets of `/proc/PID/status`.
const KILL: u64 = 1 << 8;

/// How many descriptors this process may have at present.
#[must_use]
pub fn files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// True if the process, or all that is left of it, will never run its program again: it is a
/// zombie, on its way out, or killed, even if a thread of it is stuck in the kernel and it keeps
/// its files. False if it lives, and if there is none of this pid or we may not know.
#[must_use]
pub fn is_dead(pid: i32) -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let Ok(stat) = read("stat") else { return false };
    is_over(&stat).unwrap_or(false) || read("status").is_ok_and(|status| is_killed(&status))
}

/// Whether a line of `/proc/PID/stat` is that of a process whose main thread has ended or is about
/// to.
fn is_over(stat: &str) -> Option<bool> {
    // The name, in parentheses, may contain anything.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    Some(matches!(state, "Z" | "X" | "x") || flags & EXITING != 0)
}

/// Whether a SIGKILL waits to be taken.
fn is_killed(status: &str) -> bool {
    status.lines().any(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
            .is_some_and(|set| set & KILL != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn the_kernels_words_are_understood() {
        let line = |state: &str, flags: u64| format!("7 (a ) Z (b) {state} 1 7 7 0 -1 {flags} 0 0");
        assert_eq!(is_over(&line("S", 0x40_0100)), Some(false));
        assert_eq!(is_over(&line("Z", 0x40_0100)), Some(true));
        assert_eq!(is_over(&line("D", 0x40_0104)), Some(true));
        assert_eq!(is_over("7 (x"), None);
        assert!(is_killed("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"));
        assert!(!is_killed("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000200\n"));
    }

    #[test]
    fn the_living_live_and_zombies_do_not() {
        assert!(!is_dead(i32::try_from(std::process::id()).unwrap()));
        assert!(!is_dead(0) && !is_dead(-1));
        let mut child = Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let begun = Instant::now();
        while !is_dead(pid) {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(2));
        }
        child.wait().unwrap();
        assert!(!is_dead(pid), "there is none any more");
    }
}
