//! Sends and receives one piece of memory by the ring, in the fewest steps.
//!
//! Every other call goes on in [`mod@super::send`] and [`mod@super::receive`], as if this had not
//! been tried.

use core::ffi::c_int;

use omniverb_ring::UserMemory;

use super::ring_copy::{self, RECEIVE_FLAGS, SEND_FLAGS};
use super::{adaptive_spin, broker, kernel_socket_check, published_bytes, try_guard, unread_links};
use crate::tsc_clock;

/// There is something that each call looks after.
#[inline(always)]
fn has_duties(now: impl FnOnce() -> u64) -> bool {
    broker::is_any() || unread_links::is_any() && published_bytes::is_due(now())
}

/// Sends a piece by the link of a descriptor, if that has one, with room, and nothing has to be
/// looked after.
#[inline(always)]
pub(crate) fn send(fd: c_int, piece: UserMemory, flags: c_int) -> Option<isize> {
    if flags & !SEND_FLAGS != 0 {
        return None;
    }
    let guard = try_guard::enter(fd, |slot| &slot.sender.lock)?;
    let (link, now) = (guard.link(), tsc_clock::now());
    if has_duties(|| now) || !kernel_socket_check::was_recent(link, now) {
        return None;
    }
    let direction = link.outward()?;
    let is_put = direction.is_polling() && ring_copy::try_send(link, &direction, fd, &piece);
    is_put.then_some(piece.len() as isize)
}

/// Receives what is in the ring, if it is enough for this call.
#[inline(always)]
pub(crate) fn receive(fd: c_int, piece: UserMemory, flags: c_int) -> Option<isize> {
    if flags & !RECEIVE_FLAGS != 0 {
        return None;
    }
    let guard = try_guard::enter(fd, |slot| &slot.receiver.lock)?;
    if has_duties(tsc_clock::now) {
        return None;
    }
    let (link, direction) = (guard.link(), guard.link().inward()?);
    let got = ring_copy::try_receive(link, &direction, &piece, flags);
    if got.is_some() || flags & libc::MSG_DONTWAIT != 0 {
        return got;
    }
    let place = direction.place();
    let has_come = adaptive_spin::may_spin_first(link, &direction, place)
        && adaptive_spin::spin_first(link, &direction, place, piece.len());
    if has_come { ring_copy::try_receive(link, &direction, &piece, flags) } else { None }
}
