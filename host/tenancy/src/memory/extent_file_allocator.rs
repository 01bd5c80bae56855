//! Assigns bytes of files to extents.
//!
//! In: the number of bytes that an owner is to move. Out: a place for them that no other extent
//! has, until it is given back. The tables trust a layout; it never gives one byte to two extents.

use crate::row_keys::SessionId;
use crate::vm_pair_windows::window_table::Neighbour;
use omniverb_terms::VnicId;

/// Names a memory file of the daemon's.
pub type FileId = u64;

/// The kind of memory of lent pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageHome {
    /// In a file that is made for them.
    File,
    /// In a piece of the window of their owner's machine.
    Window,
    /// Where they are always, in the memory of their owner's machine, which the daemon has. It has
    /// a name as a file has, and no layout decides where.
    InPlace,
    /// In a piece of a pair window.
    Pair {
        /// The machine that has the window.
        machine: VnicId,
        /// The neighbour that shares it. Either may be the owner's.
        neighbour: Neighbour,
    },
}

/// Some whole pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileRange {
    /// The file that they are in.
    pub file: FileId,
    /// Bytes from the beginning of the file to the first of them, whole pages.
    pub offset: u64,
    /// Bytes of them, whole pages.
    pub length: u64,
}

/// A place that no extent had.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// The place that the extent has from now on.
    pub place: FileRange,
    /// `Some`: the file is to be made first, of so many bytes. `None`: it is there.
    pub new_file: Option<u64>,
}

/// The state of a place that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreedPlace {
    /// Nothing else is in its file: close that.
    File,
    /// The file goes on: empty the place for its next owner.
    Place,
}

/// Decides where extents are.
pub trait Layout: Send {
    /// A place of so many bytes, whole pages, for an owner, in a file that is there. `None`: there
    /// is no room.
    fn place(&mut self, owner: SessionId, home: PageHome, length: u64) -> Option<Placement>;

    /// Frees a place.
    fn free(&mut self, place: &FileRange) -> FreedPlace;
}

/// Each extent in a file of its own, from its beginning: a holder of the file can map all of it,
/// and this way that is one extent. As many files as there are extents.
#[derive(Debug, Default)]
pub struct FilePerExtent {
    last: FileId,
}

impl Layout for FilePerExtent {
    fn place(&mut self, _owner: SessionId, _home: PageHome, length: u64) -> Option<Placement> {
        self.last += 1;
        let place = FileRange { file: self.last, offset: 0, length };
        Some(Placement { place, new_file: Some(length) })
    }

    fn free(&mut self, _place: &FileRange) -> FreedPlace {
        FreedPlace::File
    }
}
