//! Reads `/proc/self/maps` by raw system calls and without allocating.

use core::ops::ControlFlow;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};

/// One line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Its first byte.
    pub start: usize,
    /// The first byte behind it.
    pub end: usize,
    /// Its pages may be read.
    pub may_read: bool,
    /// They may be written.
    pub may_write: bool,
    /// They may be executed.
    pub may_execute: bool,
    /// What is written goes to the file, and to others that map it.
    pub is_shared: bool,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file's number there; 0: there is none.
    pub inode: u64,
    /// Path or pseudo-name; cut if longer than the read buffer.
    pub name: &'a [u8],
}

impl Mapping<'_> {
    /// The same without its name.
    pub(crate) fn without_name(self) -> Mapping<'static> {
        let Mapping { start, end, may_read, may_write, may_execute, .. } = self;
        let Mapping { is_shared, offset, device, inode, .. } = self;
        Mapping {
            start,
            end,
            may_read,
            may_write,
            may_execute,
            is_shared,
            offset,
            device,
            inode,
            name: b"",
        }
    }
}

/// Larger than any line that matters; a longer path is cut, which changes no decision made here.
pub(crate) const BUFFER_BYTES: usize = 8192;

/// Opens a file of `/proc` to be read.
pub fn open_read(path: &'static core::ffi::CStr) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Calls `visit` for every mapping of this process in order of address, until it breaks.
pub fn for_each(visit: impl FnMut(&Mapping<'_>) -> ControlFlow<()>) -> Result<(), Errno> {
    let file = open_read(c"/proc/self/maps")?;
    lines(|buffer| read(&file, buffer), visit)
}

/// The same for whatever `more` puts into the buffer, until it returns 0.
pub(crate) fn lines(
    more: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut visit: impl FnMut(&Mapping<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    texts(more, |line| Ok(visit(&parse(line).ok_or(Errno::IO)?)))
}

/// Calls `visit` for each line of whatever `more` puts into the buffer, until that returns 0. Of a
/// line that is longer than the buffer it gets what fits.
pub fn texts(
    mut more: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut visit: impl FnMut(&[u8]) -> Result<ControlFlow<()>, Errno>,
) -> Result<(), Errno> {
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut filled = 0;
    let mut skip_to_line_end = false;
    loop {
        let count = match more(&mut buffer[filled..]) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        filled += count;
        let mut begin = 0;
        while let Some(length) = buffer[begin..filled].iter().position(|&b| b == b'\n') {
            let line = &buffer[begin..begin + length];
            begin += length + 1;
            if core::mem::take(&mut skip_to_line_end) {
                continue;
            }
            if visit(line)?.is_break() {
                return Ok(());
            }
        }
        if begin == 0 && filled == buffer.len() {
            // A line longer than the buffer: use what fits, drop the rest.
            if !skip_to_line_end && visit(&buffer)?.is_break() {
                return Ok(());
            }
            skip_to_line_end = true;
            begin = filled;
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
    }
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter().try_fold(0u64, |value, &digit| {
        Some(value << 4 | u64::from(char::from(digit).to_digit(16)?))
    })
}

pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

fn split_at_byte(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&b| b == byte)?;
    Some((&text[..at], &text[at + 1..]))
}

pub(crate) fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let (range, rest) = split_at_byte(line, b' ')?;
    let (start, end) = split_at_byte(range, b'-')?;
    let (protection, rest) = split_at_byte(rest, b' ')?;
    let (offset, rest) = split_at_byte(rest, b' ')?;
    let (device, rest) = split_at_byte(rest, b' ')?;
    let (major, minor) = split_at_byte(device, b':')?;
    let (inode, name) = split_at_byte(rest, b' ').unwrap_or((rest, b""));
    let &[read, write, execute, shared] = protection else { return None };
    Some(Mapping {
        start: hexadecimal(start)?.try_into().ok()?,
        end: hexadecimal(end)?.try_into().ok()?,
        may_read: read == b'r',
        may_write: write == b'w',
        may_execute: execute == b'x',
        is_shared: shared == b's',
        offset: hexadecimal(offset)?,
        device: (hexadecimal(major)?.try_into().ok()?, hexadecimal(minor)?.try_into().ok()?),
        inode: decimal(inode)?,
        name: name.trim_ascii(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind() {
        let line = b"55d0c0a00000-55d0c0b21000 rw-p 00000000 00:00 0                  [heap]";
        let heap = parse(line).unwrap();
        assert_eq!((heap.start, heap.end), (0x55d0_c0a0_0000, 0x55d0_c0b2_1000));
        assert!(heap.may_read && heap.may_write && !heap.may_execute && !heap.is_shared);
        assert_eq!((heap.inode, heap.name), (0, &b"[heap]"[..]));
        let line = b"7f00-7f01 r-xs 0000f000 103:1f 4294967296 /tmp/with space (deleted)";
        let file = parse(line).unwrap();
        assert_eq!((file.offset, file.device), (0xf000, (0x103, 0x1f)));
        assert_eq!((file.inode, file.name), (1 << 32, &b"/tmp/with space (deleted)"[..]));
        assert!(file.is_shared && file.may_execute && !file.may_write);
        assert_eq!(parse(b"7f00-7f01 rw-p 0 00:00 0").unwrap().name, b"");
        for broken in
            [&b""[..], b"7f00", b"7f00-7f01 rw-p", b"x-y rw-p 0 00:00 0", b"1-2 rw 0 0:0 0"]
        {
            assert_eq!(parse(broken), None);
        }
    }

    #[test]
    fn the_own_stack_is_found() {
        let local = 0u8;
        let address = (&raw const local).addr();
        let mut found = false;
        let mut last = 0;
        for_each(|mapping| {
            assert!(mapping.start >= last && mapping.end > mapping.start);
            last = mapping.end;
            found |= (mapping.start..mapping.end).contains(&address) && mapping.may_write;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(found);
    }
}
