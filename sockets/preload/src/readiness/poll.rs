//! Waits in `poll` for descriptors of which some are carried or light.
//!
//! The kernel is asked what the program asks it, and the transports add what it cannot see. A call
//! that waits does so in steps ([`wait_loop`]).

use core::cell::RefCell;
use core::ffi::c_int;

use libc::{pollfd, sigset_t};
use omniverb_connection::readiness::{Deadline, Slept, Timeout, WaitSources, wait_loop};

use crate::carry::{self, PolledLinks};
use crate::errno::{errno, fails};
use crate::light::{self, PolledConnections};
use crate::next_library;
use crate::ppoll_beyond_rlimit;
use crate::tsc_clock;
use crate::user_memory::{UserPtr, UserSliceMut};

/// How many descriptors have something to tell, or errno.
pub(super) type Answer = Result<c_int, c_int>;

/// Some descriptors may have to do with a transport.
#[inline(always)]
pub(super) fn is_on() -> bool {
    carry::is_on() || light::is_here()
}

/// `poll` and the like. `timeout`: `None` for what is no time. `native` makes the program's call.
#[inline(always)]
pub(crate) fn poll(
    all: UserSliceMut<'_, pollfd>,
    timeout: impl FnOnce() -> Option<Timeout>,
    mask: UserPtr<'_, sigset_t>,
    native: impl FnOnce() -> c_int,
) -> c_int {
    if !is_on() {
        return native();
    }
    let Some(timeout) = timeout() else { return native() };
    poll_array(all, timeout, mask, native)
}

fn poll_array(
    all: UserSliceMut<'_, pollfd>,
    timeout: Timeout,
    mask: UserPtr<'_, sigset_t>,
    native: impl FnOnce() -> c_int,
) -> c_int {
    if carry::is_on() {
        carry::prepare_poll();
    }
    if all.len() == 0 {
        // A way to sleep.
        carry::may_sleep();
        return native();
    }
    if !all.as_const().is_readable(usize::MAX) {
        return native();
    }
    // SAFETY: `native` is not called while the list is used.
    let list = unsafe { all.as_mut_slice(isize::MAX as usize / size_of::<pollfd>()) };
    match list {
        Some(list) if list.iter().any(|one| concerns(one.fd, timeout)) => {
            poll_list(list, timeout, mask, |_| native())
        }
        Some(_) => unconcerned(timeout, native),
        None => unknown(native),
    }
}

/// A descriptor has to do with a transport, or may while the call lasts.
#[inline]
pub(super) fn concerns(fd: c_int, timeout: Timeout) -> bool {
    light::is_here() && light::concerns_poll(fd)
        || carry::is_on() && carry::concerns_poll(fd, timeout)
}

/// A call whose descriptors have to do with no transport.
#[inline]
pub(super) fn unconcerned(timeout: Timeout, native: impl FnOnce() -> c_int) -> c_int {
    if timeout != Timeout::Zero && carry::is_on() {
        carry::may_sleep();
    }
    native()
}

/// A call for we do not know which descriptors.
#[inline(never)]
pub(super) fn unknown(native: impl FnOnce() -> c_int) -> c_int {
    if !carry::is_on() {
        return native();
    }
    let mut links = PolledLinks::new();
    links.leave_all();
    let result = native();
    links.release();
    result
}

/// `poll` of a list, behind [`carry::prepare_poll`]; `native` if it has nothing to do with a
/// transport.
#[inline(never)]
pub(super) fn poll_list(
    all: &mut [pollfd],
    timeout: Timeout,
    mask: UserPtr<'_, sigset_t>,
    native: impl FnOnce(&mut [pollfd]) -> c_int,
) -> c_int {
    let light = PolledConnections::of(all);
    let mut links = PolledLinks::new();
    if carry::is_on() {
        links.hold_all(all, timeout);
    }
    let answer = if let Some(light) = light {
        let mut answer = Err(libc::ENOMEM);
        light::with_list(all.len() + light::DOORBELLS, |list| {
            answer = Call::beside_light(all, list, &mut links, light, mask, timeout).wait();
        });
        answer
    } else if links.is_empty() {
        let result = unconcerned(timeout, || native(all));
        links.release();
        return result;
    } else {
        Call::new(all, None, true, &mut links, mask, timeout).wait()
    };
    links.release();
    answer.unwrap_or_else(fails)
}

/// One call, until it has an answer.
struct Call<'a> {
    all: &'a mut [pollfd],
    beside: Option<LightPart<'a>>,
    /// The kernel knows some of the descriptors.
    has_kernels: bool,
    links: &'a mut PolledLinks,
    mask: UserPtr<'a, sigset_t>,
    timeout: Timeout,
    /// Where there are light connections: a sleep may end before it.
    deadline: Deadline,
    /// When it began, for a call that does not wait.
    began: u64,
    /// Some transport had something to tell when it was looked at last.
    is_ready: bool,
}

/// What a call has of light connections.
struct LightPart<'a> {
    light: PolledConnections,
    /// What the kernel is asked: the same list without what is light or no descriptor, in the same
    /// order, and room for doorbells.
    list: &'a mut [pollfd],
}

impl LightPart<'_> {
    /// All but the doorbells.
    fn kernels(&mut self) -> &mut [pollfd] {
        let count = self.list.len() - light::DOORBELLS;
        &mut self.list[..count]
    }
}

impl<'a> Call<'a> {
    fn new(
        all: &'a mut [pollfd],
        beside: Option<LightPart<'a>>,
        has_kernels: bool,
        links: &'a mut PolledLinks,
        mask: UserPtr<'a, sigset_t>,
        timeout: Timeout,
    ) -> Self {
        let deadline = match beside {
            Some(_) if timeout != Timeout::Zero => timeout.deadline(tsc_clock::nanoseconds()),
            _ => Deadline::Never,
        };
        let began = tsc_clock::now();
        let is_ready = false;
        Self { all, beside, has_kernels, links, mask, timeout, deadline, began, is_ready }
    }

    fn beside_light(
        all: &'a mut [pollfd],
        list: &'a mut [pollfd],
        links: &'a mut PolledLinks,
        light: PolledConnections,
        mask: UserPtr<'a, sigset_t>,
        timeout: Timeout,
    ) -> Self {
        // What is left out does not count for the limit that the kernel has of lists.
        let is_kernels = |one: &&pollfd| one.fd >= 0 && light::token_of(one.fd).is_none();
        let mut count = 0;
        for (to, one) in list.iter_mut().zip(all.iter().filter(is_kernels)) {
            *to = pollfd { revents: 0, ..*one };
            count += 1;
        }
        let has_kernels = count > 0;
        let (list, _) = list.split_at_mut(count + light::DOORBELLS);
        Self::new(all, Some(LightPart { light, list }), has_kernels, links, mask, timeout)
    }

    fn wait(&mut self) -> Answer {
        let told = match self.timeout {
            Timeout::Zero => wait_loop::ask_once(self),
            _ => wait_loop::wait(self),
        };
        told.map(|told| told.unwrap_or(0))
    }

    /// Tells what the kernel has said, which of so many, and the transports besides.
    fn tell(&mut self, got: c_int) -> c_int {
        let Some(beside) = &mut self.beside else {
            return got + self.links.add(self.all) as c_int;
        };
        // Some of the descriptors, in the same order.
        let mut rest = beside.kernels().iter().peekable();
        for one in self.all.iter_mut() {
            let is_this = |other: &&pollfd| other.fd == one.fd && other.events == one.events;
            one.revents |= rest.next_if(|other| is_this(other)).map_or(0, |other| other.revents);
        }
        self.links.add(self.all);
        self.all.iter().map(|one| c_int::from(one.revents != 0)).sum()
    }

    /// Polls the rings for a moment.
    fn poll_rings(&mut self) -> Result<Option<c_int>, c_int> {
        let timeout = self.timeout;
        let call = RefCell::new(self);
        let ask = || {
            let mut call = call.borrow_mut();
            call.is_ready();
            call.ask().map_or_else(fails, |told| told.unwrap_or(0))
        };
        let is_ready = || call.borrow_mut().is_ready();
        let (told, how) = PolledLinks::look_for_a_moment(timeout, is_ready, ask);
        let call = call.into_inner();
        let answer = if told < 0 { Err(errno()) } else { Ok(some(told)) };
        call.links.record_poll(call.all, how);
        answer
    }
}

/// What a call has to tell of so many descriptors.
fn some(told: c_int) -> Option<c_int> {
    (told != 0).then_some(told)
}

impl WaitSources for Call<'_> {
    type Found = c_int;
    type Error = c_int;

    fn is_ready(&mut self) -> bool {
        let light = self.beside.as_mut().is_some_and(|beside| beside.light.is_ready(self.all));
        self.is_ready = self.links.is_ready(self.all) || light;
        self.is_ready
    }

    /// If a transport has something that is told before a signal is.
    fn ask(&mut self) -> Result<Option<c_int>, c_int> {
        let mask = if self.is_ready { UserPtr::NULL } else { self.mask };
        let got = match &mut self.beside {
            _ if !self.has_kernels => Ok(0),
            Some(beside) => kernel(beside.kernels(), Timeout::Zero, mask),
            None => kernel(self.all, Timeout::Zero, mask),
        };
        got.map(|got| some(self.tell(got)))
    }

    fn look(&mut self) -> Result<Option<c_int>, c_int> {
        if self.links.is_worth_looking(self.all) {
            return if self.links.start_polling(self.all) { self.poll_rings() } else { Ok(None) };
        }
        if self.links.any_is_polling(self.all) {
            // If there is something by the kernel they need not be sent away.
            self.is_ready = false;
            return self.ask();
        }
        let has_kernels = self.has_kernels;
        let light = self.beside.as_mut().filter(|_| !has_kernels);
        let is_ready = light.is_some_and(|beside| beside.light.look(self.all));
        Ok(if is_ready { some(self.tell(0)) } else { None })
    }

    fn arm(&mut self) {
        self.links.arm();
        if let Some(beside) = &mut self.beside {
            beside.light.arm(self.all);
        }
    }

    fn sleep(&mut self) -> Result<Slept<c_int>, c_int> {
        let Self { all, beside, links, mask, timeout, deadline, .. } = self;
        let slept = links.sleep(
            all,
            |all| match beside {
                Some(LightPart { light, list }) => light.sleep(list, *deadline, *mask),
                None => kernel(all, *timeout, *mask),
            },
            |slept| slept.unwrap_or(0) as usize,
        );
        let got = slept?;
        if let Some(beside) = beside {
            beside.light.is_ready(all);
        }
        Ok(match self.tell(got) {
            // Doorbells are rung for others, too.
            0 if self.beside.is_some() && !self.deadline.is_over(tsc_clock::nanoseconds()) => {
                Slept::Woken
            }
            0 => Slept::TimeIsOver,
            told => Slept::Found(told),
        })
    }

    fn disarm(&mut self) {
        self.links.disarm();
        if let Some(beside) = &mut self.beside {
            beside.light.disarm();
        }
    }

    fn mark(&mut self) -> u64 {
        self.links.marks(self.all)
    }

    fn is_passing(&mut self) -> bool {
        self.links.is_passing(self.all, self.began)
    }
}

static ZERO: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

/// Asks the kernel.
pub(super) fn kernel(all: &mut [pollfd], timeout: Timeout, mask: UserPtr<'_, sigset_t>) -> Answer {
    let time = timeout.time().map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
    let time = time.as_ref().map_or(UserPtr::NULL, UserPtr::of);
    let mut got = next_library::ppoll(UserSliceMut::of(all), time, mask);
    if got < 0 && timeout == Timeout::Zero && ppoll_beyond_rlimit::is_too_long(all.len()) {
        got = ppoll_beyond_rlimit::poll_in_parts(all, &ZERO, mask);
    }
    if got < 0 { Err(errno()) } else { Ok(got) }
}
