//! The ways to keep every other thread from storing into a stretch of pages while it is copied and
//! replaced, and the order in which they are tried.

mod direct_io;
mod single;
mod stop;
mod userfault;

use crate::error::AdoptError;
use crate::work::Work;
use userfault::Userfault;

/// A way to move pages without losing a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The calling thread is the only one.
    SingleThread,
    /// Write-protection by userfaultfd: only threads that write to the pages wait.
    Userfault,
    /// A helper process stops the other threads with ptrace.
    Stop,
}

impl Strategy {
    /// All, in the order in which they are preferred: what disturbs the program least comes first.
    pub const ALL: [Strategy; 3] = [Self::SingleThread, Self::Userfault, Self::Stop];
}

/// What one adoption or release needs to hold open.
pub(crate) struct Mover<'a> {
    strategies: &'a [Strategy],
    userfault: Option<Result<Userfault, AdoptError>>,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(strategies: &'a [Strategy]) -> Mover<'a> {
        Mover { strategies, userfault: None }
    }

    /// Does the work by the first strategy that can.
    pub(crate) fn perform(&mut self, work: &Work<'_>) -> Result<(), AdoptError> {
        let mut outcome = Err(AdoptError::NotPermitted);
        for strategy in self.strategies {
            outcome = match strategy {
                Strategy::SingleThread => single::perform(work),
                Strategy::Userfault => {
                    match self.userfault.get_or_insert_with(userfault::prepare) {
                        Ok(userfault) => userfault.perform(work),
                        Err(error) => Err(*error),
                    }
                }
                Strategy::Stop => stop::perform(work),
            };
            match outcome {
                Err(AdoptError::NotPermitted | AdoptError::Busy) => {}
                settled => return settled,
            }
        }
        outcome
    }
}
