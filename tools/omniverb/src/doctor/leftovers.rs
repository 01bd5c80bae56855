//! Looks for daemons and sockets that earlier runs left behind.

use super::findings::Findings;
use crate::find_daemon;
use omniverb_session::SYSTEM_SOCKET;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name of a daemon's program.
const DAEMON: &str = "omniverbd";

/// Daemons that no program can reach any more.
pub(super) fn daemons(findings: &mut Findings) {
    let mut lost = 0;
    for (pid, process) in all() {
        // A daemon in another container has its socket in that container's file system.
        let Some(path) = daemon_socket(&process).filter(|_| same_files(&process)) else { continue };
        if !path.exists() {
            lost += 1;
            findings.bad(
                format_args!(
                    "omniverbd {pid} cannot be reached: its socket {} was removed",
                    path.display()
                ),
                format_args!("end it (kill {pid}); omniverb run starts another"),
            );
        }
    }
    if lost == 0 {
        findings.good("no daemon is left over");
    }
}

/// All processes that can be seen, and their folders in `/proc`.
pub(super) fn all() -> impl Iterator<Item = (u32, PathBuf)> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders.filter_map(|folder| {
        let pid = folder.file_name().to_str()?.parse().ok()?;
        Some((pid, folder.path()))
    })
}

/// The name of a process's program.
pub(super) fn program(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned()
}

fn same_files(process: &Path) -> bool {
    let theirs = fs::read_link(process.join("ns/mnt"));
    let ours = fs::read_link("/proc/self/ns/mnt");
    matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
}

/// Where a process listens, if it is a daemon and that can be known.
pub(super) fn daemon_socket(process: &Path) -> Option<PathBuf> {
    if program(process) != DAEMON {
        return None;
    }
    let line = fs::read(process.join("cmdline")).ok().filter(|line| !is_helper(line))?;
    let is_root = fs::metadata(process).is_ok_and(|status| status.uid() == 0);
    socket_of(&line).or_else(|| is_root.then(|| SYSTEM_SOCKET.into()))
}

/// Whether it is a helper that a daemon has started.
fn is_helper(line: &[u8]) -> bool {
    line.split(|byte| *byte == 0).any(|word| word == b"--helper")
}

/// The socket in a daemon's command line.
fn socket_of(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word));
    while let Some(word) = words.next() {
        if word == "--socket" {
            return words.next().map(|path| PathBuf::from(path.as_ref()));
        }
        if let Some(path) = word.strip_prefix("--socket=") {
            return Some(path.into());
        }
    }
    None
}

/// Sockets that no daemon serves any more.
pub(super) fn sockets(findings: &mut Findings) {
    for path in find_daemon::candidates() {
        let refused = find_daemon::connect(&path).is_err_and(|error| {
            !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::TimedOut)
        });
        if path.exists() && refused {
            findings.note(
                format_args!("{} is left over from a daemon that died", path.display()),
                "nothing to do: the next daemon replaces it",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_socket_is_in_its_command_line() {
        let socket = |line: &str| socket_of(line.replace(' ', "\0").as_bytes());
        assert_eq!(socket("omniverbd --detach --socket /a.sock"), Some("/a.sock".into()));
        assert_eq!(socket("omniverbd --socket=/a.sock --detach"), Some("/a.sock".into()));
        assert_eq!(socket("omniverbd --detach"), None);
    }
}
