//! Finds out after a silence what the peer has, rather than sending it everything again.
//!
//! Who does not answer in time is late, as a rule: its thread waits for a processor, and what was
//! sent waits for it. Everything once more would make it later still. So the oldest packet that
//! is not acknowledged goes by itself, and asks. The answer to it says how far the peer is:
//!
//! - further than what was sent again: it had that already. Only the next one is tried;
//! - as far as what was sent again: that was lost. So may be what followed, and goes again in
//!   order, more of it with each answer;
//! - a sequence NAK: everything from there on was lost, and goes again at once.

use crate::unwrapped_psn::Sequence;

/// So many times as much goes again after each answer that shows that something was lost: a few
/// round trips until it is all, on a machine where one takes long.
const GROWTH: u64 = 4;

/// How much may be sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeWindow {
    /// Packets that may be under way.
    packets: u64,
    /// What was sent before the silence ends here.
    until: Sequence,
}

impl ProbeWindow {
    /// Everything before `until` was sent.
    pub(super) fn new(until: Sequence) -> ProbeWindow {
        ProbeWindow { packets: 1, until }
    }

    /// Packets that may be under way.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether the answer that came last showed that something was lost.
    pub(super) fn found_loss(&self) -> bool {
        self.packets > 1
    }

    /// Everything before `unacked` is acknowledged now, `packets` of it newly; what was sent again
    /// ends before `next`. What is to be found out still, if not as much may be sent again as the
    /// `window` holds.
    pub(super) fn heard(
        self,
        (unacked, next): (Sequence, Sequence),
        packets: u64,
        window: u64,
    ) -> Option<ProbeWindow> {
        let more = (GROWTH - 1) * packets;
        let packets = if unacked > next { 1 } else { self.packets + more };
        (unacked < self.until && packets < window).then_some(ProbeWindow { packets, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::Psn;

    #[test]
    fn more_goes_again_only_if_that_is_what_was_missing() {
        let at = |offset| Sequence::first(Psn::new(7)) + offset;
        let probing = ProbeWindow::new(at(100));
        assert_eq!(probing.packets(), 1);
        let lost = probing.heard((at(1), at(1)), 1, 64).unwrap();
        assert_eq!(lost.packets(), GROWTH);
        let late = lost.heard((at(20), at(3)), 19, 64).unwrap();
        assert_eq!(late.packets(), 1);
        assert!(lost.heard((at(100), at(3)), 99, 64).is_none(), "nothing was lost");
        assert!(lost.heard((at(5), at(5)), 4, 16).is_none(), "all may be sent again");
    }
}
