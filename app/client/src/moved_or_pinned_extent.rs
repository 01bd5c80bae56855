//! Describes an extent: part of a region of this process that is moved onto a file, where peers can
//! map it, or that stays where it is in a virtual machine's memory, where the host's engine can.

use crate::page_take_back_thread::RevokerStay;
use crate::retry_until::retry_until;
use omniverb_adopt::{AdoptedPages, ReleaseError};
use omniverb_device::{OwnMapping, Region};
use omniverb_session::body;
use omniverb_sys::io_uring_pin::Pin;
use omniverb_terms::Errno;
use std::sync::Arc;

/// How often to try to move pages back; each attempt waits for busy threads by itself.
const RELEASE_ATTEMPTS: u32 = 4;

/// How pages move back.
#[derive(Clone, Copy)]
pub(crate) enum Release {
    /// By [`AdoptedPages::release`]. Copies in an own mapping are waited for.
    Waiting,
    /// By [`AdoptedPages::release_before_fork`]. Copies are waited for until then, a time of the
    /// clock: one may be of this very thread.
    BeforeFork(u64),
}

impl Release {
    /// Ends an own mapping. False: copies are under way there still.
    fn end(self, own: &OwnMapping) -> bool {
        let Release::BeforeFork(until) = self else {
            own.end();
            return true;
        };
        let has_ended = retry_until(until, || own.try_end().then_some(())).is_some();
        if !has_ended {
            own.stay();
        }
        has_ended
    }

    fn release(self, pages: AdoptedPages) -> Result<(), ReleaseError> {
        match self {
            Release::Waiting => pages.release(),
            Release::BeforeFork(_) => pages.release_before_fork(),
        }
    }
}

/// Where the pages are.
enum RegionPages {
    /// On a file, or a piece of a window.
    Moved(AdoptedPages),
    /// Where they were, pinned, from this address on, so many bytes.
    Kept { start: usize, length: usize, _pin: Pin },
}

/// A part of a region that is on a file of a daemon's, or pinned because of one.
pub(crate) struct Extent {
    pages: RegionPages,
    /// Of the daemon that made the file; see [`crate::peer_doorbells::PeerDoorbells::era`].
    era: u64,
    /// A thread can take it back.
    stay: RevokerStay,
    /// The piece of a window that it is, if it is on none of those files, as it was said.
    piece: Option<body::Extent>,
    /// The region, if its pages are on a file of this process's own, which no peer has.
    own: Option<Arc<Region>>,
    /// Its pages were busy when they were to be moved back.
    was_busy: bool,
}

impl Extent {
    /// These pages, on a file of the daemon of this era.
    pub(crate) fn new(
        pages: AdoptedPages,
        piece: Option<body::Extent>,
        (era, stay): (u64, RevokerStay),
    ) -> Extent {
        let pages = RegionPages::Moved(pages);
        Extent { pages, era, stay, piece, own: None, was_busy: false }
    }

    /// These pages, on a file of this process's own, and in the region's own mapping.
    pub(crate) fn own(pages: AdoptedPages, region: Arc<Region>, stay: RevokerStay) -> Extent {
        const NO_DAEMONS: u64 = u64::MAX;
        let (pages, own) = (RegionPages::Moved(pages), Some(region));
        Extent { pages, era: NO_DAEMONS, stay, piece: None, own, was_busy: false }
    }

    /// These bytes, which are pinned because of the daemon of this era.
    pub(crate) fn kept(
        pin: Pin,
        (start, length): (usize, usize),
        (era, stay): (u64, RevokerStay),
    ) -> Extent {
        let pages = RegionPages::Kept { start, length, _pin: pin };
        Extent { pages, era, stay, piece: None, own: None, was_busy: false }
    }

    /// Whether its pages are where they always are: nothing of theirs may be used by peers when
    /// it is released.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.pages, RegionPages::Kept { .. })
    }

    /// Whether its pages are on a file of this process's own.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Whether its pages could not be moved back, and cannot be yet: io_uring has buffers there.
    pub(crate) fn is_held(&self) -> bool {
        self.was_busy
            && matches!(&self.pages, RegionPages::Moved(pages) if pages.have_ring_buffers())
    }

    /// Address of its first page.
    pub(crate) fn start(&self) -> usize {
        match &self.pages {
            RegionPages::Moved(pages) => pages.page_start(),
            RegionPages::Kept { start, .. } => *start,
        }
    }

    /// Bytes of its pages.
    pub(crate) fn length(&self) -> usize {
        match &self.pages {
            RegionPages::Moved(pages) => pages.page_length(),
            RegionPages::Kept { length, .. } => *length,
        }
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
    pub(crate) fn release(self, by: Release) -> Result<Option<body::Extent>, (Extent, Errno)> {
        // No copy may go to the file while what it holds moves back.
        if self.own.as_ref().is_some_and(|region| !by.end(&region.own)) {
            return Err((self, Errno::EBUSY));
        }
        let Extent { pages, era, stay, piece, own, .. } = self;
        let mut pages = match pages {
            RegionPages::Moved(pages) => {
                pages.set_own_mapping(0);
                pages
            }
            // The agent keeps them until the host says that no process has them mapped.
            RegionPages::Kept { .. } => return Ok(None),
        };
        // Other threads may keep the pages busy for a moment; a region must not stay exposed.
        let mut errno = Errno::EIO;
        for _ in 0..RELEASE_ATTEMPTS {
            match by.release(pages) {
                Ok(()) => return Ok(piece),
                Err(failed) => {
                    (pages, errno) =
                        (failed.pages, crate::errno_conversion::from_raw(failed.error.errno()));
                }
            }
        }
        let was_busy = errno == Errno::EBUSY;
        let pages = RegionPages::Moved(pages);
        Err((Extent { pages, era, stay, piece, own, was_busy }, errno))
    }
}
