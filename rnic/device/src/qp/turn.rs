//! What the progress thread does for one queue pair in a turn.

use super::Qp;

/// What came of looking after a QP with unfinished requests.
pub(crate) enum Served {
    /// Nothing is unfinished any more.
    Over,
    /// Something is. `moved`: not all of what was before. `deadline`: when to look again at the
    /// latest, in nanoseconds of the host's clock; `None`: news will come by itself.
    On { moved: bool, deadline: Option<u64> },
}

impl Qp {
    /// Does what can be done now, or has the next turn do it if another thread serves it.
    pub(crate) fn try_pump(&self) {
        match self.try_inner() {
            Some(mut inner) => inner.pump_all(self),
            None => self.shared.look_again(&self.me),
        }
    }

    /// Drives the timers of what waits.
    pub(crate) fn serve_wait(&self) -> Served {
        let Some(mut inner) = self.try_inner() else {
            return Served::On { moved: true, deadline: None };
        };
        let before = inner.sends.mark();
        inner.pump_all(self);
        if inner.sends.is_empty() && !inner.is_starved(self) {
            inner.waiting.unlist();
            return Served::Over;
        }
        let deadline = inner.next_deadline(self);
        Served::On { moved: inner.sends.mark() != before, deadline }
    }
}
