//! Waits in an epoll set of which some members are carried or light.
//!
//! The kernel says what it knows, light members are told of before it, and carried ones on top of
//! both.

use core::cell::Cell;
use core::ffi::c_int;

use libc::{epoll_event, sigset_t};
use omniverb_connection::readiness::{Deadline, Slept, Timeout, WaitSources, wait_loop};

use super::poll::is_on;
use crate::carry::{self, CarriedSet};
use crate::errno::{errno, fails};
use crate::light::{self, LightSet, Sleeper};
use crate::tsc_clock;
use crate::user_memory::{UserPtr, UserSliceMut};

type Events<'a> = UserSliceMut<'a, epoll_event>;

/// `epoll_wait` and the like. `timeout`: `None` for what is no time. `native` makes the program's
/// call, for a part of its array perhaps, and for as long as that says.
#[inline(always)]
pub(crate) fn wait<'a>(
    set: c_int,
    events: Events<'a>,
    (timeout, mask): (Option<Timeout>, UserPtr<'a, sigset_t>),
    native: impl Fn(Events<'a>, Option<Timeout>) -> c_int,
) -> c_int {
    match timeout {
        Some(timeout) if is_on() => wait_in_set(set, events, (timeout, mask), native),
        _ => native(events, timeout),
    }
}

fn wait_in_set<'a>(
    set: c_int,
    events: Events<'a>,
    (timeout, mask): (Timeout, UserPtr<'a, sigset_t>),
    native: impl Fn(Events<'a>, Option<Timeout>) -> c_int,
) -> c_int {
    if events.is_null() || events.len() == 0 {
        return carry::wait_without_places(set, || native(events, Some(timeout)));
    }
    let light = if light::is_here() { LightSet::of(set, events, mask) } else { None };
    let deadline = match light {
        Some(_) => timeout.deadline(tsc_clock::nanoseconds()),
        None => Deadline::Never,
    };
    let carried = CarriedSet::of(set, events, timeout);
    let beneath = Beneath { set, light, native, is_nudged: Cell::new(false) };
    let (limit, sleeper, was_asked) = (timeout, None, false);
    let mut call = Call { events, limit, deadline, carried, beneath, sleeper, was_asked };
    let told = match timeout {
        Timeout::Zero => wait_loop::ask_once(&mut call),
        _ => wait_loop::wait(&mut call),
    };
    told.map_or_else(fails, |told| told.unwrap_or(0))
}

/// The sources besides carried members: the kernel, and light members.
struct Beneath<'a, N> {
    set: c_int,
    light: Option<LightSet<'a>>,
    native: N,
    /// A sleep ended only so that the thread looks at members anew.
    is_nudged: Cell<bool>,
}

impl<'a, N: Fn(Events<'a>, Option<Timeout>) -> c_int> Beneath<'a, N> {
    /// What there is now; less than 0: `errno`.
    fn ask(&self, events: Events<'a>) -> c_int {
        match self.light {
            Some(light) => self.without_waker(events, light.ask(events).unwrap_or_else(fails)),
            None => self.native(events, Timeout::Zero),
        }
    }

    /// The answer of the program's own call, which waits.
    fn native(&self, events: Events<'a>, limit: Timeout) -> c_int {
        self.without_waker(events, (self.native)(events, Some(limit)))
    }

    fn without_waker(&self, events: Events<'a>, told: c_int) -> c_int {
        let (told, was_there) = carry::without_waker(self.set, events, told);
        self.is_nudged.set(self.is_nudged.get() | was_there);
        told
    }
}

/// One call, until it has an answer.
struct Call<'a, N> {
    events: Events<'a>,
    /// The rest of the time, where no member is light.
    limit: Timeout,
    /// Where some may be: doorbells end a sleep before it.
    deadline: Deadline,
    carried: Option<CarriedSet<'a>>,
    beneath: Beneath<'a, N>,
    sleeper: Option<Sleeper>,
    /// A sleep has just ended, and nothing was told of light members then.
    was_asked: bool,
}

/// What the kernel's call said; less than 0: `errno`.
fn answer(told: c_int) -> Result<Option<c_int>, c_int> {
    if told < 0 { Err(errno()) } else { Ok((told != 0).then_some(told)) }
}

impl<'a, N: Fn(Events<'a>, Option<Timeout>) -> c_int> WaitSources for Call<'a, N> {
    type Found = c_int;
    type Error = c_int;

    fn is_ready(&mut self) -> bool {
        if self.carried.as_mut().is_some_and(CarriedSet::is_ready) {
            return true;
        }
        let Some(light) = self.beneath.light else { return false };
        // The kernel's members are asked about first, unless that was done or `look` does it.
        let is_asked = core::mem::take(&mut self.was_asked)
            || self.sleeper.is_some()
            || self.carried.as_ref().is_some_and(CarriedSet::has_members);
        !is_asked || light.is_ready()
    }

    fn ask(&mut self) -> Result<Option<c_int>, c_int> {
        let Self { events, carried, beneath, .. } = self;
        answer(match carried {
            Some(carried) => carried.ask(|part| beneath.ask(part)),
            None => beneath.ask(*events),
        })
    }

    fn look(&mut self) -> Result<Option<c_int>, c_int> {
        let Self { events, carried, beneath, .. } = self;
        let mut told = 0;
        if let Some(carried) = carried.as_mut().filter(|carried| carried.has_members()) {
            told = carried.look(|part| beneath.ask(part));
            if told == 0 && beneath.light.is_some() {
                told = beneath.ask(*events);
            }
        }
        if let Some(light) = beneath.light.filter(|_| told == 0) {
            told = light.look(*events);
        }
        answer(told)
    }

    fn arm(&mut self) {
        if let Some(carried) = &mut self.carried {
            carried.arm();
        }
        self.sleeper = self.beneath.light.map(LightSet::arm);
    }

    fn sleep(&mut self) -> Result<Slept<c_int>, c_int> {
        let Self { events, limit, deadline, carried, beneath, sleeper, was_asked } = self;
        let began = tsc_clock::milliseconds();
        beneath.is_nudged.set(false);
        let mut sleep = |limit: Timeout| match beneath.light.zip(sleeper.take()) {
            Some((light, sleeper)) => {
                let part = limit.deadline(tsc_clock::nanoseconds()).or_earlier(None);
                let until = Deadline::Until(deadline.or_earlier(part));
                light.sleep(sleeper, until).map_or_else(fails, |()| beneath.ask(*events))
            }
            None => beneath.native(*events, limit),
        };
        let (told, rest) = match carried {
            Some(carried) => carried.sleep(*limit, sleep),
            None => (sleep(*limit), None),
        };
        if let Some(told) = answer(told)? {
            return Ok(Slept::Found(told));
        }
        let goes_on = if beneath.light.is_some() {
            *was_asked = true;
            !light::is_over(*deadline)
        } else if beneath.is_nudged.get() {
            *limit = limit.after_milliseconds(tsc_clock::milliseconds().saturating_sub(began));
            true
        } else {
            *limit = rest.unwrap_or(Timeout::Zero);
            rest.is_some()
        };
        Ok(if goes_on { Slept::Woken } else { Slept::TimeIsOver })
    }

    fn disarm(&mut self) {
        self.sleeper.take().into_iter().for_each(Sleeper::leave);
        if let Some(carried) = &mut self.carried {
            carried.disarm();
        }
    }

    fn mark(&mut self) -> u64 {
        self.carried.as_ref().map_or(0, CarriedSet::mark)
    }

    fn is_passing(&mut self) -> bool {
        self.carried.as_ref().is_some_and(CarriedSet::is_passing)
    }
}
