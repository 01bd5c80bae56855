//! Links that carry next to nothing rest: the kernel has their sockets for a while.
//!
//! A link costs something where its bytes go by the kernel after all, since the other end sleeps:
//! more processes than processors, of which each has another one to let run, find nobody looking.
//! A sender that had the kernel send again and again, while hardly any bytes went by the link
//! either way, ends both directions, as who forks does; both ends forget the link, and offer their
//! socket again later, seldomer each time that this was in vain ([`super::renewing`]).

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::links::{Link, Note, Word};
use super::{clock, leaving, renewing, shadow};

/// Calls that the kernel had to send, after which it is looked what the link has carried meanwhile:
/// of a first link, whose ends may have to find together, and of one that has come again.
const CALLS: u64 = 1 << 10;
const AGAIN: u64 = 1 << 7;
/// Bytes for each of them, both ways together, that are worth a link.
const WORTH: u64 = 32;
/// Calls of so many bytes do not count: what the link costs is little beside their copies, and a
/// reader who has much to do may come to look for more.
const LARGE: isize = 1 << 10;
/// What makes a link the kernel's for good, or is more than that it carries little.
const OTHERWISE: u64 = Note::Kept as u64
    | Note::Left as u64
    | Note::Broken as u64
    | Note::Shared as u64
    | Note::Parted as u64
    | Note::Over as u64;

/// The kernel has sent so many bytes, as the program has called, since the other end does not look.
#[inline]
pub(super) fn goes_by_kernel(link: Link, number: c_int, bytes: isize) {
    if bytes >= LARGE {
        return;
    }
    let calls = link.word(Word::ByKernel).fetch_add(1, Ordering::Relaxed) + 1;
    if calls.is_multiple_of(AGAIN) {
        looks(link, number, calls);
    }
}

#[cold]
fn looks(link: Link, number: c_int, calls: u64) {
    let often = if renewing::is_first(number) { CALLS } else { AGAIN };
    if !calls.is_multiple_of(often) {
        return;
    }
    let carried = link.has_carried();
    let was = link.word(Word::CarriedThen).swap(carried, Ordering::Relaxed);
    let bytes = carried.wrapping_sub(was);
    if bytes < WORTH * often && link.get(Word::Notes) & OTHERWISE == 0 {
        renewing::ends_one(number, bytes, clock::now());
        shadow::keeping_errno(|| leaving::rest(link, number));
    }
}
