//! Keeps connections that are in no channel, and decides when they are tried again
//! ([`super::reopen_unaccepted`]).

use omniverb_connection::light::List;

/// How long until the broker is asked again, at first and at last, in nanoseconds.
const PAUSES: (u64, u64) = (2_000_000, 1_000_000_000);

/// Those that go by no channel.
pub(super) struct Unaccepted {
    pub list: List,
    /// When the broker may be asked once more, and how long it is not asked then.
    pub again: u64,
    pause: u64,
    /// Something has come that may be for them.
    is_due: bool,
    /// There are new ones, for which the broker may be asked at once.
    are_new: bool,
}

/// Which of them may be asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// It is time for all.
    All,
    /// Those that were refused for the first time.
    New,
    /// It is looked what has come.
    None,
}

impl Unaccepted {
    pub(super) const fn new() -> Self {
        Self { list: List::new(), again: 0, pause: PAUSES.0, is_due: false, are_new: false }
    }

    /// There are some.
    #[inline(always)]
    pub(super) fn are_any(&self) -> bool {
        self.list.count() > 0
    }

    /// They are looked after at the end of what is done now.
    pub(super) fn set_due(&mut self) {
        self.is_due = true;
    }

    /// Those that wait for room may soon find some.
    pub(super) fn hurry(&mut self, now: u64) {
        self.again = self.again.min(now + PAUSES.0);
    }

    /// There is one more.
    pub(super) fn add_one(&mut self) {
        (self.is_due, self.are_new) = (true, true);
    }

    /// What is to be done now; `None`: nothing.
    pub(super) fn due(&mut self, now: u64) -> Option<Due> {
        let is_time = now >= self.again;
        let is_due = core::mem::take(&mut self.is_due) || is_time;
        let are_new = core::mem::take(&mut self.are_new);
        let turn = match (is_time, are_new) {
            (true, _) => Due::All,
            (false, true) => Due::New,
            _ => Due::None,
        };
        is_due.then_some(turn)
    }

    /// They have been asked for now, if it was time.
    pub(super) fn were_looked_after(&mut self, now: u64) {
        if self.list.count() == 0 {
            self.pause = PAUSES.0;
        } else if now >= self.again {
            self.again = now + self.pause;
            self.pause = (2 * self.pause).min(PAUSES.1);
        }
    }

    /// When a thread is to look after them though nothing has come.
    pub(super) fn wake(&self) -> Option<u64> {
        self.are_any().then_some(self.again)
    }
}
