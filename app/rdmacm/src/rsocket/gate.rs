//! Who sleeps until something happens to a socket, and who takes notice for all of them.
//!
//! Descriptors stay readable until what they tell is taken. So it is taken only when nobody sleeps
//! on them: each sleeper wakes, and the last one takes it. In between nobody goes to sleep.

/// Of one socket; changed with the socket locked.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    sleepers: usize,
    /// The completion queue tells of its next completion, or has told.
    armed: bool,
    /// Somebody has seen that something is told.
    fired: bool,
}

/// What whoever wants to sleep is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Enter {
    /// Come again: the others are waking up.
    Again,
    /// Arm the completion queue, look once more, and come again.
    Arm,
    /// Sleep, and [leave](Gate::leave) then.
    Sleep,
}

impl Gate {
    /// Somebody wants to sleep; on a completion queue, too, if there is one.
    pub(crate) fn enter(&mut self, has_queue: bool) -> Enter {
        if self.fired {
            return Enter::Again;
        }
        if has_queue && !self.armed {
            self.armed = true;
            return Enter::Arm;
        }
        self.sleepers += 1;
        Enter::Sleep
    }

    /// Somebody does not sleep any more, and saw whether something was told. Whether what the
    /// completion queue told is to be taken now.
    pub(crate) fn leave(&mut self, saw: bool) -> bool {
        self.sleepers -= 1;
        self.fired |= saw;
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

    /// Nobody sleeps on the descriptors, so what they tell may be taken.
    pub(crate) fn is_open(&self) -> bool {
        self.sleepers == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_wake_takes_what_is_told() {
        let mut gate = Gate::default();
        assert_eq!(gate.enter(true), Enter::Arm);
        assert_eq!([gate.enter(true), gate.enter(true)], [Enter::Sleep, Enter::Sleep]);
        assert!(!gate.leave(true) && !gate.is_open());
        assert_eq!(gate.enter(true), Enter::Again);
        assert!(gate.leave(false) && gate.is_open());
        gate.taken();
        assert_eq!(gate.enter(true), Enter::Arm);
    }

    #[test]
    fn who_gives_up_takes_nothing() {
        let mut gate = Gate::default();
        assert_eq!(gate.enter(false), Enter::Sleep);
        assert!(!gate.leave(false));
        assert_eq!(gate.enter(false), Enter::Sleep);
    }
}
