//! Where the daemon is.

use omniverb_session::{SOCKET_VARIABLE, SYSTEM_SOCKET};
use std::path::PathBuf;

/// Sockets to try, in order: the one that was named, or the host's and then the user's own.
pub(crate) fn sockets() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(SOCKET_VARIABLE).filter(|name| !name.is_empty()) {
        return vec![named.into()];
    }
    let user = rustix::process::getuid().as_raw();
    let own = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => PathBuf::from(folder).join("omniverb/omniverbd.sock"),
        None => PathBuf::from(format!("/tmp/omniverb-{user}/omniverbd.sock")),
    };
    vec![SYSTEM_SOCKET.into(), own]
}
