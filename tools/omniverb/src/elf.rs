//! Reads a program's ELF file: its loader, its libraries, and whether it makes system calls itself.
//!
//! The file is not trusted: every offset in it is checked.

use omniverb_formats::syscall_instructions;

/// `ELFCLASS64`, `ELFDATA2LSB`.
const KIND: [u8; 2] = [2, 1];
/// Segments, and entries of tables, that are looked at.
const MOST: usize = 4096;

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const EXECUTABLE: u32 = 1;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;

/// The facts that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// `e_machine`.
    pub(crate) machine: u16,
    /// Its dynamic linker; `None`: it is linked statically.
    pub(crate) loader: Option<String>,
    /// The libraries that it names.
    pub(crate) needed: Vec<String>,
    /// It was built by Go.
    pub(crate) is_go: bool,
    /// It may make calls about sockets by its own instructions.
    pub(crate) has_socket_calls: bool,
    /// It makes calls about rings of io_uring by its own instructions.
    pub(crate) has_ring_calls: bool,
}

struct File<'a>(&'a [u8]);

impl<'a> File<'a> {
    fn part(&self, at: u64, length: u64) -> Option<&'a [u8]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(usize::try_from(length).ok()?)?)
    }

    fn short(&self, at: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.part(at, 2)?.try_into().ok()?))
    }

    fn word(&self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.part(at, 4)?.try_into().ok()?))
    }

    fn long(&self, at: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.part(at, 8)?.try_into().ok()?))
    }

    fn text(&self, at: u64) -> Option<String> {
        let rest = self.0.get(usize::try_from(at).ok()?..)?;
        let bytes = rest.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Rows of a table: where it begins, how long a row is, and how many there are, as the head of
    /// the file says.
    fn rows(&self, at: u64, size: u64, count: u64) -> Option<Vec<u64>> {
        let (at, size) = (self.long(at)?, u64::from(self.short(size)?));
        let count = u64::from(self.short(count)?).min(MOST as u64);
        (0..count).map(|row| at.checked_add(row * size)).collect()
    }
}

/// Reads it; `None`: it is no program of this kind of machine's.
pub(crate) fn read(bytes: &[u8]) -> Option<Program> {
    let file = File(bytes);
    if file.part(0, 4)? != b"\x7fELF" || file.part(4, 2)? != KIND {
        return None;
    }
    let mut found = Program { machine: file.short(18)?, ..Program::default() };
    let segments = file.rows(32, 54, 56)?;
    let mut dynamic = None;
    let mut loads = Vec::new();
    for at in segments {
        let (kind, flags) = (file.word(at)?, file.word(at.checked_add(4)?)?);
        let (offset, address) = (file.long(at + 8)?, file.long(at + 16)?);
        let length = file.long(at + 32)?;
        match kind {
            LOAD => {
                loads.push((address, offset, length));
                if flags & EXECUTABLE != 0 {
                    let code = file.part(offset, length).unwrap_or_default();
                    syscall_instructions::calls(code, 0, |number| {
                        found.has_socket_calls |= number.is_about_sockets();
                        found.has_ring_calls |= number.is_about_rings();
                        true
                    });
                }
            }
            DYNAMIC => dynamic = Some((offset, length)),
            INTERPRETER => found.loader = file.text(offset),
            _ => {}
        }
    }
    if let Some((offset, length)) = dynamic {
        found.needed = needed(&file, (offset, length), &loads).unwrap_or_default();
    }
    found.is_go = is_go(bytes);
    Some(found)
}

/// The dynamic linker that the beginning of a program's file names.
pub(crate) fn loader(beginning: &[u8]) -> Option<String> {
    let file = File(beginning);
    if file.part(0, 4)? != b"\x7fELF" || file.part(4, 2)? != KIND {
        return None;
    }
    let segments = file.rows(32, 54, 56)?;
    let at = segments.into_iter().find(|at| file.word(*at) == Some(INTERPRETER))?;
    file.text(file.long(at.checked_add(8)?)?)
}

/// The mark in front of what Go says of how it was built.
fn is_go(bytes: &[u8]) -> bool {
    let mark: [u8; 14] = *b"\xff Go buildinf:";
    bytes.chunks(16).any(|chunk| chunk.starts_with(&mark))
}

fn needed(
    file: &File<'_>,
    (offset, length): (u64, u64),
    loads: &[(u64, u64, u64)],
) -> Option<Vec<String>> {
    let entries = (0..(length / 16).min(MOST as u64)).filter_map(|entry| {
        let at = offset.checked_add(entry * 16)?;
        Some((file.long(at)?, file.long(at.checked_add(8)?)?))
    });
    let entries: Vec<(u64, u64)> = entries.take_while(|(tag, _)| *tag != 0).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == STRINGS)?.1;
    let place = |load: &&(u64, u64, u64)| strings >= load.0 && strings - load.0 < load.2;
    let (address, begins, _) = loads.iter().find(place)?;
    let strings = begins.checked_add(strings - address)?;
    let names = entries.iter().filter(|(tag, _)| *tag == NEEDED);
    names.map(|(_, name)| file.text(strings.checked_add(*name)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_lists_its_libraries() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let found = read(&bytes).unwrap();
        assert_eq!(loader(&bytes[..4096]), found.loader);
        assert!(found.loader.unwrap().contains("ld-linux"));
        assert!(found.needed.iter().any(|name| name == "libc.so.6"), "{:?}", found.needed);
        assert!(!found.is_go);
        // A file cut short anywhere harms nothing.
        for length in (0..bytes.len()).step_by(bytes.len() / 97) {
            let _ = (read(&bytes[..length]), loader(&bytes[..length]));
        }
        assert_eq!(read(b"#!/bin/sh\n"), None);
    }
}
