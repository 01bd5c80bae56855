//! Tells the service manager how far we are, if there is one.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state` to `$NOTIFY_SOCKET`. A service manager that is not there or does not listen is no
/// reason to stop.
pub(crate) fn send(state: &str) {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = send_to(&name, state);
    }
}

fn send_to(name: &OsStr, state: &str) -> std::io::Result<usize> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddr::from_abstract_name(hidden)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_it() {
        let hidden = format!("omniverb-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&hidden).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        send_to(OsStr::new(&format!("@{hidden}")), "READY=1").unwrap();
        let mut text = [0; 16];
        let length = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
    }
}
