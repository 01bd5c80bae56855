//! Spins on the ring for a short time before a call does anything else.
//!
//! What is waited for is likely to come soon.

use omniverb_connection::backoff::spin_pauses;
use omniverb_formats::{Direction, Place};

use super::links::{Flag, Link, Memory};

/// So many looks. Before the first one there are pauses of the processor ([`spin_pauses`]).
const LOOKS: u32 = 200;

/// In [`omniverb_formats::private_link_slot::Polling::first`]: what was looked for came by the
/// kernel.
const BY_KERNEL: u64 = u64::MAX;
/// In there, beside where it was looked in vain: by a call whose long way follows.
const GOES_ON: u64 = 1;

fn vain_at(place: Place) -> u64 {
    (place.position() + 1) << 1
}

/// For a call that has not asked the kernel so far: nothing is known that it would have to look
/// after, and no call has polled this link in vain before. What was sent by the kernel would not be
/// found.
#[inline(always)]
pub(super) fn may_spin_first(link: Link, direction: &Direction<Memory>, place: Place) -> bool {
    let link_flags = Flag::NonBlocking as u64 | Flag::Broken as u64;
    let (head, first) = (direction.head(), link.polling.first.get());
    !place.is_taken()
        && head.position() == place.position()
        && !head.is_stopped()
        && direction.is_polling()
        && link.identity.flags.get() & link_flags == 0
        && link.receiver.skip.get() == 0
        && link.receiver.vain.get() == 0
        && link.glance.error.get() == 0
        && link.glance.looked.get() != 0
        && first != BY_KERNEL
        && first & !GOES_ON != vain_at(place)
}

/// Looks, for such a call, which wants so many bytes. `true`: something has come.
#[inline(always)]
pub(super) fn spin_first(
    link: Link,
    direction: &Direction<Memory>,
    place: Place,
    wanted: usize,
) -> bool {
    let has_come = spin(link, direction, place, wanted);
    if !has_come {
        link.polling.first.set(vain_at(place) | GOES_ON);
    }
    has_come
}

/// The long way of a call begins: where it has looked first, if that is here.
pub(super) fn spun_first(link: Link, place: Place) -> Option<u64> {
    let first = link.polling.first.get();
    let has_looked = first != BY_KERNEL && first & GOES_ON != 0;
    if has_looked {
        link.polling.first.set(first & !GOES_ON);
    }
    (has_looked && first & !GOES_ON == vain_at(place)).then(|| place.position())
}

/// A call has received bytes of the kernel's: no call polls first until polling finds something
/// again.
pub(super) fn note_kernel_bytes(link: Link) {
    if link.polling.first.get() != BY_KERNEL {
        link.polling.first.set(BY_KERNEL);
    }
}

/// Looks, where the ring was found empty, for a call that wants so many bytes. `true`: something
/// has come.
#[inline(always)]
pub(super) fn spin(link: Link, direction: &Direction<Memory>, place: Place, wanted: usize) -> bool {
    let taken = place.position().wrapping_sub(link.polling.empty_at.get());
    let pauses = spin_pauses(link.polling.pauses.get(), taken, wanted as u64);
    link.polling.empty_at.set(place.position());
    link.polling.pauses.set(pauses);
    (0..pauses).for_each(|_| core::hint::spin_loop());
    let has_come = (0..LOOKS).any(|_| {
        direction.expect(place.position());
        let has_come = direction.head().position() != place.position();
        if !has_come {
            core::hint::spin_loop();
        }
        has_come
    });
    if has_come && link.receiver.vain.get() != 0 {
        link.receiver.vain.set(0);
    }
    if has_come && link.polling.first.get() == BY_KERNEL {
        link.polling.first.set(0);
    }
    has_come
}
