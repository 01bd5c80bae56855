//! Implements `poll` and `select` where light connections are among the descriptors.
//!
//! The kernel is asked about the others.

use core::ffi::c_int;

use omniverb_connection::light::slot::{ERR, HUP, IN, OUT, RDHUP};

use super::lane_assignment::Awaits;
use super::sleepers;
use super::state::{State, with};
use super::waiting::{Waits, look, sleep};
use super::{connect_accept, descriptors, epoll_members, epoll_sets, memory};
use crate::errno::errno;
use crate::next_functions::next_ppoll;
use crate::table;

/// What the kernel says besides of data.
const READ: u32 = IN | libc::POLLRDNORM as u32;
const WRITE: u32 = OUT | libc::POLLWRNORM as u32;
/// What is told of whether it was asked for or not.
const ALWAYS: u32 = ERR | HUP;
static NO_TIME: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
/// Descriptors that `select` knows.
const SELECTED: usize = libc::FD_SETSIZE;

impl State {
    /// What is to be told of a descriptor that is for a light connection, or that some come to.
    fn events(&mut self, one: &libc::pollfd) -> i16 {
        let wanted = one.events as u16 as u32;
        if let Some(at) = descriptors::slot(one.fd) {
            let is = self.readiness(at);
            let mut all = is & (RDHUP | ALWAYS);
            all |= if is & IN != 0 { READ } else { 0 };
            all |= if is & OUT != 0 { WRITE } else { 0 };
            return (all & (wanted | ALWAYS)) as i16;
        }
        if epoll_sets::are_any() && self.has_ready(table::look(one.fd).id()) {
            return (READ & wanted) as i16;
        }
        let listener = self.listeners.of(one.fd).filter(|one| one.has_some());
        listener.map_or(0, |_| (READ & wanted) as i16)
    }

    fn ready(&mut self, all: &mut [libc::pollfd]) -> Option<c_int> {
        let mut count = 0;
        for one in all {
            one.revents = self.events(one);
            count += c_int::from(one.revents != 0);
        }
        (count > 0).then_some(count)
    }
}

/// Some of these are light, or may be.
pub(super) fn concerns(all: &[libc::pollfd]) -> bool {
    let is_one = |one: &libc::pollfd| {
        descriptors::token(one.fd).is_some()
            || connect_accept::is_listener(one.fd)
            || epoll_sets::are_any() && epoll_members::concerns(one.fd)
    };
    all.iter().any(is_one)
}

/// `ppoll`.
pub(super) fn poll(
    all: &mut [libc::pollfd],
    waits: Waits,
    mask: *const libc::sigset_t,
) -> Result<c_int, c_int> {
    let mut result = Err(libc::ENOMEM);
    memory::with_list(all.len() + 2, |list| result = poll_with(all, list, waits, mask));
    result
}

fn poll_with(
    all: &mut [libc::pollfd],
    list: &mut [libc::pollfd],
    waits: Waits,
    mask: *const libc::sigset_t,
) -> Result<c_int, c_int> {
    // What is light is nothing for the kernel: it looks at no negative descriptor.
    for (to, one) in list.iter_mut().zip(all.iter()) {
        let fd = if descriptors::token(one.fd).is_some() { -1 } else { one.fd };
        *to = libc::pollfd { fd, events: one.events, revents: 0 };
    }
    let count = all.len();
    let has_others = list[..count].iter().any(|one| one.fd >= 0);
    let both = |all: &mut [libc::pollfd]| {
        let ready = with(|state| {
            state.progress();
            state.ready(all)
        });
        ready.flatten().unwrap_or(0)
    };
    loop {
        let mut ready = both(all);
        if ready == 0 && !has_others && waits != Waits::Never {
            ready = look(|state| state.ready(all)).unwrap_or(0);
        }
        if ready > 0 || waits == Waits::Never {
            return ask(all, &mut list[..count], has_others, mask);
        }
        let sleeper = sleepers::enter(Awaits::These(all));
        if both(all) > 0 {
            sleeper.leave();
            return ask(all, &mut list[..count], has_others, mask);
        }
        sleep(sleeper, list, waits, mask)?;
        let ready = both(all);
        let is_others = list[..count].iter().any(|one| one.revents != 0);
        if ready > 0 || is_others || waits.is_over() {
            return Ok(joined(all, &list[..count]));
        }
    }
}

/// What the kernel says of the others now, besides.
fn ask(
    all: &mut [libc::pollfd],
    list: &mut [libc::pollfd],
    has_others: bool,
    mask: *const libc::sigset_t,
) -> Result<c_int, c_int> {
    if has_others {
        let zero = &raw const NO_TIME;
        // SAFETY: the list is there; the mask is the program's.
        let got = unsafe { next_ppoll(list.as_mut_ptr(), list.len() as u64, zero, mask) };
        if got < 0 {
            return Err(errno());
        }
    }
    Ok(joined(all, list))
}

fn joined(all: &mut [libc::pollfd], list: &[libc::pollfd]) -> c_int {
    let mut count = 0;
    for (one, other) in all.iter_mut().zip(list) {
        one.revents |= other.revents;
        count += c_int::from(one.revents != 0);
    }
    count
}

/// The three sets of `select`.
pub(crate) struct Selected {
    pub end: c_int,
    pub sets: [*mut libc::fd_set; 3],
}

/// What each of the three asks for, and what the kernel takes for that.
const ASKS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const TELLS: [i16; 3] =
    [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

impl Selected {
    fn has(&self, which: usize, fd: usize) -> bool {
        let set = self.sets[which];
        // SAFETY: the program's set, or none; the descriptor is below its size.
        !set.is_null() && unsafe { libc::FD_ISSET(fd as c_int, set) }
    }

    fn fds(&self) -> impl Iterator<Item = usize> {
        0..usize::try_from(self.end).unwrap_or(0).min(SELECTED)
    }

    /// Some of them are light, or may be.
    pub(super) fn concerns(&self) -> bool {
        let any = |fd: &usize| (0..3).any(|which| self.has(which, *fd));
        self.fds().filter(any).any(|fd| {
            let one = libc::pollfd { fd: fd as c_int, events: 0, revents: 0 };
            concerns(&[one])
        })
    }

    /// `pselect`.
    pub(super) fn select(&self, waits: Waits, mask: *const libc::sigset_t) -> Result<c_int, c_int> {
        let empty = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut all = [empty; SELECTED];
        let mut count = 0;
        for fd in self.fds() {
            let asked = (0..3).filter(|which| self.has(*which, fd));
            let events = asked.fold(0, |events, which| events | ASKS[which]);
            if events != 0 {
                all[count] = libc::pollfd { fd: fd as c_int, events, revents: 0 };
                count += 1;
            }
        }
        loop {
            let found = poll(&mut all[..count], waits, mask)?;
            // The end of what is only asked for urgent data is told by `poll`, not here.
            let told = all[..count].iter().any(|one| {
                let all = TELLS.iter().zip(ASKS).filter(|(_, asks)| one.events & asks != 0);
                let tells = all.fold(libc::POLLNVAL, |tells, (more, _)| tells | more);
                one.revents & tells != 0
            });
            if found == 0 || told || waits.is_over() {
                break;
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            // SAFETY: no list; the mask is the program's.
            if unsafe { next_ppoll(core::ptr::null_mut(), 0, &raw const pause, mask) } < 0 {
                return Err(errno());
            }
        }
        if all[..count].iter().any(|one| one.revents & libc::POLLNVAL != 0) {
            return Err(libc::EBADF);
        }
        let mut told = 0;
        for one in &all[..count] {
            for (which, set) in self.sets.iter().enumerate() {
                if !self.has(which, one.fd as usize) {
                    continue;
                }
                if one.revents & TELLS[which] != 0 {
                    told += 1;
                } else {
                    // SAFETY: the program's set, which has this descriptor.
                    unsafe { libc::FD_CLR(one.fd, *set) };
                }
            }
        }
        Ok(told)
    }
}
