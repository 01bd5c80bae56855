//! A completion in its queue.

use crate::constants::Wc;

/// What a polled completion gives back to its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Release {
    /// A send: everything up to this position.
    Send { slot: u32, position: u64 },
    /// One receive.
    Receive { slot: u32 },
}

/// A completion, and what goes with it.
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    pub(crate) release: Release,
    pub(crate) solicited: bool,
}
