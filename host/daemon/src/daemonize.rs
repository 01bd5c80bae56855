//! Implements `--detach`: starts the daemon as its own process, and returns once it serves.
//!
//! The caller does not become its parent: a program that `omniverb run` turns into must not find a
//! child it never started.

use crate::paths::{files, socket};
use anyhow::{Context, bail};
use omniverb_sys::{fd_inheritance, seqpacket as unix};
use omniverbd_arguments::Arguments;
use rustix::process::geteuid;
use std::fs::OpenOptions;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take until it serves.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn start(arguments: &Arguments) -> anyhow::Result<()> {
    let path = std::path::absolute(socket(arguments))?;
    if unix::is_alive(&path) {
        return Ok(());
    }
    let log = files(&path)?.with_extension("log");
    let folder = log.parent().unwrap_or(Path::new("/"));
    // Of root's two folders, the one that no other user may enter.
    let made =
        std::fs::DirBuilder::new().mode(if is_root() { 0o700 } else { 0o777 }).create(folder);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        bail!("{} cannot be created: {error}", folder.display());
    }
    restrict(folder)?;
    trust(folder)?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(0o400_000) // O_NOFOLLOW
        .open(&log)
        .with_context(|| log.display().to_string())?;
    let status = file.metadata()?;
    // In a folder for everybody another user may have made it.
    if !status.is_file() || status.uid() != geteuid().as_raw() {
        bail!("the log file {} belongs to another user: name another one", log.display());
    }
    let from = status.len();
    fd_inheritance::nothing_but_standard()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--own-session").arg("--socket").arg(&path);
    if let Some(operators) = &arguments.operator_socket {
        command.arg("--operator-socket").arg(std::path::absolute(operators)?);
    }
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
    if let Some(config) = &arguments.config {
        command.arg("--config").arg(std::path::absolute(config)?);
    }
    if let Some(folder) = &arguments.state_folder {
        command.arg("--state-folder").arg(std::path::absolute(folder)?);
    }
    if let Some(address) = arguments.metrics {
        command.arg("--metrics").arg(address.to_string());
    }
    if let Some(seconds) = arguments.idle_exit {
        command.arg("--idle-exit").arg(seconds.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let mut daemon = command.spawn().context("cannot start")?;
    let begun = Instant::now();
    loop {
        if unix::is_alive(&path) {
            return Ok(());
        }
        if let Some(status) = daemon.try_wait()? {
            // Another one may have been quicker.
            if unix::is_alive(&path) {
                return Ok(());
            }
            bail!("{}", reason(&log, from).unwrap_or_else(|| status.to_string()));
        }
        if begun.elapsed() > PATIENCE {
            bail!("the daemon does not answer at {}; see {}", path.display(), log.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder just made for an ordinary user is the user's alone.
fn restrict(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let user = geteuid();
    let status = std::fs::symlink_metadata(folder)?;
    let ours = folder.file_name().is_some_and(|n| n.to_string_lossy().starts_with("omniverb"));
    if !user.is_root() && ours && status.is_dir() && status.uid() == user.as_raw() {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn is_root() -> bool {
    geteuid().is_root()
}

/// Nothing is made in a folder where others decide what is there. The daemon looks again.
fn trust(folder: &Path) -> anyhow::Result<()> {
    let status = std::fs::symlink_metadata(folder)?;
    let (mode, sticky) = (status.mode() & 0o022, status.mode() & 0o1000 != 0);
    let known = status.uid() == 0 || status.uid() == geteuid().as_raw();
    if !status.is_dir() || !known || (mode != 0 && !sticky) {
        bail!("{} is not a folder of this user's own", folder.display());
    }
    Ok(())
}

/// The first line that the daemon logged since `from`, without its own name.
fn reason(log: &Path, from: u64) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let new = String::from_utf8_lossy(text.get(usize::try_from(from).ok()?..)?).into_owned();
    let line = new.lines().next()?;
    Some(line.strip_prefix("omniverbd: ").unwrap_or(line).to_owned())
}
