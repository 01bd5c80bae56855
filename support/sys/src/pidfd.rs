//! Who is at the other end of a unix socket, and is it still alive.
#![expect(unsafe_code)]
// UNSAFETY: two socket options that rustix does not offer in a form that fits: SO_PEERPIDFD, and
// SO_PEERCRED for a peer outside our pid namespace, whose pid reads as 0.

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// `SO_PEERPIDFD` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// Kernel-verified credentials of the process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its pid as we see it, at the time it connected; 0 if it is outside our pid namespace.
    pub pid: i32,
    /// Its user as we see it.
    pub uid: u32,
    /// Its group as we see it.
    pub gid: u32,
}

/// A socket option.
pub(crate) fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes into `value`, which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<T>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: used only with integers and structs of integers, which any bytes are; all of them
    // were written (zeroed first, then by the kernel).
    Ok(unsafe { value.assume_init() })
}

/// Who connected `socket`.
///
/// # Errors
/// `ENOTCONN`, or what the kernel says.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let found: libc::ucred = option(socket, libc::SO_PEERCRED)?;
    Ok(Peer { pid: found.pid, uid: found.uid, gid: found.gid })
}

/// A descriptor of the process that connected `socket`; readable once that process has ended.
///
/// # Errors
/// `ESRCH` if it is gone or invisible to us.
pub fn of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match option::<libc::c_int>(socket, SO_PEERPIDFD) {
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows it. It is
        // close-on-exec.
        Ok(raw) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        // Before 6.5 there is a small window in which the pid could have been given to another
        // process; whoever uses the result checks credentials again through the socket.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => of(peer(socket)?.pid),
        Ok(_) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => Err(error),
    }
}

/// A descriptor of process `pid`.
///
/// # Errors
/// `ESRCH` if there is none.
pub fn of(pid: i32) -> io::Result<OwnedFd> {
    let none = || io::Error::from_raw_os_error(libc::ESRCH);
    let pid = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or_else(none)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// False once the process has ended.
#[must_use]
pub fn is_alive(pidfd: BorrowedFd<'_>) -> bool {
    matches!(crate::event::readable(pidfd, Some(Duration::ZERO)), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn tells_who_and_whether_alive() {
        let (one, _other) = crate::socket::pair().unwrap();
        let us = peer(one.as_fd()).unwrap();
        assert_eq!(us.pid, i32::try_from(std::process::id()).unwrap());
        assert_eq!(us.uid, rustix::process::geteuid().as_raw());
        assert!(is_alive(of_peer(one.as_fd()).unwrap().as_fd()));

        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(is_alive(pidfd.as_fd()));
        child.kill().unwrap();
        assert!(crate::event::readable(pidfd.as_fd(), Some(Duration::from_secs(10))).unwrap());
        assert!(!is_alive(pidfd.as_fd()));
        child.wait().unwrap();
        assert!(of(0).is_err());
        assert!(of(-1).is_err());
    }
}
