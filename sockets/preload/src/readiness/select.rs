//! Translates `select` and `pselect` to `poll` where some descriptors are carried or light.

use core::cell::Cell;
use core::ffi::c_int;
use core::ptr;

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use omniverb_connection::readiness::select_sets::{BadDescriptor, FDS};
use omniverb_connection::readiness::{Deadline, FdSets, Timeout};

use super::poll::{is_on, poll_list, unknown};
use crate::carry;
use crate::errno::{errno, fails};
use crate::light::{self, PolledConnections};
use crate::next_functions::next_ppoll;

const _: () = assert!(FDS == libc::FD_SETSIZE && size_of::<fd_set>() == FDS / 8);

/// So many descriptors are listed without more room on the stack.
const FEW: usize = 64;
/// After this long a call looks again that was told of what it had not asked for.
static PAUSE: timespec = timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The arguments of a call that are its sets.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) end: c_int,
    /// For reading, writing, urgent data; each may be null.
    pub(crate) sets: [*mut fd_set; 3],
}

impl Sets {
    fn end(&self) -> usize {
        usize::try_from(self.end).unwrap_or(0).min(FDS)
    }

    /// What the program asks. It may have made a set of so many words only as the call needs.
    ///
    /// # Safety
    /// The sets are there, as the kernel would read them.
    unsafe fn read(&self) -> FdSets {
        let mut asked = FdSets::default();
        for (to, from) in asked.words.iter_mut().zip(self.sets) {
            if !from.is_null() {
                let words = FdSets::words_below(self.end());
                // SAFETY: as the caller says; a set is words, and there is room for all.
                unsafe { ptr::copy_nonoverlapping(from.cast(), to.as_mut_ptr(), words) };
            }
        }
        asked
    }

    /// Writes the answer.
    ///
    /// # Safety
    /// The sets are there, as the kernel would write them.
    unsafe fn write(&self, answer: &FdSets) {
        for (from, to) in answer.words.iter().zip(self.sets) {
            if !to.is_null() {
                let words = FdSets::words_below(self.end());
                // SAFETY: as the caller says.
                unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), words) };
            }
        }
    }
}

/// `select` and `pselect`. `left`: where the time that is left is to be said. `native` makes the
/// program's call.
///
/// # Safety
/// As of the functions.
#[inline(always)]
pub(crate) unsafe fn select(
    sets: Sets,
    timeout: impl FnOnce() -> Option<Timeout>,
    left: Option<*mut timeval>,
    mask: *const sigset_t,
    native: impl Fn() -> c_int,
) -> c_int {
    if !is_on() {
        return native();
    }
    let Some(timeout) = timeout() else { return native() };
    // SAFETY: as the caller says.
    unsafe { select_sets(sets, timeout, left, mask, native) }
}

/// # Safety
/// As of [`select`].
unsafe fn select_sets(
    sets: Sets,
    timeout: Timeout,
    left: Option<*mut timeval>,
    mask: *const sigset_t,
    native: impl Fn() -> c_int,
) -> c_int {
    if carry::is_on() {
        carry::prepare_poll();
    }
    // SAFETY: as the caller says.
    let asked = unsafe { sets.read() };
    let count = asked.requests(sets.end()).count();
    let began = if matches!(timeout, Timeout::Within(_)) { light::now() } else { 0 };
    let act = |list: &mut [pollfd]| {
        fill(list, &asked, sets.end());
        // A set of another size. Of one in which some are light these are all that are seen.
        if usize::try_from(sets.end).is_ok_and(|end| end > FDS)
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
        // SAFETY: the program's time, where the kernel would write it as well.
        unsafe { left.write(timeval { tv_sec, tv_usec: tv_nsec / 1000 }) };
    }
    if let Some(answer) = answer {
        // SAFETY: as the caller says.
        unsafe { sets.write(&answer) };
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
    mask: *const sigset_t,
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
        // SAFETY: no list; the mask is the program's.
        if unsafe { next_ppoll(ptr::null_mut(), 0, &raw const PAUSE, mask) } < 0 {
            return Outcome::Failed(errno());
        }
        rest = deadline.left(now);
    }
    match asked.answer(all.iter().map(|one| (one.fd as usize, one.revents))) {
        Ok((answer, count)) => Outcome::Told(count as c_int, answer),
        Err(BadDescriptor) => Outcome::Failed(libc::EBADF),
    }
}
