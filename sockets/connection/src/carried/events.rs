//! Which events a carried socket shows.

use super::{Direction, Reset, Sink, Source};

bitflags::bitflags! {
    /// Those of `poll`, with its numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Events: u32 {
        /// `POLLIN`.
        const IN = 0x001;
        /// `POLLPRI`.
        const URGENT = 0x002;
        /// `POLLOUT`.
        const OUT = 0x004;
        /// `POLLERR`.
        const ERROR = 0x008;
        /// `POLLHUP`.
        const HANG_UP = 0x010;
        /// `POLLRDHUP`.
        const READ_HANG_UP = 0x2000;
    }
}

/// The events of a socket whose shadow shows `shadow`, and whose ring, where its bytes come from,
/// has what `source` says; `low_water` is `SO_RCVLOWAT`, `sink` where its bytes go, `reset` what
/// was settled on.
///
/// The shadow is right about everything but bytes: those in the ring it does not see, and it always
/// has room. As with the kernel's own, there is room again when a third of it is free.
#[must_use]
pub fn readiness(
    shadow: Events,
    source: Source,
    low_water: u64,
    sink: Sink,
    outward: &Direction,
    capacity: u64,
    reset: Reset,
) -> Events {
    let mut events = shadow;
    if reset == Reset::Pending {
        events |= Events::ERROR;
    }
    if let Source::Ring(waiting) = source
        && waiting >= low_water.min(capacity)
    {
        events |= Events::IN;
    }
    let has_room = match sink {
        Sink::Kernel => true,
        Sink::Ring(room) => room >= (outward.written - outward.read) / 2,
        // It is about to be the kernel's.
        Sink::Full | Sink::Pump(_) => false,
    };
    if !has_room {
        events -= Events::OUT;
    }
    events
}
