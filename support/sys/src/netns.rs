//! Identifies a process's network namespace, and runs code inside another one.

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Identity of a network namespace: equal for two processes exactly when they share it. Valid while
/// the namespace is open somewhere ([`Namespace`] keeps it open).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsIdentity {
    /// Device number of the namespace file system.
    pub device: u64,
    /// Inode number in it.
    pub inode: u64,
}

/// A network namespace, kept alive by an open descriptor.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    identity: NetnsIdentity,
}

impl Namespace {
    fn open(path: &str) -> io::Result<Namespace> {
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let status = fstat(&file)?;
        let identity = NetnsIdentity { device: status.st_dev, inode: status.st_ino };
        Ok(Namespace { file, identity })
    }

    /// The one of the calling thread.
    ///
    /// # Errors
    /// `ENOENT` without `/proc`.
    pub fn current() -> io::Result<Namespace> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// The one of the process behind `pidfd`, whose pid is `pid`.
    ///
    /// # Errors
    /// `ESRCH` if the process has ended meanwhile (its pid may be another's by now), `EACCES` if
    /// we may not look.
    pub fn of_process(pid: i32, pidfd: BorrowedFd<'_>) -> io::Result<Namespace> {
        if pid <= 0 {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let namespace = Self::open(&format!("/proc/{pid}/ns/net"))?;
        // Alive after the look-up, so it was the same process during it.
        if !crate::pidfd::is_alive(pidfd) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(namespace)
    }

    /// What a trusted process has opened for us.
    ///
    /// # Errors
    /// What `fstat` says.
    pub fn received(file: OwnedFd) -> io::Result<Namespace> {
        let status = fstat(&file)?;
        let identity = NetnsIdentity { device: status.st_dev, inode: status.st_ino };
        Ok(Namespace { file, identity })
    }

    /// What tells it from other namespaces for as long as it lives, and no longer.
    #[must_use]
    pub fn identity(&self) -> NetnsIdentity {
        self.identity
    }

    /// A number that no other namespace has had or will have while the machine is up: inode numbers
    /// come back, this does not.
    ///
    /// # Errors
    /// As [`run`](Self::run), or `ENOPROTOOPT` before Linux 5.14.
    pub fn cookie(&self) -> io::Result<u64> {
        self.run(cookie)
    }

    /// Makes it the network namespace of the calling thread, for good. In our own namespace this
    /// needs no privilege.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN there, `EINVAL` if it is something else.
    pub fn enter(&self) -> io::Result<()> {
        if Self::current()?.identity == self.identity {
            return Ok(());
        }
        Ok(move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs `work` with this as the network namespace, on a thread of its own. Sockets made there
    /// stay in it. In our own namespace this needs no privilege.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN there, or what `work` says.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        if Self::current()?.identity == self.identity {
            return work();
        }
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("namespace".into())
                .spawn_scoped(scope, move || {
                    self.enter()?;
                    work()
                })?
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread in a namespace panicked")))
        })
    }
}

/// As [`Namespace::cookie`], of the calling thread's.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn cookie() -> io::Result<u64> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    crate::pidfd::option(socket.as_fd(), libc::SO_NETNS_COOKIE)
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// True if this process may work inside other namespaces (CAP_SYS_ADMIN).
#[must_use]
pub fn may_enter_others() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn own_namespace_needs_no_privilege() {
        let ours = Namespace::current().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let pidfd = crate::pidfd::of(pid).unwrap();
        assert_eq!(Namespace::of_process(pid, pidfd.as_fd()).unwrap().identity(), ours.identity());
        assert_eq!(ours.run(|| Ok(5)).unwrap(), 5);
        assert_eq!(ours.cookie().unwrap(), Namespace::current().unwrap().cookie().unwrap());
        assert!(Namespace::of_process(0, pidfd.as_fd()).is_err());
    }

    #[test]
    fn works_inside_another_namespace() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let mut child = Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let pidfd = crate::pidfd::of(pid).unwrap();
        let ours = Namespace::current().unwrap().identity();
        let mut theirs = Namespace::of_process(pid, pidfd.as_fd()).unwrap();
        for _ in 0..1000 {
            if theirs.identity() != ours {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            theirs = Namespace::of_process(pid, pidfd.as_fd()).unwrap();
        }
        assert_ne!(theirs.identity(), ours);
        let seen = theirs.run(|| Ok(Namespace::current()?.identity())).unwrap();
        assert_eq!(seen, theirs.identity());
        assert_ne!(theirs.cookie().unwrap(), Namespace::current().unwrap().cookie().unwrap());
        assert_eq!(Namespace::current().unwrap().identity(), ours);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Namespace::of_process(pid, pidfd.as_fd()).is_err());
    }
}
