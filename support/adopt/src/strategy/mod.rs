//! The ways to keep every other thread from storing into a stretch of pages while it is copied and
//! replaced, and the order in which they are tried.

mod direct_io;
mod single;
mod stop;
mod userfault;

pub(crate) use userfault::forget_in_child;

use crate::error::AdoptError;
use crate::sharers::Sharers;
use crate::work::Work;

/// A way to move pages without losing a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The calling thread is the only one in this memory.
    SingleThread,
    /// Write-protection by userfaultfd: only threads that write to the pages wait.
    Userfault,
    /// A helper process stops the other threads, of all processes in this memory, with ptrace.
    Stop,
}

impl Strategy {
    /// All, in the order in which they are preferred: what disturbs the program least comes first.
    pub const ALL: [Strategy; 3] = [Self::SingleThread, Self::Userfault, Self::Stop];
}

/// Performs one adoption or release. With [`crate::lock::MOVES`] held.
pub(crate) struct Mover<'a> {
    strategies: &'a [Strategy],
    must_succeed: bool,
    direct_io: Option<bool>,
    sharers: Option<Sharers>,
}

impl<'a> Mover<'a> {
    /// For an adoption, which may be left undone.
    pub(crate) fn optional(strategies: &'a [Strategy]) -> Mover<'a> {
        Mover { strategies, must_succeed: false, direct_io: None, sharers: None }
    }

    /// For a release: what was granted must be taken back.
    pub(crate) fn mandatory(strategies: &'a [Strategy]) -> Mover<'a> {
        Mover { strategies, must_succeed: true, direct_io: None, sharers: None }
    }

    /// Does the work by the first strategy that can.
    pub(crate) fn perform(&mut self, work: &Work<'_>) -> Result<(), AdoptError> {
        let mut outcome = Err(AdoptError::NotPermitted);
        for strategy in self.strategies {
            outcome = match strategy {
                Strategy::SingleThread => single::perform(work),
                Strategy::Userfault if self.direct_io() => Err(AdoptError::NotPermitted),
                Strategy::Userfault => userfault::perform(work),
                Strategy::Stop => self.sharers().and_then(|sharers| stop::perform(work, sharers)),
            };
            if !matches!(outcome, Err(AdoptError::NotPermitted | AdoptError::Busy)) {
                return outcome;
            }
        }
        // A store by a device into memory that is being deregistered, at this moment, is not likely
        // enough to leave the memory in a peer's hands for good.
        let last_resort = self.must_succeed && self.strategies.contains(&Strategy::Userfault);
        if last_resort && outcome == Err(AdoptError::NotPermitted) && self.direct_io() {
            return userfault::perform(work);
        }
        outcome
    }

    /// Looked for once: who is made later is looked for when everybody stands still.
    fn sharers(&mut self) -> Result<&Sharers, AdoptError> {
        if self.sharers.is_none() {
            self.sharers = Some(Sharers::find()?);
        }
        self.sharers.as_ref().ok_or(AdoptError::NotPermitted)
    }

    fn direct_io(&mut self) -> bool {
        *self.direct_io.get_or_insert_with(direct_io::may_be_in_use)
    }
}
