//! The command line, and the places that follow from it.

use crate::configuration::level;
use clap::Parser;
use omniverb_control::Level;
use omniverb_session::operator::{self, Runner};
use omniverb_sys::own;
use rustix::process::geteuid;
use std::path::{Path, PathBuf};

/// The Omniverb host daemon: gives every network namespace its own RDMA device.
///
/// As root it serves all network namespaces of the host; as an ordinary user the processes of its
/// own network namespace. It ends cleanly on SIGTERM.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// Where to listen [default: /run/omniverb/omniverbd.sock for root, otherwise
    /// $XDG_RUNTIME_DIR/omniverb/omniverbd.sock or /tmp/omniverb-UID/omniverbd.sock].
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Where operators are heard: root, and the user who runs this [default: beside the folder of
    /// the other socket for root, as in /run/omniverb-operator/omniverbd.sock; in that folder for
    /// others, as omniverbd.operator.sock].
    #[arg(long, value_name = "PATH")]
    pub(crate) operator_socket: Option<PathBuf>,
    /// Configuration file [default for root: /etc/omniverb/omniverbd.toml, if it exists].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Stay in the foreground (the default).
    #[arg(long, conflicts_with = "detach")]
    pub(crate) foreground: bool,
    /// Start in the background; return once it serves.
    #[arg(long)]
    pub(crate) detach: bool,
    /// End after this many seconds without a client.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_exit: Option<u64>,
    /// How much to log on stderr: error, warning, info or debug [default: warning].
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    pub(crate) log_level: Option<Level>,
    /// Become the leader of a session of its own (used by --detach).
    #[arg(long, hide = true)]
    pub(crate) own_session: bool,
    /// Be a helper of the daemon that started this (used by the daemon).
    #[arg(long, hide = true, value_name = "NAME")]
    pub(crate) helper: Option<String>,
    /// Do not have the kernel refuse descriptors: as before Linux 6.16 (for tests).
    #[arg(long, hide = true)]
    pub(crate) no_refusal: bool,
}

/// Where to listen.
pub(crate) fn socket(arguments: &Arguments) -> PathBuf {
    arguments.socket.clone().unwrap_or_else(|| {
        let own = own::path().filter(|_| !geteuid().is_root());
        own.unwrap_or_else(|| omniverb_session::SYSTEM_SOCKET.into())
    })
}

/// Where operators are heard.
pub(crate) fn operator_socket(arguments: &Arguments) -> std::io::Result<PathBuf> {
    let named = arguments.operator_socket.clone();
    let beside = || {
        let tenants = std::path::absolute(socket(arguments))?;
        Ok(operator::socket_beside(&tenants, Runner::of(geteuid().as_raw())))
    };
    named.map_or_else(beside, Ok)
}

/// What the names of our files begin with, if tenants are heard at `path`.
pub(crate) fn files(path: &Path) -> std::io::Result<PathBuf> {
    Ok(operator::files_beside(&std::path::absolute(path)?, Runner::of(geteuid().as_raw())))
}
