//! Controls which descriptors a child process inherits.
#![expect(unsafe_code)]
// UNSAFETY: one system call that rustix does not offer and libc offers only from glibc 2.34 on; and
// descriptors without an owner in this process get one.

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// First descriptor that is not one of the three standard ones.
const FIRST: libc::c_uint = 3;
const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;

/// Marks every descriptor but the three standard ones close-on-exec, so that a process that
/// outlives its starter does not hold pipes and files of the starter's own starter.
///
/// # Errors
/// `ENOSYS` before Linux 5.11.
pub fn nothing_but_standard() -> io::Result<()> {
    // SAFETY: takes three integers and closes nothing in this process.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor that this process was started with, by its number: once.
///
/// # Errors
/// `EBADF` if there is none; `InvalidInput` if it is one of the three standard ones, or this
/// process's own: those are marked close-on-exec, and so is this one from now on.
pub fn taken(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: only looked at, and only here; the kernel says if there is none of this number.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    if fcntl_getfd(file)?.contains(FdFlags::CLOEXEC) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fcntl_setfd(file, FdFlags::CLOEXEC)?;
    // SAFETY: everything that this process opens is close-on-exec from the beginning, so what was
    // not has no owner in it; nor is it taken twice.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_descriptor_is_taken_once_and_no_other() {
        use std::os::fd::{AsRawFd, IntoRawFd};
        let ours = std::fs::File::open("/dev/null").unwrap();
        assert!(super::taken(ours.as_raw_fd()).is_err(), "it is somebody's");
        assert!(super::taken(1).is_err() && super::taken(-1).is_err());
        rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::empty()).unwrap();
        let number = ours.into_raw_fd();
        let taken = super::taken(number).unwrap();
        assert!(super::taken(number).is_err());
        drop(taken);
        assert!(super::taken(number).is_err());
    }

    #[test]
    fn a_child_gets_the_standard_three_only() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        super::nothing_but_standard().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let seen = std::process::Command::new("test").args(["-e", &path]).status().unwrap();
        assert!(!seen.success());
    }
}
