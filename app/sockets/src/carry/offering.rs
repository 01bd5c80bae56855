//! Which sockets are offered to the broker: when they first send or receive.
//!
//! Only what one process has by one number, as far as is known; what is in one set of epoll at most
//! ([`members`]); what no option, signal or stream of the C library has a part in.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use omniverb_stream::descriptors::{Kind, Why};

use super::links::{self, Link, Word};
use super::{broker, mail, members, shadow, worth};
use crate::table::{self, NUMBERS};
use crate::{ledger, place};

/// Bytes of the ring that have to be of use.
const LEAST: usize = 4096;
/// Numbers that the C library gives to other files unseen (`daemon`).
const STANDARD: c_int = 2;

/// Calls of the kernel that send, receive or wait, under way, for sockets that have no link. No
/// link is made meanwhile: nobody would know of them.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);
/// The same where it is known which socket a call is about, by the last bits of its number: others
/// get links meanwhile.
static UNCOUNTED_OF: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// What is known of a number.
pub(super) enum Found {
    /// It has a link, held.
    Carried(Link),
    /// It has one without memory, held: so far all is the kernel's.
    Offered(Link),
    /// A socket without one; a call is counted: [`uncount_one`].
    Counted,
    /// It is none.
    Other,
}

/// The link of a number; the socket is offered if it never was.
#[inline]
pub(super) fn enter(number: c_int) -> Found {
    mail::look();
    for _ in 0..2 {
        if let Some(link) = links::enter(number) {
            let is_there = link.get(Word::Memory) != 0;
            return if is_there { Found::Carried(link) } else { Found::Offered(link) };
        }
        let kind = NUMBERS.look(number).kind();
        // Who listens has no bytes, and never will.
        if !kind.is_stream() || kind == Kind::Listening || !place::is_ours() {
            return Found::Other;
        }
        if !offer(number) {
            count_one(number);
            // Who makes a link makes it first, and looks then whether somebody is uncounted.
            if !links::has(number) {
                return Found::Counted;
            }
            uncount_one(number);
        }
    }
    count_one(number);
    Found::Counted
}

/// A call is about to begin of which no link will know: none is made meanwhile.
pub(super) fn count() {
    UNCOUNTED.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// The call is over.
pub(super) fn uncount() {
    less(&UNCOUNTED);
}

fn less(count: &AtomicU64) {
    // In a child of this call's process it was over before.
    let less = |count: u64| count.checked_sub(1);
    _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

fn of(number: c_int) -> &'static AtomicU64 {
    &UNCOUNTED_OF[number as usize % UNCOUNTED_OF.len()]
}

/// As [`count`], for a call that is about this socket only.
fn count_one(number: c_int) {
    of(number).fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// That call is over.
pub(super) fn uncount_one(number: c_int) {
    less(of(number));
}

/// A call is under way of which a link of this number would not know.
fn is_any_uncounted(number: c_int) -> bool {
    UNCOUNTED.load(Ordering::SeqCst) != 0 || of(number).load(Ordering::SeqCst) != 0
}

/// In a child: threads that were at it are not there.
pub(super) fn begin_anew() {
    UNCOUNTED.store(0, Ordering::Relaxed);
    UNCOUNTED_OF.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// Offers it, unless it is not to be carried. Whether it has a link now.
fn offer(number: c_int) -> bool {
    let entry = NUMBERS.look(number);
    let is_connected = matches!(entry.kind(), Kind::Connected | Kind::Accepted | Kind::Connecting);
    let is_alone = !entry.was_found() && !entry.is_duplicated() && entry.why() == Why::Free;
    if !is_connected || !is_alone || number <= STANDARD || table::has_rings() {
        return false;
    }
    let is_apart = place::is_apart() || is_any_uncounted(number);
    let is_free = !is_apart && broker::may_be_there();
    is_free && worth::is_due(number, entry.id()) && offer_now(number)
}

#[cold]
fn offer_now(number: c_int) -> bool {
    let entry = NUMBERS.look(number);
    if members::membership(number, entry.id()).is_err() {
        ledger::keep(number, Why::Member);
        return false;
    }
    let information = shadow::Information::of(number);
    if information.as_ref().is_some_and(shadow::Information::is_ending) {
        ledger::keep(number, Why::Ended);
        return false;
    }
    let is_open = information.is_some_and(|of| of.is_established());
    let Some(cookie) = shadow::cookie(number).filter(|_| is_open) else {
        return false;
    };
    // What is taken back out of the ring must find room with the kernel ([`Link::room`]).
    let buffer = shadow::send_buffer(number);
    if shadow::low_water(number) != 1 || buffer < 4 * LEAST {
        ledger::keep(number, Why::Option);
        return false;
    }
    let Some(link) = links::make(number) else { return false };
    link.set(Word::Cookie, cookie);
    link.set(Word::Number, number as u64);
    fence(Ordering::SeqCst);
    // Whatever keeps a socket from being carried is noted before anybody looks for its link.
    let again = NUMBERS.look(number);
    let is_same = again.id() == entry.id() && again.why() == Why::Free && !again.is_duplicated();
    let is_where_it_may_be = members::join(link, number, entry.id());
    if !is_where_it_may_be {
        ledger::keep(number, Why::Member);
    }
    let is_free = is_same && is_where_it_may_be && !is_any_uncounted(number);
    let is_offered = is_free && broker::offer(number, link);
    if !is_offered {
        links::forget(number, link);
    }
    link.let_go();
    is_offered
}

/// Sockets that there are now are never offered: others have them, too. And sets have no more
/// members that are carried.
pub(super) fn none_of_these() {
    let mut written = 0;
    for number in 0..NUMBERS.end() {
        let kind = NUMBERS.look(number).kind();
        if kind.is_stream() && written < ledger::AT_ONCE {
            ledger::keep(number, Why::Shared);
            written += 1;
        } else if kind.is_stream() || kind == Kind::Set {
            NUMBERS.keep(number, Why::Shared);
        }
    }
}
