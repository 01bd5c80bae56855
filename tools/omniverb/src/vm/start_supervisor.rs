//! Starts a machine's supervisor, before the process becomes QEMU or prints its options.

use super::machine_folder::User;
use super::machine_window::Neighbours;
use super::pair_window_mode::WindowMethod;
use anyhow::{Context, bail};
use omniverb_sys::seqpacket;
use serde_json::Value;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A supervisor's command line.
pub(super) const KEEP: [&str; 2] = ["vm", "keep"];
/// Bytes of what a supervisor says.
pub(super) const WORDS: usize = 4096;
/// How long a supervisor may take to say that the machine is attached.
const PATIENCE: Duration = Duration::from_secs(30);

/// A machine that is attached, for which QEMU is to be started.
pub(super) struct StartedSupervisor {
    pub(super) window: OwnedFd,
    pub(super) pairs: Vec<OwnedFd>,
    /// Where QEMU finds the window if it does not inherit it, and where it is to listen.
    pub(super) window_path: String,
    pub(super) pair_paths: Vec<String>,
    pub(super) port_path: String,
    /// Where it is to have a monitor, if windows may be plugged in later.
    pub(super) monitor_path: Option<String>,
    /// Where it is to connect, if windows are mapped.
    pub(super) mapped_path: Option<String>,
    /// Its own memory, if that is to be shared with the daemon.
    pub(super) memory: Option<OwnedFd>,
}

/// The windows of a new machine: its own of so many bytes, and pair windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct MachineRequest {
    pub(super) bytes: u64,
    pub(super) pairs: Neighbours,
    /// How these come into the machine.
    pub(super) way: WindowMethod,
    /// Bytes of its own memory, if that is to be shared with the daemon.
    pub(super) memory: Option<u64>,
}

impl MachineRequest {
    /// As a supervisor is told.
    pub(super) fn words(self) -> Vec<String> {
        let MachineRequest { bytes, pairs, way, memory } = self;
        let [bytes, pair_bytes] = [bytes, pairs.bytes].map(|bytes| bytes.to_string());
        let [count, most] = [pairs.count, pairs.most].map(|count| count.to_string());
        let [neighbours, later, pair] = ["--neighbours", "--most", "--pair-bytes"].map(Into::into);
        let mut words = vec![bytes, neighbours, count, later, most, pair, pair_bytes];
        words.push(format!("--windows={}", way.word()));
        words.extend(memory.map(|bytes| format!("--memory={bytes}")));
        words
    }

    /// Whether windows come, or go, while it runs.
    pub(super) fn may_grow(self) -> bool {
        let Neighbours { count, most, .. } = self.pairs;
        most > count || self.way != WindowMethod::Plugged
    }

    /// Whether they are plugged in by QEMU's monitor, if nothing else can be.
    pub(super) fn has_monitor(self) -> bool {
        self.may_grow() && self.way != WindowMethod::MappedOnly
    }

    /// How many it has as devices from the beginning.
    pub(super) fn plugged(self) -> u8 {
        if self.way == WindowMethod::Plugged { self.pairs.count } else { 0 }
    }
}

/// Starts a machine's supervisor. `user`: the user of QEMU, if we do not start it.
pub(super) fn start(
    name: &str,
    wanted: MachineRequest,
    user: Option<User>,
) -> anyhow::Result<StartedSupervisor> {
    let (ours, theirs) = seqpacket::pair().context("cannot make a socket")?;
    let mut first = Command::new(own_program()?);
    first.args(KEEP).arg(name).args(wanted.words()).stdin(theirs);
    if let Some(user) = user {
        first.args(["--user", &user.to_string()]);
    }
    first.stdout(Stdio::null()).stderr(Stdio::null());
    // A terminal's signals to QEMU are not meant for it. The process that we start ends when it has
    // started the supervisor, so that QEMU has no child that it does not know of.
    let started =
        first.process_group(0).status().context("cannot start the machine's supervisor")?;
    drop(first);
    let mut said = [0; WORDS];
    if !started.success() || !omniverb_sys::eventfd::readable(ours.as_fd(), Some(PATIENCE))? {
        bail!("cannot start the machine's supervisor");
    }
    let (length, files) =
        seqpacket::receive(ours.as_fd(), &mut said, seqpacket::BlockingMode::NonBlocking)?;
    let said: Value =
        serde_json::from_slice(&said[..length]).context("the supervisor has ended")?;
    let text = |name: &str| said[name].as_str().map(str::to_owned);
    if let Some(text) = text("failed") {
        bail!("{text}");
    }
    let window = files.into_iter().next().context("the supervisor gave an unexpected answer")?;
    let (window_path, port_path) = (text("window"), text("port"));
    let port_path = port_path.context("the supervisor gave an unexpected answer")?;
    let (monitor_path, mapped_path) = (text("monitor"), text("mapped"));
    let paths = said["pairs"].as_array().map_or(&[][..], Vec::as_slice);
    let pair_paths = paths.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let next = || {
        let mut word = [0; 1];
        let came = omniverb_sys::eventfd::readable(ours.as_fd(), Some(PATIENCE))?;
        let files =
            seqpacket::receive(ours.as_fd(), &mut word, seqpacket::BlockingMode::NonBlocking);
        let files = files.ok().filter(|_| came).map(|(_, files)| files).unwrap_or_default();
        files.into_iter().next().context("the supervisor gave an unexpected answer")
    };
    let pairs = (0..wanted.plugged()).map(|_| next()).collect::<anyhow::Result<Vec<OwnedFd>>>()?;
    let memory = wanted.memory.map(|_| next()).transpose()?;
    let window_path = window_path.unwrap_or_default();
    Ok(StartedSupervisor {
        window,
        pairs,
        window_path,
        pair_paths,
        port_path,
        monitor_path,
        mapped_path,
        memory,
    })
}

/// The kernel's value for a process that is not ended when memory runs out.
pub(super) const NEVER: &str = "-1000";

/// If memory runs out in a guest, the kernel may end us as it does others: only the page pinner
/// (`page_pinner.rs`), which begins as we do, is exempt.
pub(super) fn be_ended_as_others() {
    let path = "/proc/self/oom_score_adj";
    if std::fs::read_to_string(path).is_ok_and(|score| score.trim() == NEVER) {
        let _ = std::fs::write(path, "0");
    }
}

/// Where this program is.
pub(super) fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}
