//! Identifies the process at the other end of a unix socket, and tells whether it still lives.
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

/// Sets a socket option that is a number.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes of `value`, which has that many.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The process that connected `socket`.
///
/// # Errors
/// `ENOTCONN`, or what the kernel says.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let found: libc::ucred = option(socket, libc::SO_PEERCRED)?;
    Ok(Peer { pid: found.pid, uid: found.uid, gid: found.gid })
}

/// Supplementary groups that are looked at: the kernel allows 65536, no process has as many.
const GROUPS_MAX: usize = 1024;

/// The supplementary groups of the process that connected `socket`, as we see them.
///
/// # Errors
/// `ERANGE` for a process with very many, otherwise what the kernel says.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut length = libc::socklen_t::try_from(size_of::<u32>() * GROUPS_MAX).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes into `groups`, which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(length as usize / size_of::<u32>());
    Ok(groups)
}

/// A descriptor of the process that connected `socket`; readable once that process has ended.
///
/// # Errors
/// `ESRCH` if it is gone or invisible to us.
pub fn of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match option::<libc::c_int>(socket, SO_PEERPIDFD) {
        // SAFETY: the kernel has just made this descriptor for us, and it is known only here. It is
        // close-on-exec.
        Ok(raw) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        // Before 6.5 there is a small window in which the pid could have been given to another
        // process; users of the result check credentials again through the socket.
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

/// The pid of a process by its descriptor, as we see it now.
///
/// # Errors
/// `ESRCH` if it has ended or is outside our pid namespace, `EINVAL` if this is no such descriptor.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    let pid: i32 = line
        .and_then(|pid| pid.trim().parse().ok())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    if pid > 0 { Ok(pid) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// The cgroup of a process, as a path: that of version 2 if there is one, else the longest of
/// version 1. At most `longest` bytes of it.
///
/// # Errors
/// `ESRCH` if the process has ended.
pub fn cgroup_of(pid: i32, longest: usize) -> io::Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let mut path = cgroup_in(&text).to_owned();
    while path.len() > longest {
        path.pop();
    }
    Ok(path)
}

/// The user, pid and mount namespaces of a process, as numbers that are equal for two that are
/// alive exactly if they share the namespace. `None`: we may not look.
#[must_use]
pub fn surroundings_of(pid: i32) -> Option<[u64; 3]> {
    let inode = |name| rustix::fs::stat(format!("/proc/{pid}/ns/{name}")).ok().map(|s| s.st_ino);
    Some([inode("user")?, inode("pid")?, inode("mnt")?])
}

/// Lines are `hierarchy:controllers:path`; version 2 is hierarchy 0.
fn cgroup_in(text: &str) -> &str {
    let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    // With both versions mounted, processes may all be in the root of version 2.
    let two = text.lines().find_map(|line| line.strip_prefix("0::"));
    let one = || paths().max_by_key(|path| path.len());
    two.filter(|path| path.len() > 1).or_else(one).unwrap_or("/")
}

/// False once the process has ended.
#[must_use]
pub fn is_alive(pidfd: BorrowedFd<'_>) -> bool {
    matches!(crate::eventfd::readable(pidfd, Some(Duration::ZERO)), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn a_cgroup_is_a_path() {
        assert_eq!(cgroup_in("0::/a/b:c\n"), "/a/b:c");
        assert_eq!(cgroup_in("12:pids:/x/y\n1:name=systemd:/x\n0::/\n"), "/x/y");
        assert_eq!(cgroup_in("1:name=systemd:/x\n"), "/x");
        assert_eq!(cgroup_in("0::/\n"), "/");
        assert_eq!(cgroup_in(""), "/");
        assert_eq!(cgroup_in("nonsense\n::\n"), "");
        let ours = cgroup_of(i32::try_from(std::process::id()).unwrap(), 4096).unwrap();
        assert!(ours.starts_with('/'));
        assert!(cgroup_of(0, 10).is_err());
    }

    #[test]
    fn tells_the_process_and_whether_it_lives() {
        let (one, _other) = crate::seqpacket::pair().unwrap();
        let us = peer(one.as_fd()).unwrap();
        assert_eq!(us.pid, i32::try_from(std::process::id()).unwrap());
        assert_eq!(us.uid, rustix::process::geteuid().as_raw());
        assert!(is_alive(of_peer(one.as_fd()).unwrap().as_fd()));

        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(is_alive(pidfd.as_fd()));
        assert_eq!(pid_of(pidfd.as_fd()).unwrap(), i32::try_from(child.id()).unwrap());
        let socket = crate::seqpacket::pair().unwrap().0;
        assert!(pid_of(socket.as_fd()).is_err());
        child.kill().unwrap();
        assert!(crate::eventfd::readable(pidfd.as_fd(), Some(Duration::from_secs(10))).unwrap());
        assert!(!is_alive(pidfd.as_fd()));
        child.wait().unwrap();
        assert!(pid_of(pidfd.as_fd()).is_err());
        assert!(of(0).is_err());
        assert!(of(-1).is_err());
    }
}
