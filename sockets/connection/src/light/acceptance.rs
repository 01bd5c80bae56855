//! Tracks whether a connection was accepted, and moves it to another listener if it was not.
//!
//! `connect` does not wait to be accepted, and a listener that closes has not accepted the
//! connections that wait at it: the kernel gives those to the other processes that have the socket.
//! So the connecting end keeps what it has sent until it hears that it was accepted. Before that it
//! may *move*: it leaves its channel, is detached for a while, and opens again by another one, with
//! what it has kept.
//!
//! What is kept is in the queue, where nothing can have come yet.

use super::acceptance_stage::{
    ATTEMPTS_MAX, AcceptanceStage, DETACHED, IMMOVABLE, PARTING, UNACCEPTED,
};
use super::budgets::{FIRST_WINDOW, WINDOW};
use super::byte_queue::{BlockOwner, BlockPool};
use super::connection_slot::{Closing, Flag, Slot};
use super::frame::Frame;

impl Slot {
    /// It is about to say `Open`. Until it was accepted little may be sent.
    pub fn begin_connect(&mut self) {
        self.set_flag(Flag::Connecting);
        self.stage = self.stage.asked();
        self.credit = FIRST_WINDOW.saturating_sub(self.queue.len() as u32);
    }

    /// It may send more as soon as it is accepted.
    #[must_use]
    #[inline]
    pub fn waits_for_credit(&self) -> bool {
        self.is_unaccepted() && self.credit == 0
    }

    /// It has connected, and not heard that it was accepted.
    #[must_use]
    #[inline(always)]
    pub fn is_unaccepted(&self) -> bool {
        self.stage.has(UNACCEPTED)
    }

    /// Both ends know that it was accepted.
    #[must_use]
    pub fn is_settled_at_both_ends(&self) -> bool {
        self.stage == AcceptanceStage::default()
    }

    /// It leaves its channel, or has done so.
    #[must_use]
    #[inline(always)]
    pub fn is_moving(&self) -> bool {
        self.stage.has(PARTING | DETACHED)
    }

    /// It goes by no channel.
    #[must_use]
    #[inline(always)]
    pub fn is_detached(&self) -> bool {
        self.stage.has(DETACHED)
    }

    /// It has opened more than once, or was waited for.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        (2..=ATTEMPTS_MAX).contains(&self.stage.count())
    }

    /// Bytes that have come.
    #[must_use]
    #[inline(always)]
    pub fn received(&self) -> usize {
        if self.stage.has(UNACCEPTED | PARTING | DETACHED) { 0 } else { self.queue.len() }
    }

    /// Keeps a copy of what it sends, if it may yet have to move: `fill` as of
    /// [`super::byte_queue::ByteQueue::push`].
    #[inline]
    pub fn keep(
        &mut self,
        pool: &mut BlockPool<'_>,
        bytes: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) {
        if !self.is_unaccepted() || self.stage.count() == IMMOVABLE {
            return;
        }
        if !pool.has_plenty() || !self.queue.push((pool, BlockOwner::OWN), bytes, fill) {
            self.queue.clear(pool);
            self.stage = AcceptanceStage::fixed();
        }
    }

    /// It was accepted, or will not move any more.
    #[inline]
    pub fn settle_acceptance(&mut self, pool: &mut BlockPool<'_>) {
        if self.stage.has(UNACCEPTED | PARTING | DETACHED) {
            self.queue.clear(pool);
            self.stage = AcceptanceStage::default();
            self.credit += WINDOW - FIRST_WINDOW;
        }
    }

    /// What has come for one that has not heard yet that it was accepted says so, but for `Close`.
    #[inline]
    pub fn observe(&mut self, pool: &mut BlockPool<'_>, frame: Frame) {
        if self.is_unaccepted() && !matches!(frame, Frame::Close(_)) {
            self.settle_acceptance(pool);
        }
    }

    /// It was accepted by this end.
    pub fn accept_here(&mut self) {
        if !self.has(Flag::PeerClosed) || !self.has(Flag::CloseSent) {
            self.stage = AcceptanceStage::owes();
        }
    }

    /// The listener has refused it. Whether it may move to another one; then it leaves this
    /// channel.
    pub fn refuse(&mut self) -> bool {
        let may = self.is_unaccepted()
            && self.stage.count() < ATTEMPTS_MAX
            && !self.has(Flag::ResetOnClose);
        if may {
            self.stage = self.stage.to(PARTING);
            self.set_flag(Flag::PeerClosed);
            self.clear_flag(Flag::OwesEnd);
            self.clear_flag(Flag::NoRoom);
            if !self.has(Flag::CloseSent) {
                self.set_flag(Flag::OwesClose);
            }
        }
        may
    }

    /// There was no room for it where it came to: as [`Self::is_refused`], but it may ask as often
    /// as it takes.
    pub fn defer(&mut self) -> bool {
        let may = self.refuse();
        if may {
            self.stage = self.stage.uncounted();
        }
        may
    }

    /// It moves since there was no room for it.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        self.is_moving() && self.stage.count() == 0
    }

    /// Its channel is gone before it was accepted. Whether it may move to another one.
    pub fn lose_unaccepted(&mut self) -> bool {
        let may = self.stage.has(PARTING) || self.refuse();
        if may {
            self.clear_flag(Flag::OwesClose);
            self.set_flag(Flag::CloseSent);
        }
        may
    }

    /// It has parted: it is nowhere from now on.
    pub fn detach(&mut self) {
        self.stage = self.stage.to(DETACHED);
    }

    /// It was asked for in vain: whether it may wait on.
    pub fn retry_later(&mut self) -> bool {
        let count = self.stage.count();
        self.stage = self.stage.waits();
        count < ATTEMPTS_MAX
    }

    /// It opens again, by another channel, with what it has kept.
    pub fn reopen(&mut self, channel: u16, id: u32) {
        (self.channel, self.id) = (channel, id);
        for flag in [Flag::PeerClosed, Flag::CloseSent, Flag::OwesClose, Flag::OwesEnd] {
            self.clear_flag(flag);
        }
        self.begin_connect();
        let is_closed = self.has(Flag::Closed);
        if self.has(Flag::WriteShut) && !is_closed {
            self.set_flag(Flag::OwesEnd);
        }
        if is_closed || self.has(Flag::WriteShut) && self.has(Flag::ReadShut) {
            self.set_flag(Flag::OwesClose);
        }
    }

    /// Resets it: no other process listens.
    pub fn give_up(&mut self, pool: &mut BlockPool<'_>) {
        self.settle_acceptance(pool);
        self.clear_flag(Flag::PeerClosed);
        self.lost_channel(Closing::Reset);
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection_slot::OUT;
    use super::super::{Block, Endpoints};
    use super::*;

    fn asked() -> Slot {
        let mut slot = Slot::default();
        slot.begin(0, Endpoints::default());
        slot.begin_connect();
        slot
    }

    fn blocks(count: usize) -> Vec<Block> {
        (0..count).map(|_| Block::new()).collect()
    }

    #[test]
    fn what_is_kept_has_not_come() {
        let (mut memory, mut free) = (blocks(3), [0; 3]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let mut slot = asked();
        slot.keep(&mut pool, 10, |_, place| place.fill(7));
        assert_eq!((slot.queue.len(), slot.received(), slot.readiness(0)), (10, 0, OUT));
        slot.observe(&mut pool, Frame::Close(true));
        assert_eq!(slot.queue.len(), 10);
        slot.observe(&mut pool, Frame::Accepted);
        assert!(slot.queue.is_empty() && !slot.is_unaccepted() && !slot.refuse());
    }

    #[test]
    fn little_is_sent_before_it_is_accepted() {
        let (mut memory, mut free) = (blocks(40), [0; 40]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let mut slot = asked();
        assert_eq!(slot.may_send(), Ok(Some(FIRST_WINDOW)));
        slot.keep(&mut pool, FIRST_WINDOW as usize, |_, _| {});
        slot.credit -= FIRST_WINDOW;
        assert!(slot.waits_for_credit() && slot.readiness(0) & OUT == 0);
        slot.observe(&mut pool, Frame::Accepted);
        assert_eq!((slot.credit, slot.add_credit(FIRST_WINDOW)), (WINDOW - FIRST_WINDOW, true));
        assert!(!slot.waits_for_credit() && !slot.add_credit(1));
    }

    #[test]
    fn a_connection_without_a_copy_does_not_move() {
        let (mut memory, mut free) = (blocks(3), [0; 3]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let mut slot = asked();
        slot.keep(&mut pool, 16 << 10, |_, _| {});
        assert!(slot.queue.is_empty() && slot.is_unaccepted() && !slot.defer() && !slot.refuse());
    }

    #[test]
    fn a_deferred_connection_asks_until_answered() {
        let mut slot = asked();
        for _ in 0..5 * ATTEMPTS_MAX {
            assert!(slot.defer() && slot.waits_for_room());
            slot.frame_sent(Frame::Close(false));
            assert!(slot.is_released());
            slot.detach();
            assert!(slot.waits_for_room() && !slot.has_moved());
            slot.reopen(1, 2);
            assert!(!slot.waits_for_room());
        }
        assert!(slot.refuse() && !slot.waits_for_room());
    }

    #[test]
    fn one_that_moves_parts_first() {
        let (mut memory, mut free) = (blocks(3), [0; 3]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let mut slot = asked();
        slot.keep(&mut pool, 10, |_, _| {});
        slot.shut_write();
        assert_eq!(slot.next_owed(), Some(Frame::End));
        assert!(slot.refuse() && slot.is_moving() && !slot.is_released());
        assert_eq!((slot.next_owed(), slot.readiness(0)), (Some(Frame::Close(false)), OUT));
        slot.frame_sent(Frame::Close(false));
        assert!(slot.is_released() && slot.next_owed().is_none());
        slot.detach();
        assert_eq!((slot.end_of_stream(), slot.may_send()), (Ok(false), Err(32)));
        slot.reopen(3, 8);
        assert_eq!((slot.channel, slot.id, slot.credit), (3, 8, FIRST_WINDOW - 10));
        assert_eq!((slot.next_owed(), slot.has_moved()), (Some(Frame::End), true));
        assert!(!slot.is_released());
    }

    #[test]
    fn one_that_was_closed_moves_and_closes_again() {
        let mut slot = asked();
        slot.close(0);
        slot.frame_sent(Frame::Close(false));
        assert!(slot.lose_unaccepted() && slot.is_released());
        slot.detach();
        slot.reopen(1, 2);
        assert_eq!(slot.next_owed(), Some(Frame::Close(false)));
    }

    #[test]
    fn attempts_are_bounded() {
        let (mut memory, mut free) = (blocks(3), [0; 3]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let mut slot = asked();
        let mut count = 1;
        while slot.lose_unaccepted() {
            slot.detach();
            slot.reopen(0, 0);
            count += 1;
        }
        assert_eq!(count, ATTEMPTS_MAX);
        assert!(!slot.retry_later());
        slot.give_up(&mut pool);
        assert_eq!(slot.end_of_stream(), Err(104));
        assert!(slot.is_released());
    }
}
