//! Connections of the kernel's to and from other network namespaces, by which the broker sees that
//! the network brings them there. Where it has seen one, those that follow for a while are light.
//!
//! Both ends of one offer it, whether or not it would be worth a link of its own: so little is
//! needed that few are. Who connects knows whether one is wanted; who accepts does not, and takes
//! one of each address in a while for it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_stream::light::frame::Name;

use super::{names, ranges, sleepers};
use crate::errno::keeping_errno;
use crate::slots::next_getpeername;

/// How often one from an address, or to one, is offered.
pub(super) const OFTEN: u64 = 20_000_000;

/// When one was taken, by what an address makes of itself.
static TAKEN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// The kernel's `accept` has given this number: whether that connection is to be seen.
pub(crate) fn has_come_from_afar(number: c_int) -> bool {
    keeping_errno(|| {
        let (Some(peer), Some((own, _))) = (peer(number), names::of_socket(number)) else {
            return false;
        };
        ranges::has(&own) && !own.leads_to(&peer) && is_turn(&peer)
    })
}

/// It is time again for one from that address.
fn is_turn(peer: &Name) -> bool {
    let sum =
        peer.address.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(*byte));
    let (place, now) = (&TAKEN[sum % TAKEN.len()], sleepers::now().max(1));
    let was = place.load(Ordering::Relaxed);
    if was != 0 && now.saturating_sub(was) < OFTEN {
        return false;
    }
    place.compare_exchange(was, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Whom the kernel's socket of a number is connected with.
fn peer(number: c_int) -> Option<Name> {
    // SAFETY: integers, which may be zero.
    let mut place: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as u32;
    let to = (&raw mut place).cast::<c_void>();
    // SAFETY: both live across the call.
    let got = unsafe { next_getpeername(number, to, &raw mut length) };
    // SAFETY: the kernel has just written so many bytes there.
    if got == 0 { unsafe { names::read(to, length) }.map(|(name, _)| name) } else { None }
}
