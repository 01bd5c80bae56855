//! Moves bytes by lanes, each under a lock of its own instead of the lock of the state.
//!
//! A lane is a ring that one connection has to itself one way ([`super::lane_assignment`]). It is
//! of use to a thread as long as it says so: the holder of the state's lock takes that away before
//! anything is said of its connection by the channel that ends it, and before the memory goes. So a
//! thread here looks at nothing but the lane, and whether the channel has frames, which may be
//! about this connection: with those, without bytes, or without room it goes the other way.
//!
//! The order of locks: that of the state, then one of a lane, and no other.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use omniverb_connection::backoff::spin_pauses;
use omniverb_connection::descriptors::{PIECE as WORDS_IN_PIECE, Room};
use omniverb_connection::light::Slot;
use omniverb_connection::light::connection_slot::Flag;
use omniverb_connection::light::lane_assignment::Flow;
use omniverb_formats::Lane;
use omniverb_formats::channel_layout::{BYTES, ConnectionTable, HEAD, LANE, LANES, SIDE, TAIL};
use omniverb_ring::{UserMemory, WordMemory};

use super::descriptors::Token;
use super::mmap_buffers::{CHANNELS, SLOTS};
use super::{doorbell, signal_safe_lock};
use crate::carry::broker as mail;
use crate::iovecs::Parts;
use crate::shared_memory::Memory;
use crate::table_memory::Pieces;
use crate::vfork_check::{self, LaneGuard};

/// Of each slot, one more than the lane by which something comes, and behind that the one by which
/// it goes.
static OF_SLOTS: Pieces<{ SLOTS / WORDS_IN_PIECE }> = Pieces::new();
const PER_WAY: u32 = 16;
const _: () = assert!(CHANNELS * 2 * LANES < 1 << PER_WAY);

/// A lane of a channel, as this process has it.
#[repr(align(128))]
pub(super) struct Handle {
    lock: signal_safe_lock::Lock,
    /// The connection that has it, for a caller without the lock of all; 0: none.
    token: AtomicU64,
    /// The address of its channel's memory, while a connection has it.
    base: AtomicUsize,
    /// The sending side, and the number among its lanes.
    side: AtomicU32,
    number: AtomicU32,
    id: AtomicU32,
    is_across: AtomicBool,
    /// Calls that receive there wait.
    waits: AtomicBool,
    /// What comes before was received, all of it.
    is_next: AtomicBool,
    /// It was sent by since that was asked.
    was_used: AtomicBool,
    /// How many calls have begun here.
    turn: AtomicU32,
    /// How far this process has written, or read.
    position: AtomicU64,
    /// And how far the other one had read, or written, when that was looked at.
    seen: AtomicU64,
    /// Bytes that were sent by it, and not counted yet.
    sent: AtomicU64,
    /// Of the reader: where it found nothing last, how much it has got at a time since then, and
    /// for how long it is not to look again.
    waited: AtomicU64,
    last: AtomicU32,
    pauses: AtomicU64,
    /// The place of the channel's bell among our own descriptors.
    bell: AtomicUsize,
}

static HANDLES: [Handle; CHANNELS * 2 * LANES] = [const {
    Handle {
        lock: signal_safe_lock::Lock::new(),
        token: AtomicU64::new(0),
        base: AtomicUsize::new(0),
        side: AtomicU32::new(0),
        number: AtomicU32::new(0),
        id: AtomicU32::new(0),
        is_across: AtomicBool::new(false),
        waits: AtomicBool::new(false),
        is_next: AtomicBool::new(false),
        was_used: AtomicBool::new(false),
        turn: AtomicU32::new(0),
        position: AtomicU64::new(0),
        seen: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        waited: AtomicU64::new(0),
        last: AtomicU32::new(0),
        pauses: AtomicU64::new(0),
        bell: AtomicUsize::new(0),
    }
}; CHANNELS * 2 * LANES];

/// What a lane needs to know of its channel and its connection.
pub(super) struct LaneOwner {
    pub token: Token,
    pub id: u32,
    pub base: usize,
    /// The side that sends by it.
    pub side: usize,
    pub bell: usize,
    pub is_across: bool,
    /// Of the receiver.
    pub calls: WhenEmpty,
}

/// What calls that receive do where there is nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenEmpty {
    Wait,
    /// They say so (`O_NONBLOCK`).
    Fail,
}

impl From<&Slot> for WhenEmpty {
    fn from(slot: &Slot) -> Self {
        if slot.has(Flag::NonBlocking) { Self::Fail } else { Self::Wait }
    }
}

/// What is to be received before what comes by a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QueuedFirst {
    Nothing,
    /// What is in the queue.
    Queued,
}

fn place_of(channel: usize, way: Flow, number: usize) -> usize {
    (channel * 2 + way as usize) * LANES + number
}

/// A lane of a channel's.
pub(super) fn handle(channel: usize, way: Flow, number: usize) -> &'static Handle {
    &HANDLES[place_of(channel, way, number)]
}

fn word(slot: u32) -> Option<&'static AtomicU64> {
    let slot = slot as usize;
    OF_SLOTS.get(slot / WORDS_IN_PIECE)?.get(slot % WORDS_IN_PIECE)
}

/// For a caller with the lock of all: a slot has this lane in one direction, or none any more.
/// (Without memory to write that down a thread takes that lock to ask.)
fn puts(slot: u32, way: Flow, place: Option<usize>) {
    if place.is_some() {
        OF_SLOTS.make(slot as usize / WORDS_IN_PIECE);
    }
    let Some(word) = word(slot) else { return };
    let shift = PER_WAY * way as u32;
    let others = word.load(Ordering::Relaxed) & !(u64::from(u16::MAX) << shift);
    let place = place.map_or(0, |place| place as u64 + 1);
    word.store(others | place << shift, Ordering::Release);
}

/// In a child of `fork`: what there is is the parent's.
pub(super) fn begin_anew() {
    vfork_check::leave_lane_in_child();
    for handle in HANDLES.iter().filter(|handle| handle.was_ever_used()) {
        let token = handle.token.load(Ordering::Relaxed);
        if token != 0
            && let Some(word) = word(Token::of(token).slot())
        {
            word.store(0, Ordering::Relaxed);
        }
        handle.lock.begin_anew();
        handle.reset();
    }
}

/// A lane that this thread has to itself.
pub(super) struct Held<'a> {
    handle: &'a Handle,
    lane: Lane<Memory<BYTES>>,
    _lock: signal_safe_lock::Held<'a>,
    _at: LaneGuard,
}

impl Handle {
    /// A connection has it, or is about to.
    fn was_ever_used(&self) -> bool {
        self.base.load(Ordering::Relaxed) != 0 || !self.lock.is_free()
    }

    fn reset(&self) {
        if self.base.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.base.store(0, Ordering::Relaxed);
        self.token.store(0, Ordering::Relaxed);
        for word in [&self.position, &self.seen, &self.sent] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Takes its lock, if its channel is there. A caller without the lock of all has to check which
    /// connection has it.
    #[inline(always)]
    pub(super) fn hold(&self) -> Option<Held<'_>> {
        let held = self.hold_any()?;
        if self.base.load(Ordering::Relaxed) != 0 { Some(held) } else { None }
    }

    #[inline(always)]
    fn hold_any(&self) -> Option<Held<'_>> {
        let at = LaneGuard::enter()?;
        let lock = self.lock.take_by(at.thread())?;
        let side = self.side.load(Ordering::Relaxed) as usize;
        let memory = Memory::new(self.base.load(Ordering::Relaxed));
        let lane = Lane::new(memory, side, self.number.load(Ordering::Relaxed) as usize);
        Some(Held { handle: self, lane, _lock: lock, _at: at })
    }

    /// It is a connection's from now on.
    pub(super) fn begins(
        &self,
        whose: &LaneOwner,
        (channel, way, number): (usize, Flow, usize),
        before: QueuedFirst,
    ) {
        let held = self.hold_any();
        self.base.store(whose.base, Ordering::Relaxed);
        self.side.store(whose.side as u32, Ordering::Relaxed);
        self.number.store(number as u32, Ordering::Relaxed);
        self.id.store(whose.id, Ordering::Relaxed);
        self.is_across.store(whose.is_across, Ordering::Relaxed);
        self.waits.store(whose.calls == WhenEmpty::Wait, Ordering::Relaxed);
        self.is_next.store(before == QueuedFirst::Nothing, Ordering::Relaxed);
        self.was_used.store(true, Ordering::Relaxed);
        self.bell.store(whose.bell, Ordering::Relaxed);
        self.token.store(whose.token.word(), Ordering::Relaxed);
        drop(held);
        puts(whose.token.slot(), way, Some(place_of(channel, way, number)));
    }

    /// Calls that receive there do this from now on.
    pub(super) fn calls(&self, calls: WhenEmpty) {
        self.waits.store(calls == WhenEmpty::Wait, Ordering::Relaxed);
    }

    /// No thread comes by itself any more.
    pub(super) fn release(&self, slot: u32, way: Flow) {
        puts(slot, way, None);
        let held = self.hold_any();
        self.token.store(0, Ordering::Relaxed);
        drop(held);
    }

    /// The channel is gone: the next one's lanes begin at their beginnings.
    pub(super) fn ends(&self) {
        let held = self.hold_any();
        self.reset();
        drop(held);
    }

    /// It was sent by since that was asked last.
    pub(super) fn was_used(&self) -> bool {
        self.was_used.swap(false, Ordering::Relaxed)
    }

    /// How far this process is.
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

/// The lane of a connection, for a caller without the lock of all.
#[inline(always)]
pub(super) fn held(token: Token, way: Flow) -> Option<Held<'static>> {
    let word = word(token.slot())?.load(Ordering::Acquire);
    let place = usize::from((word >> (PER_WAY * way as u32)) as u16).checked_sub(1)?;
    let held = HANDLES[place].hold()?;
    let handle = held.handle;
    let is_ours = handle.token.load(Ordering::Relaxed) == token.word();
    // Where the network is asked now and then it may be over.
    let is_sure = is_ours && !(handle.is_across.load(Ordering::Relaxed) && mail::has_mail());
    if is_sure && !held.has_frames(way) { Some(held) } else { None }
}

/// Sends what is left behind so many bytes, as much as there is room for in the lane of a
/// connection and as it has; how much.
#[inline(always)]
pub(super) fn send(token: Token, parts: &Parts<'_>, from: usize) -> usize {
    // As it is: what is handed on is copied, and what was just stored is slow to load whole.
    let Some(held) = held(token, Flow::Out) else { return 0 };
    if held.has_turn() { held.send(parts, from) } else { 0 }
}

/// Receives what is next in the lane of a connection, if anything; how much. `None`: the rest is to
/// be looked after.
#[inline(always)]
pub(super) fn receive(token: Token, parts: &Parts<'_>, takes: Takes) -> Option<usize> {
    let Some(held) = held(token, Flow::In) else { return Some(0) };
    match held.has_turn() {
        true if held.has_next() => Some(held.receive(parts, 0, takes).unwrap_or(0)),
        true => Some(0),
        false => None,
    }
}

/// Bytes that are copied at a time: while some are copied out, others are copied in.
pub(super) const PIECE: usize = LANE / PIECES;
/// Pieces at most in one go by a thread that has the lock: then others have their turn.
const PIECES: usize = 4;
/// So many calls leave to others what is left to be done.
const TURNS: u32 = 256;
/// How often a waiting call polls a lane before the long way: about a microsecond or two. Before
/// the first look there are pauses of the processor ([`spin_pauses`]).
const GLANCES: u32 = 100;

/// Receives in a call that may wait: polls for a moment.
pub(super) fn receive_soon(token: Token, parts: &Parts<'_>, takes: Takes) -> usize {
    match parts.only().filter(|piece| takes == Takes::All && piece.len() <= PIECE) {
        Some(piece) => soon(token, |held| Some(held.receives_into(piece, 1))),
        None => soon(token, |held| held.receive(parts, 0, takes)),
    }
}

#[inline(always)]
fn soon(token: Token, receive: impl Fn(&Held<'_>) -> Option<usize>) -> usize {
    let waits = |held: &Held<'_>| held.handle.waits.load(Ordering::Relaxed);
    let Some(first) = held(token, Flow::In).filter(waits) else { return 0 };
    let pauses = first.pauses();
    drop(first);
    (0..pauses).for_each(|_| core::hint::spin_loop());
    for _ in 0..GLANCES {
        let Some(held) = held(token, Flow::In) else { return 0 };
        if !held.has_next() {
            return 0;
        }
        match receive(&held) {
            Some(0) => drop(held),
            got => return got.unwrap_or(0),
        }
        core::hint::spin_loop();
    }
    0
}

/// What has become of a send by a lane that was full.
pub(super) enum FullLaneSend {
    Sent(usize),
    /// There is no room yet; how far it was read.
    Full(u64),
    /// It has no lane, or there is something to be done first.
    Otherwise,
}

/// Sends in a call that may wait for room: for more than a little, so that the two ends do not
/// hinder each other.
pub(super) fn send_soon(token: Token, parts: &Parts<'_>, from: usize) -> FullLaneSend {
    let mut read = 0;
    for _ in 0..GLANCES {
        let Some(held) = held(token, Flow::Out) else { return FullLaneSend::Otherwise };
        let unread = held.unread();
        if LANE - unread as usize >= PIECE {
            return FullLaneSend::Sent(held.send(parts, from));
        }
        read = held.handle.position().wrapping_sub(u64::from(unread));
        drop(held);
        core::hint::spin_loop();
    }
    FullLaneSend::Full(read)
}

/// What becomes of what was received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// It is gone.
    All,
    /// The next call finds it, too.
    Nothing,
}

impl Takes {
    /// Of a call with these flags.
    #[inline(always)]
    pub(super) fn of(flags: c_int) -> Self {
        if flags & libc::MSG_PEEK == 0 { Self::All } else { Self::Nothing }
    }
}

impl Held<'_> {
    fn memory(&self) -> Memory<BYTES> {
        Memory::new(self.handle.base.load(Ordering::Relaxed))
    }

    fn side(&self) -> usize {
        self.handle.side.load(Ordering::Relaxed) as usize
    }

    /// There are frames in the channel that this process has not taken out.
    #[inline(always)]
    fn has_frames(&self, way: Flow) -> bool {
        let other = match way {
            Flow::In => self.side(),
            Flow::Out => 1 - self.side(),
        };
        let memory = self.memory();
        let head = memory.load(other * SIDE + HEAD, Ordering::Acquire);
        head != memory.load((1 - other) * SIDE + TAIL, Ordering::Relaxed)
    }

    /// Of the writer: bytes from `from` on, as far as there is room, and as many as the ring has.
    #[inline(always)]
    pub(super) fn send(&self, parts: &Parts<'_>, from: usize) -> usize {
        let mut done = from;
        for _ in 0..PIECES {
            let wanted = (parts.total() - done).min(PIECE);
            let bytes = if wanted > 0 { self.send_piece(parts, done, wanted) } else { 0 };
            done += bytes;
            // A reader that makes room byte by byte is not waited for.
            if bytes < wanted || done == parts.total() {
                break;
            }
        }
        self.notes_sent(done - from);
        done - from
    }

    /// Now and then a call goes the long way, which looks after all that is left to be done by this
    /// process.
    #[inline(always)]
    pub(super) fn has_turn(&self) -> bool {
        let turn = self.handle.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.handle.turn.store(turn, Ordering::Relaxed);
        !turn.is_multiple_of(TURNS)
    }

    fn send_piece(&self, parts: &Parts<'_>, from: usize, wanted: usize) -> usize {
        let (head, bytes) = self.room_for(wanted);
        if bytes > 0 {
            parts.each(from, bytes, |before, piece| self.lane.fill(head, before, piece));
            self.publishes(head, bytes);
        }
        bytes
    }

    /// Of the writer: a piece, which is all of a call, if there is room for it.
    #[inline(always)]
    pub(super) fn sends_whole(&self, piece: UserMemory) -> bool {
        let (head, bytes) = self.room_for(piece.len());
        let is_room = bytes == piece.len();
        if is_room {
            self.lane.fill(head, 0, piece);
            self.notes_sent(bytes);
            self.publishes(head, bytes);
        }
        is_room
    }

    /// Of the writer: where it is, and room for no more than so many bytes.
    #[inline(always)]
    fn room_for(&self, wanted: usize) -> (u64, usize) {
        let (head, mut seen) = (self.handle.position(), self.handle.seen.load(Ordering::Relaxed));
        let room = self.lane.room(head, &mut seen, wanted);
        self.handle.seen.store(seen, Ordering::Relaxed);
        (head, room.min(wanted))
    }

    /// Of the writer: so many bytes, which it has copied in, are there.
    #[inline(always)]
    fn publishes(&self, head: u64, bytes: usize) {
        let next = head.wrapping_add(bytes as u64);
        self.handle.position.store(next, Ordering::Relaxed);
        let id = self.handle.id.load(Ordering::Relaxed);
        ConnectionTable::new(self.memory()).sends(self.side(), id, bytes as u64);
        if self.lane.publish(next) {
            self.wakes();
        }
    }

    /// Of the writer: so many are to be counted.
    #[inline(always)]
    fn notes_sent(&self, bytes: usize) {
        let sent = self.handle.sent.load(Ordering::Relaxed);
        self.handle.sent.store(sent + bytes as u64, Ordering::Relaxed);
        self.handle.was_used.store(true, Ordering::Relaxed);
    }

    #[cold]
    fn wakes(&self) {
        self.lane.clear_reader_mark();
        // The channel's end waits for threads that have a lane.
        doorbell::ring(self.handle.bell.load(Ordering::Relaxed));
    }

    /// Bytes that were sent since that was asked last.
    pub(super) fn sent(&self) -> u64 {
        self.handle.sent.swap(0, Ordering::Relaxed)
    }

    /// Of the reader: what comes before was received, so that what is here is next.
    #[inline(always)]
    fn has_next(&self) -> bool {
        self.handle.is_next.load(Ordering::Relaxed)
    }

    /// Of the reader: what comes before was received.
    pub(super) fn is_next(&self) {
        self.handle.is_next.store(true, Ordering::Relaxed);
    }

    /// Of the writer: bytes that the other end has not read.
    pub(super) fn unread(&self) -> u32 {
        let mut seen = self.handle.seen.load(Ordering::Relaxed);
        let room = self.lane.room(self.handle.position(), &mut seen, LANE);
        self.handle.seen.store(seen, Ordering::Relaxed);
        (LANE - room) as u32
    }

    /// Of the reader: what is there, but for the first bytes of the call, which it has. `None`:
    /// what is there makes no sense.
    #[inline(always)]
    pub(super) fn receive(&self, parts: &Parts<'_>, from: usize, takes: Takes) -> Option<usize> {
        let (handle, mut done, mut peeked) = (self.handle, from, 0);
        let mut seen = handle.seen.load(Ordering::Relaxed);
        for _ in 0..PIECES {
            let tail = handle.position().wrapping_add(peeked);
            let wanted = (parts.total() - done).min(PIECE);
            let bytes = self.lane.waiting_by(tail, &mut seen, wanted)?.min(wanted);
            if bytes == 0 {
                break;
            }
            parts.each(done, bytes, |before, piece| self.lane.drain(tail, before, piece));
            match takes {
                Takes::All => self.takes(bytes),
                Takes::Nothing => peeked += bytes as u64,
            }
            done += bytes;
            if bytes < wanted {
                break;
            }
        }
        handle.seen.store(seen, Ordering::Relaxed);
        if takes == Takes::All && done > from {
            handle.last.store((done - from) as u32, Ordering::Relaxed);
        }
        Some(done - from)
    }

    /// Of the reader: what is there and next, as much as a piece has room for, if it is so much at
    /// least; else nothing, and so if it makes no sense.
    #[inline(always)]
    pub(super) fn receives_into(&self, piece: UserMemory, least: usize) -> usize {
        let handle = self.handle;
        if !self.has_next() {
            return 0;
        }
        let (tail, mut seen) = (handle.position(), handle.seen.load(Ordering::Relaxed));
        let Some(there) = self.lane.waiting_by(tail, &mut seen, piece.len()) else { return 0 };
        handle.seen.store(seen, Ordering::Relaxed);
        let bytes = there.min(piece.len());
        if bytes < least {
            return 0;
        }
        self.lane.drain(tail, 0, piece.first(bytes));
        self.takes(bytes);
        handle.last.store(bytes as u32, Ordering::Relaxed);
        bytes
    }

    /// Of a reader that finds nothing: for how long it is not to look again.
    fn pauses(&self) -> u64 {
        let (handle, position) = (self.handle, self.handle.position());
        let came = position.wrapping_sub(handle.waited.swap(position, Ordering::Relaxed));
        let last = u64::from(handle.last.load(Ordering::Relaxed));
        let pauses = spin_pauses(handle.pauses.load(Ordering::Relaxed), came, last);
        handle.pauses.store(pauses, Ordering::Relaxed);
        pauses
    }

    /// Of the reader: so many bytes are there. `None`: what is there makes no sense.
    pub(super) fn waiting(&self) -> Option<usize> {
        self.lane.waiting(self.handle.position())
    }

    /// Of the reader: bytes of ours, from one of what is there on.
    pub(super) fn read(&self, offset: usize, to: &mut [u8]) {
        UserMemory::lend_mut(to, |to| self.lane.drain(self.handle.position(), offset, to));
    }

    /// Of the reader: it has so many more.
    #[inline(always)]
    pub(super) fn takes(&self, bytes: usize) {
        let next = self.handle.position().wrapping_add(bytes as u64);
        self.handle.position.store(next, Ordering::Relaxed);
        self.lane.take(next);
    }
}
