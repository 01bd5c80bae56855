//! `omniverb run`: sets the scene and becomes the program.

use crate::{daemon, library};
use omniverb_session::SOCKET_VARIABLE;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Exit codes of shells: the command is not there, or is no program.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Does not return if all goes well: the program takes our place, with its exit code, its signals
/// and its process number.
pub(crate) fn run(preload: bool, command: &[OsString]) -> anyhow::Result<ExitCode> {
    // A leading `--` has been taken by the argument parser.
    let Some((program, arguments)) = command.split_first() else {
        anyhow::bail!("no program to run");
    };
    let folder = library::folder()?;
    let socket = daemon::find_or_start()?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(SOCKET_VARIABLE, std::path::absolute(socket)?);
    command.env("LD_LIBRARY_PATH", library::before(&folder, "LD_LIBRARY_PATH"));
    if preload {
        let mut first = folder.join(library::VERBS).into_os_string();
        let companion = folder.join(library::CONNECTION_MANAGER);
        if companion.exists() {
            first.push(":");
            first.push(companion);
        }
        command.env("LD_PRELOAD", library::before(first.as_ref(), "LD_PRELOAD"));
    }
    let error = command.exec();
    eprintln!("omniverb: {}: {error}", program.display());
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    Ok(ExitCode::from(code))
}
