//! Divides the daemon's memory among everything that clients can fill.
//!
//! The whole is half of what the machine has, or what the daemon's own cgroup may have if that is
//! less, unless the configuration says something else. The parts below are bounds of their own:
//! none is reserved, and together they are at most 29 parts in 32 of the whole, so that the rest is
//! there for the program, its helpers and descriptors.

use std::path::Path;

/// Budget: the share of the machine's memory that the daemon may use. The unit says the same to
/// systemd (`MemoryMax=50%`).
const MACHINE_SHARE: u64 = 2;
/// Budget: the share of the whole for what the engine keeps for vNICs.
const KEPT_SHARE: u64 = 16;
/// Budget: bytes of that at most; more only delays packets that are late already.
const KEPT_MAX: u64 = 1 << 30;

/// Budget: the share of the whole for rings of links to the engine for datagrams.
const DATAGRAM_SHARE: u64 = 8;
/// Budget: that for those of connections: four such shares.
const CONNECTION_PARTS: u64 = 4;
/// Budget: the share of the whole for rows of the tables: queue pairs, memory regions, link ends,
/// ids of the connection manager.
const TABLE_SHARE: u64 = 8;
/// Budget: the share of the whole for messages to processes that do not take them.
const WAITING_SHARE: u64 = 32;
/// Budget: and its bytes at most.
const WAITING_MAX: u64 = 512 << 20;
/// Budget: the share of the whole for captures, while an operator has some.
const CAPTURE_SHARE: u64 = 16;
/// Budget: and its bytes at most.
const CAPTURE_MAX: u64 = 192 << 20;

/// The whole and its parts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// All of it.
    pub whole: u64,
    /// Bytes that the engine keeps for vNICs: backlogs, early and delayed packets, READ data.
    pub kept: usize,
    /// Rings of links to the engine for connections.
    pub connections: u64,
    /// Rings of those for datagrams.
    pub datagrams: u64,
    /// Rows of the tables.
    pub tables: u64,
    /// Messages to processes that do not take them.
    pub waiting: usize,
    /// What captures of all vNICs keep until it is written.
    pub captures: usize,
}

impl Totals {
    /// The least whole there is, in bytes, whatever a machine has.
    pub const LEAST: u64 = 512 << 20;

    /// Of a whole of so many bytes, or the least.
    #[must_use]
    pub fn new(whole: u64) -> Totals {
        let whole = whole.max(Totals::LEAST);
        let part = |share: u64, most: u64| usize::try_from((whole / share).min(most)).unwrap_or(0);
        let (kept, waiting) = (part(KEPT_SHARE, KEPT_MAX), part(WAITING_SHARE, WAITING_MAX));
        let captures = part(CAPTURE_SHARE, CAPTURE_MAX);
        let datagrams = whole / DATAGRAM_SHARE;
        let (connections, tables) = (datagrams * CONNECTION_PARTS, whole / TABLE_SHARE);
        Totals { whole, kept, waiting, captures, connections, datagrams, tables }
    }

    /// Of what this machine, and our cgroup, have.
    #[must_use]
    pub fn of_machine() -> Totals {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let machine =
            machine_bytes(&text("/proc/meminfo")).unwrap_or(Totals::LEAST) / MACHINE_SHARE;
        let limit = cgroup_limit(&text("/proc/self/cgroup"), |path| {
            std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok()
        });
        Totals::new(limit.map_or(machine, |limit| limit.min(machine)))
    }
}

impl Default for Totals {
    fn default() -> Totals {
        Totals::of_machine()
    }
}

/// `MemTotal` of `/proc/meminfo`.
fn machine_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The least limit of our cgroup and those around it, of version 2 or 1; `text`:
/// `/proc/self/cgroup`, `read`: reads a file below the place where cgroups are.
fn cgroup_limit(text: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut least = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("memory/", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_matches('/');
        loop {
            let file = if path.is_empty() { name.into() } else { format!("{path}/{name}") };
            let limit = read(&format!("{root}{file}")).and_then(|text| text.trim().parse().ok());
            least = least.into_iter().chain(limit).min();
            if path.is_empty() {
                break;
            }
            path = path.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fit_into_the_whole() {
        for whole in [0, 1 << 30, 4 << 30, 12 << 30, 1 << 40] {
            let totals = Totals::new(whole);
            assert!(
                totals.whole >= Totals::LEAST
                    && (totals.kept + totals.waiting) as u64 <= totals.whole / 8
            );
            let rows = totals.connections + totals.datagrams + totals.tables;
            let parts = rows + (totals.kept + totals.waiting + totals.captures) as u64;
            assert!(parts <= totals.whole / 32 * 29, "{parts} of {}", totals.whole);
        }
        assert!(Totals::of_machine().whole >= Totals::LEAST);
    }

    #[test]
    fn the_unit_file_has_the_same_limit() {
        let unit = include_str!("../../../deploy/systemd/omniverbd.service");
        let most = format!("\nMemoryMax={}%\n", 100 / MACHINE_SHARE);
        assert!(unit.contains(&most) && !unit.contains("\nMemoryHigh="), "{most}");
    }

    #[test]
    fn the_machines_memory_is_read() {
        assert_eq!(machine_bytes("MemFree: 1 kB\nMemTotal:   2048 kB\n"), None.or(Some(2 << 20)));
        assert_eq!(machine_bytes("MemTotal: many\n"), None);
    }

    #[test]
    fn the_least_limit_of_enclosing_cgroups_counts() {
        let read = |path: &str| {
            let found = match path {
                "system.slice/omniverbd.service/memory.max" => "max\n",
                "system.slice/memory.max" => "700\n",
                "memory/a/b/memory.limit_in_bytes" => "800\n",
                "memory/memory.limit_in_bytes" => "9223372036854771712\n",
                _ => return None,
            };
            Some(found.to_owned())
        };
        assert_eq!(cgroup_limit("0::/system.slice/omniverbd.service\n", read), Some(700));
        assert_eq!(cgroup_limit("5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n", read), Some(800));
        assert_eq!(cgroup_limit("0::/../x\nrubbish\n", read), None);
    }
}
