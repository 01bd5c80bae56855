//! Opens the devices that an agent starts with: windows, port, and the socket of processes.

use crate::vm::guest_window_discovery::{FoundWindows, names};
use anyhow::{Context, bail};
use omniverb_session::vm::PORT_NAME;
use omniverb_sys::seqpacket;
use rustix::fs::{Mode, OFlags, open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where ports are.
const PORTS: &str = "/sys/class/virtio-ports";
/// How long to wait for devices before looking again.
const LOOK: Duration = Duration::from_millis(100);
/// How often to look for devices.
const LOOKS: usize = 100;
/// Like `LOOKS`, for pair windows, when the machine's own is there.
const PAIR_LOOKS: usize = 30;

/// Devices come a while after the machine has begun.
pub(super) fn wait_for<T>(
    what: &str,
    find: impl Fn() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    for _ in 0..LOOKS {
        if let Some(found) = find()? {
            return Ok(found);
        }
        std::thread::sleep(LOOK);
    }
    bail!(
        "this machine has no {what}; start it on the host by `omniverb vm run`, or with the \
         options that `omniverb vm args` prints"
    )
}

/// The machine's windows, once one may be its own. Of pair windows there may be some that never
/// come.
pub(super) fn windows() -> anyhow::Result<Option<FoundWindows>> {
    let mut found = FoundWindows::look();
    if found.own().is_empty() {
        let Some(device) = found.other_version else { return Ok(None) };
        bail!("{device}: the window of another version of Omniverb's");
    }
    for _ in 0..PAIR_LOOKS {
        if found.is_complete() {
            break;
        }
        std::thread::sleep(LOOK);
        found = FoundWindows::look();
    }
    Ok(Some(found))
}

/// The port of our name.
pub(super) fn port() -> anyhow::Result<Option<OwnedFd>> {
    for name in names(PORTS) {
        let said = std::fs::read_to_string(Path::new(PORTS).join(&name).join("name"));
        if said.is_ok_and(|said| said.trim_end() == PORT_NAME) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let device = PathBuf::from("/dev").join(&name);
            let port = open(&device, flags, Mode::empty());
            return Ok(Some(port.with_context(|| format!("cannot open {}", device.display()))?));
        }
    }
    Ok(None)
}

/// Listens where the host's daemon would. An agent that listened there before and is gone left the
/// name.
pub(super) fn listen(path: &Path) -> anyhow::Result<OwnedFd> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    if seqpacket::is_alive(path) {
        bail!("a daemon listens at {}", path.display());
    }
    let _ = std::fs::remove_file(path);
    seqpacket::listen(path, 0o666).with_context(|| path.display().to_string())
}
