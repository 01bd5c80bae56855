//! Holds the rooms for what is kept for one vNIC.

use crate::memory_accounts::Room;

/// Budget: bytes that one vNIC keeps: backlogs, early packets, delayed packets, READ data whose
/// turn has not come. A burst of a fast network for some tens of milliseconds.
pub const VNIC_BYTES: usize = 64 << 20;
/// Budget: bytes of answers to READs that one vNIC keeps for applications that do not take them.
pub const VNIC_ANSWERS_BYTES: usize = 16 << 20;

/// The rooms of one vNIC. Copies are the same.
#[derive(Clone)]
pub struct Allowance {
    /// For what can be dropped.
    pub kept: Room,
    /// For answers to READs, which cannot.
    pub answers: Room,
}

impl Default for Allowance {
    /// Rooms that lie in no larger ones.
    fn default() -> Allowance {
        Allowance { kept: Room::new(VNIC_BYTES), answers: Room::new(VNIC_ANSWERS_BYTES) }
    }
}
