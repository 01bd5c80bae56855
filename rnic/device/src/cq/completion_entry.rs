//! Describes a completion in its queue.

use crate::verbs_constants::Wc;
use omniverb_link::record::SOLICITED;
use zerocopy::FromBytes;

/// What a polled completion gives back to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotRelease {
    /// A send: everything of the QP with this slot up to this position.
    Send { slot: u32, position: u64 },
    /// One receive of the QP or SRQ with this slot.
    Receive { slot: u32 },
}

/// What its sender wants of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SolicitedEvent {
    Nothing,
    /// That it raises an event, also if only such completions do.
    Event,
}

impl SolicitedEvent {
    /// That of a message whose record has these flags.
    #[inline(always)]
    pub(crate) fn of(flags: u32) -> SolicitedEvent {
        if flags & SOLICITED != 0 { SolicitedEvent::Event } else { SolicitedEvent::Nothing }
    }
}

/// Marks of an entry.
const RECEIVE: u32 = 1 << 0;
const EVENT: u32 = 1 << 1;

/// A completion, and what goes with it: numbers only, since it may lie in memory of the program. A
/// cache line.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    position: u64,
    slot: u32,
    marks: u32,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    #[inline(always)]
    pub(crate) fn new(wc: Wc, release: SlotRelease, solicits: SolicitedEvent) -> Entry {
        let event = if solicits == SolicitedEvent::Event { EVENT } else { 0 };
        match release {
            SlotRelease::Send { slot, position } => Entry { wc, position, slot, marks: event },
            SlotRelease::Receive { slot } => {
                Entry { wc, position: 0, slot, marks: event | RECEIVE }
            }
        }
    }

    /// What it gives back when it is polled.
    #[inline(always)]
    pub(crate) fn release(&self) -> SlotRelease {
        let (slot, position) = (self.slot, self.position);
        match self.marks & RECEIVE {
            0 => SlotRelease::Send { slot, position },
            _ => SlotRelease::Receive { slot },
        }
    }

    /// What its sender wants.
    #[inline(always)]
    pub(crate) fn solicits(&self) -> SolicitedEvent {
        if self.marks & EVENT != 0 { SolicitedEvent::Event } else { SolicitedEvent::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_into_an_entry_comes_out() {
        let releases =
            [SlotRelease::Send { slot: 7, position: u64::MAX }, SlotRelease::Receive { slot: 9 }];
        for release in releases {
            for solicits in [SolicitedEvent::Nothing, SolicitedEvent::Event] {
                let entry = Entry::new(Wc { wr_id: 3, ..Wc::default() }, release, solicits);
                assert_eq!((entry.release(), entry.solicits()), (release, solicits));
                assert_eq!(entry.wc.wr_id, 3);
            }
        }
    }
}
