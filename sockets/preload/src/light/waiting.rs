//! Waits for something of light connections: polls for a moment, then sleeps.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;

use omniverb_connection::backoff::LookOutcome;
use omniverb_connection::readiness::{Deadline, Slept, WaitSources, wait_loop};

use super::lane_assignment::WaitTarget;
use super::sleepers::{self, Sleeper};
use super::state::{State, with};
use crate::carry::spin_budget::SpinBudget;
use crate::errno::errno;
use crate::spin_history::LookHistory;
use crate::tsc_clock;
use crate::user_memory::UserPtr;

/// How long a look lasts: some 60 us.
const LOOK: u64 = 3 * tsc_clock::MOMENT;
/// Looks until the processor is given away.
const SPINS: u32 = 16;
const MILLISECOND: u64 = 1_000_000;

/// How looks went, of all threads.
static LOOKS: LookHistory<'static> = {
    static WORDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    LookHistory { vain: &WORDS[0], skip: &WORDS[1] }
};

/// Until when a call waits that is told of in milliseconds; 0: for as long as it takes.
pub(crate) fn deadline_after(milliseconds: u32) -> Deadline {
    let limit = (milliseconds != 0)
        .then(|| tsc_clock::nanoseconds() + u64::from(milliseconds) * MILLISECOND);
    Deadline::Until(limit)
}

/// The call waits no more.
pub(crate) fn is_over(deadline: Deadline) -> bool {
    match deadline {
        Deadline::Never => true,
        Deadline::Until(None) => false,
        Deadline::Until(Some(_)) => deadline.is_over(tsc_clock::nanoseconds()),
    }
}

/// Looks for a while, if that is worth while.
pub(super) fn look<R>(mut attempt: impl FnMut(&mut State) -> Option<R>) -> Option<R> {
    if !LOOKS.is_due() {
        return None;
    }
    // The kernel is not asked meanwhile, so others' turns count.
    let mut budget = SpinBudget::of(LOOK, LOOK);
    let mut looks = 0_u32;
    let found = loop {
        let found = with(|state| {
            state.progress();
            attempt(state)
        })?;
        if found.is_some() || budget.is_over() {
            break found;
        }
        looks += 1;
        if looks.is_multiple_of(SPINS) {
            budget.yield_now();
        } else {
            core::hint::spin_loop();
        }
    };
    if found.is_some() {
        budget.was_in_time();
    }
    LOOKS.record(if found.is_some() { LookOutcome::Well } else { LookOutcome::InVain });
    found
}

/// Sleeps until one of these is ready, something has come, or the time is over; not at all if there
/// is more in a channel than was taken out in a row. The last two of the list are the sleeper's.
///
/// # Errors
/// errno: as of `poll`.
pub(super) fn sleep(
    sleeper: Sleeper,
    all: &mut [libc::pollfd],
    deadline: Deadline,
    mask: UserPtr<'_, libc::sigset_t>,
) -> Result<(), c_int> {
    let (has_more, wakes_at) =
        with(|state| (state.has_frames(), state.wakes_at())).unwrap_or_default();
    let limit = if has_more { Some(0) } else { deadline.or_earlier(wakes_at) };
    let woken = sleeper.sleep(all, limit, mask);
    let error = errno();
    sleeper.leave();
    if woken < 0 { Err(error) } else { Ok(()) }
}

/// Attempts something until it has an outcome. `fd`: something of the kernel's that is waited
/// for, too: then `EAGAIN` says that it is ready. `awaits`: what comes by lanes for it.
///
/// # Errors
/// errno: `EAGAIN` if there is no time; `EINTR`; as of `poll`.
pub(super) fn until<R>(
    deadline: Deadline,
    fd: Option<c_int>,
    awaits: WaitTarget<'_>,
    attempt: impl FnMut(&mut State) -> Option<R>,
) -> Result<R, c_int> {
    let mut call = Attempts { attempt, outcome: None, deadline, fd, awaits, sleeper: None };
    let found = match deadline {
        Deadline::Never => wait_loop::ask_once(&mut call),
        Deadline::Until(_) => wait_loop::wait(&mut call),
    };
    found?.ok_or(libc::EAGAIN)
}

/// A call that attempts something until it has an outcome.
struct Attempts<'a, A, R> {
    attempt: A,
    /// Of the last attempt.
    outcome: Option<R>,
    deadline: Deadline,
    fd: Option<c_int>,
    awaits: WaitTarget<'a>,
    sleeper: Option<Sleeper>,
}

impl<R, A: FnMut(&mut State) -> Option<R>> Attempts<'_, A, R> {
    fn attempt(&mut self, state: &mut State) -> Option<R> {
        (self.attempt)(state).or_else(|| {
            state.progress();
            (self.attempt)(state)
        })
    }
}

impl<R, A: FnMut(&mut State) -> Option<R>> WaitSources for Attempts<'_, A, R> {
    type Found = R;
    type Error = c_int;

    fn is_ready(&mut self) -> bool {
        let outcome = with(|state| self.attempt(state));
        let is_interrupted = outcome.is_none();
        self.outcome = outcome.flatten();
        is_interrupted || self.outcome.is_some()
    }

    /// `EAGAIN`: there is no outcome, or this very thread was interrupted while it had the state.
    fn ask(&mut self) -> Result<Option<R>, c_int> {
        self.outcome.take().map(Some).ok_or(libc::EAGAIN)
    }

    fn look(&mut self) -> Result<Option<R>, c_int> {
        Ok(look(|state| self.attempt(state)))
    }

    fn arm(&mut self) {
        self.sleeper = Some(sleepers::enter(self.awaits));
    }

    fn sleep(&mut self) -> Result<Slept<R>, c_int> {
        let fd = self.fd.unwrap_or(-1);
        let mut all = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }; 3];
        let slept = match self.sleeper.take() {
            Some(sleeper) => sleep(sleeper, &mut all, self.deadline, UserPtr::NULL),
            None => Ok(()),
        };
        // What has come is told, whatever ends the sleep.
        if let Some(outcome) = with(|state| self.attempt(state)).flatten() {
            return Ok(Slept::Found(outcome));
        }
        slept?;
        let is_late = all[0].revents != 0 || is_over(self.deadline);
        Ok(if is_late { Slept::TimeIsOver } else { Slept::Woken })
    }

    fn disarm(&mut self) {
        self.sleeper.take().into_iter().for_each(Sleeper::leave);
    }
}
