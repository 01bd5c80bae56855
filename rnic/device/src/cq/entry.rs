//! A completion in its queue.

use crate::constants::Wc;

/// What a polled completion gives back to its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Release {
    /// A send: everything of the QP with this slot up to this position.
    Send { slot: u32, position: u64 },
    /// One receive of the QP or SRQ with this slot.
    Receive { slot: u32 },
}

/// A completion, and what goes with it.
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    pub(crate) release: Release,
    /// Its sender asks for an event.
    pub(crate) solicited: bool,
}
