//! Holds one light connection, as one of its ends has it, and answers calls as TCP would.
//!
//! A slot is some hundred bytes, and all that an idle connection costs but for a descriptor of the
//! process and two ids of its channel.

use super::acceptance_stage::{AcceptanceStage, OWES_ACCEPTED};
use super::budgets::FIRST_WINDOW;
use super::byte_queue::{BlockOwner, BlockPool, ByteQueue};
use super::connection_activity::Activity;
use super::frame::{Endpoints, Frame};
use super::getsockname_address::Naming;

pub use super::budgets::WINDOW;

/// So many bytes that were received make it worth while to say so.
const CREDIT_THRESHOLD: u32 = WINDOW / 4;

/// Events, as `epoll` numbers them.
pub const IN: u32 = 1;
/// There is room to send.
pub const OUT: u32 = 4;
/// An error is to be told of.
pub const ERR: u32 = 8;
/// Both directions are over.
pub const HUP: u32 = 16;
/// The other end sends no more.
pub const RDHUP: u32 = 0x2000;

/// Errors of Linux.
const EPIPE: u8 = 32;
const ECONNRESET: u8 = 104;

/// What is true of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Flag {
    /// The slot is a connection.
    Used = 1,
    /// No bytes come any more.
    PeerEnded = 2,
    /// The other end has closed: it receives nothing any more.
    PeerClosed = 4,
    /// This end sends no more.
    WriteShut = 8,
    /// That is to be said, as soon as there is room in the channel.
    OwesEnd = 16,
    /// No descriptor names it any more.
    Closed = 32,
    /// That, or an answer to the other end's `Close`, is to be said.
    OwesClose = 64,
    /// It was closed before all was received.
    ResetOnClose = 128,
    /// It has said that it has closed: it has an id no more if both have.
    CloseSent = 256,
    /// There was no room in the channel for what it had to send.
    NoRoom = 512,
    /// It does not wait.
    NonBlocking = 1024,
    /// `SHUT_RD`.
    ReadShut = 2048,
    /// It waits to be accepted.
    Pending = 4096,
    /// It is in the list of those of its channel that have something to say.
    Owing = 8192,
    /// The other end has reset, or what was sent after it had closed has shown that.
    ResetByPeer = 16384,
    /// This end has connected.
    Connecting = 32768,
}

/// How the other end has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It had received all.
    Orderly,
    /// It had not, or has said that it wants no more.
    Reset,
}

/// Its state. All zeros is none.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Slot {
    flags: u16,
    /// What a call is to be told once.
    error: u8,
    /// The combination of its options; 0: none was set.
    pub profile: u8,
    /// Which channel it goes by.
    pub channel: u16,
    /// How its names are shown, and what `bind` chose of its own.
    pub naming: Naming,
    /// The program has not heard yet that it is connected.
    pub is_connecting: bool,
    /// `SO_LINGER` without time: to close it resets.
    pub is_abrupt: bool,
    /// Whether it was accepted.
    pub(super) stage: AcceptanceStage,
    /// One more than the set that it is in; 0: in none.
    pub set: u16,
    /// By what the channel's ends call it.
    pub id: u32,
    /// How many descriptors name it.
    pub fd_count: u32,
    /// Bytes that have come; or, before it was accepted, those that were sent
    /// ([`super::acceptance`]).
    pub queue: ByteQueue,
    /// Bytes that may be sent.
    pub credit: u32,
    /// Bytes that were received, and the other end has not heard so.
    consumed: u32,
    /// What its set is to tell, with which data; and its place among those that are ready.
    pub events: u32,
    /// As the program gave it to `epoll_ctl`.
    pub data: u64,
    /// How often the slot was a connection: who remembers another number means one of before.
    pub generation: u32,
    pub(super) next: u32,
    pub(super) previous: u32,
    /// The next in a list of its channel's, of a listener's, of strays, or of free slots.
    pub(super) other: u32,
    /// `SO_RCVTIMEO`, `SO_SNDTIMEO`: milliseconds, 0 for none.
    pub times: [u32; 2],
    /// Which socket it has come to, for who has connected; 0: that is not known.
    pub socket: u32,
    /// `SO_RCVLOWAT`; 0: 1.
    pub least: u32,
    /// Whose ends these are: `from` is who connected.
    pub names: Endpoints,
    /// How busy it is, and which lanes it has.
    pub(super) activity: Activity,
}

impl Slot {
    /// Something is true of it.
    #[must_use]
    #[inline(always)]
    pub fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u16 != 0
    }

    /// It is, from now on.
    #[inline(always)]
    pub fn set_flag(&mut self, flag: Flag) {
        self.flags |= flag as u16;
    }

    /// It is not.
    #[inline(always)]
    pub fn clear_flag(&mut self, flag: Flag) {
        self.flags &= !(flag as u16);
    }

    /// A new connection.
    pub(super) fn begin(&mut self, channel: u16, names: Endpoints) {
        let generation = self.generation;
        *self = Self { channel, names, credit: WINDOW, generation, ..Self::default() };
        self.set_flag(Flag::Used);
    }

    /// What can be done with it, in events of `epoll`. So many bytes are in its lane.
    #[must_use]
    pub fn readiness(&self, in_lane: usize) -> u32 {
        let (ended, had_end) = (self.has(Flag::WriteShut), self.has(Flag::PeerEnded));
        let (is_over, is_reset) =
            (had_end || self.has(Flag::ReadShut), self.has(Flag::ResetByPeer));
        let mut events = 0;
        if self.received() + in_lane >= self.least() || is_over || is_reset {
            events |= IN;
        }
        if is_over || is_reset {
            events |= RDHUP;
        }
        let has_room = self.has(Flag::PeerClosed) || self.credit > 0 && !self.has(Flag::NoRoom);
        if ended || is_reset || has_room && !self.is_moving() {
            events |= OUT;
        }
        if is_reset || ended && is_over {
            events |= HUP;
        }
        if self.error != 0 {
            events |= ERR;
        }
        events
    }

    /// So many bytes are worth to be told of (`SO_RCVLOWAT`), of those that there may be.
    #[must_use]
    pub fn least(&self) -> usize {
        self.least.clamp(1, WINDOW / 2) as usize
    }

    /// The error that is to be told, once.
    pub fn take_error(&mut self) -> Option<i32> {
        let error = core::mem::take(&mut self.error);
        (error != 0).then_some(i32::from(error))
    }

    /// How many bytes may be sent now.
    ///
    /// # Errors
    /// errno: what a call that sends is to say. `None`: the other end has closed already, and what
    /// is sent shows that: it goes nowhere, and the next call is told.
    pub fn may_send(&mut self) -> Result<Option<u32>, i32> {
        if let Some(error) = self.take_error() {
            return Err(error);
        }
        if self.has(Flag::WriteShut) || self.has(Flag::ResetByPeer) {
            return Err(i32::from(EPIPE));
        }
        if self.is_moving() {
            return Ok(Some(0));
        }
        if self.has(Flag::PeerClosed) {
            return Ok(None);
        }
        Ok(Some(self.credit))
    }

    /// Bytes were sent to an end that has closed: it answers with a reset.
    pub fn sent_after_close(&mut self) {
        self.set_flag(Flag::ResetByPeer);
        self.error = EPIPE;
    }

    /// What a call that receives is to say where there are no bytes.
    ///
    /// # Errors
    /// errno. `Ok(true)`: the end. `Ok(false)`: it is to wait.
    pub fn end_of_stream(&mut self) -> Result<bool, i32> {
        if self.has(Flag::PeerEnded) || self.has(Flag::ReadShut) {
            return Ok(true);
        }
        if let Some(error) = self.take_error() {
            return Err(error);
        }
        Ok(self.has(Flag::ResetByPeer))
    }

    /// Bytes were received: how much credit is to be said, if it is worth while.
    pub fn consume(&mut self, bytes: u32) -> Option<u32> {
        self.count_consumed(bytes);
        if self.consumed < CREDIT_THRESHOLD
            || self.has(Flag::PeerEnded)
            || self.has(Flag::PeerClosed)
        {
            return None;
        }
        Some(self.consumed)
    }

    pub(super) fn count_consumed(&mut self, bytes: u32) {
        self.consumed = self.consumed.saturating_add(bytes);
    }

    /// That was said.
    pub fn credit_sent(&mut self) {
        self.consumed = 0;
    }

    /// What is to be said first of what it owes.
    #[must_use]
    pub fn next_owed(&self) -> Option<Frame> {
        if self.stage.has(OWES_ACCEPTED) {
            return Some(Frame::Accepted);
        }
        if self.has(Flag::OwesEnd) {
            return Some(Frame::End);
        }
        if self.has(Flag::OwesClose) {
            return Some(Frame::Close(self.has(Flag::ResetOnClose)));
        }
        let owes_credit = self.consumed >= CREDIT_THRESHOLD && !self.has(Flag::CloseSent);
        (owes_credit && !self.has(Flag::PeerEnded)).then_some(Frame::Credit(self.consumed))
    }

    /// It was said.
    pub fn frame_sent(&mut self, frame: Frame) {
        match frame {
            Frame::Accepted => self.stage = AcceptanceStage::default(),
            Frame::End => self.clear_flag(Flag::OwesEnd),
            Frame::Close(_) => {
                self.clear_flag(Flag::OwesClose);
                self.set_flag(Flag::CloseSent);
            }
            Frame::Credit(_) => self.credit_sent(),
            _ => {}
        }
    }

    /// `SHUT_WR`.
    pub fn shut_write(&mut self) {
        if !self.has(Flag::WriteShut) && !self.has(Flag::PeerClosed) {
            self.set_flag(Flag::OwesEnd);
        }
        self.set_flag(Flag::WriteShut);
        self.shut();
    }

    /// `SHUT_RD`.
    pub fn shut_read(&mut self) {
        self.set_flag(Flag::ReadShut);
        self.shut();
    }

    /// Shut down both ways: who sends there finds what he would find if it were closed.
    fn shut(&mut self) {
        if self.has(Flag::ReadShut) && self.has(Flag::WriteShut) && !self.has(Flag::CloseSent) {
            self.set_flag(Flag::OwesClose);
        }
    }

    /// Neither end sends any more: TCP has nothing left to do.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.has(Flag::ResetByPeer) || self.has(Flag::WriteShut) && self.has(Flag::PeerEnded)
    }

    /// No descriptor names it any more. So many bytes are in its lane.
    pub fn close(&mut self, in_lane: usize) {
        self.set_flag(Flag::Closed);
        self.clear_flag(Flag::OwesEnd);
        // Once both have sent their last nothing is left to be reset.
        if (self.received() + in_lane > 0 || self.is_abrupt) && !self.is_over() {
            self.set_flag(Flag::ResetOnClose);
        }
        if !self.has(Flag::CloseSent) {
            self.set_flag(Flag::OwesClose);
        }
    }

    /// Bytes come that the other end may send: `false` if it may not.
    #[must_use]
    pub fn may_receive(&self, bytes: u32) -> bool {
        let is_open = !self.has(Flag::PeerEnded) && !self.has(Flag::PeerClosed);
        // What was received and not said counts as if it were there.
        let there = self.received() as u32 + self.consumed;
        is_open && bytes <= WINDOW.saturating_sub(there)
    }

    /// So many bytes more are kept before it is accepted, or it was.
    #[must_use]
    pub fn may_be_kept(&self, bytes: u32) -> bool {
        !self.has(Flag::Pending) || self.queue.len() as u32 + bytes <= FIRST_WINDOW
    }

    /// On whose account is what comes.
    #[must_use]
    pub fn owner(&self) -> BlockOwner {
        match self.has(Flag::Pending) {
            true => BlockOwner::unaccepted(self.channel),
            false => BlockOwner::accepted(self.channel),
        }
    }

    /// Credit comes: `false` if there cannot be so much.
    pub fn add_credit(&mut self, bytes: u32) -> bool {
        let more = self.credit.checked_add(bytes).filter(|credit| *credit <= WINDOW);
        self.credit = more.unwrap_or(self.credit);
        more.is_some()
    }

    /// The other end sends no more. Without what came before, for which there was no memory, that
    /// is no end.
    pub fn peer_ended(&mut self) {
        if !self.has(Flag::ResetByPeer) {
            self.set_flag(Flag::PeerEnded);
        }
    }

    /// The other end has closed. What this one has to say then is that it has heard.
    pub fn peer_closed(&mut self, how: Closing) {
        let was_over = self.has(Flag::PeerEnded);
        self.set_flag(Flag::PeerClosed);
        self.clear_flag(Flag::OwesEnd);
        if how == Closing::Reset || self.has(Flag::ResetByPeer) {
            self.set_flag(Flag::ResetByPeer);
            self.error = if was_over { EPIPE } else { ECONNRESET };
        } else {
            self.set_flag(Flag::PeerEnded);
        }
        if !self.has(Flag::CloseSent) {
            self.set_flag(Flag::OwesClose);
        }
    }

    /// There is no memory for what comes: it is as if the other end had reset, and so does this
    /// one.
    pub fn reset_for_lack_of_memory(&mut self, pool: &mut BlockPool<'_>) {
        self.queue.clear(pool);
        self.set_flag(Flag::ResetOnClose);
        if !self.has(Flag::CloseSent) {
            self.set_flag(Flag::OwesClose);
        }
        self.set_flag(Flag::ResetByPeer);
        self.error = ECONNRESET;
    }

    /// What comes is for the program yet.
    #[must_use]
    pub fn is_receiving(&self) -> bool {
        !self.has(Flag::Closed) && !self.has(Flag::ResetByPeer)
    }

    /// Nothing comes from the other end any more: its process is gone, whose socket the kernel
    /// would have closed; or the two were parted, which no program may take for an end.
    pub fn lost_channel(&mut self, how: Closing) {
        if !self.has(Flag::PeerClosed) {
            self.peer_closed(how);
        }
        self.clear_flag(Flag::OwesClose);
        self.set_flag(Flag::CloseSent);
        if self.stage.has(OWES_ACCEPTED) {
            self.stage = AcceptanceStage::default();
        }
    }

    /// Both ends have said that they have closed: the id is free.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.has(Flag::CloseSent) && self.has(Flag::PeerClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Block, BlockPool};
    use super::*;

    fn slot() -> Slot {
        let mut slot = Slot::default();
        slot.begin(0, Endpoints::default());
        slot
    }

    fn push_one(slot: &mut Slot) {
        let (mut blocks, mut free) = ([const { Block::new() }; 2], [0; 2]);
        let pool = &mut BlockPool::new(&mut blocks, &mut free, |_| {});
        assert!(slot.queue.push((pool, BlockOwner::OWN), 1, |_, _| {}));
    }

    #[test]
    fn little_comes_before_it_is_accepted() {
        let mut slot = slot();
        slot.set_flag(Flag::Pending);
        assert!(slot.may_be_kept(FIRST_WINDOW) && !slot.may_be_kept(FIRST_WINDOW + 1));
        push_one(&mut slot);
        assert!(!slot.may_be_kept(FIRST_WINDOW) && !slot.peer_assigned_lane(0));
        slot.clear_flag(Flag::Pending);
        assert!(slot.may_be_kept(FIRST_WINDOW) && slot.peer_assigned_lane(0));
    }

    #[test]
    fn it_is_some_hundred_bytes() {
        assert!(size_of::<Slot>() <= 128, "{}", size_of::<Slot>());
    }

    #[test]
    fn a_send_to_a_closed_end_fails_at_the_next_call() {
        let mut slot = slot();
        slot.peer_closed(Closing::Orderly);
        assert_eq!(slot.readiness(0), IN | RDHUP | OUT);
        assert_eq!(slot.end_of_stream(), Ok(true));
        assert_eq!(slot.may_send(), Ok(None));
        slot.sent_after_close();
        assert_eq!(slot.readiness(0), IN | RDHUP | OUT | HUP | ERR);
        assert_eq!(slot.may_send(), Err(32));
        assert_eq!(slot.may_send(), Err(32));
        assert_eq!(slot.next_owed(), Some(Frame::Close(false)));
        slot.frame_sent(Frame::Close(false));
        assert!(slot.is_released() && slot.next_owed().is_none());
    }

    #[test]
    fn a_reset_is_told_once() {
        let mut slot = slot();
        slot.peer_closed(Closing::Reset);
        assert_eq!(slot.end_of_stream(), Err(104));
        assert_eq!(slot.end_of_stream(), Ok(true));
        assert_eq!(slot.may_send(), Err(32));
    }

    #[test]
    fn what_is_missing_has_no_end() {
        let (mut blocks, mut free) = ([const { Block::new() }; 2], [0; 2]);
        let mut pool = BlockPool::new(&mut blocks, &mut free, |_| {});
        let [mut ended, mut closed] = [slot(), slot()];
        for slot in [&mut ended, &mut closed] {
            slot.reset_for_lack_of_memory(&mut pool);
        }
        ended.peer_ended();
        closed.peer_closed(Closing::Orderly);
        for mut slot in [ended, closed] {
            assert_eq!(slot.end_of_stream(), Err(104));
            assert_eq!(slot.next_owed(), Some(Frame::Close(true)));
        }
    }

    #[test]
    fn credit_is_what_was_received() {
        let mut slot = slot();
        assert!(slot.may_receive(WINDOW) && !slot.may_receive(WINDOW + 1));
        assert_eq!(slot.consume(CREDIT_THRESHOLD - 1), None);
        assert!(!slot.may_receive(WINDOW));
        assert_eq!(slot.consume(1), Some(CREDIT_THRESHOLD));
        slot.credit_sent();
        assert!(slot.may_receive(WINDOW) && !slot.add_credit(1));
        slot.credit = 0;
        assert!(slot.add_credit(WINDOW) && !slot.add_credit(1));
        slot.peer_ended();
        assert!(!slot.may_receive(1));
    }

    #[test]
    fn an_end_that_is_closed_with_bytes_left_resets() {
        let (mut left, mut empty) = (slot(), slot());
        empty.shut_write();
        assert_eq!(empty.next_owed(), Some(Frame::End));
        empty.close(0);
        assert_eq!(empty.next_owed(), Some(Frame::Close(false)));
        push_one(&mut left);
        left.close(0);
        assert_eq!(left.next_owed(), Some(Frame::Close(true)));
    }

    #[test]
    fn what_both_have_ended_is_not_reset() {
        let mut slot = slot();
        push_one(&mut slot);
        slot.peer_ended();
        slot.shut_write();
        assert_eq!(slot.next_owed(), Some(Frame::End));
        slot.close(0);
        assert_eq!(slot.next_owed(), Some(Frame::Close(false)));
    }

    #[test]
    fn a_slot_that_is_shut_both_ways_says_its_end_and_then_closes() {
        let mut slot = slot();
        slot.shut_read();
        assert_eq!((slot.next_owed(), slot.end_of_stream()), (None, Ok(true)));
        slot.shut_write();
        assert_eq!(slot.next_owed(), Some(Frame::End));
        slot.frame_sent(Frame::End);
        assert_eq!(slot.next_owed(), Some(Frame::Close(false)));
        slot.frame_sent(Frame::Close(false));
        assert_eq!((slot.next_owed(), slot.may_send()), (None, Err(32)));
        assert_eq!(slot.readiness(0) & HUP, HUP);
        assert!(!slot.is_released(), "the other end has not closed");
    }

    #[test]
    fn a_lost_channel_resets_unless_the_peer_had_closed() {
        let (mut lost, mut closed) = (slot(), slot());
        lost.close(0);
        lost.lost_channel(Closing::Reset);
        assert!(lost.is_released() && lost.next_owed().is_none());
        assert_eq!(lost.end_of_stream(), Err(104));
        closed.peer_closed(Closing::Orderly);
        closed.lost_channel(Closing::Reset);
        assert!(closed.is_released() && !closed.has(Flag::ResetByPeer));
        assert_eq!((closed.end_of_stream(), closed.may_send()), (Ok(true), Ok(None)));
    }

    #[test]
    fn a_reset_behind_the_end_is_a_broken_pipe() {
        let mut slot = slot();
        slot.peer_ended();
        slot.peer_closed(Closing::Reset);
        assert_eq!(slot.readiness(0) & ERR, ERR);
        assert_eq!((slot.may_send(), slot.end_of_stream()), (Err(32), Ok(true)));
        assert_eq!(slot.readiness(0) & ERR, 0, "it was told once");
    }

    #[test]
    fn the_low_water_mark_counts_the_queue_and_the_lane() {
        let mut slot = slot();
        slot.least = 10;
        push_one(&mut slot);
        assert_eq!((slot.readiness(8) & IN, slot.readiness(9) & IN), (0, IN));
        slot.least = u32::MAX;
        assert_eq!(slot.least(), WINDOW as usize / 2, "more could never come");
        slot.peer_ended();
        assert_eq!(slot.readiness(0) & (IN | RDHUP), IN | RDHUP);
    }

    #[test]
    fn no_credit_is_owed_to_a_peer_that_sends_no_more() {
        let (mut ended, mut closed) = (slot(), slot());
        ended.peer_ended();
        closed.peer_closed(Closing::Orderly);
        closed.frame_sent(Frame::Close(false));
        for mut slot in [ended, closed] {
            assert_eq!((slot.consume(CREDIT_THRESHOLD), slot.next_owed()), (None, None));
        }
    }
}
