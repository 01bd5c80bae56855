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
use super::worth::WORTH;
use super::{clock, leaving, renewing, shadow};

/// Calls that the kernel had to send, after which it is looked what the link has carried meanwhile.
const CALLS: u64 = 512;
/// What makes a link the kernel's for good, or is more than that it carries little.
const OTHERWISE: u64 = Note::Kept as u64
    | Note::Left as u64
    | Note::Broken as u64
    | Note::Shared as u64
    | Note::Parted as u64
    | Note::Over as u64;

/// The kernel has sent what the program has called, since the other end does not look.
#[inline]
pub(super) fn goes_by_kernel(link: Link, number: c_int) {
    let calls = link.word(Word::ByKernel).fetch_add(1, Ordering::Relaxed);
    if calls % CALLS == CALLS - 1 {
        looks(link, number);
    }
}

#[cold]
fn looks(link: Link, number: c_int) {
    let carried = link.has_carried();
    let was = link.word(Word::CarriedThen).swap(carried, Ordering::Relaxed);
    let bytes = carried.wrapping_sub(was);
    if bytes < WORTH && link.get(Word::Notes) & OTHERWISE == 0 {
        renewing::ends_one(number, bytes, clock::now());
        shadow::keeping_errno(|| leaving::rest(link, number));
    }
}
