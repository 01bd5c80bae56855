//! `omniverb run`: sets the scene and becomes the program.

use crate::present::{self, Way};
use crate::{daemon, library};
use omniverb_session::SOCKET_VARIABLE;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Exit codes of shells: the command is not there, or is no program.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Does not return if all goes well: the program takes our place, with its exit code, its signals
/// and its process number.
pub(crate) fn run(preload: bool, way: Way, command: &[OsString]) -> anyhow::Result<ExitCode> {
    // A leading `--` has been taken by the argument parser.
    let Some((program, arguments)) = command.split_first() else {
        anyhow::bail!("no program to run");
    };
    let folder = library::folder()?;
    let socket = daemon::find_or_start()?;
    let socket = std::path::absolute(socket)?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(SOCKET_VARIABLE, &socket);
    // Held until the program has taken our place.
    let presented = present::to(&mut command, &socket, way);
    command.env("LD_LIBRARY_PATH", library::before(&folder, "LD_LIBRARY_PATH"));
    if preload {
        let mut first = folder.join(library::VERBS).into_os_string();
        let companion = folder.join(library::CONNECTION_MANAGER);
        if companion.exists() {
            first.push(":");
            first.push(companion);
        }
        let others = presented.preloaded();
        first.push(if others.is_empty() { "" } else { ":" });
        first.push(others);
        command.env("LD_PRELOAD", first);
    }
    let error = command.exec();
    // A folder of PATH that we may not look into makes the kernel say "permission denied".
    let missing = error.kind() == ErrorKind::NotFound || !exists(program);
    if missing {
        eprintln!("omniverb: {}: no such program", program.display());
    } else {
        eprintln!("omniverb: {}: {error}", program.display());
    }
    Ok(ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE }))
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
