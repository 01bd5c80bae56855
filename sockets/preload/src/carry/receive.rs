//! Receives bytes of the kernel and of the ring, in order.
//!
//! Those of the kernel come before those in the ring. A call that finds neither looks for a moment,
//! polling the ring, which the peer may use meanwhile. Then it stops polling and sleeps in the
//! very call that the program has made: what comes then comes by the kernel. So limits of time,
//! signals, restarts and cancellation are the kernel's own.

mod kernel_bytes;

use core::ffi::c_int;

use omniverb_connection::backoff::LookOutcome;
use omniverb_formats::link_layout::RING;
use omniverb_formats::{Direction, Place};
use rustix::event::PollFlags;

use super::kernel_socket_check::{self, Checked};
use super::links::{self, Flag, Link, Memory};
use super::reader_polling::{begin_sleep, end_sleep, looks, start_polling};
use super::ring_copy::{self, PIECE, RECEIVE_FLAGS};
use super::spin_budget::SpinBudget;
use super::unread_bytes::{
    is_left_of_kernel, is_passed, mark, reset_if_missing, unread_bytes, wait_until_passed,
};
use super::wake_latency::poll_time;
use super::{
    adaptive_spin, broker_dispatch, epoll_membership, kernel_fallback, published_bytes, send,
    wake_latency,
};
use crate::iovecs::Parts;
use crate::kernel_socket;
use crate::tsc_clock;

/// How long a socket is taken for one that does not wait, as it was when it was looked at.
const KNOWN: u64 = tsc_clock::SECOND >> 10;

/// Budget: steps of a call that got nothing: far more than other readers of the same socket cause.
const STEPS: u32 = 1 << 12;
/// Budget: the same of one that does not wait.
const STEPS_AT_ONCE: u32 = 1 << 4;

/// What there is in the ring.
enum Ring {
    /// It has nothing that the reader could take.
    Empty(Place),
    /// So many bytes.
    Bytes(Place, usize),
}

/// What is there for a caller that wants so many bytes; nothing if the ring is broken.
#[inline]
fn ring(link: Link, direction: &Direction<Memory>, wanted: usize) -> Ring {
    let mut seen = link.receiver.seen_head.get();
    let waiting = direction.waiting_by(&mut seen, wanted);
    link.receiver.seen_head.set(seen);
    match waiting {
        Ok((place, 0)) => Ring::Empty(place),
        Ok((place, bytes)) => Ring::Bytes(place, bytes),
        Err(_) => {
            link.set_flag(Flag::Broken);
            Ring::Empty(direction.place())
        }
    }
}

/// A call that receives.
struct Call<'a, N> {
    link: Link,
    direction: Direction<Memory>,
    fd: c_int,
    parts: Parts<'a>,
    flags: c_int,
    native: N,
    got: usize,
    /// Where the ring was read when the kernel was asked, by a call that does not wait.
    seen: Option<u64>,
    /// Where it has looked before it came the long way.
    looked_at: Option<u64>,
    /// When it began to wait, in milliseconds, if that counts for a later wait of it.
    waited_since: Option<u64>,
    /// It waits for what is left of the socket's limit, and then receives without waiting.
    in_parts: bool,
}

/// Receives. `native` does what the program has called, and the whole of it.
#[inline(always)]
pub(super) fn receive(
    link: Link,
    fd: c_int,
    parts: Option<Parts<'_>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    let Some(direction) = link.inward() else { return native() };
    if let Some(parts) = &parts
        && let Some(got) = ring_copy::try_receive(link, &direction, parts, flags)
    {
        return got;
    }
    receive_in_steps(link, direction, fd, parts, flags, native)
}

/// The same, whatever it takes.
#[inline(never)]
fn receive_in_steps(
    link: Link,
    direction: Direction<Memory>,
    fd: c_int,
    parts: Option<Parts<'_>>,
    flags: c_int,
    native: impl Fn() -> isize,
) -> isize {
    // A look at bytes that waits for all of them is the kernel's affair, too.
    let looks_and_waits = libc::MSG_PEEK | libc::MSG_WAITALL;
    let plainly = RECEIVE_FLAGS | libc::MSG_TRUNC;
    let is_plain = flags & !plainly == 0 && flags & looks_and_waits != looks_and_waits;
    let parts = parts.filter(|parts| parts.total() > 0 && is_plain);
    let Some(parts) = parts.filter(|_| !link.has(Flag::Broken)) else {
        let is_waiting = flags & libc::MSG_DONTWAIT == 0 && !kernel_socket::is_non_blocking(fd);
        if link.has(Flag::Broken) && is_waiting && reset_if_missing(link, fd) {
            kernel_socket::set_errno(libc::ECONNRESET);
            return -1;
        }
        // What only the kernel can do it does with all bytes.
        kernel_fallback::leave(link, fd);
        published_bytes::flush_all();
        return native();
    };
    let looked_at = adaptive_spin::spun_first(link, direction.place());
    let call = Call {
        link,
        direction,
        fd,
        parts,
        flags,
        native,
        got: 0,
        seen: None,
        looked_at,
        waited_since: None,
        in_parts: false,
    };
    let got = call.run();
    if got >= 0 && flags & libc::MSG_PEEK == 0 && link.receiver.shown.get() != 0 {
        link.receiver.shown.set(0);
    }
    got
}

/// What a step came to.
enum Step {
    Done(isize),
    Again,
}

impl<N: Fn() -> isize> Call<'_, N> {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    fn is_waiting(&self) -> bool {
        !self.has(libc::MSG_DONTWAIT) && !self.link.has(Flag::NonBlocking)
    }

    fn run(mut self) -> isize {
        let (mut steps, mut had) = (0, 0);
        loop {
            let wanted = self.parts.total() - self.got;
            let step = match ring(self.link, &self.direction, wanted) {
                Ring::Bytes(place, bytes) => self.take_of_ring(place, bytes),
                Ring::Empty(_) if self.got > 0 && !self.has(libc::MSG_WAITALL) => {
                    Step::Done(self.got as isize)
                }
                Ring::Empty(place) => self.turn_to_kernel(place),
            };
            if let Step::Done(result) = step {
                return result;
            }
            if self.got > had {
                (steps, had) = (0, self.got);
            }
            steps += 1;
            if steps > STEPS_AT_ONCE && self.got == 0 && !self.is_waiting() {
                return (self.native)();
            }
            if steps > STEPS {
                return self.give_up();
            }
            // The broker may say meanwhile that it is over.
            broker_dispatch::poll();
        }
    }

    /// The other end writes what no correct end writes: the call is not to go on for ever.
    #[cold]
    fn give_up(&self) -> isize {
        self.link.set_flag(Flag::Broken);
        if self.got > 0 {
            return self.got as isize;
        }
        if self.is_waiting() && reset_if_missing(self.link, self.fd) {
            kernel_socket::set_errno(libc::ECONNRESET);
            return -1;
        }
        begin_sleep(self.link);
        published_bytes::flush_all();
        let result = (self.native)();
        end_sleep(self.link);
        result
    }

    /// There are bytes in the ring. Those of the kernel come first.
    fn take_of_ring(&mut self, place: Place, bytes: usize) -> Step {
        let mut peeked = 0;
        let has_before = self.link.receiver.before.get() > 0;
        if has_before || !is_passed(self.link, self.fd, &self.direction) {
            match self.before_fence() {
                Ok(0) => {}
                Ok(got) if self.has(libc::MSG_PEEK) => {
                    let fence = self.direction.fence();
                    if !is_left_of_kernel(self.fd, fence, got) {
                        // More of the kernel's are on the way.
                        return Step::Done(got as isize);
                    }
                    peeked = got;
                }
                Ok(got) => {
                    self.had_of_kernel(got);
                    self.got += got;
                    if self.got == self.parts.total() {
                        return Step::Done(self.got as isize);
                    }
                    return Step::Again;
                }
                Err(step) => return step,
            }
        }
        let skip = self.got + peeked;
        let most = if self.has(libc::MSG_PEEK) { RING } else { PIECE };
        let length = bytes.min(self.parts.total() - skip).min(most);
        let direction = &self.direction;
        // `MSG_TRUNC`: they are only counted, and there may be no memory for them.
        if !self.has(libc::MSG_TRUNC) {
            self.parts.each(skip, length, |done, piece| {
                direction.drain(place.position(), done, piece);
            });
        }
        if self.has(libc::MSG_PEEK) {
            // Not if they are being taken back: the kernel may have shown some of them as its own.
            let now = direction.place();
            let is_same = now.position() == place.position() && !now.is_taken();
            return if is_same { Step::Done((skip + length) as isize) } else { Step::Again };
        }
        if !direction.take(place, length) {
            return Step::Again;
        }
        self.got += length;
        if self.got == self.parts.total() { Step::Done(self.got as isize) } else { Step::Again }
    }

    /// What the kernel has told us it does not tell again: it is for the next call.
    fn keep_error(&self, got: isize) {
        let error = kernel_socket::errno();
        if got < 0 && !matches!(error, libc::EAGAIN | libc::EINTR) {
            self.link.set_error(error);
        }
    }

    /// There is nothing in the ring.
    fn turn_to_kernel(&mut self, place: Place) -> Step {
        if self.got == 0
            && let Some(step) = self.leaves_to_kernel(place)
        {
            return step;
        }
        let seen = match self.link.receiver.vain.get() {
            0 => kernel_socket_check::check(self.link, self.fd),
            _ => kernel_socket_check::check_now(self.link, self.fd),
        };
        let events = match seen {
            Checked::OtherSocket if self.got > 0 => {
                links::forget(self.fd, self.link);
                return Step::Done(self.got as isize);
            }
            Checked::OtherSocket => {
                return Step::Done(send::another(self.fd, self.link, &self.native));
            }
            Checked::Events(events) => events,
        };
        if self.got == 0 && self.link.glance.error.get() != 0 {
            return self.fail();
        }
        let is_waiting = self.is_waiting();
        if events.intersects(PollFlags::IN | kernel_socket_check::ENDING) {
            if !is_waiting {
                return self.ask(place);
            }
            if !self.has(libc::MSG_WAITALL) && !self.parts.has_control() {
                return self.ask_without_waiting(place);
            }
        } else if !is_waiting {
            start_polling(self.link, &self.direction);
            return self.ask(place);
        } else if !place.is_taken() && looks(self.link).is_due() {
            if self.look_awake(place) {
                let got = if self.got > 0 { None } else { self.take_at_once() };
                return got.map_or(Step::Again, Step::Done);
            }
            if self.look_for_a_moment(place) {
                return Step::Again;
            }
        }
        self.sleep()
    }

    /// There is an error to be told: behind the bytes that had come before it.
    fn fail(&mut self) -> Step {
        let got = self.receive(self.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT);
        if got > 0 {
            return self.told(got);
        }
        match kernel_socket_check::take_error(self.link) {
            Some(error) => {
                kernel_socket::set_errno(error);
                Step::Done(-1)
            }
            // Another thread has told it.
            None => Step::Again,
        }
    }

    /// Where the kernel's own call says all that a look would, it is made at once: by a call that
    /// must not wait, as far as that was seen not long ago, and by a call that sleeps without
    /// polling.
    #[inline]
    fn leaves_to_kernel(&mut self, place: Place) -> Option<Step> {
        let link = self.link;
        if link.glance.error.get() != 0 || link.glance.looked.get() == 0 {
            return None;
        }
        let is_known = !tsc_clock::is_over(link.glance.looked.get(), KNOWN);
        let is_sure = is_known || self.has(libc::MSG_DONTWAIT);
        let is_asking = self.has(libc::MSG_DONTWAIT) || link.has(Flag::NonBlocking);
        if is_asking
            && (is_sure || !self.parts.has_control())
            && (is_known || kernel_socket_check::is_recent(link, tsc_clock::now()))
        {
            start_polling(link, &self.direction);
            return Some(if is_sure { self.ask(place) } else { self.ask_at_once(place) });
        }
        if !self.is_waiting() || self.has(libc::MSG_WAITALL) || link.receiver.skip.get() == 0 {
            return None;
        }
        looks(link).is_due();
        Some(self.sleep())
    }

    fn take_at_once(&self) -> Option<isize> {
        ring_copy::try_receive(self.link, &self.direction, &self.parts, self.flags)
    }

    /// Looks without giving the processor away. `true`: something has come.
    #[inline(always)]
    fn look_awake(&self, place: Place) -> bool {
        start_polling(self.link, &self.direction)
            && self.looked_at != Some(place.position())
            && adaptive_spin::spin(self.link, &self.direction, place, self.parts.total())
    }

    /// Looks for a moment. `true`: something has come, or happened.
    fn look_for_a_moment(&self, place: Place) -> bool {
        if !start_polling(self.link, &self.direction) {
            return false;
        }
        let mut budget = SpinBudget::of(poll_time(), u64::MAX);
        let has_come = self.look(place, &mut budget);
        let is_well = has_come && budget.was_in_time();
        let how = if is_well { LookOutcome::Well } else { LookOutcome::InVain };
        looks(self.link).record(how);
        has_come
    }

    fn look(&self, place: Place, budget: &mut SpinBudget) -> bool {
        loop {
            if self.direction.head().position() != place.position() {
                return true;
            }
            match kernel_socket_check::check(self.link, self.fd) {
                Checked::Events(events)
                    if !events.intersects(PollFlags::IN | kernel_socket_check::ENDING) => {}
                _ => {
                    // What the next look finds must not be missed for being too soon.
                    self.link.glance.looked.set(0);
                    return true;
                }
            }
            if budget.is_over() {
                return false;
            }
            budget.yield_now();
        }
    }

    /// Asks the kernel, which does not wait, or waits for all of it.
    fn ask(&mut self, place: Place) -> Step {
        self.seen = Some(place.position());
        let result = self.rest();
        self.told(result)
    }

    /// The same for a call that waits: another thread may have had what the kernel has shown, and
    /// no thread sleeps while this end polls.
    fn ask_without_waiting(&mut self, place: Place) -> Step {
        let before = kernel_socket::errno();
        let result = self.without_waiting(place);
        if result < 0 && kernel_socket::errno() == libc::EAGAIN {
            kernel_socket::set_errno(before);
            return self.sleep();
        }
        self.told(result)
    }

    /// The same for a call by a socket that does not wait, as it was when it was looked at last.
    fn ask_at_once(&mut self, place: Place) -> Step {
        let before = kernel_socket::errno();
        let result = self.without_waiting(place);
        let is_nothing = result < 0 && kernel_socket::errno() == libc::EAGAIN;
        if is_nothing && !kernel_socket::is_non_blocking(self.fd) {
            // It was changed out of the library's sight.
            kernel_socket::set_errno(before);
            self.link.glance.looked.set(0);
            return Step::Again;
        }
        self.told(result)
    }

    fn without_waiting(&mut self, place: Place) -> isize {
        self.seen = Some(place.position());
        self.receive(self.flags | libc::MSG_DONTWAIT)
    }

    /// Since then bytes have gone out of the ring to somewhere else: perhaps to the kernel.
    fn has_moved(&self) -> bool {
        let has_moved =
            |seen| wait_until_passed(self.link, tsc_clock::now()) || mark(self.link) != seen;
        self.seen.is_some_and(has_moved)
    }

    /// Waits in the kernel.
    fn sleep(&mut self) -> Step {
        self.seen = None;
        begin_sleep(self.link);
        if unread_bytes(self.link) > 0 {
            end_sleep(self.link);
            return Step::Again;
        }
        published_bytes::flush_all();
        if self.got == 0 && reset_if_missing(self.link, self.fd) {
            end_sleep(self.link);
            kernel_socket::set_errno(libc::ECONNRESET);
            return Step::Done(-1);
        }
        let (result, was_short) = wake_latency::timed_sleep(|| self.rest());
        end_sleep(self.link);
        kernel_socket::keeping_errno(broker_dispatch::poll_after_sleep);
        if result > 0 && was_short {
            // Looking would have found it.
            looks(self.link).record(LookOutcome::Missed);
        }
        self.told(result)
    }

    /// The kernel's answer is the call's, but for what it cannot know.
    fn told(&mut self, result: isize) -> Step {
        if result > 0 {
            if wake_latency::learn_wakeup(self.link) {
                looks(self.link).record(LookOutcome::Missed);
                epoll_membership::looks_again(self.link);
            }
            self.had_of_kernel(result as usize);
            self.got += result as usize;
            // A wait for all that had a part of the limit left has got what came first.
            let is_part = self.has(libc::MSG_WAITALL) && self.got < self.parts.total();
            let show_activity = is_part && self.in_parts;
            return if show_activity { Step::Again } else { Step::Done(self.got as isize) };
        }
        let error = if result < 0 { kernel_socket::errno() } else { 0 };
        let is_passing = matches!(error, libc::EAGAIN | libc::EINTR);
        let has_bytes = matches!(ring(self.link, &self.direction, 1), Ring::Bytes(..));
        if error == libc::EAGAIN && (has_bytes || self.has_moved())
            || error == 0 && (has_bytes || self.inherits())
        {
            return Step::Again;
        }
        if error != 0 && !is_passing && (has_bytes || self.got > 0) {
            // Those come first; what the kernel has told us it does not tell again.
            self.link.set_error(error);
            if has_bytes && self.got == 0 {
                return Step::Again;
            }
        }
        if self.got > 0 {
            return Step::Done(self.got as isize);
        }
        if error == 0 {
            // There is no peer any more: has it left bytes that it should have read?
            _ = kernel_socket_check::check_now(self.link, self.fd);
            if let Some(error) = kernel_socket_check::take_error(self.link) {
                kernel_socket::set_errno(error);
                return Step::Done(-1);
            }
        }
        Step::Done(result)
    }

    /// The writer has died while it was taking bytes back: those that the kernel has not had are
    /// still in the ring.
    fn inherits(&self) -> bool {
        let place = self.direction.place();
        let Ok(left) = self.direction.head().since(place) else { return false };
        if !place.is_taken() || left == 0 {
            return false;
        }
        let Some(information) = kernel_socket::Information::of(self.fd) else { return false };
        if !information.has_ended() {
            return false;
        }
        let passed = information.received().saturating_sub(self.direction.fence());
        let passed = usize::try_from(passed).unwrap_or(left).min(left);
        let is_done = self.direction.inherit(passed).is_ok();
        self.link.mark_maybe_ready();
        is_done && passed < left
    }
}
