//! Tells how much more memory this process can get, by the machine and its memory cgroups.
//!
//! Cached files do not count as used: the kernel drops them first. What cannot be read is no limit.
//! A process above `memory.high` is not killed, but slowed down until it hardly runs: that is a
//! limit, too.

use crate::proc_maps::{self, texts};
use core::ops::ControlFlow;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::read;

/// How a version of cgroups tells of memory.
struct CgroupVersion {
    folder: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// Fields of `memory.stat`: cached files.
    cached: [&'static [u8]; 2],
}

const FIRST: CgroupVersion = CgroupVersion {
    folder: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    cached: [b"total_inactive_file ", b"total_active_file "],
};

const SECOND: CgroupVersion = CgroupVersion {
    folder: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    cached: [b"inactive_file ", b"active_file "],
};

/// Budget: cgroups above each other that are looked at, for each version. Systemd and Kubernetes
/// make four for a container, five for a program of a user's; a container within another has both.
const LEVELS_MAX: usize = 32;

/// Bytes that this process can be given beside what it has. `u64::MAX`: nothing is known.
#[must_use]
pub fn bytes() -> u64 {
    below("/")
}

/// As [`bytes`], with all files below a folder whose name ends with a slash.
fn below(root: &str) -> u64 {
    let available = fields(&format!("{root}proc/meminfo"), &[b"MemAvailable:"]);
    let mut least = available.map_or(u64::MAX, |kib| kib.saturating_mul(1 << 10));
    for_each_line(&format!("{root}proc/self/cgroup"), |line| {
        if let Some((version, path)) = membership(line) {
            let folder = format!("{root}{}", version.folder);
            if groups(path).count() > LEVELS_MAX {
                // The tightest may be any of them.
                least = 0;
                return;
            }
            for group in groups(path) {
                let room = room_in(&format!("{folder}{group}"), version);
                least = least.min(room.unwrap_or(u64::MAX));
            }
        }
    });
    least
}

/// What a line of `/proc/self/cgroup` says of memory: `hierarchy:controllers:path`.
fn membership(line: &[u8]) -> Option<(&'static CgroupVersion, &str)> {
    let mut parts = core::str::from_utf8(line).ok()?.splitn(3, ':');
    let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    if controllers.split(',').any(|name| name == "memory") {
        return Some((&FIRST, path));
    }
    (hierarchy == "0" && controllers.is_empty()).then_some((&SECOND, path))
}

/// A cgroup and those that it is in, up to the one at the mount, whose name is empty. In a
/// container the path may be the host's, and only that last one be there.
fn groups(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    core::iter::successors(Some(path), |path| path.rfind('/').map(|at| &path[..at]))
}

/// `None`: there is no such cgroup, or it has no limit.
fn room_in(group: &str, version: &CgroupVersion) -> Option<u64> {
    let limits = version.limits.iter();
    let limit = limits.filter_map(|limit| fields(&format!("{group}/{limit}"), &[b""])).min()?;
    let used = fields(&format!("{group}/{}", version.used), &[b""])?;
    let cached = fields(&format!("{group}/memory.stat"), &version.cached).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// The sum of the numbers that follow these words at the beginning of lines. `None`: none does.
fn fields(path: &str, names: &[&[u8]]) -> Option<u64> {
    let mut sum = None;
    for_each_line(path, |line| {
        let text = names.iter().find_map(|name| line.strip_prefix(*name));
        let first = text.and_then(|text| text.trim_ascii().split(|&byte| byte == b' ').next());
        if let Some(number) = first.and_then(proc_maps::decimal) {
            sum = Some(sum.unwrap_or(0u64).saturating_add(number));
        }
    });
    sum
}

fn for_each_line(path: &str, mut visit: impl FnMut(&[u8])) {
    let Ok(file) = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let _ = texts(
        |buffer| read(&file, buffer),
        |line| {
            visit(line);
            Ok(ControlFlow::Continue(()))
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::path::Path;

    /// Files of a pretended machine with 8 MiB to spare.
    fn machine(name: &str, cgroup: &str, files: &[(&str, &str)]) -> u64 {
        let root = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            write(path, text).unwrap();
        };
        put("proc/meminfo", "MemTotal:  16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n");
        put("proc/self/cgroup", cgroup);
        for (path, text) in files {
            put(&format!("sys/fs/cgroup/{path}"), text);
        }
        let room = below(&format!("{}/", root.display()));
        std::fs::remove_dir_all(&root).unwrap();
        room
    }

    #[test]
    fn the_tightest_group_counts_and_cached_files_are_room() {
        let stat = "anon 5\nfile 900\ninactive_file 100\nactive_file 200\nshmem 600\n";
        let second = [
            ("memory.max", "max\n"),
            ("a/memory.max", "5000\n"),
            ("a/memory.current", "4000\n"),
            ("a/memory.stat", stat),
            ("a/b/memory.max", "9000\n"),
            ("a/b/memory.current", "3000\n"),
        ];
        assert_eq!(machine("second", "0::/a/b\n", &second), 1300);
        // In a container without a namespace for cgroups, that of the container is at the root.
        let contained = [("memory.max", "5000\n"), ("memory.current", "6000\n")];
        assert_eq!(machine("contained", "0::/a/b\n", &contained), 0);
        let stat = "inactive_file 1\ntotal_inactive_file 70\ntotal_active_file 7\n";
        let first = [
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/memory.usage_in_bytes", "1\n"),
            ("memory/x/memory.limit_in_bytes", "1000\n"),
            ("memory/x/memory.usage_in_bytes", "400\n"),
            ("memory/x/memory.stat", stat),
        ];
        let groups = "5:cpu,memory:/x\n1:name=systemd:/\n0::/\n";
        assert_eq!(machine("first", groups, &first), 677);
    }

    #[test]
    fn a_group_that_is_slowed_down_is_limited_and_what_is_too_deep_has_no_room() {
        let second = [
            ("a/memory.max", "5000\n"),
            ("a/memory.high", "4500\n"),
            ("a/memory.current", "4000\n"),
        ];
        assert_eq!(machine("slowed", "0::/a\n", &second), 500);
        let deep = "/a".repeat(LEVELS_MAX);
        assert_eq!(machine("deep", &format!("0::{deep}\n"), &[]), 0);
        assert_eq!(machine("shallow", &format!("0::{}\n", &deep[2..]), &[]), 8 << 20);
    }

    #[test]
    fn what_is_not_limited_is_the_machines() {
        for groups in ["", "0::/\n", "3:cpu:/a\n", "nonsense\n0:\n"] {
            assert_eq!(machine("unlimited", groups, &[("memory.max", "max\n")]), 8 << 20);
        }
        assert_eq!(below("/nowhere/"), u64::MAX);
        assert!((1..u64::MAX).contains(&bytes()));
    }
}
