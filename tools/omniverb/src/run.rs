//! Implements `omniverb run`: prepares the environment and executes the program.

use crate::present;
use crate::{find_daemon, find_drop_in_library, program_check as programs};
use anyhow::Context;
use omniverb_arguments::{PresentMode, SocketMode};
use omniverb_formats::address_range;
use omniverb_formats::broker_message::{self, Reply, Request, SUFFIX};
use omniverb_session::SOCKET_VARIABLE;
use omniverb_sys::{clock, seqpacket, seqpacket_deadline};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Tells the library (`sockets/preload/src/transports_lifecycle.rs`).
const SOCKETS_VARIABLE: &str = "OMNIVERB_SOCKETS";
/// How long the broker may take to say which connections are to be light.
const PATIENCE: Duration = Duration::from_secs(1);

/// Exit codes of shells: the command is not there, or is no program.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// A mode as the library reads it.
fn word(mode: SocketMode) -> &'static str {
    match mode {
        SocketMode::Pass => "pass",
        SocketMode::Carry => "carry",
        SocketMode::Light => "light",
    }
}

/// Does not return if all goes well: the program takes our place, with its exit code, its signals
/// and its process number.
pub(crate) fn run(
    preload: bool,
    sockets: Option<SocketMode>,
    present: PresentMode,
    command: &[OsString],
) -> anyhow::Result<ExitCode> {
    // A leading `--` has been taken by the argument parser.
    let Some((program, arguments)) = command.split_first() else {
        anyhow::bail!("the program is missing: omniverb run -- PROGRAM");
    };
    programs::refuse_musl(program)?;
    let folder = find_drop_in_library::folder()?;
    let socket = find_daemon::find_or_start()?;
    let socket = std::path::absolute(socket)?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(SOCKET_VARIABLE, &socket);
    // Held until the program has taken our place.
    let presented = present::to(&mut command, &socket, present);
    command.env("LD_LIBRARY_PATH", find_drop_in_library::before(&folder, "LD_LIBRARY_PATH"));
    let mut first = Vec::new();
    if let Some(mode) = sockets {
        first.push(find_drop_in_library::sockets()?);
        command.env(SOCKETS_VARIABLE, word(mode));
        if mode == SocketMode::Carry {
            match std::env::var_os(address_range::VARIABLE) {
                Some(said) => check(&said.to_string_lossy())?,
                None => {
                    command.envs(light(&socket).map(|light| (address_range::VARIABLE, light)));
                }
            }
        }
    }
    if preload {
        let companion = folder.join(find_drop_in_library::CONNECTION_MANAGER);
        first.extend(
            [folder.join(find_drop_in_library::VERBS), companion]
                .into_iter()
                .filter(|l| l.exists()),
        );
    }
    if !first.is_empty() {
        command.env("LD_PRELOAD", before_all(&first, &presented.preloaded()));
    }
    let error = command.exec();
    // A folder of PATH that we may not look into makes the kernel say "permission denied".
    let missing = error.kind() == ErrorKind::NotFound || !exists(program);
    if missing {
        let place = if Path::new(program).components().count() > 1 { "" } else { " in PATH" };
        eprintln!("omniverb: {}: no such program{place}", program.display());
    } else {
        eprintln!("omniverb: {}: {error}", program.display());
    }
    Ok(ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE }))
}

/// Runs what brings light connections to other hosts, as a program on the virtual device.
pub(crate) fn gateway(
    port: Option<u16>,
    verbose: bool,
    to: Vec<String>,
) -> anyhow::Result<ExitCode> {
    let mut command = vec![find_daemon::installed("omniverb-gateway")?.into_os_string()];
    command.extend(port.map(|port| format!("--port={port}").into()));
    command.extend(verbose.then(|| "--verbose".into()));
    // A range may begin with anything.
    command.push("--".into());
    command.extend(to.into_iter().map(OsString::from));
    run(false, None, PresentMode::Off, &command)
}

/// Becomes the program that speaks to etcd, which this one is not linked with.
pub(crate) fn cluster(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let program = find_daemon::installed("omniverb-agent")?;
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// The library would leave out what is no range, and say nothing.
fn check(said: &str) -> anyhow::Result<()> {
    if let Some(why) = address_range::each(said).find_map(Result::err) {
        anyhow::bail!("{}={said}: there is {why}", address_range::VARIABLE);
    }
    if address_range::each(said).count() > address_range::MOST {
        anyhow::bail!("{} has more than {} ranges", address_range::VARIABLE, address_range::MOST);
    }
    Ok(())
}

/// The addresses to which connections are light, by the daemon at this socket; `None`: none, or
/// there is no daemon.
fn light(daemon: &Path) -> Option<String> {
    let mut path = daemon.as_os_str().to_owned();
    path.push(SUFFIX);
    let deadline = clock::now() + PATIENCE.as_nanos() as u64;
    let broker = seqpacket_deadline::connect(Path::new(&path), deadline).ok()?;
    seqpacket::send(broker.as_fd(), &Request::ShowRanges.encode(), &[]).ok()?;
    seqpacket::limit_receiving(broker.as_fd(), Some(PATIENCE)).ok()?;
    let mut all = Vec::new();
    while all.len() < address_range::MOST && clock::now() < deadline {
        let mut bytes = [0; broker_message::BYTES];
        let said =
            seqpacket::receive(broker.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking);
        let Ok((length, _)) = said else { break };
        let Some(Reply::Range(range)) = Reply::decode(&bytes[..length]) else { break };
        all.push(range.to_string());
    }
    (!all.is_empty()).then(|| all.join(" "))
}

/// The libraries to preload: these, then those that were asked for before, but none twice.
fn before_all(first: &[PathBuf], others: &OsStr) -> OsString {
    let mut list = OsString::new();
    let others = others.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    let others = others.filter(|one| !one.is_empty()).map(|one| Path::new(OsStr::from_bytes(one)));
    let others = others.filter(|one| !first.iter().any(|library| library == one));
    for library in first.iter().map(PathBuf::as_path).chain(others) {
        list.push(if list.is_empty() { "" } else { ":" });
        list.push(library);
    }
    list
}

/// The program is somewhere, whether or not it can be run.
fn exists(program: &OsString) -> bool {
    let direct = Path::new(program);
    if direct.components().count() > 1 {
        return direct.exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_environment_are_checked() {
        assert!(check("10.0.0.0/8:5, :7 fd00::1").is_ok() && check("").is_ok());
        assert!(check(&":5 ".repeat(address_range::MOST)).is_ok());
        assert!(check(&":5 ".repeat(address_range::MOST + 1)).is_err());
        let error = check("10.0.0.0/8 10.0.0.0/40").unwrap_err().to_string();
        assert!(error.contains("OMNIVERB_SOCKETS_LIGHT") && error.contains("prefix"), "{error}");
    }

    #[test]
    fn preloaded_libraries_stay_and_come_once() {
        let list = |others: &str| {
            let first = ["/o/sockets.so", "/o/verbs.so"].map(PathBuf::from);
            before_all(&first, OsStr::new(others)).into_string().unwrap()
        };
        assert_eq!(list(""), "/o/sockets.so:/o/verbs.so");
        assert_eq!(list("/a.so b.so"), "/o/sockets.so:/o/verbs.so:/a.so:b.so");
        assert_eq!(list("/o/verbs.so:/a.so"), "/o/sockets.so:/o/verbs.so:/a.so");
    }
}
