//! Chooses kernel connections that the broker observes, to learn routes between namespaces.
//!
//! Where the broker has seen one, those that follow for a while are light. Both ends of one offer
//! it, whether or not it would be worth a link of its own: so little is needed that few are. The
//! connecting end knows whether one is wanted. The accepting end does not, and takes one of each
//! address in a while for it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_connection::light::frame::Endpoint;

use super::{address_ranges, socket_addresses};
use crate::tsc_clock;

/// How often one from an address, or to one, is offered.
pub(super) const OFTEN: u64 = 20_000_000;

/// When one was taken, by what an address makes of itself.
static TAKEN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// The kernel's `accept` has given this descriptor: whether that connection is to be seen.
pub(crate) fn has_come_from_afar(fd: c_int) -> bool {
    match (socket_addresses::of_peer(fd), socket_addresses::of_socket(fd)) {
        (Some((peer, _)), Some((own, _))) => {
            address_ranges::has(&own) && !own.leads_to(&peer) && is_turn(&peer)
        }
        _ => false,
    }
}

/// It is time again for one from that address.
fn is_turn(peer: &Endpoint) -> bool {
    let sum =
        peer.address.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(*byte));
    let (place, now) = (&TAKEN[sum % TAKEN.len()], tsc_clock::nanoseconds().max(1));
    let was = place.load(Ordering::Relaxed);
    if was != 0 && now.saturating_sub(was) < OFTEN {
        return false;
    }
    place.compare_exchange(was, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
