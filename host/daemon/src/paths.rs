//! Derives the paths of the daemon's sockets and files from its command line and user.

use omniverb_session::operator::{self, DaemonScope};
use omniverb_sys::user_daemon_socket;
use omniverbd_arguments::Arguments;
use rustix::process::geteuid;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Where root's daemon keeps what is set at run time.
const STATE_FOLDER: &str = "/var/lib/omniverb";

/// Where to listen.
pub(crate) fn socket(arguments: &Arguments) -> PathBuf {
    arguments.socket.clone().unwrap_or_else(|| {
        let own = user_daemon_socket::path().filter(|_| !geteuid().is_root());
        own.unwrap_or_else(|| omniverb_session::SYSTEM_SOCKET.into())
    })
}

/// Where to listen for operators.
pub(crate) fn operator_socket(arguments: &Arguments) -> std::io::Result<PathBuf> {
    let named = arguments.operator_socket.clone();
    let beside = || {
        let tenants = std::path::absolute(socket(arguments))?;
        Ok(operator::socket_beside(&tenants, DaemonScope::of(geteuid().as_raw())))
    };
    named.map_or_else(beside, Ok)
}

/// The prefix of our files' names, if the tenants' socket is at `path`.
pub(crate) fn files(path: &Path) -> std::io::Result<PathBuf> {
    Ok(operator::files_beside(&std::path::absolute(path)?, DaemonScope::of(geteuid().as_raw())))
}

/// Where objects are kept that were set at run time, if the tenants' socket is at `path`. The
/// folder is made.
pub(crate) fn state_file(arguments: &Arguments, path: &Path) -> std::io::Result<PathBuf> {
    let is_system = geteuid().is_root() && path == Path::new(omniverb_session::SYSTEM_SOCKET);
    let of_service = || std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
    let folder = match &arguments.state_folder {
        Some(folder) => Some(std::path::absolute(folder)?),
        None if is_system => Some(of_service().unwrap_or_else(|| STATE_FOLDER.into())),
        None => None,
    };
    let Some(folder) = folder else { return Ok(files(path)?.with_added_extension("objects")) };
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(folder.join("objects.json")),
    }
}
