//! Derives the paths of the daemon's sockets and files from its command line and user.

use omniverb_session::operator::{self, Runner};
use omniverb_sys::user_daemon;
use omniverbd_arguments::Arguments;
use rustix::process::geteuid;
use std::path::{Path, PathBuf};

/// Where to listen.
pub(crate) fn socket(arguments: &Arguments) -> PathBuf {
    arguments.socket.clone().unwrap_or_else(|| {
        let own = user_daemon::path().filter(|_| !geteuid().is_root());
        own.unwrap_or_else(|| omniverb_session::SYSTEM_SOCKET.into())
    })
}

/// Where to listen for operators.
pub(crate) fn operator_socket(arguments: &Arguments) -> std::io::Result<PathBuf> {
    let named = arguments.operator_socket.clone();
    let beside = || {
        let tenants = std::path::absolute(socket(arguments))?;
        Ok(operator::socket_beside(&tenants, Runner::of(geteuid().as_raw())))
    };
    named.map_or_else(beside, Ok)
}

/// What the names of our files begin with, if the tenants' socket is at `path`.
pub(crate) fn files(path: &Path) -> std::io::Result<PathBuf> {
    Ok(operator::files_beside(&std::path::absolute(path)?, Runner::of(geteuid().as_raw())))
}
