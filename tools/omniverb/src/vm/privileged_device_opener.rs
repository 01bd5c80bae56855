//! Opens devices that are plugged in while the agent runs without rights, by a process of its own.
//!
//! That process keeps the user that the agent had.
//!
//! In: new devices. Out: their descriptors, by a socket, to the agent. It reads no device and no
//! message; it ends with the agent.

use super::guest_window_discovery::{DEVICES, names};
use super::start_supervisor::{be_ended_as_others, own_program};
use anyhow::Context;
use omniverb_sys::{privileges, seqpacket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

/// Its command line.
const OPEN: [&str; 2] = ["vm", "open"];
/// Where devices are.
const FOLDER: &str = "/dev";
/// How long after a device was seen it is tried again to open it, and how often: its driver may
/// have to be loaded first.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
const TRIES: usize = 100;
/// Devices in all.
const DEVICES_MAX: usize = 256;

/// Starts such a process: where descriptors come from.
pub(super) fn start() -> anyhow::Result<(OwnedFd, Child)> {
    let (ours, theirs) = seqpacket::pair()?;
    let mut opener = Command::new(own_program()?);
    opener.args(OPEN).stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
    let opener = opener.env_clear().current_dir("/").spawn().context("cannot start a process")?;
    Ok((ours, opener))
}

/// A device that has come; an error: there is no such process any more.
pub(super) fn take(devices: &OwnedFd) -> std::io::Result<Option<OwnedFd>> {
    match seqpacket::receive(devices.as_fd(), &mut [0; 1], seqpacket::BlockingMode::NonBlocking) {
        Ok((0, _)) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        Ok((_, files)) => Ok(files.into_iter().next()),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The main function of such a process. All existing devices go to the agent, which may have some.
pub(super) fn serve() -> anyhow::Result<ExitCode> {
    be_ended_as_others();
    privileges::keep_only(&[]).context("cannot give up privileges")?;
    let agent = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .context("not started by an agent: standard input is no socket")?;
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&watch, FOLDER, WatchFlags::CREATE | WatchFlags::ATTRIB)?;
    let mut sent = BTreeSet::new();
    let mut tries = 0;
    loop {
        let mut closed = false;
        for name in names(DEVICES) {
            if sent.contains(&name) || sent.len() >= DEVICES_MAX {
                continue;
            }
            match open(
                PathBuf::from(FOLDER).join(&name),
                OFlags::RDWR | OFlags::CLOEXEC,
                Mode::empty(),
            ) {
                Ok(device) => {
                    // An agent that does not take it is gone, or does not need it.
                    if seqpacket::send(agent.as_fd(), b"+", &[device.as_fd()]).is_err() {
                        return Ok(ExitCode::SUCCESS);
                    }
                    sent.insert(name);
                }
                Err(_) => closed = true,
            }
        }
        tries = if closed { tries + 1 } else { 0 };
        let again = (closed && tries < TRIES).then_some(AGAIN);
        let mut files = [PollFd::new(&agent, PollFlags::IN), PollFd::new(&watch, PollFlags::IN)];
        match poll(&mut files, again.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [gone, came] = files.map(|file| !file.revents().is_empty());
        if gone {
            return Ok(ExitCode::SUCCESS);
        }
        if came {
            tries = 0;
            let _ = rustix::io::read(&watch, &mut [0; 4096]);
        }
    }
}
