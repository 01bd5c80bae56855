//! What earlier runs left behind.

use super::findings::Findings;
use crate::daemon;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Daemons that nobody can reach any more.
pub(super) fn daemons(findings: &mut Findings) {
    let mut lost = 0;
    for folder in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = folder.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let process = folder.path();
        let comm = fs::read_to_string(process.join("comm")).unwrap_or_default();
        // A daemon in another container has its socket in that container's file system.
        if comm.trim() != "omniverbd" || !same_files(&process) {
            continue;
        }
        let Some(path) = socket_of(&process) else { continue };
        if !path.exists() {
            lost += 1;
            let text = format!("omniverbd {pid} serves {}, which is gone", path.display());
            findings.bad(text, format_args!("kill {pid}"));
        }
    }
    if lost == 0 {
        findings.good("no daemon is left over");
    }
}

fn same_files(process: &Path) -> bool {
    let theirs = fs::read_link(process.join("ns/mnt"));
    let ours = fs::read_link("/proc/self/ns/mnt");
    matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
}

/// The socket in a daemon's command line.
fn socket_of(process: &Path) -> Option<PathBuf> {
    let line = fs::read(process.join("cmdline")).ok()?;
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

/// Sockets that nobody serves any more.
pub(super) fn sockets(findings: &mut Findings) {
    for path in daemon::candidates() {
        let refused = daemon::connect(&path).is_err_and(|error| {
            !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::TimedOut)
        });
        if path.exists() && refused {
            findings.note(
                format_args!("{} is left over from a daemon that died", path.display()),
                "the next daemon replaces it",
            );
        }
    }
}
