//! Translates `select` and `pselect` to `poll` where some descriptors are carried or light.
//!
//! The sets are read and written word by word where the program has them. `select` is no `poll` in
//! three ways, which hold here, too:
//!
//! * Bits of descriptors for which the kernel's table has no place are ignored, and stay as they
//!   are. One below that which is not open fails the call.
//! * The end of a connection is told to what reads only. A call that asks for nothing else of a
//!   descriptor sleeps on.
//! * The limit of descriptors (`RLIMIT_NOFILE`) is none of how many a call is about.

use core::cell::Cell;
use core::ffi::c_int;

use libc::{fd_set, pollfd, sigset_t, timeval};
use omniverb_connection::readiness::select_sets::{self, BITS, FDS, Words};
use omniverb_connection::readiness::{Deadline, Timeout};

use super::fd_table_size;
use super::poll::{concerns, is_on, kernel, poll_list, unconcerned, unknown};
use crate::carry;
use crate::errno::{errno, fails};
use crate::light;
use crate::tsc_clock;
use crate::user_memory::{UserFdSets, UserPtr, UserPtrMut};

const _: () = assert!(FDS == libc::FD_SETSIZE && size_of::<fd_set>() == FDS / 8);

/// The sets of a call, as far as the kernel looks at them.
#[derive(Clone, Copy)]
struct KernelSets<'a> {
    sets: UserFdSets<'a>,
    end: usize,
}

impl<'a> KernelSets<'a> {
    /// `None`: it is not known how far the table goes.
    fn of(sets: UserFdSets<'a>) -> Option<Self> {
        let end = usize::try_from(sets.end()).unwrap_or(0);
        if end <= FDS {
            return Some(Self { sets, end });
        }
        // Where the size is unknown the kernel knows of no light one.
        let size = fd_table_size::size().or_else(|| light::is_here().then_some(FDS))?;
        let end = end.min(size);
        Some(Self { sets, end })
    }

    /// All words that are looked at can be read.
    fn is_readable(self) -> bool {
        let count = self.places().len();
        self.sets.words().iter().all(|set| set.as_const().is_readable(count))
    }

    fn places(self) -> core::ops::Range<usize> {
        0..self.end.div_ceil(BITS)
    }

    fn words(self, place: usize) -> Words {
        let mask = select_sets::mask_below(self.end, place);
        self.sets.words().map(|set| set.get(place).unwrap_or(0) & mask)
    }

    /// Descriptors that are asked about, in order, and what `poll` is to look for.
    fn requests(self) -> impl Iterator<Item = (usize, i16)> {
        self.places().flat_map(move |place| select_sets::requests(place, self.words(place)))
    }

    /// Writes what is told of a list. How many bits that are.
    fn answer(self, list: &[pollfd]) -> usize {
        let mut count = 0;
        let mut rest = list.iter().peekable();
        for place in self.places() {
            let mut words = [0; 3];
            let is_here = |one: &&pollfd| descriptor(one) / BITS == place;
            while let Some(one) = rest.next_if(is_here) {
                if one.fd < 0 {
                    // There is no place for it: its bits stay.
                    select_sets::put(&mut words, descriptor(one), one.events);
                } else {
                    let told = select_sets::told(one.events, one.revents);
                    count += select_sets::put(&mut words, descriptor(one), told);
                }
            }
            for (set, word) in self.sets.words().into_iter().zip(words) {
                set.set(place, word);
            }
        }
        count
    }
}

/// The descriptor of an entry, which may have been left out.
fn descriptor(one: &pollfd) -> usize {
    let fd = if one.fd < 0 { !one.fd } else { one.fd };
    fd.unsigned_abs() as usize
}

/// The rest of the call does not look at it.
fn leave_out(one: &mut pollfd) {
    *one = pollfd { fd: !one.fd, revents: 0, ..*one };
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
    if carry::is_on() {
        carry::prepare_poll();
    }
    let Some(asked) = KernelSets::of(sets) else { return unknown(native) };
    if !asked.is_readable() {
        return native();
    }
    let (mut count, mut is_concerned) = (0, false);
    for (fd, _) in asked.requests() {
        count += 1;
        is_concerned = is_concerned || concerns(fd as c_int, timeout);
    }
    if !is_concerned {
        return unconcerned(timeout, native);
    }
    select_concerned(asked, count, timeout, left, mask, native)
}

#[inline(never)]
fn select_concerned(
    asked: KernelSets<'_>,
    count: usize,
    timeout: Timeout,
    left: Option<UserPtrMut<'_, timeval>>,
    mask: UserPtr<'_, sigset_t>,
    native: impl Fn() -> c_int,
) -> c_int {
    let began = if matches!(timeout, Timeout::Within(_)) { tsc_clock::nanoseconds() } else { 0 };
    let mut outcome = Outcome::Failed(libc::ENOMEM);
    light::with_list(count, |list| {
        // Another thread may change the sets meanwhile: a list of fewer.
        let mut count = 0;
        for (to, (fd, events)) in list.iter_mut().zip(asked.requests()) {
            *to = pollfd { fd: fd as c_int, events, revents: 0 };
            count += 1;
        }
        let list = &mut list[..count];
        outcome = select_list(list, (timeout, timeout.deadline(began)), mask, &native);
        if let Outcome::Told(count) = &mut outcome {
            *count = asked.answer(list) as c_int;
        }
    });
    let result = match outcome {
        Outcome::Native(result) => return result,
        Outcome::Failed(error) => fails(error),
        Outcome::Told(count) => count,
    };
    if let (Some(left), Timeout::Within(_)) = (left, timeout) {
        let gone = tsc_clock::nanoseconds().saturating_sub(began);
        let (tv_sec, tv_nsec) = timeout.after(gone).time().unwrap_or((0, 0));
        let error = errno();
        left.write(timeval { tv_sec, tv_usec: tv_nsec / 1000 });
        if result < 0 {
            fails(error);
        }
    }
    result
}

/// What came of it.
enum Outcome {
    /// The program's call was made.
    Native(c_int),
    /// With this errno.
    Failed(c_int),
    /// The list says what is told.
    Told(c_int),
}

fn select_list(
    all: &mut [pollfd],
    (timeout, deadline): (Timeout, Deadline),
    mask: UserPtr<'_, sigset_t>,
    native: impl Fn() -> c_int,
) -> Outcome {
    let is_native = Cell::new(false);
    let mut found = poll_list(all, timeout, mask, |_| {
        is_native.set(true);
        native()
    });
    loop {
        if is_native.get() {
            return Outcome::Native(found);
        }
        if found < 0 {
            let error = errno();
            let is_refused = error == libc::EINVAL && !all.iter().any(|one| is_light(one.fd));
            // More than `poll` may be asked about, and all of them are known to the kernel.
            return if is_refused {
                Outcome::Native(unknown(native))
            } else {
                Outcome::Failed(error)
            };
        }
        if let Some(first) = all.iter().find(|one| select_sets::is_bad(one.revents)) {
            if !fd_table_size::is_past_end(descriptor(first)) {
                return Outcome::Failed(libc::EBADF);
            }
            all.iter_mut().filter(|one| select_sets::is_bad(one.revents)).for_each(leave_out);
        }
        if found == 0 || all.iter().any(|one| select_sets::told(one.events, one.revents) != 0) {
            return Outcome::Told(0);
        }
        for one in all.iter_mut().filter(|one| one.revents != 0) {
            one.events = 0;
            leave_out(one);
        }
        let rest = if timeout == Timeout::Zero {
            timeout
        } else {
            deadline.left(tsc_clock::nanoseconds())
        };
        found = poll_list(all, rest, mask, |all| kernel(all, rest, mask).unwrap_or_else(fails));
    }
}

fn is_light(fd: c_int) -> bool {
    light::token_of(fd).is_some()
}
