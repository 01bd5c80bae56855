//! An extent: part of a region of this process that is moved onto a file, where peers can map it.

use crate::taking::Stay;
use omniverb_adopt::AdoptedPages;
use omniverb_session::body;
use omniverb_terms::Errno;

/// How often to try to move pages back; each attempt waits for busy threads by itself.
const RELEASE_ATTEMPTS: u32 = 4;

/// A part of a region that is on a file of a daemon's.
pub(crate) struct Extent {
    pages: AdoptedPages,
    /// Of the daemon that made the file; see [`crate::bells::Bells::era`].
    era: u64,
    /// Somebody can take it back.
    stay: Stay,
    /// The piece of a window that it is, if it is on none of those files, as it was said.
    piece: Option<body::Extent>,
}

impl Extent {
    /// These pages, on a file of the daemon of this era.
    pub(crate) fn new(
        pages: AdoptedPages,
        piece: Option<body::Extent>,
        (era, stay): (u64, Stay),
    ) -> Extent {
        Extent { pages, era, stay, piece }
    }

    /// Address of its first page.
    pub(crate) fn start(&self) -> usize {
        self.pages.page_start()
    }

    /// Bytes of its pages.
    pub(crate) fn length(&self) -> usize {
        self.pages.page_length()
    }

    /// The era of the daemon that made its file.
    pub(crate) fn era(&self) -> u64 {
        self.era
    }

    /// Whether some of its pages lie in a range.
    pub(crate) fn overlaps(&self, start: usize, end: usize) -> bool {
        self.start() < end && start < self.start() + self.length()
    }

    /// Moves its pages back: the piece of a window that is not used any more, if it was one.
    ///
    /// # Errors
    /// The extent as it was, and errno.
    pub(crate) fn release(self) -> Result<Option<body::Extent>, (Extent, Errno)> {
        let Extent { mut pages, era, stay, piece } = self;
        // Other threads may keep the pages busy for a moment; a region must not stay exposed.
        let mut errno = Errno::EIO;
        for _ in 0..RELEASE_ATTEMPTS {
            match pages.release() {
                Ok(()) => return Ok(piece),
                Err(failed) => {
                    (pages, errno) = (failed.pages, crate::errno::from_raw(failed.error.errno()));
                }
            }
        }
        Err((Extent { pages, era, stay, piece }, errno))
    }
}
