//! Lays extents side by side in large files, as a virtual machine's window holds them, for tests.
//!
//! Their offsets are never 0.

use crate::memory::extent_file_allocator::{
    FileId, FileRange, FreedPlace, Layout, PageHome, Placement,
};
use crate::row_keys::SessionId;
use std::collections::BTreeMap;

/// The first page of a file stays free.
const FIRST: u64 = 0x1000;

/// Files of so many bytes, or more if one extent needs more.
#[derive(Debug)]
pub struct Packed {
    bytes: u64,
    last: FileId,
    files: BTreeMap<FileId, File>,
}

#[derive(Debug)]
struct File {
    bytes: u64,
    /// From here on no extent ever had a byte.
    unused: u64,
    /// The kind of memory.
    home: PageHome,
    /// The lengths of the extents in it, by offset.
    taken: BTreeMap<u64, u64>,
}

impl Packed {
    /// Files of this size.
    #[must_use]
    pub fn new(bytes: u64) -> Packed {
        Packed { bytes, last: 0, files: BTreeMap::new() }
    }
}

impl File {
    /// Bytes that no extent ever had, if there are so many, else the first gap.
    fn take(&mut self, length: u64) -> Option<u64> {
        let ends = self.taken.iter().map(|(offset, length)| offset + length);
        let starts = std::iter::once(FIRST).chain(ends);
        let mut gaps = starts.zip(self.taken.keys().copied().chain([self.bytes]));
        let at = match self.bytes - self.unused >= length {
            true => self.unused,
            false => gaps.find(|(start, end)| end - start >= length)?.0,
        };
        self.taken.insert(at, length);
        self.unused = self.unused.max(at + length);
        Some(at)
    }
}

impl Layout for Packed {
    fn place(&mut self, _owner: SessionId, home: PageHome, length: u64) -> Option<Placement> {
        for (file, state) in self.files.iter_mut().filter(|(_, state)| state.home == home) {
            if let Some(offset) = state.take(length) {
                let place = FileRange { file: *file, offset, length };
                return Some(Placement { place, new_file: None });
            }
        }
        self.last += 1;
        let bytes = self.bytes.max(FIRST.checked_add(length)?);
        let mut state = File { bytes, unused: FIRST, home, taken: BTreeMap::new() };
        let place = FileRange { file: self.last, offset: state.take(length)?, length };
        self.files.insert(self.last, state);
        Some(Placement { place, new_file: Some(bytes) })
    }

    fn free(&mut self, place: &FileRange) -> FreedPlace {
        let Some(state) = self.files.get_mut(&place.file) else { return FreedPlace::File };
        state.taken.remove(&place.offset);
        if !state.taken.is_empty() {
            return FreedPlace::Place;
        }
        self.files.remove(&place.file);
        FreedPlace::File
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_side_by_side_and_are_used_again() {
        let mut layout = Packed::new(0x6000);
        let mut place = |length| layout.place(SessionId(1), PageHome::File, length).unwrap();
        let all = [place(0x2000), place(0x1000), place(0x2000), place(0x9000)];
        let found = all.map(|placed| (placed.place.file, placed.place.offset, placed.new_file));
        let expected = [
            (1, 0x1000, Some(0x6000)),
            (1, 0x3000, None),
            (1, 0x4000, None),
            (2, 0x1000, Some(0xa000)),
        ];
        assert_eq!(found, expected);
        assert_eq!(layout.free(&all[1].place), FreedPlace::Place);
        let again = layout.place(SessionId(1), PageHome::File, 0x1000).unwrap();
        assert_eq!(again.place, all[1].place);
        for (placed, freed) in all.iter().zip([
            FreedPlace::Place,
            FreedPlace::Place,
            FreedPlace::File,
            FreedPlace::File,
        ]) {
            assert_eq!(layout.free(&placed.place), freed);
        }
        assert_eq!(
            layout.place(SessionId(1), PageHome::File, 0x1000).unwrap().place.file,
            3,
            "never the same name"
        );
    }
}
