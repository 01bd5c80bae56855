//! Answers `epoll_ctl` and `epoll_wait` for sets that have light connections.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use omniverb_connection::descriptors::Kind;
use omniverb_connection::readiness::Deadline;
use omniverb_connection::readiness::epoll_interest::{Interest, Next};

use super::descriptors::{self, Token};
use super::epoll_sets;
use super::lane_assignment::WaitTarget;
use super::sleepers::{self, Sleeper};
use super::state::{State, with};
use super::waiting::{look, sleep};
use crate::descriptor_tables;
use crate::errno::{errno, fails};
use crate::next_library;
use crate::user_memory::{UserPtr, UserSliceMut};
use crate::vfork_check::is_single_threaded;

/// Where a call tells events.
type Events<'e> = UserSliceMut<'e, libc::epoll_event>;

fn answer(outcome: Option<Result<(), c_int>>) -> c_int {
    outcome.unwrap_or(Err(libc::EAGAIN)).map_or_else(fails, |()| 0)
}

/// `epoll_ctl` with a light connection.
pub(super) fn change(
    set: c_int,
    operation: c_int,
    token: Token,
    event: UserPtr<'_, libc::epoll_event>,
) -> c_int {
    if descriptor_tables::look(set).kind() != Kind::Set {
        return answer(Some(Err(libc::EINVAL)));
    }
    let needs_event = operation != libc::EPOLL_CTL_DEL;
    if needs_event && event.is_null() {
        return answer(Some(Err(libc::EFAULT)));
    }
    let event = if needs_event { event.read() } else { None };
    let asked = Interest(event.map_or(0, |event| event.events));
    if !asked.may_be_added() || operation != libc::EPOLL_CTL_ADD && asked.is_exclusive() {
        return answer(Some(Err(libc::EINVAL)));
    }
    let outcome = with(|state| {
        let at = state.slot(token).ok_or(libc::EBADF)?;
        let place =
            state.sets.find_or_add(descriptor_tables::look(set).id()).ok_or(libc::ENOSPC)?;
        let ours = place as u16 + 1;
        let is_member = state.slots.at(at).set == ours;
        match operation {
            libc::EPOLL_CTL_ADD if is_member => return Err(libc::EEXIST),
            // One that is in another set stays there only.
            libc::EPOLL_CTL_ADD if state.slots.at(at).set != 0 => return Err(libc::ENOSPC),
            libc::EPOLL_CTL_ADD => {}
            libc::EPOLL_CTL_MOD if is_member => {
                if Interest(state.slots.at(at).events).is_exclusive() {
                    return Err(libc::EINVAL);
                }
            }
            libc::EPOLL_CTL_DEL if is_member => {
                state.leave_set(at);
                return Ok(());
            }
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL => return Err(libc::ENOENT),
            _ => return Err(libc::EINVAL),
        }
        if let Some(event) = event {
            state.join(place, at, event);
        }
        Ok(())
    });
    answer(outcome)
}

/// The kernel has done an `epoll_ctl` with a listening socket. `false`: it is in too many sets for
/// light connections.
pub(super) fn changed(set: c_int, fd: c_int) -> bool {
    with(|state| {
        let (set, listener) = (descriptor_tables::look(set).id(), descriptor_tables::look(fd).id());
        state.listeners.asks(listener, set);
        state.has_news = true;
        state.joins_sets(fd)
    })
    .unwrap_or(true)
}

/// A socket listens from now on, which may be in sets already. `false`: in too many.
pub(super) fn has_joined(fd: c_int) -> bool {
    with(|state| state.joins_sets(fd)).unwrap_or(true)
}

/// A set may get members that the kernel does not know, also while a thread sleeps in it.
pub(super) fn concerns(set: c_int) -> bool {
    descriptor_tables::look(set).kind() == Kind::Set
}

impl State {
    /// It is in no set any more.
    pub(super) fn leave_set(&mut self, at: u32) {
        let Some(set) = self.slots.at(at).set.checked_sub(1) else { return };
        let set = self.sets.at(usize::from(set));
        self.slots.remove_ready(&mut set.ready, at);
        set.members -= 1;
        self.slots.at(at).set = 0;
    }

    /// It is in the set of a place from now on, which is to tell this.
    pub(super) fn join(&mut self, place: usize, at: u32, event: libc::epoll_event) {
        let slot = self.slots.at(at);
        if slot.set == 0 {
            slot.set = place as u16 + 1;
            self.sets.at(place).members += 1;
        }
        (slot.events, slot.data) = (event.events, event.u64);
        self.news(at);
    }

    /// Writes what is ready in a set: how many events.
    fn collect(&mut self, (set, id): (c_int, u32), events: &mut [libc::epoll_event]) -> usize {
        let Some(place) = self.sets.find(id) else { return 0 };
        // Of the kernel's members there is always one that is told of.
        let most = events.len().max(2) - 1;
        let mut count = self.collect_listeners((set, id), &mut events[..most]);
        count += self.collect_sets(id, &mut events[count..most]);
        for _ in 0..self.sets.at(place).ready.count() {
            if count == most {
                break;
            }
            let at = self.sets.at(place).ready.first();
            let set = self.sets.at(place);
            self.slots.remove_ready(&mut set.ready, at);
            let interest = Interest(self.slots.at(at).events);
            if interest.is_disarmed() {
                continue;
            }
            let ready = interest.of(self.readiness(at));
            if ready == 0 {
                continue;
            }
            let (set, slot) = (self.sets.at(place), self.slots.at(at));
            events[count] = libc::epoll_event { events: ready, u64: slot.data };
            count += 1;
            match interest.next() {
                Next::Disarmed(next) => slot.events = next.0,
                Next::Again => self.slots.push_ready(&mut set.ready, at),
                Next::OnNews => {}
            }
        }
        count
    }

    /// A member may have something that its set is told of.
    pub(super) fn is_told_of(&mut self, at: u32) -> bool {
        let interest = Interest(self.slots.at(at).events);
        !interest.is_disarmed() && interest.of(self.readiness(at)) != 0
    }
}

static TURN: AtomicU32 = AtomicU32::new(0);

/// Whether this concerns a thread that is about to wait there. No set gets members while its only
/// thread waits, so the kernel does that alone where there are none: it wakes one waiter only where
/// several processes ask for that (`EPOLLEXCLUSIVE`), which it does not know of those that poll.
fn concerns_waiter(set: c_int) -> bool {
    let is_without = || {
        let id = descriptor_tables::look(set).id();
        with(|state| state.sets.find(id).is_none()).unwrap_or(false)
    };
    concerns(set) && !(is_single_threaded() && is_without())
}

/// A set that has light members, or may get some, for one call that waits there.
#[derive(Clone, Copy)]
pub(crate) struct LightSet<'a> {
    set: c_int,
    id: u32,
    mask: UserPtr<'a, libc::sigset_t>,
}

impl<'a> LightSet<'a> {
    /// `None`: the set is the kernel's, or the program's places for events are none.
    pub(crate) fn of(
        set: c_int,
        events: Events<'_>,
        mask: UserPtr<'a, libc::sigset_t>,
    ) -> Option<Self> {
        events.as_const().as_slice(c_int::MAX as usize)?;
        concerns_waiter(set).then(|| Self { set, id: descriptor_tables::look(set).id(), mask })
    }

    /// Takes in what has come. Some light member has something to tell.
    pub(crate) fn is_ready(self) -> bool {
        let is_ready = with(|state| {
            state.progress();
            state.has_ready(self.id)
        });
        is_ready.unwrap_or(false)
    }

    /// What there is now, of light members and of the kernel's. How many events.
    pub(crate) fn ask(self, events: Events<'_>) -> Result<c_int, c_int> {
        // Where there is room for one event only the two take turns.
        let is_first = events.len() > 1 || TURN.fetch_xor(1, Ordering::Relaxed) == 0;
        let ours = |events: &mut [libc::epoll_event]| {
            with(|state| {
                state.progress();
                state.collect((self.set, self.id), events)
            })
        };
        Self::with_events(events, |events| {
            let count = if is_first { ours(events).ok_or(libc::EINTR)? } else { 0 };
            let count = self.besides(events, count)?;
            let is_second = count == 0 && !is_first;
            let count = if is_second { ours(events).unwrap_or(0) } else { count };
            Ok(count as c_int)
        })
    }

    /// Polls for a moment, if that is worth while. How many events of light members there are.
    pub(crate) fn look(self, events: Events<'_>) -> c_int {
        let has_members = with(|state| state.sets.find(self.id).is_some()).unwrap_or(false);
        if !has_members {
            return 0;
        }
        let found = Self::with_events(events, |events| {
            let collect = |state: &mut State| {
                Some(state.collect((self.set, self.id), events)).filter(|count| *count > 0)
            };
            Ok(look(collect).unwrap_or(0) as c_int)
        });
        found.unwrap_or(0)
    }

    /// A thread is about to sleep until something comes for a member.
    pub(crate) fn arm(self) -> Sleeper {
        sleepers::enter(WaitTarget::Members(self.id))
    }

    /// Sleeps until something may have come, by the kernel or for a light member.
    pub(crate) fn sleep(self, sleeper: Sleeper, deadline: Deadline) -> Result<(), c_int> {
        let mut all = [libc::pollfd { fd: self.set, events: libc::POLLIN, revents: 0 }; 3];
        sleep(sleeper, &mut all, deadline, self.mask)
    }

    fn with_events(
        events: Events<'_>,
        with: impl FnOnce(&mut [libc::epoll_event]) -> Result<c_int, c_int>,
    ) -> Result<c_int, c_int> {
        // SAFETY: the kernel is asked for a part of it within `with` only.
        let events = unsafe { events.as_mut_slice(c_int::MAX as usize) };
        events.map_or(Err(libc::EFAULT), with)
    }

    /// What the kernel has to say besides, behind so many events. A listening socket is told of
    /// once.
    fn besides(self, events: &mut [libc::epoll_event], count: usize) -> Result<usize, c_int> {
        let Self { set, id, mask } = self;
        if count == events.len() {
            return Ok(count);
        }
        let (told, rest) = events.split_at_mut(count);
        let to = UserSliceMut::of(rest);
        let got = match mask.is_null() || count > 0 {
            true => next_library::epoll_wait(set, to, 0),
            false => next_library::epoll_pwait(set, to, 0, mask),
        };
        let Ok(got) = usize::try_from(got) else { return Err(errno()) };
        let mut kept = 0;
        for index in 0..got {
            let one = rest[index];
            let is_told = told.iter().any(|other| {
                let (a, b) = (other.u64, one.u64);
                a == b && with(|state| state.is_known_to_kernel(id, a)).unwrap_or(false)
            });
            if epoll_sets::are_one_shot() {
                with(|state| state.mark_told_by_kernel(id, one.u64));
            }
            if !is_told {
                rest[kept] = one;
                kept += 1;
            }
        }
        Ok(count + kept)
    }
}

/// A set is closed: its members are in none.
pub(super) fn closed(set: u32) {
    with(|state| {
        let Some(place) = state.sets.find(set) else { return };
        let all = descriptors::each(0, u32::MAX).filter_map(descriptors::slot);
        for at in all {
            if state.slots.at(at).set == place as u16 + 1 {
                state.leave_set(at);
            }
        }
        state.sets.remove(place);
    });
}
