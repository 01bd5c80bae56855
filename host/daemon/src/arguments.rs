//! Defines the command line of `omniverbd`.
//!
//! Its comments are what `--help` and the man page say.
#![expect(missing_docs, reason = "comments are texts for users here")]

use clap::{Parser, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Host daemon of Omniverb: gives every network namespace its own RDMA device.
///
/// As root it serves all network namespaces of the host; as an ordinary user the processes of its
/// own network namespace. It ends cleanly on SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "omniverbd", version)]
pub struct Arguments {
    /// Where to listen [default: /run/omniverb/omniverbd.sock for root, otherwise
    /// $XDG_RUNTIME_DIR/omniverb/omniverbd.sock or /tmp/omniverb-UID/omniverbd.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Where to listen for operators: root, and the user that runs this [default: beside the folder
    /// of the other socket for root, as in /run/omniverb-operator/omniverbd.sock; in that folder
    /// for others, as omniverbd.operator.sock].
    #[arg(long, value_name = "PATH")]
    pub operator_socket: Option<PathBuf>,
    /// Configuration file [default for root: /etc/omniverb/omniverbd.toml, if it exists].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder for what is set at run time [default: $STATE_DIRECTORY, or /var/lib/omniverb for
    /// root's daemon at its usual place; otherwise the folder of the operators' socket].
    #[arg(long, value_name = "FOLDER")]
    pub state_folder: Option<PathBuf>,
    /// Give no device to a network namespace that neither a vNIC nor a [[container]] table of the
    /// configuration describes, the host's included.
    #[arg(long)]
    pub isolate: bool,
    /// The network namespace of the underlay of virtual networks, as /run/netns/underlay
    /// [default: the daemon's own].
    ///
    /// Packets between hosts leave and arrive there, at UDP ports 4791 and 1000, and interfaces
    /// there get the addresses of policies. It need not exist yet.
    #[arg(long, value_name = "PATH")]
    pub underlay_namespace: Option<PathBuf>,
    /// Serve metrics for Prometheus by HTTP at this loopback address, as 127.0.0.1:9469, path
    /// /metrics [default: not at all].
    ///
    /// Every user of the host may read them: they name vNICs, tenants and policies.
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Stay in the foreground (the default).
    #[arg(long, conflicts_with = "detach")]
    pub foreground: bool,
    /// Start in the background; return once it serves.
    #[arg(long)]
    pub detach: bool,
    /// End after this many seconds without a client.
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u64>,
    /// The least important lines that are logged on stderr [default: warning].
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub log_level: Option<LogLevel>,
    /// Become the leader of a session of its own (used by --detach).
    #[arg(long, hide = true)]
    pub own_session: bool,
    /// Be a helper of the daemon that started this (used by the daemon).
    #[arg(long, hide = true, value_name = "NAME")]
    pub helper: Option<String>,
    /// Do not have the kernel refuse descriptors: as before Linux 6.16 (for tests).
    #[arg(long, hide = true)]
    pub no_refusal: bool,
}

/// How important a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warning,
    Info,
    Debug,
}
