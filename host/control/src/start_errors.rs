//! Lists the reasons for which a daemon does not start, one line each.
//!
//! Each is one line for people.

use std::io;
use std::path::PathBuf;

/// Bytes of the longest path of a unix socket.
pub(crate) const PATH_BYTES_MAX: usize = 107;

/// The other daemon's pid, for the message.
fn pid_suffix(pid: Option<i32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another one serves this socket.
    #[error("another omniverbd{} already serves {}", pid_suffix(*pid), path.display())]
    InUse {
        /// The socket that is served.
        path: PathBuf,
        /// The other one's pid as it sees it; `None`: it did not say.
        pid: Option<i32>,
    },
    /// The folder of the socket belongs to another user or is open to others.
    #[error("{} {problem}", path.display())]
    Folder {
        /// The folder that the socket or the lock was to be in.
        path: PathBuf,
        /// The problem: the rest of a sentence that begins with its path.
        problem: String,
    },
    /// Longer than an address of a unix socket may be.
    #[error("{} is too long for a socket: at most {PATH_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The socket's path, as it was given.
        path: PathBuf,
    },
    /// Something at the socket's path is no socket.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// Where that is, and the socket was to be.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// The socket, or the lock beside it.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Something else the daemon cannot do without.
    #[error("cannot {what}: {source}")]
    Os {
        /// The failed step: the rest of "cannot ...".
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
