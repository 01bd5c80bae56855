//! Tells peers of a set's members whether this end polls their rings.
//!
//! A thread that waits by polling polls all members that may be ready; while a thread sleeps in the
//! set none is polled. To stop polling a member costs both ends something, and so does to start
//! again. A member that was polled in vain, or could not be polled, [`IDLE`] times in a row may be
//! ready no more, until the program receives by it, or waits for it otherwise. Of more than
//! [`CROWD`] members those are dropped that had nothing while the others had much.

use core::sync::atomic::{Ordering, fence};

use omniverb_formats::Direction;

use super::epoll_slot::{CROWD, EpollSlot};
use super::links::{self, Link, Memory};
use super::{reader_polling, unread_bytes};

/// So often in a row a member is polled in vain.
const IDLE: u64 = 4;
/// From so many on it is looked which of them have nothing while others are told of so often.
const SOME: u64 = 1 << 6;
const AGE: u64 = 2 * CROWD;

/// A member that is held is not maybe ready any more, unless its ring is polled, or there are
/// bytes.
fn mark_idle(slot: EpollSlot, link: Link) {
    let Some(direction) = link.inward() else { return };
    direction.while_not_polling(|| {
        let has_nothing = || unread_bytes::is_all_read(&direction) && link.glance.error.get() == 0;
        if has_nothing() {
            slot.maybe_ready().take(link.index());
            fence(Ordering::SeqCst);
            if !has_nothing() {
                slot.maybe_ready().put(link.index());
            }
        }
    });
}

/// Starts polling all members that may be ready and want to hear of bytes. Whether any is
/// polled.
pub(super) fn start_polling(slot: EpollSlot, wanted: u32) -> bool {
    let (mut is_any, mut many) = (false, 0);
    slot.each_maybe_ready(|link| {
        many += 1;
        if link.glance.is_polled.get() != 0 {
            is_any = true;
            return true;
        }
        slot.holding(link, |link| {
            let idle = link.glance.idle.get();
            if idle >= IDLE || many > CROWD {
                return mark_idle(slot, link);
            }
            let is_wanted = link.glance.events.get() as u32 & wanted != 0;
            if is_wanted && reader_polling::start_polling_member(link) {
                link.glance.is_polled.set(1);
                is_any = true;
            } else {
                link.glance.idle.set(idle + 1);
            }
        });
        true
    });
    slot.waits.ready_count.set(many);
    slot.news.away.set(0);
    is_any
}

/// Starts polling for a thread that has slept, and may have got something that came before: more is
/// likely to come, if polling was not in vain of late. Among very many members some would take so
/// long to answer that the thread sleeps before that again.
pub(super) fn resume_polling(slot: EpollSlot, wanted: u32) {
    if slot.news.away.get() != 0
        && slot.waits.skip.get() == 0
        && slot.waits.ready_count.get() <= CROWD / 2
    {
        start_polling(slot, wanted);
    }
}

/// Stops polling all members that may be ready: a thread is about to sleep. It looks
/// closely at each once more then.
pub(super) fn stop_polling(slot: EpollSlot) {
    let is_polling = |one: Direction<Memory>| one.may_be_polling();
    slot.each_held(
        |link| {
            link.reset_look_delay();
            link.glance.is_polled.get() != 0 || link.inward().is_some_and(is_polling)
        },
        |link| {
            stop_polling_member(link);
            true
        },
    );
    slot.news.away.set(1);
}

/// The ring of a member that is held is not polled any more.
fn stop_polling_member(link: Link) {
    let Some(direction) = link.inward() else { return };
    link.glance.is_polled.set(0);
    if direction.may_be_polling() {
        direction.stop_polling();
        link.glance.idle.set(link.glance.idle.get() + 1);
    }
}

/// Looks at one of many that are maybe ready: whether it had something of late.
pub(super) fn retire_idle(slot: EpollSlot) {
    if slot.waits.ready_count.get() < SOME {
        return;
    }
    let told = slot.news.told.get();
    slot.maybe_ready().each(slot.waits.hand.get() as u32, links::end(), |index| {
        slot.waits.hand.set(u64::from(index) + 1);
        let found = Link::at(index).filter(|link| slot.has(*link));
        let is_old = |link: &Link| told.wrapping_sub(link.member.since.get()) > AGE;
        if let Some(link) = found.filter(is_old) {
            slot.holding(link, |link| {
                stop_polling_member(link);
                link.glance.idle.set(IDLE);
                mark_idle(slot, link);
            });
        }
        false
    });
}
