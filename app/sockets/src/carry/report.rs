//! How much this process has carried, for tests: a line at the end of a file, when it ends.
//!
//! In: `OMNIVERB_SOCKETS_REPORT`, the file's name. Out: `links L bytes B`: connections that had a
//! link, or a trunk in light mode, and bytes that this process has put into memory for them. A
//! child of `fork` counts what its parent had, too. Who is killed writes nothing.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, open};

use crate::words::Words;

/// Bytes of the file's name, with the zero behind it.
const NAME: usize = 256;

/// The name: programs write over their environment to show what they do.
struct Name(UnsafeCell<[u8; NAME]>);
// SAFETY: written at the start of the program, before anything is carried.
unsafe impl Sync for Name {}
static FILE: Name = Name(UnsafeCell::new([0; NAME]));
/// A line is wanted, and was not written.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// At the start.
///
/// # Safety
/// Nobody else is in here; it is a string, or null.
pub(crate) unsafe fn begin(file: *const c_char) {
    if file.is_null() {
        return;
    }
    // SAFETY: as the caller says.
    let file = unsafe { CStr::from_ptr(file) }.to_bytes();
    if file.len() < NAME {
        // SAFETY: as the caller says.
        let name = unsafe { &mut *FILE.0.get() };
        name[..file.len()].copy_from_slice(file);
        IS_WANTED.store(true, Ordering::Relaxed);
    }
}

/// Writes the line, if one is wanted that was not written.
pub(crate) fn write((links, bytes): (u64, u64)) {
    if !IS_WANTED.swap(false, Ordering::Relaxed) {
        return;
    }
    // SAFETY: written at the start only.
    let name = unsafe { &*FILE.0.get() };
    let Ok(name) = CStr::from_bytes_until_nul(name) else { return };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let Ok(file) = open(name, flags, Mode::from_raw_mode(0o666)) else { return };
    let mut line = [0; 80];
    let mut line = Words::new(&mut line);
    _ = writeln!(line, "links {links} bytes {bytes}");
    _ = rustix::io::write(&file, line.written());
}
