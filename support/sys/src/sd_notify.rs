//! Notifies the service manager that started us (sd_notify(3)).

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

/// Sends `state` to `$NOTIFY_SOCKET`. A service manager that is not there or does not listen is no
/// reason to stop.
pub fn tell(state: &str) {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = tell_at(&name, state);
    }
}

fn tell_at(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddrUnix::new_abstract_name(hidden)?,
        None => SocketAddrUnix::new(name)?,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    sendto(&socket, state.as_bytes(), SendFlags::NOSIGNAL, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn the_manager_hears_it() {
        let hidden = format!("omniverb-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&hidden).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        tell_at(OsStr::new(&format!("@{hidden}")), "READY=1").unwrap();
        let mut text = [0; 16];
        let length = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
    }
}
