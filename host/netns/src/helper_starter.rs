//! Starts the helper, and starts it again: an unprivileged daemon could not.
//!
//! The starter has them, and does nothing but wait.

use omniverb_sys::helper_process::{ARGUMENT, OWN_PROGRAM};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The name under which the program is to run [`serve`](crate::serve).
pub const HELPER: &str = "namespaces";
/// The name under which the program is to run [`start`].
pub const STARTER: &str = "starter";

/// Between two helpers, so that one that cannot live does not keep the processor busy.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps a helper running at `socket`, of which this process keeps a copy: so the daemon does not
/// see an end, and its requests wait for the next helper. Ends when the helper ends on its own
/// account, which it does when the daemon is gone.
///
/// # Errors
/// If there can be no process.
pub fn start(socket: &OwnedFd) -> io::Result<()> {
    crate::helper::ignore_terminals();
    loop {
        let helper = Command::new(OWN_PROGRAM)
            .args([ARGUMENT, HELPER])
            .stdin(Stdio::from(socket.as_fd().try_clone_to_owned()?))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?
            .wait()?;
        if helper.success() {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}
