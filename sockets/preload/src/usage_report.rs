//! Appends how much this process has carried to a file, for tests, when it ends.
//!
//! In: `OMNIVERB_SOCKETS_REPORT`, the file's name. Out: `links L bytes B`: connections that had a
//! link, and bytes that this process has put into memory for them; `light L bytes B`: the same of
//! light connections; a line each where there may be such. A child of `fork` counts what its parent
//! had, too. A process that is killed writes nothing.

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, open};

use crate::text_buffer::Words;

/// Bytes of the file's name, with the zero behind it.
const NAME: usize = 256;

/// The name: programs write over their environment to show what they do.
static FILE: OnceLock<[u8; NAME]> = OnceLock::new();
/// A line is wanted, and was not written.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// At the start, when there is one thread.
pub(crate) fn begin(file: &CStr) {
    let (mut name, file) = ([0; NAME], file.to_bytes());
    if file.len() < NAME {
        name[..file.len()].copy_from_slice(file);
        IS_WANTED.store(FILE.set(name).is_ok(), Ordering::Relaxed);
    }
}

/// Writes the lines, if some are wanted that were not written: of links, of light connections.
pub(crate) fn write(all: [Option<(u64, u64)>; 2]) {
    if all == [None; 2] || !IS_WANTED.swap(false, Ordering::Relaxed) {
        return;
    }
    let name = FILE.get().and_then(|name| CStr::from_bytes_until_nul(name).ok());
    let Some(name) = name else { return };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let Ok(file) = open(name, flags, Mode::from_raw_mode(0o666)) else { return };
    let mut lines = [0; 160];
    let mut lines = Words::new(&mut lines);
    for (what, counted) in ["links", "light"].into_iter().zip(all) {
        if let Some((count, bytes)) = counted {
            _ = writeln!(lines, "{what} {count} bytes {bytes}");
        }
    }
    _ = rustix::io::write(&file, lines.written());
}
