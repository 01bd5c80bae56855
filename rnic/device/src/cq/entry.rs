//! A completion in its queue.

use crate::constants::Wc;
use omniverb_link::record::SOLICITED;

/// What a polled completion gives back to its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Release {
    /// A send: everything of the QP with this slot up to this position.
    Send { slot: u32, position: u64 },
    /// One receive of the QP or SRQ with this slot.
    Receive { slot: u32 },
}

/// What its sender wants of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Solicits {
    Nothing,
    /// That it raises an event, also if only such completions do.
    Event,
}

impl Solicits {
    /// That of a message whose record has these flags.
    #[inline(always)]
    pub(crate) fn of(flags: u32) -> Solicits {
        if flags & SOLICITED != 0 { Solicits::Event } else { Solicits::Nothing }
    }
}

/// A completion, and what goes with it.
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    pub(crate) release: Release,
    pub(crate) solicits: Solicits,
}
