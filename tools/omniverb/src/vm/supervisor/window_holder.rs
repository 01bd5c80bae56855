//! Holds a machine's windows for a QEMU that opens them by a path instead of inheriting them.

use super::super::machine_folder::User;
use super::super::pair_windows::Pairs;
use anyhow::Context;
use omniverb_sys::pidfd;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

/// Its command line.
const HOLD: [&str; 2] = ["vm", "hold"];

/// A process of QEMU's user, and whether it lives.
pub(super) struct Holder {
    process: Child,
    pub(super) life: OwnedFd,
}

impl Holder {
    /// Starts one; and where in it the windows are. QEMU's user may open what it has, and look at
    /// all of it: so it has nothing else of ours.
    pub(super) fn start(
        window: &OwnedFd,
        pairs: &Pairs,
        user: User,
    ) -> anyhow::Result<(Holder, Vec<String>)> {
        // In any folder, this program can be run by users who can read it.
        let mut holder = Command::new("/proc/self/exe");
        holder.args(HOLD).stdin(Stdio::piped()).stdout(window.try_clone()?);
        holder.env_clear().current_dir("/");
        if rustix::process::geteuid().is_root() {
            holder.uid(user.uid).gid(user.gid);
        }
        let (process, numbers) =
            pairs.start(&mut holder).context("cannot start a process of that user")?;
        let life = pidfd::of(process.id().cast_signed())?;
        let numbers = std::iter::once(1).chain(numbers);
        let paths = numbers.map(|number| format!("/proc/{}/fd/{number}", process.id()));
        let paths = paths.collect();
        Ok((Holder { process, life }, paths))
    }

    /// Takes the windows away from a process that has not opened them yet.
    pub(super) fn end(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The main function of a holder: it has the window, for processes that may open its descriptors,
/// until its supervisor ends.
pub(in crate::vm) fn hold() -> anyhow::Result<ExitCode> {
    std::env::set_current_dir("/")?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(ExitCode::SUCCESS)
}
