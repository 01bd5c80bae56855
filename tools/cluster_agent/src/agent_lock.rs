//! Holds the lock that says that a daemon has an agent: a second one would undo its work.

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Takes the lock beside the operators' socket at `socket`. It ends with this process.
///
/// # Errors
/// Another agent has it, or the file cannot be made.
pub(crate) fn take(socket: &Path) -> anyhow::Result<OwnedFd> {
    let path = socket.with_added_extension("agent");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(&path, flags, Mode::from_raw_mode(0o600)).with_context(|| {
        format!(
            "cannot open the lock {}: the daemon makes that folder when it starts (see \
             --operator-socket)",
            path.display()
        )
    })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => bail!(
            "another omniverb-agent serves the daemon at {}: one can at a time",
            socket.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_has_it_at_a_time() {
        let socket = std::env::temp_dir().join(format!("omniverb-agent-{}", std::process::id()));
        let first = take(&socket).unwrap();
        assert!(take(&socket).unwrap_err().to_string().contains("another omniverb-agent"));
        drop(first);
        take(&socket).unwrap();
        std::fs::remove_file(socket.with_added_extension("agent")).unwrap();
    }
}
