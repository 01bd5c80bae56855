//! Chooses how to keep other threads from writing to pages while these are copied and replaced.

mod direct_io_detection;
mod move_necessity_and_obstacles;
mod single_thread;
mod thread_stop;
mod userfaultfd;

pub(crate) use userfaultfd::{forget_in_child, keep};

use crate::address_space_sharers::SharingProcesses;
use crate::error::AdoptError;
use crate::movable_range::{kernel_may_store, thread_count};
use crate::stretch_move::StretchMove;
use move_necessity_and_obstacles::{DescriptorScanTime, KnownObstacle, MoveNecessity};
use omniverb_sys::extent::Kind;

/// A way to move pages without losing a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The calling thread is the only one in this memory, and io_uring does not receive in its
    /// name.
    SingleThread,
    /// A helper process stops the other threads, of all processes in this memory, with ptrace.
    Stop,
    /// Write-protection by userfaultfd: only threads that write to the pages wait. What others do
    /// to the mappings meanwhile can be lost, see `userfaultfd.rs`.
    Userfault,
}

impl Strategy {
    /// Those that hold up everything the program may do to the pages, stores and `mprotect` alike:
    /// for adoptions, which may be left undone.
    pub const EXACT: [Strategy; 2] = [Self::SingleThread, Self::Stop];
    /// All, in the order in which they are preferred: for releases, which must come to an end.
    pub const ALL: [Strategy; 3] = [Self::SingleThread, Self::Stop, Self::Userfault];
}

/// Reserves what the strategies need besides, before the first page moves. With
/// [`crate::move_lock::MOVES`] held.
pub(crate) fn prepare() -> Result<(), AdoptError> {
    thread_stop::prepare()
}

/// Whether what stands in the way of protection alone counts still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryState {
    /// It does: another attempt may find it gone.
    Left,
    /// It has been tried for long enough.
    Over,
}

/// Performs one adoption or release. With [`crate::move_lock::MOVES`] held.
pub(crate) struct PageMover<'a> {
    strategies: &'a [Strategy],
    need: MoveNecessity,
    patience: RetryState,
    sharers: Option<SharingProcesses>,
    /// Descriptors were looked at, and it did not take long.
    looked: bool,
    /// io_uring may store in the course of the calling thread's own system calls: it must not be
    /// the one that copies. Once it was looked at.
    has_rings: Option<bool>,
}

impl<'a> PageMover<'a> {
    /// For an adoption, which may be left undone.
    pub(crate) fn optional(strategies: &'a [Strategy]) -> PageMover<'a> {
        PageMover {
            strategies,
            need: MoveNecessity::Optional,
            patience: RetryState::Left,
            sharers: None,
            looked: false,
            has_rings: None,
        }
    }

    /// For a release: what was granted must be taken back.
    pub(crate) fn mandatory(strategies: &'a [Strategy], patience: RetryState) -> PageMover<'a> {
        let need = MoveNecessity::Mandatory;
        PageMover { strategies, need, patience, sharers: None, looked: false, has_rings: None }
    }

    /// Does the work by the first strategy that can.
    pub(crate) fn perform(&mut self, work: &StretchMove<'_>) -> Result<(), AdoptError> {
        let (mut outcome, mut descriptors_only) = (Err(AdoptError::NotPermitted), false);
        let mut is_busy = false;
        for strategy in self.strategies {
            // Others may be stopped, only not at this moment: another attempt is better.
            if *strategy == Strategy::Userfault && is_busy && self.patience == RetryState::Left {
                continue;
            }
            outcome = match strategy {
                Strategy::SingleThread => self.alone(work),
                Strategy::Userfault => self.protected(work, KnownObstacle::Nothing),
                Strategy::Stop => {
                    self.sharers().and_then(|sharers| thread_stop::perform(work, sharers))
                }
            };
            if !matches!(outcome, Err(AdoptError::NotPermitted | AdoptError::Busy)) {
                return outcome;
            }
            is_busy |= outcome == Err(AdoptError::Busy);
            descriptors_only |=
                *strategy == Strategy::Userfault && outcome == Err(AdoptError::NotPermitted);
        }
        if is_busy {
            // One that could not this time may the next, whatever is not permitted at all.
            outcome = Err(AdoptError::Busy);
        }
        // Where no thread may be stopped a descriptor for direct I/O alone must not leave the
        // memory in a peer's hands. A request that is under way does, until it is done. Nor must it
        // where stopping is permitted, but does not come to an end.
        let hopeless =
            self.patience == RetryState::Over || outcome == Err(AdoptError::NotPermitted);
        if self.need == MoveNecessity::Mandatory && descriptors_only && hopeless {
            return self.protected(work, KnownObstacle::Descriptors);
        }
        outcome
    }

    /// Adoptions look for rings anyway.
    fn alone(&mut self, work: &StretchMove<'_>) -> Result<(), AdoptError> {
        if self.need == MoveNecessity::Mandatory
            && thread_count() == 1
            && *self.has_rings.get_or_insert_with(kernel_may_store)
        {
            return Err(AdoptError::NotPermitted);
        }
        single_thread::perform(work)
    }

    fn protected(
        &mut self,
        work: &StretchMove<'_>,
        despite: KnownObstacle,
    ) -> Result<(), AdoptError> {
        // On a device no page can be protected, so none that went there this way would come back.
        if work.stretch.region.kind == Kind::Device {
            return Err(AdoptError::NotPermitted);
        }
        let (need, looked) = (self.need, self.looked);
        let sharers = match self.sharers() {
            Ok(sharers) => Some(sharers),
            // Protection holds for them all the same.
            Err(AdoptError::NotPermitted) => None,
            Err(error) => return Err(error),
        };
        let look = if looked { DescriptorScanTime::Protected } else { DescriptorScanTime::First };
        let outcome = userfaultfd::perform(
            work,
            userfaultfd::DirectIoContext { sharers, need, despite, look },
        );
        self.looked |= despite == KnownObstacle::Nothing;
        outcome
    }

    /// Looked for once: a process that is made later is looked for when all threads stand still.
    fn sharers(&mut self) -> Result<&SharingProcesses, AdoptError> {
        if self.sharers.is_none() {
            self.sharers = Some(match SharingProcesses::find() {
                // No address space to find them by. If there is one it is seen when all threads
                // stand still.
                Err(AdoptError::NotPermitted) if self.need == MoveNecessity::Mandatory => {
                    SharingProcesses::not_looked_for()
                }
                found => found?,
            });
        }
        self.sharers.as_ref().ok_or(AdoptError::NotPermitted)
    }
}
