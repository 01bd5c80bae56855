//! Translates `select` and `pselect` to `poll` where some descriptors are carried or light.

use core::cell::Cell;
use core::ffi::c_int;

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use omniverb_connection::readiness::select_sets::{BadDescriptor, FDS};
use omniverb_connection::readiness::{Deadline, FdSets, Timeout};

use super::poll::{is_on, poll_list, unknown};
use crate::carry;
use crate::errno::{errno, fails};
use crate::light::{self, PolledConnections};
use crate::native;
use crate::user_memory::{UserFdSets, UserPtr, UserPtrMut, UserSliceMut};

const _: () = assert!(FDS == libc::FD_SETSIZE && size_of::<fd_set>() == FDS / 8);

/// So many descriptors are listed without more room on the stack.
const FEW: usize = 64;
/// After this long a call looks again that was told of what it had not asked for.
static PAUSE: timespec = timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// What the program asks. It may have made a set of so many words only as the call needs.
fn read(sets: UserFdSets<'_>) -> FdSets {
    let mut asked = FdSets::default();
    for (to, from) in asked.words.iter_mut().zip(sets.words()) {
        let words = (0..FdSets::words_below(end(sets))).map_while(|index| from.get(index));
        to.iter_mut().zip(words).for_each(|(to, word)| *to = word);
    }
    asked
}

/// Writes the answer.
fn write(sets: UserFdSets<'_>, answer: &FdSets) {
    for (from, to) in answer.words.iter().zip(sets.words()) {
        let words = from.iter().take(FdSets::words_below(end(sets)));
        words.enumerate().for_each(|(index, word)| to.set(index, *word));
    }
}

fn end(sets: UserFdSets<'_>) -> usize {
    usize::try_from(sets.end()).unwrap_or(0).min(FDS)
}

/// `select` and `pselect`. `left`: where the time that is left is to be said. `native` makes the
/// program's call.
#[inline(always)]
pub(crate) fn select(
    sets: UserFdSets<'_>,
    timeout: impl FnOnce() -> Option<Timeout>,
    left: Option<UserPtrMut<'_, timeval>>,
    mask: UserPtr<'_, sigset_t>,
    native: impl Fn() -> c_int,
) -> c_int {
    if !is_on() {
        return native();
    }
    let Some(timeout) = timeout() else { return native() };
    select_sets(sets, timeout, left, mask, native)
}

fn select_sets(
    sets: UserFdSets<'_>,
    timeout: Timeout,
    left: Option<UserPtrMut<'_, timeval>>,
    mask: UserPtr<'_, sigset_t>,
    native: impl Fn() -> c_int,
) -> c_int {
    if carry::is_on() {
        carry::prepare_poll();
    }
    let asked = read(sets);
    let count = asked.requests(end(sets)).count();
    let began = if matches!(timeout, Timeout::Within(_)) { light::now() } else { 0 };
    let act = |list: &mut [pollfd]| {
        fill(list, &asked, end(sets));
        // A set of another size. Of one in which some are light these are all that are seen.
        if usize::try_from(sets.end()).is_ok_and(|end| end > FDS)
            && PolledConnections::of(list).is_none()
        {
            return Outcome::Native(unknown(&native));
        }
        select_list(&asked, list, (timeout, timeout.deadline(began)), mask, &native)
    };
    let outcome = if count <= FEW {
        act(&mut [EMPTY; FEW][..count])
    } else {
        with_many(|list| act(&mut list[..count]))
    };
    let (result, answer) = match outcome {
        Outcome::Native(result) => return result,
        Outcome::Failed(error) => (fails(error), None),
        Outcome::Told(count, answer) => (count, Some(answer)),
    };
    if let (Some(left), Timeout::Within(_)) = (left, timeout) {
        let gone = light::now().saturating_sub(began);
        let (tv_sec, tv_nsec) = timeout.after(gone).time().unwrap_or((0, 0));
        left.write(timeval { tv_sec, tv_usec: tv_nsec / 1000 });
    }
    if let Some(answer) = answer {
        write(sets, &answer);
    }
    result
}

const EMPTY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

#[inline(never)]
fn with_many<R>(act: impl FnOnce(&mut [pollfd]) -> R) -> R {
    act(&mut [EMPTY; FDS])
}

/// What came of it.
enum Outcome {
    /// The program's call was made.
    Native(c_int),
    /// With this errno.
    Failed(c_int),
    /// So many are told of.
    Told(c_int, FdSets),
}

fn fill(list: &mut [pollfd], asked: &FdSets, end: usize) {
    for (to, (fd, events)) in list.iter_mut().zip(asked.requests(end)) {
        *to = pollfd { fd: fd as c_int, events, revents: 0 };
    }
}

fn select_list(
    asked: &FdSets,
    all: &mut [pollfd],
    (timeout, deadline): (Timeout, Deadline),
    mask: UserPtr<'_, sigset_t>,
    native: impl Fn() -> c_int,
) -> Outcome {
    let is_native = Cell::new(false);
    let native = || {
        is_native.set(true);
        native()
    };
    let mut rest = timeout;
    loop {
        let found = poll_list(all, rest, mask, &native);
        if is_native.get() {
            return Outcome::Native(found);
        }
        if found < 0 {
            return Outcome::Failed(errno());
        }
        let is_told = all.iter().any(|one| FdSets::is_told(one.events, one.revents));
        let now = if found == 0 || is_told { 0 } else { light::now() };
        if found == 0 || is_told || deadline.is_over(now) {
            break;
        }
        if native::ppoll(UserSliceMut::of(&mut []), UserPtr::of(&PAUSE), mask) < 0 {
            return Outcome::Failed(errno());
        }
        rest = deadline.left(now);
    }
    match asked.answer(all.iter().map(|one| (one.fd as usize, one.revents))) {
        Ok((answer, count)) => Outcome::Told(count as c_int, answer),
        Err(BadDescriptor) => Outcome::Failed(libc::EBADF),
    }
}
