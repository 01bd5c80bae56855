//! Opens files under `/proc` by a task's number, without allocating.

use core::ffi::CStr;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RawDir, openat};
use rustix::io::{Errno, read};

/// Longer than any path used here, terminator included.
const PATH_BYTES: usize = 64;

struct ProcPath {
    text: [u8; PATH_BYTES],
    length: usize,
}

impl Write for ProcPath {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        // One byte stays for the terminator.
        let room = self.text.get_mut(self.length..end).filter(|_| end < PATH_BYTES);
        room.ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Does something with a path: `format_args!("{task}/fd")`.
pub(crate) fn with_path<T>(
    path: fmt::Arguments<'_>,
    act: impl FnOnce(&CStr) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut built = ProcPath { text: [0; PATH_BYTES], length: 0 };
    built.write_fmt(path).map_err(|_| Errno::NAMETOOLONG)?;
    act(CStr::from_bytes_until_nul(&built.text).map_err(|_| Errno::INVAL)?)
}

/// Opens a file to read from.
pub(crate) fn open_file(at: impl AsFd, path: fmt::Arguments<'_>) -> Result<OwnedFd, Errno> {
    with_path(path, |path| openat(at, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
}

/// Opens a directory.
pub(crate) fn open_directory(at: impl AsFd, path: fmt::Arguments<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    with_path(path, |path| openat(at, path, flags, Mode::empty()))
}

/// The beginning of a file, as much as one call reads.
pub(crate) fn read_start<'a>(
    at: impl AsFd,
    path: fmt::Arguments<'_>,
    room: &'a mut [u8],
) -> Result<&'a [u8], Errno> {
    let file = open_file(at, path)?;
    let count = read(&file, &mut *room)?;
    Ok(&room[..count])
}

/// Calls `visit` for each entry of a directory whose name is a number, until it breaks.
pub(crate) fn for_each_number(
    directory: BorrowedFd<'_>,
    mut visit: impl FnMut(i32) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        if let Some(number) = number(entry?.file_name())
            && visit(number).is_break()
        {
            break;
        }
    }
    Ok(())
}

/// A name that is a number.
pub(crate) fn number(name: &CStr) -> Option<i32> {
    core::str::from_utf8(name.to_bytes()).ok()?.parse().ok()
}

/// The kernel's letter for what a task is doing. `None`: it is gone.
pub(crate) fn state(task: i32) -> Option<u8> {
    let mut text = [0u8; 512];
    let text = read_start(rustix::fs::CWD, format_args!("/proc/{task}/stat"), &mut text).ok()?;
    // The name before the state is in parentheses and may contain any byte.
    let end_of_name = text.iter().rposition(|&byte| byte == b')')?;
    text.get(end_of_name + 2).copied()
}

/// True if a task has ended, though its number is still listed.
pub(crate) fn is_dead(task: i32) -> bool {
    state(task).is_none_or(|state| matches!(state, b'Z' | b'X' | b'x'))
}

/// The number of the system call that a task is asleep in; `Some(None)` if it is in none. `None` if
/// it is running, or if that is not told.
pub(crate) fn system_call(task: i32) -> Option<Option<i64>> {
    let mut text = [0u8; 256];
    let text = read_start(rustix::fs::CWD, format_args!("/proc/{task}/syscall"), &mut text).ok()?;
    let first = text.trim_ascii().split(|&byte| byte == b' ').next()?;
    let call: i64 = core::str::from_utf8(first).ok()?.parse().ok()?;
    Some(Some(call).filter(|&call| call >= 0))
}

/// True if `task` is a thread of `process`, also of one that may not be sent signals.
pub(crate) fn belongs(process: i32, task: i32) -> bool {
    let failed = || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
    // SAFETY: signal 0 only asks.
    #[expect(unsafe_code)]
    // UNSAFETY: a system call that rustix does not have.
    let asked = unsafe { libc::syscall(libc::SYS_tgkill, process, task, 0) };
    asked == 0 || failed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_paths_are_formatted() {
        let ends = |text: &CStr| Ok(text.to_bytes().len());
        assert_eq!(with_path(format_args!("/proc/{}/fd", i32::MIN), ends), Ok(20));
        let long = "x".repeat(PATH_BYTES - 1);
        assert_eq!(with_path(format_args!("{long}"), ends), Ok(PATH_BYTES - 1));
        assert!(with_path(format_args!("{long}x"), ends).is_err());
    }

    #[test]
    fn own_threads_are_known() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(belongs(own, own) && !belongs(own, 1) && state(own).is_some());
        // The asking thread is reading the answer.
        let asked = system_call(rustix::thread::gettid().as_raw_nonzero().get());
        assert_eq!(asked, Some(Some(libc::SYS_read)));
    }
}
