//! Finds what links have for a call that waits for several descriptors (`poll`, `select`).
//!
//! What the kernel cannot see of a carried socket are bytes in its ring, and an error that is ours
//! to tell. Before the kernel sleeps no ring is polled any more, so that bytes that come wake. The
//! links are held as long as the call lasts: their descriptors may be for others by then.

use core::ffi::c_int;

use libc::pollfd;
use omniverb_connection::backoff::LookOutcome;
use omniverb_connection::descriptors::Kind;
use omniverb_connection::readiness::Timeout;
use omniverb_connection::readiness::poll_events::{ENDING, ERR, IN, READABLE, of_ring};

use super::links::{self, Flag, Link};
use super::offer_sockets_to_broker::{self, LinkLookup};
use super::reader_polling::Unread;
use super::{
    broker_dispatch, epoll, kernel_socket_check, published_bytes, reader_polling, unread_bytes,
    wake_latency,
};
use crate::anonymous_mappings::{Mapping, Sharing};
use crate::descriptor_tables::DESCRIPTORS;
use crate::kernel_socket;
use crate::{fork_refcount, running_call_counts, tsc_clock, vfork_check};

/// Descriptors of a call that are looked through.
const MOST: usize = 1024;

/// Links of a call that need no mapped memory.
const FEW: usize = 64;

/// Where a descriptor is in the list of the call, and its link.
type Held = [u32; 2];

/// The links of one call.
pub(crate) struct PolledLinks {
    few: [Held; FEW],
    /// Those behind them.
    more: Option<Mapping<Held>>,
    count: usize,
    is_armed: bool,
    /// A socket without a link, by its descriptor: others get links meanwhile.
    unlinked: Option<c_int>,
    /// Calls that are counted as out of sight: while there are any no link is made.
    uncounted: u32,
}

impl PolledLinks {
    /// Of no link so far.
    pub(crate) fn new() -> Self {
        Self {
            few: [[0; 2]; FEW],
            more: None,
            count: 0,
            is_armed: false,
            unlinked: None,
            uncounted: 0,
        }
    }

    /// For what no list is known: no socket has a link while the call lasts.
    pub(crate) fn leave_all(&mut self) {
        if vfork_check::is_this_process() {
            running_call_counts::count();
            self.uncounted += 1;
            super::leave_all();
        }
    }

    /// Holds those of these descriptors, behind [`prepare`]. By a call that waits sockets are
    /// offered that were not, and it is counted for those without a link.
    pub(crate) fn hold_all(&mut self, all: &[pollfd], timeout: Timeout) {
        if all.len() > MOST {
            return self.leave_all();
        }
        epoll::leave_all_to_kernel(all.iter().map(|one| one.fd));
        for (place, one) in all.iter().enumerate() {
            let found = if timeout == Timeout::Zero {
                links::enter(one.fd).map_or(LinkLookup::Other, LinkLookup::Carried)
            } else {
                offer_sockets_to_broker::enter_unpolled(one.fd)
            };
            match found {
                LinkLookup::Carried(link) | LinkLookup::Offered(link) => {
                    if !self.push([place as u32, link.index()]) {
                        link.release();
                        self.release();
                        return self.leave_all();
                    }
                }
                LinkLookup::Counted if self.unlinked.is_none() => self.unlinked = Some(one.fd),
                LinkLookup::Counted => {
                    running_call_counts::count();
                    running_call_counts::uncount_one(one.fd);
                    self.uncounted += 1;
                }
                LinkLookup::Other => {}
            }
        }
    }

    /// `false`: there is no memory.
    fn push(&mut self, held: Held) -> bool {
        let place = if self.count < FEW {
            self.few.get_mut(self.count)
        } else {
            if self.more.is_none() {
                self.more = Mapping::new(MOST - FEW, Sharing::Private);
            }
            self.more.as_mut().and_then(|more| more.get_mut(self.count - FEW))
        };
        let Some(place) = place else { return false };
        *place = held;
        self.count += 1;
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The call is over.
    pub(crate) fn release(&mut self) {
        self.each_held(|_, link| link.release());
        self.count = 0;
        self.unlinked.take().into_iter().for_each(running_call_counts::uncount_one);
        (0..core::mem::take(&mut self.uncounted)).for_each(|_| running_call_counts::uncount());
    }

    fn each_held(&self, mut with: impl FnMut(usize, Link)) {
        let more = self.more.iter().flat_map(|more| more.iter());
        for [place, link] in self.few.iter().chain(more).take(self.count) {
            if let Some(link) = Link::at(*link) {
                with(*place as usize, link);
            }
        }
    }

    /// Calls with each that has memory, and is its descriptor's still.
    fn each(&self, all: &mut [pollfd], mut with: impl FnMut(&mut pollfd, Link)) {
        self.each_held(|place, link| {
            if let Some(one) = all.get_mut(place)
                && link.identity.memory.get() != 0
                && !link.has(Flag::Broken)
                && links::is_of(one.fd, link)
            {
                with(one, link);
            }
        });
    }

    /// Some link is worth looking at for a moment.
    pub(crate) fn is_worth_looking(&self, all: &mut [pollfd]) -> bool {
        let mut found = false;
        self.each(all, |one, link| {
            found |= one.events & READABLE != 0 && reader_polling::looks(link).is_due();
        });
        found
    }

    /// Starts polling those that the call wants bytes of. Whether any is polled.
    pub(crate) fn start_polling(&self, all: &mut [pollfd]) -> bool {
        let mut found = false;
        self.each(all, |one, link| {
            found |= one.events & READABLE != 0 && reader_polling::start_polling_link(link);
        });
        found
    }

    /// Some ring is polled.
    pub(crate) fn any_is_polling(&self, all: &mut [pollfd]) -> bool {
        let mut found = false;
        self.each(all, |_, link| found |= reader_polling::is_polling(link));
        found
    }

    /// Looks for a moment, polling the rings: how it went, and what `ask` has said at last.
    pub(crate) fn look_for_a_moment(
        timeout: Timeout,
        is_ready: impl FnMut() -> bool,
        ask: impl FnMut() -> c_int,
    ) -> (c_int, LookOutcome) {
        let most = timeout.polling_ticks(tsc_clock::SECOND);
        reader_polling::look_for_a_moment(most, is_ready, ask, Unread::default)
    }

    /// How that went.
    pub(crate) fn record_poll(&self, all: &mut [pollfd], how: LookOutcome) {
        self.each(all, |_, link| reader_polling::looks(link).record(how));
    }

    /// Makes the kernel's call that sleeps; `got`: how many descriptors it has told of.
    pub(crate) fn sleep<R>(
        &self,
        all: &mut [pollfd],
        call: impl FnOnce(&mut [pollfd]) -> R,
        got: impl FnOnce(&R) -> usize,
    ) -> R {
        published_bytes::flush_all();
        let (result, was_short) = wake_latency::timed_sleep(|| call(all));
        if was_short && got(&result) > 0 {
            // Looking would have found it.
            self.record_poll(all, LookOutcome::Missed);
        }
        kernel_socket::keeping_errno(broker_dispatch::poll_after_sleep);
        result
    }

    /// Changes when bytes that were in a ring are not there any more.
    pub(crate) fn marks(&self, all: &mut [pollfd]) -> u64 {
        let mut sum = 0_u64;
        self.each(all, |_, link| sum = sum.wrapping_add(unread_bytes::mark(link)));
        sum
    }

    /// By a call that began then, and does not wait: what was there at that time goes another way
    /// at this moment, or did until now.
    pub(crate) fn is_passing(&self, all: &mut [pollfd], began: u64) -> bool {
        let mut found = false;
        self.each(all, |_, link| found |= unread_bytes::wait_until_passed(link, began));
        found
    }

    /// Some link has something to tell.
    pub(crate) fn is_ready(&self, all: &mut [pollfd]) -> bool {
        let mut found = false;
        self.each(all, |one, link| {
            found |= one.events & READABLE != 0 && unread_bytes::is_readable(link, one.fd)
                || link.glance.error.get() != 0;
        });
        found
    }

    /// Adds what the links have to what the kernel has said. How many more descriptors have
    /// something.
    pub(crate) fn add(&self, all: &mut [pollfd]) -> usize {
        let mut count = 0;
        self.each(all, |one, link| {
            if one.revents & (ENDING | IN) != 0 && published_bytes::has_unread(link) {
                // Has it ended, and how?
                _ = kernel_socket_check::check_now(link, one.fd);
            }
            let mut events = if link.glance.error.get() == 0 { 0 } else { ERR };
            if one.events & READABLE != 0 && unread_bytes::is_readable(link, one.fd) {
                events |= READABLE;
                unread_bytes::note_shown(link);
            }
            let more = of_ring(events, one.events);
            count += usize::from(one.revents == 0 && more != 0);
            one.revents |= more;
        });
        count
    }

    /// The call is about to sleep: what comes from now on wakes it. What has come before is looked
    /// for after this.
    pub(crate) fn arm(&mut self) {
        // Memory may still come.
        self.each_held(|_, link| reader_polling::begin_sleep(link));
        self.is_armed = true;
    }

    /// It sleeps no more.
    pub(crate) fn disarm(&mut self) {
        if core::mem::take(&mut self.is_armed) {
            self.each_held(|_, link| reader_polling::end_sleep(link));
        }
    }
}

/// A descriptor has a link, may get one, or is a set that may have some.
pub(crate) fn concerns(fd: c_int, timeout: Timeout) -> bool {
    let kind = DESCRIPTORS.look(fd).kind();
    let is_any = kind.is_stream() && kind != Kind::Listening || kind == Kind::Set || links::has(fd);
    if !is_any && timeout != Timeout::Zero {
        fork_refcount::mark_unknown_use(fd);
    }
    is_any
}

/// Before a call that waits for several descriptors looks at them.
pub(crate) fn prepare() {
    broker_dispatch::poll();
    published_bytes::reclaim_abandoned();
}
