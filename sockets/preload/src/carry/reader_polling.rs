//! Tells the peer whether this end polls the ring, and polls it.
//!
//! The peer puts bytes there only while this end polls and no thread of it sleeps.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use omniverb_connection::backoff::LookOutcome;
use omniverb_formats::Direction;

use super::epoll_slot::EpollSlot;
use super::links::{Flag, Link, Memory};
use super::spin_budget::SpinBudget;
use super::wake_latency::poll_time;
use super::{ended_link_private_memory, forgotten_links};
use crate::spin_history::LookHistory;
use crate::tsc_clock;

/// How long is looked at memory alone at first, if what came last came there.
const AWAKE: u64 = tsc_clock::MOMENT >> 4;
/// What it costs both ends, roughly, to take back what is in a ring; and of so many at most.
const TAKING_BACK: u64 = tsc_clock::MOMENT >> 1;
const LINKS: u64 = 64;
/// What came last came there.
static IS_BY_RING: AtomicBool = AtomicBool::new(false);

/// Whether this end may poll: no other thread would have to be woken.
fn may_poll(link: Link) -> bool {
    let closed = Flag::NeverPolls as u64 | Flag::Ended as u64;
    let link_flags = closed | Flag::Shared as u64 | Flag::Broken as u64;
    let is_awake = link.receiver.sleeping.load(Ordering::SeqCst) == 0
        && !EpollSlot::with(link).is_some_and(EpollSlot::has_sleepers);
    is_awake && link.identity.flags.get() & link_flags == 0
}

/// This end polls the ring.
pub(super) fn is_polling(link: Link) -> bool {
    link.inward().is_some_and(|direction| direction.is_polling())
}

/// Starts polling, unless a thread went to sleep at this moment, or the peer puts nothing there any
/// more.
pub(super) fn start_polling(link: Link, direction: &Direction<Memory>) -> bool {
    may_put(link, direction)
        && (direction.is_polling() || is_worth_polling(link) && try_start(link, direction))
}

/// Starts polling for a thread that waits in its set.
pub(super) fn start_polling_member(link: Link) -> bool {
    link.inward().is_some_and(|direction| {
        may_put(link, &direction) && (direction.is_polling() || try_start(link, &direction))
    })
}

/// The peer may put something there still, and this end may poll.
fn may_put(link: Link, direction: &Direction<Memory>) -> bool {
    let is_stopped = direction.head().is_stopped();
    if is_stopped {
        forgotten_links::note_if_ended(link);
    }
    !is_stopped && may_poll(link)
}

/// Whether it is to be, since something was received by it, or would have been: so many members of
/// its set may be maybe ready that it is not.
fn is_worth_polling(link: Link) -> bool {
    EpollSlot::with(link).is_none_or(|slot| {
        let is_worth_polling = !slot.is_crowded(link);
        if is_worth_polling {
            slot.comes(link);
        }
        is_worth_polling
    })
}

fn try_start(link: Link, direction: &Direction<Memory>) -> bool {
    // Of this process: links whose memory others have, too, are not polled any more.
    static LAST: AtomicU64 = AtomicU64::new(0);
    direction.start_polling(LAST.fetch_add(1, Ordering::Relaxed), || {
        // A thread that goes to sleep in its set looks there for polled members, after it has said
        // so.
        link.mark_maybe_ready();
        may_poll(link)
    })
}

/// Starts polling for a thread that sends by this link.
pub(super) fn start_polling_link(link: Link) -> bool {
    link.inward().is_some_and(|direction| start_polling(link, &direction))
}

/// What others have not read of what they were sent.
#[derive(Clone, Copy, Default)]
pub(super) struct Unread {
    /// In so many rings, of those that are looked at.
    pub(super) links: u64,
    /// Changes whenever something is read.
    pub(super) place: u64,
}

/// Polls for a moment: at memory all the time, and first of all, and now and then, by asking. The
/// first answer that is not 0; 0: there was nothing. And whether that took too long.
///
/// `reads` is what others, which poll, have still to read of what they were sent. A thread with a
/// processor to itself polls for longer while they do: their answers come soon, and before a sleep
/// it would have to take back what they have not read. But not for longer than `most`, if that is
/// more than a look takes.
pub(super) fn look_for_a_moment(
    most: u64,
    mut is_there: impl FnMut() -> bool,
    mut ask: impl FnMut() -> c_int,
    reads: impl Fn() -> Unread,
) -> (c_int, LookOutcome) {
    let (began, mut asked, mut read) = (tsc_clock::now(), None, None);
    let mut budget = SpinBudget::of(poll_time(), most);
    // Where it was there last time it is likely to be there soon, and the kernel need not be asked
    // before.
    let mut is_known = false;
    while IS_BY_RING.load(Ordering::Relaxed) && !is_known && !tsc_clock::is_over(began, AWAKE) {
        core::hint::spin_loop();
        is_known = is_there();
    }
    loop {
        let is_time = asked.is_none_or(|asked| tsc_clock::is_over(asked, tsc_clock::MOMENT));
        let is_by_ring = core::mem::take(&mut is_known) || is_there();
        if is_by_ring || is_time {
            IS_BY_RING.store(is_by_ring, Ordering::Relaxed);
            asked = Some(tsc_clock::now());
            let told = ask();
            if told != 0 {
                let is_well = budget.was_in_time();
                return (told, if is_well { LookOutcome::Well } else { LookOutcome::InVain });
            }
        }
        if budget.is_over() {
            let unread = reads();
            let do_others_read = unread.links > 0 && read != Some(unread.place);
            let more = poll_time() + unread.links.min(LINKS) * TAKING_BACK;
            if !budget.is_alone() || !do_others_read || !budget.renew(more) {
                return (0, LookOutcome::InVain);
            }
            read = Some(unread.place);
        }
        budget.yield_now();
    }
}

/// A call of the kernel's that waits is about to begin, unless there are bytes in the ring now.
pub(super) fn begin_sleep(link: Link) {
    link.receiver.sleeping.fetch_add(1, Ordering::SeqCst);
    if let Some(direction) = link.inward() {
        link.glance.is_polled.set(0);
        direction.stop_polling();
    }
    ended_link_private_memory::settle();
}

/// It is over.
pub(super) fn end_sleep(link: Link) {
    link.receiver.sleeping.fetch_sub(1, Ordering::AcqRel);
}

/// How looks went by calls that receive by a link, or wait for it.
pub(super) fn looks(link: Link) -> LookHistory<'static> {
    let receiver = &link.slot().receiver;
    LookHistory { vain: &receiver.vain, skip: &receiver.skip }
}
