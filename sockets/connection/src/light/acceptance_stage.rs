//! Packs how far a connection is on its way to be accepted into one byte ([`super::acceptance`]).

/// How often one may be opened, or wait for a listener that is not registered yet.
pub(super) const ATTEMPTS_MAX: u8 = 14;
/// It has sent more than is kept, and cannot move.
pub(super) const IMMOVABLE: u8 = 15;

/// It has opened, and was not accepted as far as is known.
pub(super) const UNACCEPTED: u8 = 0x10;
/// It was refused, and the two have not parted yet.
pub(super) const PARTING: u8 = 0x20;
/// It goes by no channel.
pub(super) const DETACHED: u8 = 0x40;
/// It was accepted by this end, which is to be said.
pub(super) const OWES_ACCEPTED: u8 = 0x80;
/// How often it has opened, or was waited for; or [`IMMOVABLE`].
const COUNT: u8 = 0x0f;

/// How far that is. All zeros: nothing is left to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct AcceptanceStage(u8);

impl AcceptanceStage {
    pub(super) fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }

    /// The next in a row of attempts.
    pub(super) fn asked(self) -> Self {
        Self(UNACCEPTED | (self.count() + 1).min(ATTEMPTS_MAX))
    }

    /// The same attempt, at this.
    pub(super) fn to(self, what: u8) -> Self {
        Self(what | self.count())
    }

    /// The same, which does not count.
    pub(super) fn uncounted(self) -> Self {
        Self(self.0 & !COUNT)
    }

    /// It was asked for in vain once more.
    pub(super) fn waits(self) -> Self {
        Self(DETACHED | (self.count() + 1).min(ATTEMPTS_MAX))
    }

    /// Of an end that has accepted it.
    pub(super) fn owes() -> Self {
        Self(OWES_ACCEPTED)
    }

    /// Of one that cannot move.
    pub(super) fn fixed() -> Self {
        Self(UNACCEPTED | IMMOVABLE)
    }

    pub(super) fn count(self) -> u8 {
        self.0 & COUNT
    }
}
