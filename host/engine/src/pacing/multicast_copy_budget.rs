//! Bounds the copies of packets sent to groups, which one packet makes many of.

/// Budget: copies that the groups of one vNIC may ask for in a turn: four for each packet of a
/// batch that its sockets may have brought. All attachments that a vNIC may have get one packet at
/// least.
const COPIES_PER_TURN: usize = 2048;

/// Copies that the groups of one vNIC have got in a turn.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    turn: u64,
    made: usize,
}

impl Copies {
    /// Whether a packet of this turn is copied for `members`. If not, it is lost to all of them
    /// alike: no member is always the last.
    pub(crate) fn may_make(&mut self, turn: u64, members: usize) -> bool {
        if self.turn != turn {
            *self = Copies { turn, made: 0 };
        }
        let made = self.made.saturating_add(members);
        let may = made <= COPIES_PER_TURN;
        if may {
            self.made = made;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that two sockets of a vNIC may bring in one turn: batches of 8 trains of 64.
    const PACKETS: usize = 2 * 8 * 64;

    fn copies(all: &mut Copies, turn: u64, members: usize) -> usize {
        (0..PACKETS).filter(|_| all.may_make(turn, members)).count() * members
    }

    #[test]
    fn copies_of_an_iteration_are_bounded_for_large_groups() {
        let mut all = Copies::default();
        for (turn, members) in [(0, 1), (1, 4), (2, 5), (3, 64), (4, 255), (5, 256), (6, 300)] {
            let made = copies(&mut all, turn, members);
            let wanted = PACKETS * members;
            assert!(made <= COPIES_PER_TURN, "{members}: {made}");
            assert!(made >= wanted.min(COPIES_PER_TURN - members), "{members}: {made}");
        }
    }

    #[test]
    fn smaller_groups_get_the_copies_that_a_large_one_leaves() {
        let mut all = Copies::default();
        assert_eq!(copies(&mut all, 1, 300), 1800);
        assert_eq!(copies(&mut all, 1, 100), 200);
        assert_eq!(copies(&mut all, 1, 1), 48);
        assert_eq!(copies(&mut all, 1, 1), 0);
        assert_eq!(copies(&mut all, 2, 1), PACKETS, "the next turn has all of them again");
    }
}
