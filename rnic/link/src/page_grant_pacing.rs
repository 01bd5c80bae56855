//! Decides how much of a region is granted, and when to ask for more.
//!
//! What is granted lives on files, and a fork of its owner has to copy all of that. So an owner
//! hands out a little for nothing, and from then on in proportion to what peers had to have it move
//! for them. An initiator knows that rule too, and asks when it has a right to: seldom.

use omniverb_terms::Errno;

/// Bytes of a region that are handed out for nothing.
pub const FREE_BYTES: u64 = 2 << 20;
/// Bytes of all regions of a process together that are handed out for nothing: many regions must
/// not add up to what a fork cannot copy.
pub const FREE_BYTES_IN_ALL: u64 = 64 << 20;
/// Bytes that are handed out for each byte that was moved by mediation.
const FACTOR: u64 = 4;
/// Least bytes to move before asking again after a refusal. Pages that their owner has just taken
/// back can be had in a moment, so the first refusal costs a few small requests; each further one
/// in a row costs twice as much, up to the last number.
const AGAIN_BYTES_FIRST: u64 = 256;
const AGAIN_BYTES_MAX: u64 = 64 << 10;

/// Bytes of a region that may be on files, when so many have been moved.
#[must_use]
pub const fn allowance(moved: u64) -> u64 {
    FREE_BYTES.saturating_add(moved.saturating_mul(FACTOR))
}

/// Of so many bytes of a region on files, those that are there for nothing.
#[must_use]
pub const fn free(granted: u64, moved: u64) -> u64 {
    granted.saturating_sub(moved.saturating_mul(FACTOR))
}

/// Whether so many bytes of a region may be on files, when so many have been moved and so many of
/// other regions of the process are there for nothing.
#[must_use]
pub const fn allows(granted: u64, moved: u64, others_free: u64) -> bool {
    let free = free(granted, moved);
    granted <= allowance(moved)
        && (free == 0 || free.saturating_add(others_free) <= FREE_BYTES_IN_ALL)
}

/// For how long a grant is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It may be had when more of the region has been moved.
    ForNow,
    /// It is not to be asked for again, until the owner's EPOCH moves.
    ForGood,
}

impl Denial {
    /// What an owner, or the daemon for it, has answered. What touched no whole page (`ERANGE`)
    /// says nothing of the rest of the region, and pages that could not be moved at that moment
    /// (`EAGAIN`; `EBUSY`: a thread did not stop in time, the mappings changed) can be at another.
    #[must_use]
    pub fn of(errno: Errno) -> Denial {
        match errno {
            Errno::EAGAIN | Errno::EBUSY | Errno::ERANGE => Denial::ForNow,
            _ => Denial::ForGood,
        }
    }
}

/// What an initiator that is about to move bytes by mediation is to do besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Ask for a grant; an answer is expected from now on.
    Ask,
    /// Go on without asking: it was refused, asked lately, or there is not reason enough.
    GoOn,
}

/// What an initiator knows of one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyMoves {
    moved: u64,
    granted: u64,
    ask_at: u64,
    /// In a row.
    refusals: u32,
    question: GrantRequestState,
}

/// How a question for a grant stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GrantRequestState {
    /// It may be asked.
    #[default]
    Open,
    /// It was; an answer is expected.
    Asked,
    /// It is not to be asked again.
    Closed,
}

impl KeyMoves {
    /// So many bytes are about to be moved by mediation that would better be mapped.
    #[inline]
    pub fn moves(&mut self, bytes: u64) -> Advice {
        let ask = self.question == GrantRequestState::Open && self.moved >= self.ask_at;
        self.moved = self.moved.saturating_add(bytes);
        if !ask {
            return Advice::GoOn;
        }
        self.question = GrantRequestState::Asked;
        Advice::Ask
    }

    /// The question did not get through.
    pub fn not_asked(&mut self) {
        self.drop_question();
    }

    /// Whether an answer is expected.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.question == GrantRequestState::Asked
    }

    /// An extent was granted.
    pub fn granted(&mut self, bytes: u64) {
        self.drop_question();
        self.refusals = 0;
        self.granted = self.granted.saturating_add(bytes);
        // The next one doubles what there is.
        let next = self.granted.saturating_add(self.granted.max(FREE_BYTES));
        self.ask_at = next.saturating_sub(FREE_BYTES).div_ceil(FACTOR);
    }

    fn drop_question(&mut self) {
        if self.question == GrantRequestState::Asked {
            self.question = GrantRequestState::Open;
        }
    }

    /// Nothing was granted.
    pub fn refused(&mut self, denied: Denial) {
        self.question = match denied {
            Denial::ForNow => GrantRequestState::Open,
            Denial::ForGood => GrantRequestState::Closed,
        };
        let doubled = 1_u64.checked_shl(self.refusals).unwrap_or(u64::MAX);
        let least = AGAIN_BYTES_FIRST.saturating_mul(doubled).min(AGAIN_BYTES_MAX);
        self.refusals = self.refusals.saturating_add(1);
        let more = (self.moved / 2).max(least);
        self.ask_at = self.moved.saturating_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_could_not_be_moved_in_time_are_asked_for_again() {
        for errno in [Errno::EAGAIN, Errno::EBUSY, Errno::ERANGE] {
            assert_eq!(Denial::of(errno), Denial::ForNow);
        }
        for errno in [Errno::EACCES, Errno::EOPNOTSUPP, Errno::EPERM, Errno::ENOMEM, Errno::EIO] {
            assert_eq!(Denial::of(errno), Denial::ForGood);
        }
    }

    #[test]
    fn a_sweep_of_a_region_asks_seldom_and_is_hardly_ever_refused() {
        for length in [8, 4096, 65536, 1 << 20] {
            let (mut pace, mut adopted, mut moved, mut asked, mut refused) =
                (KeyMoves::default(), 0, 0, 0, 0);
            for _ in 0..(1 << 30) / length {
                if adopted >= 1 << 30 {
                    break;
                }
                if pace.moves(length) == Advice::Ask {
                    asked += 1;
                    let extent = adopted.max(FREE_BYTES);
                    if adopted + extent <= allowance(moved) {
                        adopted += extent;
                        pace.granted(extent);
                    } else {
                        refused += 1;
                        pace.refused(Denial::ForNow);
                    }
                }
                moved += length;
            }
            assert!(asked <= 40 && refused <= 10, "{length}: {asked} {refused}");
            assert!(adopted >= 1 << 30, "{length}: {adopted}");
            assert!(moved <= 300 << 20, "{length}: {moved}");
        }
    }

    #[test]
    fn many_regions_do_not_add_up() {
        let (mut free_in_all, mut regions) = (0, 0);
        while allows(FREE_BYTES, 0, free_in_all) {
            free_in_all += free(FREE_BYTES, 0);
            regions += 1;
        }
        assert_eq!(regions, FREE_BYTES_IN_ALL / FREE_BYTES);
        // What peers move is theirs in any region, however many there are.
        assert!(allows(FREE_BYTES, FREE_BYTES / FACTOR, free_in_all));
        assert!(!allows(FREE_BYTES, FREE_BYTES / FACTOR - 1, free_in_all));
        assert!(!allows(FREE_BYTES + 1, 0, 0) && allows(FREE_BYTES + 4, 1, 0));
        assert!(allows(4 << 30, 1 << 30, u64::MAX) && !allows(u64::MAX, 0, u64::MAX));
    }

    /// Moves so much at a time until it is to ask: how many bytes that takes.
    fn until_asked(pace: &mut KeyMoves, length: u64) -> u64 {
        let before = pace.moved;
        while pace.moves(length) == Advice::GoOn {}
        pace.moved - before
    }

    #[test]
    fn a_refusal_of_the_moment_costs_a_few_small_requests() {
        let mut pace = KeyMoves::default();
        until_asked(&mut pace, 8);
        pace.refused(Denial::ForNow);
        assert!(until_asked(&mut pace, 8) / 8 <= 40);
        pace.granted(4096);
        assert_eq!(pace.refusals, 0);
    }

    #[test]
    fn an_owner_that_always_refuses_is_asked_seldom() {
        for length in [8, 4096] {
            let mut pace = KeyMoves::default();
            let asked = (0..(64 << 20) / length).filter(|_| {
                pace.moves(length) == Advice::Ask && {
                    pace.refused(Denial::ForNow);
                    true
                }
            });
            assert!(asked.count() <= 30, "{length}");
        }
        let mut pace = KeyMoves { refusals: u32::MAX, ..KeyMoves::default() };
        until_asked(&mut pace, 8);
        pace.refused(Denial::ForNow);
        assert!(until_asked(&mut pace, 8) >= AGAIN_BYTES_MAX);
    }

    #[test]
    fn a_refusal_is_final_unless_it_says_otherwise() {
        let mut pace = KeyMoves::default();
        assert_eq!(pace.moves(8), Advice::Ask);
        assert_eq!(pace.moves(8), Advice::GoOn, "one question at a time");
        pace.refused(Denial::ForNow);
        assert_eq!([8, AGAIN_BYTES_FIRST].map(|bytes| pace.moves(bytes)), [Advice::GoOn; 2]);
        assert_eq!(pace.moves(8), Advice::Ask);
        pace.refused(Denial::ForGood);
        assert_eq!([1 << 40, 8].map(|bytes| pace.moves(bytes)), [Advice::GoOn; 2]);
    }
}
