//! Waits for something of light connections: polls for a moment, then sleeps.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::readiness::Deadline;

use super::lane_assignment::WaitTarget;
use super::sleepers::{self, Sleeper, now};
use super::state::{State, with};
use crate::carry::spin_budget::SpinBudget;
use crate::clock;
use crate::errno::errno;
use crate::user_memory::UserPtr;

/// How long a look lasts: some 60 us.
const LOOK: u64 = 3 * clock::MOMENT;
/// Looks until the processor is given away.
const SPINS: u32 = 16;
/// So many waits are left out at most behind one that was in vain.
const SKIP_MAX: u64 = 127;
const MILLISECOND: u64 = 1_000_000;

/// Looks in a row that were in vain, and waits that do not look for that.
static VAIN: AtomicU64 = AtomicU64::new(0);
static SKIP: AtomicU64 = AtomicU64::new(0);

/// Until when a call waits that is told of in milliseconds; 0: for as long as it takes.
pub(crate) fn deadline_after(milliseconds: u32) -> Deadline {
    let limit = (milliseconds != 0).then(|| now() + u64::from(milliseconds) * MILLISECOND);
    Deadline::Until(limit)
}

/// The call waits no more.
pub(super) fn is_over(deadline: Deadline) -> bool {
    match deadline {
        Deadline::Never => true,
        Deadline::Until(None) => false,
        Deadline::Until(Some(_)) => deadline.is_over(now()),
    }
}

/// Looks for a while, if that is worth while.
pub(super) fn look<R>(mut attempt: impl FnMut(&mut State) -> Option<R>) -> Option<R> {
    let skip = SKIP.load(Ordering::Relaxed);
    if skip > 0 {
        SKIP.store(skip - 1, Ordering::Relaxed);
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
        VAIN.store(0, Ordering::Relaxed);
    } else {
        let vain = VAIN.fetch_add(1, Ordering::Relaxed) + 1;
        SKIP.store((1 << vain.min(7)).min(SKIP_MAX), Ordering::Relaxed);
    }
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
    mut attempt: impl FnMut(&mut State) -> Option<R>,
) -> Result<R, c_int> {
    let mut both = |state: &mut State| {
        attempt(state).or_else(|| {
            state.progress();
            attempt(state)
        })
    };
    if let Some(outcome) = with(&mut both).ok_or(libc::EAGAIN)? {
        return Ok(outcome);
    }
    if deadline == Deadline::Never {
        return Err(libc::EAGAIN);
    }
    loop {
        if let Some(outcome) = look(&mut both) {
            return Ok(outcome);
        }
        let sleeper = sleepers::enter(awaits);
        if let Some(outcome) = with(&mut both).flatten() {
            sleeper.leave();
            return Ok(outcome);
        }
        let fd = fd.unwrap_or(-1);
        let mut all = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }; 3];
        let slept = sleep(sleeper, &mut all, deadline, UserPtr::NULL);
        if let Some(outcome) = with(&mut both).flatten() {
            return Ok(outcome);
        }
        slept?;
        if all[0].revents != 0 || is_over(deadline) {
            return Err(libc::EAGAIN);
        }
    }
}
