//! Pieces of a virtual machine's window that this process has for pages, its own or a peer's: the
//! daemon is told when it has let go of one, and gives it to others then (decision 0043). Memory
//! that is a file of its own needs no such word. A process outside a machine has pieces of windows
//! that it shares with one (0044).

use omniverb_session::{body, pair_window};
use omniverb_sys::Extent;
use omniverb_sys::extent::Kind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells the daemon of a piece, and how often this process was told of it.
type LoanReport = Box<dyn Fn(body::Extent, u32) + Send + Sync>;

/// What is to be said of an extent when this process has let go of it: what was said of it; `None`:
/// nothing, it is in a file of its own.
pub(crate) fn piece(said: body::Extent, extent: &Extent<OwnedFd>) -> Option<body::Extent> {
    (pair_window::number(&said).is_some() || is_device(extent)).then_some(said)
}

/// Whether it is in memory that was plugged into this machine.
pub(crate) fn is_device(extent: &Extent<OwnedFd>) -> bool {
    matches!(extent.kind(), Ok(Kind::Device))
}

/// A piece that is mapped here; told of when it is dropped, which is when its mapping has gone.
pub(crate) struct WindowLoan {
    piece: body::Extent,
    /// How often this process was told of it, for this mapping.
    times: AtomicU32,
    tell: LoanReport,
}

impl WindowLoan {
    pub(crate) fn new(piece: body::Extent, tell: LoanReport) -> Arc<WindowLoan> {
        Arc::new(WindowLoan { piece, times: AtomicU32::new(0), tell })
    }

    /// It was told of it, and the mapping is used for that.
    pub(crate) fn told(&self) {
        self.times.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for WindowLoan {
    fn drop(&mut self) {
        let times = *self.times.get_mut();
        if times > 0 {
            (self.tell)(self.piece, times);
        }
    }
}
