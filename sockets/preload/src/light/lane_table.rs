//! Records which connections have the lanes of a channel, as this process knows it.

use omniverb_formats::channel_layout::LANES;

/// Which lanes of a channel are whose.
pub(super) struct Lanes {
    /// The slots that have them, by direction; 0: none.
    pub slots: [[u32; LANES]; 2],
    /// A bit for each by which something comes.
    pub inward: u32,
    /// And for each that a thread sleeps for which has not been woken since. (The other end clears
    /// its mark when it rings, and another thread may be woken by that.)
    pub awaited: u32,
    /// How far those were written when that was looked at last.
    pub noted: [u64; LANES],
    /// How often each was taken away from a connection, by ways.
    pub left: [[u64; LANES]; 2],
    /// The lane that is looked at next when none is free.
    pub hand: usize,
    /// How many calls have sent by the channel.
    pub clock: u16,
}

impl Lanes {
    pub(super) const fn new() -> Self {
        Self {
            slots: [[0; LANES]; 2],
            inward: 0,
            awaited: 0,
            noted: [0; LANES],
            left: [[0; LANES]; 2],
            hand: 0,
            clock: 0,
        }
    }

    /// Those by which something comes.
    pub(super) fn inward(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.inward;
        core::iter::from_fn(move || {
            let lane = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (lane < LANES).then_some(lane)
        })
    }
}
