//! Waits for one of several descriptors, some of which may be missing.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Waits until one of these has what is said beside it, or is over, or so much time has passed:
/// which ones.
pub(super) fn wait<const N: usize>(
    files: [Option<(&OwnedFd, PollFlags)>; N],
    limit: Option<Duration>,
) -> anyhow::Result<[bool; N]> {
    let mut polled: Vec<PollFd<'_>> =
        files.iter().flatten().map(|(file, flags)| PollFd::new(*file, *flags)).collect();
    let limit = limit.map(Timespec::try_from).transpose()?;
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut found = polled.iter().map(|one| !one.revents().is_empty());
    Ok(files.map(|file| file.is_some() && found.next().unwrap_or(false)))
}
