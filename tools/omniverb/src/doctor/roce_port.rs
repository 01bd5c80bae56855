//! Checks whether the daemon has UDP port 4791, and names the process that has it otherwise.
//!
//! The daemon reaches everything outside of the namespace through it.

use super::findings::Findings;
use super::leftovers;
use crate::{find_daemon, tenant_connection};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// RoCE v2's port, as `/proc/net/udp` writes it.
const PORT: &str = ":12B7";
/// Fields of a line of `/proc/net/udp`: address, user, inode.
const ADDRESS: usize = 1;
const USER: usize = 7;
const INODE: usize = 9;

/// A socket of the port.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    user: u32,
    inode: u64,
}

/// A process that has one.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    program: String,
    /// Where it listens, if it is a daemon.
    daemon: Option<PathBuf>,
}

/// Looks at the port, as far as the daemon at `path` needs it.
pub(super) fn port(findings: &mut Findings, path: &Path) {
    let status = tenant_connection::status(path).unwrap_or_default();
    let own = fs::metadata("/proc/self/ns/net").map(|file| file.ino()).unwrap_or_default();
    let vnics = status["vnics"].as_array().map_or(&[][..], Vec::as_slice);
    let ours = vnics.iter().find(|vnic| vnic["namespace"].as_u64() == Some(own));
    let sockets = sockets();
    match ours.and_then(|vnic| vnic["port"].as_str()) {
        Some("open") => {
            findings.good("the daemon has UDP port 4791 of this network namespace");
        }
        Some("unavailable") if sockets.is_empty() => findings.bad(
            "the daemon could not have UDP port 4791 of this network namespace, which is free now",
            "start the program again: the daemon tries again for it. Until then other network \
             namespaces and hosts cannot be reached",
        ),
        _ if sockets.is_empty() => {
            findings.good("UDP port 4791 of this network namespace is free");
        }
        _ => {
            let holders = holders(&sockets);
            let is_own = |holder: &Holder| holder.daemon.as_deref() == Some(path);
            if holders.iter().any(is_own) {
                return findings.note(
                    "the daemon has UDP port 4791 of this network namespace for its underlay, so \
                     programs here reach no other network namespaces and hosts",
                    "run them in a network namespace, or have the underlay in another \
                     (underlay_namespace in omniverbd.toml)",
                );
            }
            let (text, mend) = taken(path, &sockets, &holders);
            findings.bad(text, mend);
        }
    }
}

/// The problem, and its remedy.
fn taken(path: &Path, sockets: &[Socket], holders: &[Holder]) -> (String, String) {
    let until = "until then other network namespaces and hosts cannot be reached";
    // A daemon hands its sockets to programs, which may not be what has to end.
    let holder = holders.iter().max_by_key(|holder| holder.daemon.is_some());
    let what = |holder: &str| {
        format!(
            "the daemon at {} cannot have UDP port 4791 of this network namespace: {holder}",
            path.display()
        )
    };
    match holder {
        Some(Holder { pid, daemon: Some(other), .. }) => (
            what(&format!("another daemon has it, omniverbd {pid} at {}", other.display())),
            format!(
                "run programs on that one ({}), or end it (kill {pid}); {until}",
                match find_daemon::candidates().contains(other) {
                    true => "unset OMNIVERB_SOCKET".into(),
                    false => format!("OMNIVERB_SOCKET={}", other.display()),
                }
            ),
        ),
        Some(Holder { pid, program, .. }) => (
            what(&format!("process {pid} ({program}) has it")),
            format!("end that process (kill {pid}); {until}"),
        ),
        None if is_rxe_loaded() => (
            what("no process that can be seen here has it, and rdma_rxe is loaded"),
            format!("remove its device (rdma link delete NAME) or rmmod rdma_rxe; {until}"),
        ),
        None => {
            let user = sockets.first().map_or(0, |socket| socket.user);
            (
                what(&format!("a process of user {user} has it that cannot be seen from here")),
                format!(
                    "find it as root on the host (ss -ulnp 'sport = 4791' in this network \
                     namespace; it may be another omniverbd) and end it; {until}"
                ),
            )
        }
    }
}

fn is_rxe_loaded() -> bool {
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    modules.lines().any(|line| line.starts_with("rdma_rxe "))
}

/// Sockets of the port in this network namespace.
fn sockets() -> Vec<Socket> {
    let files = ["/proc/self/net/udp", "/proc/self/net/udp6"];
    files.iter().flat_map(|file| parse(&fs::read_to_string(file).unwrap_or_default())).collect()
}

fn parse(text: &str) -> Vec<Socket> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = fields.get(ADDRESS)?.ends_with(PORT);
        let (user, inode) = (fields.get(USER)?.parse().ok()?, fields.get(INODE)?.parse().ok()?);
        is_ours.then_some(Socket { user, inode })
    };
    text.lines().filter_map(socket).collect()
}

/// Processes that have one of these, as far as this user may look.
fn holders(sockets: &[Socket]) -> Vec<Holder> {
    let names: Vec<String> =
        sockets.iter().map(|socket| format!("socket:[{}]", socket.inode)).collect();
    let has_one = |process: &Path| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut aims = files.filter_map(|file| fs::read_link(file.path()).ok());
        aims.any(|aim| names.iter().any(|name| aim.as_os_str() == name.as_str()))
    };
    let holder = |(pid, process): (u32, PathBuf)| {
        has_one(&process).then(|| Holder {
            pid,
            program: leftovers::program(&process),
            daemon: leftovers::daemon_socket(&process),
        })
    };
    leftovers::all().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
  412: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2
  413: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4243 2
";

    #[test]
    fn sockets_of_the_port_are_found() {
        assert_eq!(parse(TABLE), [Socket { user: 1000, inode: 4242 }]);
    }

    #[test]
    fn the_holder_is_named_with_what_to_do() {
        let sockets = parse(TABLE);
        let path = Path::new("/a.sock");
        let holder = |daemon: Option<&str>| Holder {
            pid: 77,
            program: "program".into(),
            daemon: daemon.map(PathBuf::from),
        };
        let (text, mend) = taken(path, &sockets, &[holder(Some("/b.sock")), holder(None)]);
        assert!(text.contains("omniverbd 77 at /b.sock"), "{text}");
        assert!(mend.contains("OMNIVERB_SOCKET=/b.sock") && mend.contains("kill 77"), "{mend}");
        let (text, mend) = taken(path, &sockets, &[holder(None)]);
        assert!(
            text.contains("process 77 (program)") && mend.contains("kill 77"),
            "{text}: {mend}"
        );
        let (text, _) = taken(path, &sockets, &[]);
        assert!(text.contains("/a.sock"), "{text}");
    }
}
