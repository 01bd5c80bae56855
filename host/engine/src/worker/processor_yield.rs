//! Decides when a packet thread yields its processor.
//!
//! The thread that this one waits for may need the processor it runs on: an application that polls,
//! the thread of another host on the same machine. Yielding lets it go first and costs a
//! microsecond if it yields, too. A computing thread does not: it keeps the processor for its slice
//! of some milliseconds, and for the kernel we have had ours. A thread that yields all the time
//! then runs every fifty milliseconds, and peers give up healthy connections. So yields that cost
//! much end for a while, and the kernel's fair share is ours again.

use omniverb_sys::clock;

/// The time that a yield may cost, in nanoseconds: a slice or two of programs that poll their
/// memory, which cannot be seen waiting. Those wait for us, and sleeping instead makes each message
/// of theirs a wake (`ib_write_lat` took 50 us instead of 35). Only many computing threads take
/// longer.
const LONG: u64 = 20_000_000;
/// For so many times as long as we were away nothing is given.
const RESERVE: u64 = 20;

/// How this thread fares with it.
#[derive(Default)]
pub(super) struct Yielding {
    /// Nothing is given before, in nanoseconds of [`clock::now`].
    reserved_until: u64,
}

impl Yielding {
    /// Lets others go first. False: that costs too much at present.
    pub(super) fn give_way(&mut self) -> bool {
        let gave = clock::now();
        if !self.may_give(gave) {
            return false;
        }
        std::thread::yield_now();
        self.was_away(gave, clock::now());
        true
    }

    fn may_give(&self, now: u64) -> bool {
        now >= self.reserved_until
    }

    fn was_away(&mut self, gave: u64, back: u64) {
        let away = back.saturating_sub(gave);
        if away > LONG {
            self.reserved_until = back.saturating_add(RESERVE.saturating_mul(away));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_costly_yield_is_not_repeated_soon() {
        let mut yielding = Yielding::default();
        yielding.was_away(100, 100 + LONG);
        assert!(yielding.may_give(100 + LONG), "another thread took a short slice");
        let back = 1000 + LONG + 1;
        yielding.was_away(1000, back);
        assert!(!yielding.may_give(back + RESERVE * LONG));
        assert!(yielding.may_give(back + RESERVE * (LONG + 1)));
    }
}
