//! Small text files that some clients read through the library instead of by themselves.

use core::ffi::{CStr, c_char, c_int};
use omniverb_session::PRESENTED_VARIABLE;
use omniverb_terms::Errno;
use std::ffi::{CString, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};

use crate::errno::minus_one;

/// Where sysfs is mounted: `SYSFS_PATH`, except in a setuid program, or `/sys`. Trailing slashes
/// are dropped. Found once; the pointer stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let Some(value) = variable("SYSFS_PATH") else { return c"/sys".to_owned() };
        let bytes = value.as_bytes();
        let end = bytes.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        CString::new(&bytes[..end]).unwrap_or_else(|_| c"/sys".to_owned())
    })
    .as_ptr()
}

/// An environment variable; none in a setuid program.
fn variable(name: &str) -> Option<OsString> {
    // SAFETY: reads a word that the kernel gave the process at its start.
    let setuid = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|_| !setuid)
}

/// Opens a file; if there is none, the one that this process is shown for it.
/// (`app/presented_files` leads programs there, but not us: our system calls are no calls of the C
/// library.)
fn open(path: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => {
            let folder = variable(PRESENTED_VARIABLE).ok_or(rustix::io::Errno::NOENT)?;
            let path = [folder.as_bytes(), path].concat();
            rustix::fs::open(path.as_slice(), flags, Mode::empty())
        }
        result => result,
    }
}

/// Reads `dir`/`file` into `buf`, drops one newline at the end, terminates with a zero byte.
/// Returns the length without it; -1 if the file cannot be read or does not fit.
///
/// # Safety
/// `dir` and `file` are terminated strings, `buf` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
        return minus_one(Errno::EINVAL);
    }
    // SAFETY: the caller's promise, and neither is null.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    // SAFETY: the caller's promise; initialised before it becomes a slice of bytes.
    let buf = unsafe {
        buf.cast::<u8>().write_bytes(0, size);
        core::slice::from_raw_parts_mut(buf.cast::<u8>(), size)
    };
    let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
    let read = || {
        let fd = open(&path)?;
        rustix::io::retry_on_intr(|| rustix::io::read(&fd, &mut *buf))
    };
    let mut length = match { read }() {
        Ok(length) => length,
        Err(error) => return minus_one(Errno(error.raw_os_error().unsigned_abs())),
    };
    if length > 0 && buf[length - 1] == b'\n' {
        length -= 1;
    } else if length == size {
        return minus_one(Errno::ENAMETOOLONG);
    }
    buf[length] = 0;
    c_int::try_from(length).unwrap_or_else(|_| minus_one(Errno::EINVAL))
}
