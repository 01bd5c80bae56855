//! Finds the daemon's sockets, and starts a daemon if none runs.

use anyhow::{Context, bail};
use omniverb_session::{PRESENTED_VARIABLE, SOCKET_VARIABLE, SYSTEM_SOCKET, operator};
use omniverb_sys::{clock, seqpacket_deadline, user_daemon_socket};
use rustix::process::geteuid;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Seconds after which an unused daemon that was started on demand ends.
const IDLE_SECONDS: &str = "600";

/// Nanoseconds that a daemon may take to accept a connection.
const PATIENCE: u64 = 10_000_000_000;

/// The socket that the environment names.
pub(crate) fn named() -> Option<PathBuf> {
    user_daemon_socket::variable(SOCKET_VARIABLE).map(PathBuf::from)
}

/// Sockets to try, the best first.
pub(crate) fn candidates() -> Vec<PathBuf> {
    if let Some(path) = named() {
        return vec![path];
    }
    std::iter::once(SYSTEM_SOCKET.into()).chain(user_daemon_socket::path()).collect()
}

/// Connects to one of them, as the library does: the user's own must be shown to be that.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let deadline = clock::now() + PATIENCE;
    match named().is_none() && user_daemon_socket::path().is_some_and(|own| own == path) {
        true => user_daemon_socket::connect(path, deadline),
        false => seqpacket_deadline::connect(path, deadline),
    }
}

/// The socket of a daemon that answers.
pub(crate) fn find() -> Option<PathBuf> {
    candidates().into_iter().find(|path| connect(path).is_ok())
}

/// The socket of a daemon that serves us.
pub(crate) fn serving() -> anyhow::Result<PathBuf> {
    named().or_else(find).with_context(|| {
        let tried: Vec<String> =
            candidates().iter().map(|path| path.display().to_string()).collect();
        format!(
            "no daemon answers at {}; `omniverb run -- PROGRAM` starts one for this user, \
             `omniverbd --detach` as root one for the host",
            tried.join(" or ")
        )
    })
}

/// The operators' socket that the environment names.
pub(crate) fn named_operators() -> Option<PathBuf> {
    user_daemon_socket::variable(operator::SOCKET_VARIABLE).map(PathBuf::from)
}

/// Where the operators' socket of the daemon that serves us may be: we do not know its user.
pub(crate) fn operator_sockets() -> anyhow::Result<Vec<PathBuf>> {
    if let Some(path) = named_operators() {
        return Ok(vec![std::path::absolute(path)?]);
    }
    let path = std::path::absolute(serving()?)?;
    let mut beside = vec![operator::socket_beside(&path, operator::DaemonScope::Root)];
    beside.push(operator::socket_beside(&path, operator::DaemonScope::User));
    beside.dedup();
    Ok(beside)
}

/// A socket to hand to a program: the one that is named, one that answers, or one of a daemon
/// started for the purpose.
pub(crate) fn find_or_start() -> anyhow::Result<PathBuf> {
    if let Some(path) = named() {
        return Ok(path);
    }
    if let Some(path) = find() {
        return Ok(path);
    }
    let program = program()?;
    if geteuid().is_root() && start(&program, Path::new(SYSTEM_SOCKET)).is_ok() {
        return Ok(SYSTEM_SOCKET.into());
    }
    // An ordinary user; or root in a container whose /run is not writable.
    let path = user_daemon_socket::path()
        .context("no daemon is running, and none is started for this program")?;
    start(&program, &path)?;
    Ok(path)
}

/// Where `omniverbd` is.
fn program() -> anyhow::Result<PathBuf> {
    installed("omniverbd").context("no daemon is running")
}

/// Where another program of ours is: beside this one, or where programs are.
pub(crate) fn installed(name: &str) -> anyhow::Result<PathBuf> {
    let ours = std::env::current_exe().context("cannot find this program's own folder")?;
    let beside = ours.with_file_name(name);
    if beside.exists() {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    let found = std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|file| file.exists());
    found.with_context(|| format!("{} does not exist", beside.display()))
}

fn start(program: &Path, path: &Path) -> anyhow::Result<()> {
    // The daemon decides races between several of us by a lock.
    let output = Command::new(program)
        .args(["--detach", "--idle-exit", IDLE_SECONDS, "--socket"])
        .arg(path)
        // It is no program that is shown its device, though one may have started it.
        .env_remove(PRESENTED_VARIABLE)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().next().unwrap_or("it did not say why");
        bail!(
            "no daemon is running and none can be started: {}",
            line.trim_start_matches("omniverbd: ")
        );
    }
    Ok(())
}
