//! Makes the memory that two processes share, and keeps it until it has been sent.
//!
//! Its kind follows from the receiver ([`Source`]): a memory file of its own, sent as a descriptor,
//! or a piece of the machine's window, sent as an offset (decision 0036).

use crate::client_outbox::{Letter, Parcel};
use crate::vm_window_allocator::{Piece, PieceRange, Pieces};
use omniverb_link::layout::link_bytes;
use omniverb_ring::Window;
use omniverb_session::body::{self, LinkReady};
use omniverb_session::pair_window;
use omniverb_sys::{Access, Extent, memfd};
use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Name of files for pages: shows in `/proc/PID/maps` of a process that maps one.
const PAGES_NAME: &str = "omniverb-mr";
/// A doorbell: one page per side.
const BELL_BYTES: u64 = 0x2000;
/// A window with less than that left in one piece accepts no new connection: the largest link, that
/// to the engine, has 4.5 MiB, and new processes need room. (Of a small window: a quarter.)
const LINK_ROOM: u64 = 8 << 20;

/// Where memory comes from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Source {
    /// Each thing is a file.
    #[default]
    Files,
    /// It is a piece of this window.
    Window(Arc<Pieces>),
}

impl Source {
    /// Where memory comes from that both can have; nowhere, if there is none such.
    pub(crate) fn of_both(&self, other: &Source) -> Option<&Source> {
        match (self, other) {
            (Source::Files, Source::Files) => Some(self),
            (Source::Window(one), Source::Window(two)) if Arc::ptr_eq(one, two) => Some(self),
            _ => None,
        }
    }

    /// There is hardly any left, and none for another link.
    pub(crate) fn is_full(&self) -> bool {
        let Source::Window(pieces) = self else { return false };
        pieces.longest() < LINK_ROOM.min(pieces.sizes().0 / 4)
    }

    /// Makes memory that an owner is to move pages onto, so that peers can be granted them. A file
    /// of its own is not sealed finally.
    pub(crate) fn make_for_pages(&self, bytes: u64) -> io::Result<Memory> {
        Ok(match self {
            Source::Files => Memory::of_file(memfd::create_sealable(PAGES_NAME, bytes)?, bytes),
            Source::Window(pieces) => Memory::of_piece(pieces.take_for_pages(bytes)?, None),
        })
    }

    /// Makes memory that is handed out as it is. `name` shows in `/proc/PID/maps`.
    pub(crate) fn make(&self, name: &str, bytes: u64) -> io::Result<Memory> {
        Ok(match self {
            Source::Files => Memory::of_file(memfd::create(name, bytes)?, bytes),
            Source::Window(pieces) => Memory::of_piece(pieces.take(bytes)?, None),
        })
    }
}

/// Memory that is handed out.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// The bytes, by the file that we have.
    pub(crate) extent: Extent,
    /// That of a window which it is.
    piece: Option<Arc<Piece>>,
    /// The window is a pair window, which its machine has there.
    pair: Option<PieceRange>,
}

impl Memory {
    fn of_file(file: OwnedFd, bytes: u64) -> Memory {
        Memory { extent: Extent::new(Arc::new(file), 0, bytes), piece: None, pair: None }
    }

    fn of_piece(piece: Piece, pair: Option<PieceRange>) -> Memory {
        Memory { extent: piece.extent(), piece: Some(Arc::new(piece)), pair }
    }

    /// A piece of a pair window, in this part of it.
    pub(crate) fn in_pair(
        place: PieceRange,
        pieces: &Arc<Pieces>,
        part: body::Extent,
        bytes: u64,
    ) -> io::Result<Memory> {
        Ok(Memory::of_piece(pieces.take_in(part, bytes)?, Some(place)))
    }

    /// Maps it. The piece is kept as long as the mapping, so that its holder never sees another's
    /// data.
    pub(crate) fn map(&self, access: Access) -> io::Result<Window> {
        self.extent.map_and_keep(access, self.piece.clone())
    }

    /// The value that a mapping of it keeps for so long.
    pub(crate) fn kept(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.piece.clone().map(|piece| piece as Arc<dyn Any + Send + Sync>)
    }

    /// As others are told of it.
    pub(crate) fn said(&self) -> body::Extent {
        match (&self.piece, self.pair) {
            (Some(piece), Some(place)) => in_device(place, piece),
            (Some(piece), None) => piece.in_guest(),
            (None, _) => self.said_outside(),
        }
    }

    /// As another machine is told of it that has the pair window there.
    pub(crate) fn said_as(&self, place: PieceRange) -> body::Extent {
        self.piece.as_ref().map_or(body::Extent::NONE, |piece| in_device(place, piece))
    }

    /// The file, if it is a whole one and this the only descriptor.
    pub(crate) fn into_file(self) -> Option<OwnedFd> {
        self.piece.is_none().then(|| Arc::into_inner(self.extent.file)).flatten()
    }

    /// Its place as the neighbour of a machine is told: the neighbour has the file.
    fn said_outside(&self) -> body::Extent {
        body::Extent { offset: self.extent.offset, length: self.extent.length }
    }

    /// The same, and the file.
    pub(crate) fn outside(&self) -> (body::Extent, Parcel) {
        (self.said_outside(), self.extent.file.clone())
    }

    /// What goes along when they are told.
    pub(crate) fn enclosed(&self) -> Option<Parcel> {
        self.piece.is_none().then(|| self.extent.file.clone())
    }

    /// What has to be kept as long as they use it.
    pub(crate) fn piece(&self) -> Option<Arc<Piece>> {
        self.piece.clone()
    }
}

/// A piece of a pair window, as a machine is told of it that has the window there.
fn in_device(PieceRange { number, at }: PieceRange, piece: &Piece) -> body::Extent {
    let body::Extent { offset, length } = piece.in_guest();
    pair_window::numbered(number, body::Extent { offset: at + offset, length })
}

/// The memory that the ends of a new link get: the link's and, if the doorbell between these two
/// processes is new, the doorbell's.
pub(crate) struct Shared {
    pub(crate) link: Memory,
    pub(crate) bell: Option<Memory>,
}

impl Shared {
    /// Makes the memory for the link that `ready` (either end's) describes.
    pub(crate) fn make(source: &Source, ready: &LinkReady) -> io::Result<Shared> {
        let bytes = link_bytes(ready.request_bytes as usize, ready.response_bytes as usize);
        let link = source.make("omniverb-link", bytes as u64)?;
        let bell = || source.make("omniverb-bell", BELL_BYTES);
        let bell = (ready.bell_new != 0).then(bell).transpose()?;
        Ok(Shared { link, bell })
    }

    /// The same in a pair window: links and doorbells have their parts of it.
    pub(crate) fn make_in_pair(
        place: PieceRange,
        pieces: &Arc<Pieces>,
        (links, bells): (body::Extent, body::Extent),
        ready: &LinkReady,
    ) -> io::Result<Shared> {
        let bytes = link_bytes(ready.request_bytes as usize, ready.response_bytes as usize);
        let link = Memory::in_pair(place, pieces, links, bytes as u64)?;
        let bell = || Memory::in_pair(place, pieces, bells, pair_window::BELL_BYTES);
        let bell = (ready.bell_new != 0).then(bell).transpose()?;
        Ok(Shared { link, bell })
    }

    /// The message to the neighbour that a machine shares it with.
    pub(crate) fn letter_outside(&self, ready: &LinkReady) -> Letter {
        let files = self.all().map(|memory| memory.extent.file.clone()).collect();
        let bell_memory = self.bell.as_ref().map_or(body::Extent::NONE, Memory::said_outside);
        let ready = LinkReady { memory: self.link.said_outside(), bell_memory, ..*ready };
        Letter::with(ready, files)
    }

    /// The message to a process of another machine, which has the pair window there.
    pub(crate) fn letter_as(&self, place: PieceRange, ready: &LinkReady) -> Letter {
        let bell = self.bell.as_ref();
        let bell_memory = bell.map_or(body::Extent::NONE, |bell| bell.said_as(place));
        Letter::of(LinkReady { memory: self.link.said_as(place), bell_memory, ..*ready })
    }

    /// The message to an end.
    pub(crate) fn letter(&self, ready: &LinkReady) -> Letter {
        let files = self.all().filter_map(Memory::enclosed).collect();
        let bell_memory = self.bell.as_ref().map_or(body::Extent::NONE, Memory::said);
        let ready = LinkReady { memory: self.link.said(), bell_memory, ..*ready };
        Letter::with(ready, files)
    }

    fn all(&self) -> impl Iterator<Item = &Memory> {
        [Some(&self.link), self.bell.as_ref()].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm_window_page_ledger::Ledger;
    use omniverb_sys::deferred_close::CloseQueue;

    #[test]
    fn both_have_memory_if_it_is_of_one_window_or_of_none() {
        let window = || {
            let file = memfd::create("window", 0x4000).unwrap();
            let data = body::Extent { offset: 0, length: 0x4000 };
            let bin = CloseQueue::new().unwrap();
            Source::Window(Pieces::new(file, data, Ledger::none(), bin).unwrap())
        };
        let (one, other) = (window(), window());
        assert!(matches!(Source::Files.of_both(&Source::Files), Some(Source::Files)));
        assert!(matches!(one.of_both(&one.clone()), Some(Source::Window(_))));
        for (one, other) in [(&one, &other), (&one, &Source::Files), (&Source::Files, &one)] {
            assert!(one.of_both(other).is_none());
        }
    }
}
