//! Says what light connections have for a call that waits for several descriptors (`poll`).

use core::ffi::c_int;

use libc::{pollfd, sigset_t};
use omniverb_connection::readiness::Deadline;
use omniverb_connection::readiness::poll_events::{READABLE, of_connection};

use super::lane_assignment::WaitTarget;
use super::sleepers::{self, Sleeper};
use super::state::{State, with};
use super::waiting::{look, sleep};
use super::{connect_accept, descriptors, epoll_calls, epoll_sets};
use crate::descriptor_tables;
use crate::user_memory::UserPtr;

impl State {
    /// What is to be told of a descriptor that is for a light connection, or that some come to.
    fn events(&mut self, one: &pollfd) -> i16 {
        if let Some(at) = descriptors::slot(one.fd) {
            return of_connection(self.readiness(at), one.events);
        }
        if epoll_sets::are_any() && self.has_ready(descriptor_tables::look(one.fd).id()) {
            return READABLE & one.events;
        }
        let listener = self.listeners.of(one.fd).filter(|one| one.has_some());
        listener.map_or(0, |_| READABLE & one.events)
    }

    /// Writes what is to be told of each. Whether that is anything.
    fn write_events(&mut self, all: &mut [pollfd]) -> bool {
        let mut is_any = false;
        for one in all {
            one.revents = self.events(one);
            is_any |= one.revents != 0;
        }
        is_any
    }
}

/// A descriptor is light, or may be.
#[inline]
pub(crate) fn concerns(fd: c_int) -> bool {
    descriptors::token(fd).is_some()
        || connect_accept::is_listener(fd)
        || epoll_sets::are_any() && epoll_calls::concerns(fd)
}

/// The light connections of one call, and what they come to.
pub(crate) struct PolledConnections {
    sleeper: Option<Sleeper>,
}

impl PolledConnections {
    /// `None`: none of these is light, or may be.
    #[inline]
    pub(crate) fn of(all: &[pollfd]) -> Option<Self> {
        (super::is_here() && all.iter().any(|one| concerns(one.fd)))
            .then_some(Self { sleeper: None })
    }

    /// Looks for a moment, if that is worth while; whether there is something then. The kernel is
    /// not asked meanwhile.
    pub(crate) fn look(&mut self, all: &mut [pollfd]) -> bool {
        look(|state| state.write_events(all).then_some(())).is_some()
    }

    /// Sleeps, behind [`Self::arm`]. How many of the list the kernel has told of, of which
    /// the last ones are for doorbells.
    pub(crate) fn sleep(
        &mut self,
        list: &mut [pollfd],
        deadline: Deadline,
        mask: UserPtr<'_, sigset_t>,
    ) -> Result<i32, i32> {
        if let Some(sleeper) = self.sleeper.take() {
            sleep(sleeper, list, deadline, mask)?;
        }
        let own = list.len() - sleepers::DOORBELLS;
        Ok(list[..own].iter().map(|one| i32::from(one.revents != 0)).sum())
    }

    /// Takes in what has come, and writes what is to be told. Whether that is anything.
    pub(crate) fn is_ready(&self, all: &mut [pollfd]) -> bool {
        let is_ready = with(|state| {
            state.progress();
            state.write_events(all)
        });
        is_ready.unwrap_or(false)
    }

    /// The call is about to sleep: what comes from now on wakes it.
    pub(crate) fn arm(&mut self, all: &[pollfd]) {
        self.sleeper = Some(sleepers::enter(WaitTarget::These(all)));
    }

    /// It sleeps no more.
    pub(crate) fn disarm(&mut self) {
        if let Some(sleeper) = self.sleeper.take() {
            sleeper.leave();
        }
    }
}
