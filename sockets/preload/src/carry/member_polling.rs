//! Tells peers of a set's members whether this end polls their rings.
//!
//! All who are astir, while somebody waits by looking; none, while somebody sleeps. To send
//! somebody away costs both ends something, and so does to welcome him: who was welcomed for
//! nothing, or could not be, [`IDLE`] times in a row is astir no more, until the program receives
//! by him, or waits for him otherwise. And of more than [`CROWD`] those are sent away who had
//! nothing when the others had much.

use core::sync::atomic::{Ordering, fence};

use omniverb_formats::Direction;

use super::epoll_slot::{AWAY, CROWD, EpollSlot, HAND, MANY, SKIP, TOLD};
use super::links::{self, Link, Memory, Word};
use super::{reader_polling, receive_queue};

/// So often in a row a member is welcomed for nothing.
const IDLE: u64 = 4;
/// From so many on it is looked which of them have nothing while others are told of so often.
const SOME: u64 = 1 << 6;
const AGE: u64 = 2 * CROWD;

/// A member that is held is not astir any more, unless its other end is welcome, or there are
/// bytes.
fn settles(slot: EpollSlot, link: Link) {
    let Some(direction) = link.inward() else { return };
    direction.settle(|| {
        let has_nothing = || receive_queue::is_all_read(&direction) && link.get(Word::Error) == 0;
        if has_nothing() {
            slot.astir().take(link.index());
            fence(Ordering::SeqCst);
            if !has_nothing() {
                slot.astir().put(link.index());
            }
        }
    });
}

/// Welcomes the other ends of all that are astir and want to hear of bytes. Whether any is welcome.
pub(super) fn welcomes(slot: EpollSlot, wanted: u32) -> bool {
    let (mut is_any, mut many) = (false, 0);
    slot.each_astir(|link| {
        many += 1;
        if link.get(Word::Welcomed) != 0 {
            is_any = true;
            return true;
        }
        slot.holding(link, |link| {
            let idle = link.get(Word::Idle);
            if idle >= IDLE || many > CROWD {
                return settles(slot, link);
            }
            let is_wanted = link.get(Word::Events) as u32 & wanted != 0;
            if is_wanted && reader_polling::welcome_member(link) {
                link.set(Word::Welcomed, 1);
                is_any = true;
            } else {
                link.set(Word::Idle, idle + 1);
            }
        });
        true
    });
    slot.set_word(MANY, many);
    slot.set_word(AWAY, 0);
    is_any
}

/// The same for who has slept, and may have something that was for him before: more is likely to
/// come, if looking was not in vain of late. Of very many at a time some would take so long to
/// answer that they are slept before again.
pub(super) fn welcomes_again(slot: EpollSlot, wanted: u32) {
    if slot.word(AWAY) != 0 && slot.word(SKIP) == 0 && slot.word(MANY) <= CROWD / 2 {
        welcomes(slot, wanted);
    }
}

/// Sends the other ends of all that are astir away: somebody is about to sleep. He looks closely at
/// each once more then.
pub(super) fn sends_away(slot: EpollSlot) {
    let is_welcome = |one: Direction<Memory>| one.may_be_welcome();
    slot.each_held(
        |link| {
            link.looks_at_once();
            link.get(Word::Welcomed) != 0 || link.inward().is_some_and(is_welcome)
        },
        |link| {
            sends_one_away(link);
            true
        },
    );
    slot.set_word(AWAY, 1);
}

/// The other end of a member that is held is not welcome any more.
fn sends_one_away(link: Link) {
    let Some(direction) = link.inward() else { return };
    link.set(Word::Welcomed, 0);
    if direction.may_be_welcome() {
        direction.say_no_more();
        link.set(Word::Idle, link.get(Word::Idle) + 1);
    }
}

/// Looks at one of many that are astir: whether it had something of late.
pub(super) fn ages(slot: EpollSlot) {
    if slot.word(MANY) < SOME {
        return;
    }
    let told = slot.word(TOLD);
    slot.astir().each(slot.word(HAND) as u32, links::end(), |index| {
        slot.set_word(HAND, u64::from(index) + 1);
        let found = Link::at(index).filter(|link| slot.has(*link));
        let is_old = |link: &Link| told.wrapping_sub(link.get(Word::Since)) > AGE;
        if let Some(link) = found.filter(is_old) {
            slot.holding(link, |link| {
                sends_one_away(link);
                link.set(Word::Idle, IDLE);
                settles(slot, link);
            });
        }
        false
    });
}
