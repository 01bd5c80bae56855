//! The kernel's bytes, for a call that receives: those before the ring's, and those that it waits
//! for.

use core::ffi::c_int;

use super::super::reader_polling::{begin_sleep, end_sleep, start_polling};
use super::super::unread_bytes::{is_passed, reset_if_missing, unread_before};
use super::super::{adaptive_spin, published_bytes};
use super::{Call, Step};
use rustix::net::sockopt::Timeout;

use crate::kernel_socket;
use crate::next_library;
use crate::tsc_clock;
use crate::user_memory::{UserMessageMut, UserSliceMut};

impl<N: Fn() -> isize> Call<'_, N> {
    /// What the kernel has before the ring's bytes; or looks at it. Not more: behind them there may
    /// be bytes that were sent past the library.
    pub(super) fn before_fence(&mut self) -> Result<usize, Step> {
        let before = kernel_socket::errno();
        let known = self.link.receiver.before.get() as usize;
        let now = || unread_before(self.fd, self.direction.fence());
        // A look takes nothing away, so what is known would stay as little as it was.
        let fresh = if self.has(libc::MSG_PEEK) { now() } else { None };
        let most = fresh.unwrap_or(known).max(1);
        let flags = self.flags & (libc::MSG_PEEK | libc::MSG_TRUNC) | libc::MSG_DONTWAIT;
        let got = self.receive_at_most(most, flags);
        if got <= 0 {
            // What was known is old.
            self.link.receiver.before.set(0);
        }
        match got {
            1.. => Ok(got as usize),
            // Another reader has had them, or they are still on the way.
            _ if is_passed(self.link, self.fd, &self.direction) => {
                self.keep_error(got);
                kernel_socket::set_errno(before);
                Ok(0)
            }
            _ if self.got > 0 && !(self.has(libc::MSG_WAITALL) && self.is_waiting()) => {
                self.keep_error(got);
                Err(Step::Done(self.got as isize))
            }
            // What only the kernel can tell it does. It may sleep, until the bytes come that are
            // before those in the ring; if another reader has had them meanwhile, it must not.
            _ => {
                begin_sleep(self.link);
                if is_passed(self.link, self.fd, &self.direction) {
                    end_sleep(self.link);
                    return Err(Step::Again);
                }
                published_bytes::flush_all();
                if self.got == 0 && self.is_waiting() && reset_if_missing(self.link, self.fd) {
                    end_sleep(self.link);
                    kernel_socket::set_errno(libc::ECONNRESET);
                    return Err(Step::Done(-1));
                }
                Err(self.late())
            }
        }
    }

    /// Waits for bytes that the kernel has before those in the ring. Not for more than these: what
    /// is in the ring is there already, whatever its writer does.
    fn late(&mut self) -> Step {
        let left = unread_before(self.fd, self.direction.fence()).unwrap_or(usize::MAX);
        let result = self.wait_for(left.max(1), self.flags & !libc::MSG_WAITALL);
        end_sleep(self.link);
        if result <= 0 && self.got > 0 {
            self.keep_error(result);
            return Step::Done(self.got as isize);
        }
        if result <= 0 {
            return Step::Done(result);
        }
        self.had_of_kernel(result as usize);
        self.got += result as usize;
        let is_more_wanted = self.has(libc::MSG_WAITALL) && self.got < self.parts.total();
        if is_more_wanted { Step::Again } else { Step::Done(self.got as isize) }
    }

    /// So many bytes of the kernel's were received. A sender that has more puts it into the ring.
    pub(super) fn had_of_kernel(&self, got: usize) {
        adaptive_spin::note_kernel_bytes(self.link);
        let left = self.link.receiver.before.get().saturating_sub(got as u64);
        self.link.receiver.before.set(left);
        self.link.reset_look_delay();
        let _ = self.direction.show_activity() || start_polling(self.link, &self.direction);
    }

    /// The program's call, for what is left.
    pub(super) fn rest(&mut self) -> isize {
        let waits_for_all = self.has(libc::MSG_WAITALL) && self.is_waiting();
        if self.got == 0 && !(waits_for_all && self.waited_since.is_some()) {
            if waits_for_all {
                self.waited_since = Some(tsc_clock::milliseconds());
            }
            return (self.native)();
        }
        self.wait_for(usize::MAX, self.flags)
    }

    /// Receives so many bytes of the kernel's at most, behind what this call has got. All waits of
    /// the call together are no longer than the socket's limit (`SO_RCVTIMEO`), as in the kernel.
    fn wait_for(&mut self, most: usize, flags: c_int) -> isize {
        let now = tsc_clock::milliseconds();
        let began = *self.waited_since.get_or_insert(now);
        let has_waited = now > began && self.is_waiting();
        let limit = if has_waited { kernel_socket::limit(self.fd, Timeout::Recv) } else { None };
        self.in_parts = limit.is_some();
        let Some(limit) = limit else { return self.receive_at_most(most, flags) };
        let until = began.saturating_add(limit.into());
        let left = c_int::try_from(until.saturating_sub(now)).unwrap_or(c_int::MAX);
        let mut one = [libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 }];
        // Nothing is held that leaving it would keep.
        match next_library::poll(UserSliceMut::of(&mut one), left) {
            ..0 => -1,
            0 => {
                kernel_socket::set_errno(libc::EAGAIN);
                -1
            }
            _ => self.receive_at_most(most, flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT),
        }
    }

    /// The kernel's bytes, behind what this call has got.
    pub(super) fn receive(&self, flags: c_int) -> isize {
        self.receive_at_most(usize::MAX, flags)
    }

    fn receive_at_most(&self, most: usize, flags: c_int) -> isize {
        let native = |message: UserMessageMut<'_>| next_library::recvmsg(self.fd, message, flags);
        self.parts.lend_rest(self.got, most, native)
    }
}
