//! What a child process inherits.
#![expect(unsafe_code)]
// UNSAFETY: one system call that rustix does not offer and libc offers only from glibc 2.34 on.

use std::io;

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

#[cfg(test)]
mod tests {
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
