//! Reads from /proc what the kernel says of a daemon's processes.

use std::fs;
use std::time::{Duration, Instant};

pub fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A field of a process's status.
pub fn field(pid: u32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    Some(line?.trim().to_owned())
}

pub fn children(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|child| field(*child, "PPid").is_some_and(|p| p == pid.to_string())).collect()
}
