//! Records window pieces that are never given back, until the guest boots again.
//!
//! A process that was told of them may go on using them, and its end is not reported. Some stay
//! given away until the guest is booted afresh: then none of its processes is there
//! any more.

/// Why a piece does not come back when all its holders have released it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Retired {
    /// It comes back.
    #[default]
    No,
    /// A process of the guest may use it, of the boot of this number.
    InBoot(u64),
    /// A process outside the guest may use it.
    ForGood,
}

/// Those of a window that come back when the guest is booted afresh.
#[derive(Debug, Default)]
pub(crate) struct LeakedPieces {
    /// How often it was, since we have had the window.
    boots: u64,
    /// Where they begin, and how long they are.
    pieces: Vec<(u64, u64)>,
}

impl LeakedPieces {
    /// With these, of processes that there were before we had the window.
    pub(crate) fn with(pieces: Vec<(u64, u64)>) -> LeakedPieces {
        LeakedPieces { boots: 0, pieces }
    }

    /// The next state of a piece that a process of the guest may use, if the end of that process
    /// cannot be seen.
    pub(crate) fn in_this_boot(&self, before: Retired) -> Retired {
        match before {
            Retired::ForGood => before,
            _ => Retired::InBoot(self.boots),
        }
    }

    /// All holders have released a piece. True: it comes back at once.
    pub(crate) fn comes_back(&mut self, retired: Retired, piece: (u64, u64)) -> bool {
        match retired {
            Retired::No => return true,
            Retired::InBoot(boot) if boot < self.boots => return true,
            Retired::InBoot(_) => self.pieces.push(piece),
            Retired::ForGood => {}
        }
        false
    }

    /// The guest was booted afresh: what comes back now.
    pub(crate) fn boot(&mut self) -> Vec<(u64, u64)> {
        self.boots += 1;
        std::mem::take(&mut self.pieces)
    }
}
