//! Makes statements about a file by record locks, which only processes that have it open can make.
//!
//! A record lock on a byte far behind anything that is in the file: the kernel takes one from a
//! process that has the file open for reading or writing, names its place to any other that has the
//! file open, and drops it with the process. So two processes can prove to each other that they
//! have the same file without handing its descriptor to a process that may be another one. The lock
//! is a process's (`fcntl(2)`, `F_SETLK`), so that forked ones that share an open file are told
//! apart; it also goes when the process closes another descriptor of the file, so a statement is
//! for a moment, and may have to be made again. Nothing waits but for the file system, of which
//! some ask a server.
// UNSAFETY: record locks, which rustix offers for whole files only.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Where the bytes of statements begin. Files end before.
const BEGIN: i64 = 1 << 62;
/// Statements are numbers below this: a lock of the last byte that there can be has no end.
pub const STATEMENTS: u64 = (1 << 62) - 1;

/// Makes a statement.
///
/// # Errors
/// `EAGAIN` or `EACCES` if a lock of another process is in the way, `EBADF` for a descriptor that
/// is good for neither reading nor writing, `EINVAL` for a number that is none, and what the file
/// system says that has no such locks.
pub fn make(file: BorrowedFd<'_>, statement: u64) -> io::Result<()> {
    // A file open only for writing cannot be locked for reading.
    set(file, statement, libc::F_RDLCK).or_else(|_| set(file, statement, libc::F_WRLCK))
}

/// Takes it back.
///
/// # Errors
/// As [`make`].
pub fn take_back(file: BorrowedFd<'_>, statement: u64) -> io::Result<()> {
    set(file, statement, libc::F_UNLCK)
}

/// Whether another process makes this statement. A lock of more than the one byte says nothing.
///
/// # Errors
/// `EINVAL` for a number that is none, and what the file system says that has no such locks.
pub fn is_made(file: BorrowedFd<'_>, statement: u64) -> io::Result<bool> {
    // In the way of a lock for writing is any other.
    let mut found = lock(statement, libc::F_WRLCK)?;
    let wanted = found.l_start;
    control(file, libc::F_GETLK, &mut found)?;
    let one = found.l_start == wanted && found.l_len == 1;
    Ok(i32::from(found.l_type) != libc::F_UNLCK && one)
}

fn set(file: BorrowedFd<'_>, statement: u64, kind: libc::c_int) -> io::Result<()> {
    control(file, libc::F_SETLK, &mut lock(statement, kind)?)
}

fn lock(statement: u64, kind: libc::c_int) -> io::Result<libc::flock> {
    let number = i64::try_from(statement).ok().filter(|_| statement < STATEMENTS);
    // SAFETY: a struct of integers, which zeros are.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).map_err(io::Error::other)?;
    lock.l_whence = i16::try_from(libc::SEEK_SET).map_err(io::Error::other)?;
    lock.l_start = BEGIN + number.ok_or(io::ErrorKind::InvalidInput)?;
    lock.l_len = 1;
    Ok(lock)
}

fn control(file: BorrowedFd<'_>, call: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: these calls read and write the one struct that they are given, which is live.
    match unsafe { libc::fcntl(file.as_raw_fd(), call, std::ptr::from_mut(lock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
    use std::os::fd::AsFd;

    /// What a forked child, which has the same file open, answers.
    fn in_child(run: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child makes system calls only, and leaves without returning.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(run())),
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
                }
            }
        }
    }

    #[test]
    fn another_process_that_has_the_file_sees_it() {
        let file = memfd_create("domain", MemfdFlags::CLOEXEC).unwrap();
        let sees = |number| in_child(|| is_made(file.as_fd(), number).unwrap_or(false));
        assert!(!sees(7));
        make(file.as_fd(), 7).unwrap();
        assert!(sees(7) && !sees(6) && !sees(8));
        assert!(!is_made(file.as_fd(), 7).unwrap(), "one's own proves nothing");
        take_back(file.as_fd(), 7).unwrap();
        assert!(!sees(7));
        make(file.as_fd(), STATEMENTS - 1).unwrap();
        assert!(sees(STATEMENTS - 1));
        assert!(make(file.as_fd(), STATEMENTS).is_err());
    }

    #[test]
    fn a_path_alone_is_not_the_file() {
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let file = open("/proc/self/exe", path, Mode::empty()).unwrap();
        assert!(make(file.as_fd(), 7).is_err());
    }

    #[test]
    fn a_lock_of_the_whole_file_says_nothing() {
        let file = memfd_create("domain", MemfdFlags::CLOEXEC).unwrap();
        let mut all = lock(0, libc::F_WRLCK).unwrap();
        (all.l_start, all.l_len) = (0, 0);
        control(file.as_fd(), libc::F_SETLK, &mut all).unwrap();
        assert!(!in_child(|| is_made(file.as_fd(), 7).unwrap_or(true)));
    }
}
