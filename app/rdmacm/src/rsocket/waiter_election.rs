//! Decides which of the threads that sleep for a socket takes notice for all of them.
//!
//! Descriptors stay readable until what they tell is taken. So it is taken only when no thread
//! sleeps on them: each sleeper wakes, and the last one takes it. In between no thread goes to
//! sleep.

/// Of one socket; changed with the socket locked.
#[derive(Debug, Default)]
pub(crate) struct WaiterElection {
    sleepers: usize,
    /// The completion queue tells of its next completion, or has told.
    armed: bool,
    /// A thread has seen that something is told.
    fired: bool,
}

/// What a thread that wants to sleep is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SleepStep {
    /// Come again: the others are waking up.
    Again,
    /// Arm the completion queue, look once more, and come again.
    Arm,
    /// Sleep, and [leave](Gate::leave) then.
    Sleep,
}

/// What a thread wants to sleep on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepOn {
    /// A completion queue, among others.
    Queue,
    /// Other descriptors: there is no queue yet.
    Others,
}

/// What a sleeper was woken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// Something is told that the last thread to wake takes.
    News,
    /// Nothing that is for all, or its time was over.
    Nothing,
}

impl WaiterElection {
    /// A thread wants to sleep.
    pub(crate) fn enter(&mut self, on: SleepOn) -> SleepStep {
        if self.fired {
            return SleepStep::Again;
        }
        if on == SleepOn::Queue && !self.armed {
            self.armed = true;
            return SleepStep::Arm;
        }
        self.sleepers += 1;
        SleepStep::Sleep
    }

    /// A thread does not sleep any more. Whether what the completion queue told is to be taken now.
    pub(crate) fn leave(&mut self, saw: WakeReason) -> bool {
        self.sleepers -= 1;
        self.fired |= saw == WakeReason::News;
        if self.sleepers > 0 || !self.fired {
            return false;
        }
        self.fired = false;
        true
    }

    /// It was taken.
    pub(crate) fn taken(&mut self) {
        self.armed = false;
    }

    /// No thread sleeps on the descriptors, so what they tell may be taken.
    pub(crate) fn is_open(&self) -> bool {
        self.sleepers == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_waking_thread_takes_the_completion_event() {
        let mut gate = WaiterElection::default();
        assert_eq!(gate.enter(SleepOn::Queue), SleepStep::Arm);
        assert_eq!(
            [gate.enter(SleepOn::Queue), gate.enter(SleepOn::Queue)],
            [SleepStep::Sleep, SleepStep::Sleep]
        );
        assert!(!gate.leave(WakeReason::News) && !gate.is_open());
        assert_eq!(gate.enter(SleepOn::Queue), SleepStep::Again);
        assert!(gate.leave(WakeReason::Nothing) && gate.is_open());
        gate.taken();
        assert_eq!(gate.enter(SleepOn::Queue), SleepStep::Arm);
    }

    #[test]
    fn a_waiter_that_gives_up_takes_nothing() {
        let mut gate = WaiterElection::default();
        assert_eq!(gate.enter(SleepOn::Others), SleepStep::Sleep);
        assert!(!gate.leave(WakeReason::Nothing));
        assert_eq!(gate.enter(SleepOn::Others), SleepStep::Sleep);
    }
}
