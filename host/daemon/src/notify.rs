//! Tells the service manager how far we are, and that we go on, if there is one; see
//! sd_notify(3) and sd_watchdog_enabled(3).

use omniverb_control::SignOfLife;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends `state` to `$NOTIFY_SOCKET`. A service manager that is not there or does not listen is no
/// reason to stop.
pub(crate) fn send(state: &str) {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = send_to(&name, state);
    }
}

/// How often the service manager wants to hear that we go on, if it does.
pub(crate) fn sign_of_life() -> Option<SignOfLife> {
    let (time, process) = (std::env::var("WATCHDOG_USEC"), std::env::var("WATCHDOG_PID"));
    let every = half_of(&time.ok()?, process.ok().as_deref(), std::process::id())?;
    Some(SignOfLife { every, send: || send("WATCHDOG=1") })
}

/// Half of the time after which it takes us for dead, if it is us that it means.
fn half_of(microseconds: &str, process: Option<&str>, own: u32) -> Option<Duration> {
    let meant = process.is_none_or(|pid| pid.parse() == Ok(own));
    let time = microseconds.parse().ok().filter(|time| *time > 0 && meant)?;
    Some(Duration::from_micros(time) / 2)
}

fn send_to(name: &OsStr, state: &str) -> std::io::Result<usize> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddr::from_abstract_name(hidden)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address)
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

    #[test]
    fn half_of_the_time_is_taken_if_it_is_meant_for_us() {
        let half = Some(Duration::from_secs(5));
        assert_eq!(half_of("10000000", None, 7), half);
        assert_eq!(half_of("10000000", Some("7"), 7), half);
        for (time, process) in [("10000000", "8"), ("10000000", ""), ("0", "7"), ("-1", "7")] {
            assert_eq!(half_of(time, Some(process), 7), None, "{time} {process}");
        }
    }
}
