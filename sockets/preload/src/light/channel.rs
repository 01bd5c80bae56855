//! Maps a channel: memory shared with another process, a ring of frames each way, a doorbell.
//!
//! The doorbell is a pair of sockets, by which each process wakes the other and hears of its end.
//!
//! Order: a writer writes frames, then its head (release); a reader reads the head (acquire), the
//! frames, then moves its tail (release), which the writer reads (acquire) before it writes there
//! again. Before a process sleeps it says so (`SeqCst`) and looks once more; a process that has
//! written a head or a tail looks (a fence between, `SeqCst`) whether the other one sleeps. One of
//! the two sees the other. In the same way a process that opens a connection says that it is about
//! to (`SeqCst`) and looks whether the other side has closed a listening socket. A process that has
//! closed one says so (`SeqCst`), and waits until the other one is not about to open: then it has
//! what was opened before in the ring, and refuses it.

use core::ffi::c_void;
use core::sync::atomic::{Ordering, fence};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use omniverb_connection::light::frame::{HEADER, NAMES};
use omniverb_connection::light::lane_assignment::Flow;
use omniverb_connection::light::{ConnectionIds, Endpoints, Frame, List, Slot};
use omniverb_connection::peer_wait_budget::TimeSpent;
use omniverb_formats::broker_message::Side;
use omniverb_formats::byte_ring;
use omniverb_formats::channel_layout::{
    self, BYTES, ConnectionTable, FULL, HEAD, IS_CUT, LEFT, OPENS, PORT_ALLOWED_FOR, PORTS_ALLOWED,
    RING, SIDE, SLEEPS, TAIL, WANTS_FRAMES, WANTS_ROOM, ring,
};
use omniverb_ring::{UserMemory, WordMemory};
use rustix::io::Errno;
use rustix::mm::{ProtFlags, munmap};
use rustix::net::{RecvFlags, recv};

use super::descriptors::Token;
use super::doorbell;
use super::lane_table::Lanes;
use super::lanes::LaneOwner;
use crate::anonymous_mappings::{Mapping, Sharing};
use crate::carry::map_sealed_memfd::map;
use crate::library_fds;
use crate::shared_memory::Memory;

/// The most frames that are in one.
pub(super) const FRAMES: usize = RING / HEADER;

/// Connections of a channel, of both sides together.
const IDS: usize = 1 << 21;
/// Bytes that a channel has mapped.
pub(super) const IDS_BYTES: usize = IDS * 4;
pub(super) const MEMORY_BYTES: usize = BYTES;
/// What only answers may take of a ring: then both sides can always answer.
pub(super) const FOR_ANSWERS: usize = 8 << 10;

/// Bytes of its socket that are taken in one go.
const RINGS_MAX: usize = 1024;

/// Bytes of frames that wake no thread.
const QUIET: usize = 512;

/// How long a new connection waits for the broker's messages to be read, in nanoseconds.
const PUT_OFF: u64 = 200_000_000;

/// Budget: how long a channel between two network namespaces goes on without a broker, in
/// nanoseconds: as long as the network is believed. A daemon that is started again is there before
/// that.
const ALONE: u64 = PORT_ALLOWED_FOR;

/// What is told of a channel between two network namespaces.
pub(super) struct CrossNamespace {
    /// This side's address, and the other one's.
    pub ends: [[u8; 16]; 2],
    /// To which ports of this side connections may be opened, and until when.
    ways: [(u16, u64); PORTS_ALLOWED],
    /// Since when a new connection waits for a message that may allow it; 0: none waits.
    put_off: u64,
    /// By which connection a broker has heard of it, which is to say when it is over.
    pub broker: u64,
    /// Since when there has been no such broker; 0: there is one.
    alone: u64,
}

impl CrossNamespace {
    pub(super) fn new(ends: [[u8; 16]; 2], broker: u64) -> CrossNamespace {
        CrossNamespace { ends, ways: [(0, 0); PORTS_ALLOWED], put_off: 0, broker, alone: 0 }
    }

    /// The mail has been read.
    pub(super) fn clear_put_off(&mut self) {
        self.put_off = 0;
    }

    /// The network was seen to bring one to a port. Of too many, which no broker says, the oldest
    /// is forgotten.
    pub(super) fn add_way(&mut self, port: u16, until: u64) {
        let place = match self.ways.iter_mut().position(|way| way.0 == port) {
            Some(place) => Some(&mut self.ways[place]),
            None => self.ways.iter_mut().min_by_key(|way| way.1),
        };
        if let Some(place) = place {
            *place = (port, until);
        }
    }

    /// The mail cannot be read now: whether that may be waited for, with all that comes by the
    /// channel.
    pub(super) fn put_off_until_limit(&mut self, now: u64) -> bool {
        if self.put_off == 0 {
            self.put_off = now;
        }
        let may = now - self.put_off < PUT_OFF;
        if !may {
            self.put_off = 0;
        }
        may
    }

    /// The broker that would say that it is over is gone. By which connection another one was told
    /// of it, if one was. `false`: there has been none for so long that it is over.
    pub(super) fn note_broker(&mut self, told: Option<u64>, now: impl FnOnce() -> u64) -> bool {
        if let Some(connection) = told {
            (self.broker, self.alone) = (connection, 0);
            return true;
        }
        let now = now();
        if self.alone == 0 {
            self.alone = now;
        }
        now - self.alone < ALONE
    }

    fn may_come(&self, names: &Endpoints, now: u64) -> bool {
        let [own, others] = self.ends;
        let has_way = || self.ways.iter().any(|way| way.0 == names.to.port && way.1 > now);
        names.to.address == own && names.from.address == others && has_way()
    }
}

/// A channel, as this side has it.
pub(super) struct Channel {
    pub memory: Memory<BYTES>,
    base: usize,
    pub side: usize,
    /// As the broker calls it.
    pub name: u64,
    /// `None`: the other process is of the same network namespace.
    pub across: Option<CrossNamespace>,
    /// What it has cost to find out whether addresses that the other end named are this host's.
    pub asked: TimeSpent,
    /// Its place among our own descriptors.
    bell: usize,
    pub ids: ConnectionIds<'static>,
    ids_base: usize,
    /// How far this side has written and said so, and how far the other one had read by then.
    head: u64,
    said: u64,
    read: u64,
    /// How far this side has read.
    tail: u64,
    /// Slots that have something to say, or want room.
    pub debts: List,
    /// There is an `Open`, and no room for its answer.
    pub is_short_of_room: bool,
    /// Those slots want room, and have nothing to say.
    pub is_only_short: bool,
    /// A stray wants to open here, and there is no room.
    pub has_strays: bool,
    /// How many of this side's may send more as soon as they are accepted.
    await_accept: u32,
    /// How many of this side's were refused for want of room, of those that the other side counts.
    put_off: u64,
    /// The other process is gone, or has closed its end: nothing comes but what is in the ring.
    pub is_over: bool,
    /// The other side's count of closed listeners when the broker was asked last, and since when
    /// that was known.
    seen: (u64, u64),
    /// Frames or room have moved since the other side was looked at.
    is_moved: bool,
    /// Bytes of frames that it was not woken for.
    quiet: usize,
    pub lanes: Lanes,
}

/// The other side has written what makes no sense.
#[derive(Debug)]
pub(super) struct ProtocolError;

impl Channel {
    /// Of memory that is mapped, and of our end of the pair of sockets.
    pub(super) fn new(
        base: usize,
        (name, side): (u64, Side),
        bell: &OwnedFd,
        across: Option<CrossNamespace>,
    ) -> Option<Channel> {
        let ids = Mapping::<u32>::new(IDS, Sharing::Sparse)?;
        let bell = library_fds::keep(bell.as_raw_fd())?;
        let ids = ids.leak();
        let ids_base = ids.as_ptr() as usize;
        let side = side.number();
        Some(Channel {
            memory: Memory::new(base),
            base,
            side,
            name,
            across,
            asked: TimeSpent::default(),
            bell,
            ids: ConnectionIds::new(ids, side as u32),
            ids_base,
            head: 0,
            said: 0,
            read: 0,
            tail: 0,
            debts: List::new(),
            is_short_of_room: false,
            is_only_short: true,
            has_strays: false,
            await_accept: 0,
            put_off: 0,
            is_over: false,
            seen: (0, 0),
            is_moved: false,
            quiet: 0,
            lanes: Lanes::new(),
        })
    }

    /// Where its memory is.
    pub(super) fn mapped(&self) -> [usize; 2] {
        [self.base, self.ids_base]
    }

    /// Its end: memory and descriptor go back.
    pub(super) fn end(&mut self) {
        if let Some(bell) = self.bell() {
            library_fds::close(bell.as_raw_fd());
        }
        // SAFETY: the caller takes it out of the list, and nothing else names these.
        unsafe {
            _ = munmap(self.base as *mut c_void, BYTES);
            _ = munmap(self.ids_base as *mut c_void, IDS * 4);
        }
    }

    /// What is shown in sets of the kernel's.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'static>> {
        doorbell::at(self.bell)
    }

    fn at(from: usize, position: u64) -> usize {
        ring(from) + position as usize % RING
    }

    /// Room for frames, as far as that is known; asks if it is less than that.
    pub(super) fn room(&mut self, least: usize) -> usize {
        let room = |read: u64| RING.saturating_sub(self.head.wrapping_sub(read) as usize);
        if room(self.read) < least {
            let word = self.memory.load((1 - self.side) * SIDE + TAIL, Ordering::Acquire);
            // Only what was written can have been read.
            if self.head.wrapping_sub(word) <= self.head.wrapping_sub(self.read) {
                self.read = word;
            }
        }
        RING.saturating_sub(self.head.wrapping_sub(self.read) as usize)
    }

    /// Writes a frame for which there is room; where its bytes go.
    pub(super) fn put(&mut self, frame: Frame, id: u32) -> u64 {
        let at = Self::at(self.side, self.head);
        self.memory.word(at).store(frame.encode(id), Ordering::Relaxed);
        let bytes = self.head + HEADER as u64;
        self.head += frame.takes() as u64;
        self.is_moved = true;
        bytes
    }

    /// Writes bytes of it.
    pub(super) fn fill(&self, position: u64, piece: UserMemory) {
        byte_ring::fill::<RING>((&self.memory, ring(self.side)), (position, 0), piece);
    }

    /// The same of bytes of ours.
    pub(super) fn fill_from(&self, position: u64, bytes: &[u8]) {
        UserMemory::lend(bytes, |bytes| self.fill(position, bytes));
    }

    /// Reads bytes of the frame that is next.
    fn drain(&self, position: u64, piece: UserMemory) {
        byte_ring::drain::<RING>((&self.memory, ring(1 - self.side)), (position, 0), piece);
    }

    /// Bytes of the frame that is next, from one on.
    pub(super) fn bytes(&self, from: usize, to: &mut [u8]) {
        let position = self.tail + (HEADER + from) as u64;
        UserMemory::lend_mut(to, |piece| self.drain(position, piece));
    }

    /// The frame that is next, if there is one; it is read once.
    pub(super) fn next(&self) -> Result<Option<(Frame, u32)>, ProtocolError> {
        let head = self.memory.load((1 - self.side) * SIDE + HEAD, Ordering::Acquire);
        let there = head.wrapping_sub(self.tail) as usize;
        if there == 0 {
            return Ok(None);
        }
        if there > RING || !there.is_multiple_of(HEADER) {
            return Err(ProtocolError);
        }
        let word = self.memory.load(Self::at(1 - self.side, self.tail), Ordering::Relaxed);
        let (frame, id) = Frame::decode(word).ok_or(ProtocolError)?;
        (frame.takes() <= there).then_some(Some((frame, id))).ok_or(ProtocolError)
    }

    /// Whether there is one, or what makes none.
    #[inline(always)]
    pub(super) fn has_next(&self) -> bool {
        self.memory.load((1 - self.side) * SIDE + HEAD, Ordering::Acquire) != self.tail
    }

    /// The names of an `Open`.
    pub(super) fn names(&self) -> Endpoints {
        let mut bytes = [0; NAMES];
        self.bytes(0, &mut bytes);
        Endpoints::decode(&bytes)
    }

    /// Whether the other side may open such a connection: from a port that any user may have, and
    /// as the kernel would bring it here, as far as that is known.
    pub(super) fn may_come(&self, names: &Endpoints, now: impl FnOnce() -> u64) -> bool {
        names.from.port >= 1024
            && match &self.across {
                None => names.from.leads_to(&names.to),
                Some(across) => across.may_come(names, now()),
            }
    }

    /// Of which side that is what comes or goes.
    pub(super) fn sender(&self, way: Flow) -> usize {
        match way {
            Flow::In => 1 - self.side,
            Flow::Out => self.side,
        }
    }

    /// What a lane needs to know that is a connection's one way.
    pub(super) fn whose(&self, (token, slot): (Token, &Slot), way: Flow) -> LaneOwner {
        let (base, side, bell) = (self.base, self.sender(way), self.bell);
        let (id, calls) = (slot.id, slot.into());
        LaneOwner { token, id, base, side, bell, is_across: self.across.is_some(), calls }
    }

    /// What is written down of connections.
    pub(super) fn shown(&self) -> ConnectionTable<Memory<BYTES>> {
        ConnectionTable::new(self.memory)
    }

    /// Opens one, for which there is room.
    pub(super) fn open(&mut self, id: u32, names: &Endpoints) {
        let Endpoints { from, to } = names;
        let (addresses, ports) = ([from.address, to.address], [from.port, to.port]);
        self.shown().opens(id, &channel_layout::Names { addresses, ports });
        let place = self.put(Frame::Open, id);
        self.fill_from(place, &names.encode());
    }

    /// An id is free again; the side that has chosen it says so.
    pub(super) fn release_id(&mut self, id: u32) {
        if id as usize & 1 == self.side {
            self.shown().ends(id);
        }
        self.ids.release(id);
    }

    /// So many bytes were sent.
    #[inline]
    pub(super) fn sends(&self, id: u32, bytes: usize) {
        self.shown().sends(self.side, id, bytes as u64);
    }

    /// The next frame is done with.
    pub(super) fn take(&mut self, frame: Frame) {
        self.tail += frame.takes() as u64;
        self.is_moved = true;
    }

    /// Writes a frame that hardly any thread waits for: a sleeper is woken by it only if it waits
    /// for room; otherwise by the next one that a thread does wait for, or when there are many of
    /// these.
    pub(super) fn put_quietly(&mut self, frame: Frame, id: u32) {
        let is_quiet = !self.is_moved && self.quiet < QUIET;
        self.put(frame, id);
        if is_quiet {
            self.quiet += frame.takes();
            (self.said, self.is_moved) = (self.head, false);
            self.memory.word(self.side * SIDE + HEAD).store(self.head, Ordering::Release);
            fence(Ordering::SeqCst);
            let sleeps = self.memory.word((1 - self.side) * SIDE + SLEEPS);
            if sleeps.load(Ordering::Relaxed) & WANTS_ROOM != 0 {
                sleeps.store(0, Ordering::Relaxed);
                self.quiet = 0;
                doorbell::ring(self.bell);
            }
        }
    }

    /// One of this side's has sent all that it may before it is accepted.
    pub(super) fn awaits_accept(&mut self) {
        self.await_accept += 1;
        // A sleeper has not said that it waits for this.
        self.sleeps();
    }

    /// It was accepted, or refused.
    pub(super) fn awaits_accept_no_more(&mut self) {
        self.await_accept = self.await_accept.saturating_sub(1);
    }

    /// Refuses a connection of the other side's, for which there is no room where it came to.
    pub(super) fn puts_off(&mut self, id: u32) {
        self.counts_full();
        self.put(Frame::Close(true), id);
    }

    /// One is about to be refused so.
    pub(super) fn counts_full(&self) {
        let word = self.memory.word(self.side * SIDE + FULL);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// One of this side's was refused: whether since there was no room for it.
    pub(super) fn take_put_off(&mut self) -> bool {
        let word = self.memory.load((1 - self.side) * SIDE + FULL, Ordering::Acquire);
        let was = word != self.put_off;
        if was {
            self.put_off = self.put_off.wrapping_add(1);
        }
        was
    }

    /// Says what has been written and read since that was said last, and wakes the other side if
    /// it sleeps and wants to know.
    pub(super) fn publish(&mut self) {
        if !core::mem::take(&mut self.is_moved) {
            return;
        }
        let has_frames = self.said != self.head;
        (self.said, self.quiet) = (self.head, 0);
        self.memory.word(self.side * SIDE + TAIL).store(self.tail, Ordering::Release);
        self.memory.word(self.side * SIDE + HEAD).store(self.head, Ordering::Release);
        fence(Ordering::SeqCst);
        let sleeps = self.memory.word((1 - self.side) * SIDE + SLEEPS);
        let wants = sleeps.load(Ordering::Relaxed);
        if wants & WANTS_ROOM != 0 || wants != 0 && has_frames {
            sleeps.store(0, Ordering::Relaxed);
            doorbell::ring(self.bell);
        }
    }

    fn wants_room(&self) -> bool {
        self.is_short_of_room || self.has_strays || self.await_accept > 0
    }

    /// This process is about to sleep. It looks once more afterwards.
    pub(super) fn sleeps(&self) {
        let wants = match self.debts.count() {
            0 if !self.wants_room() => WANTS_FRAMES,
            _ => WANTS_FRAMES | WANTS_ROOM,
        };
        self.memory.word(self.side * SIDE + SLEEPS).store(wants, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Announces that this side has closed a listener: a client that has not seen that may be about
    /// to open connections to it ([`Channel::is_opened`]).
    pub(super) fn count_closed_listener(&self) {
        let word = self.memory.word(self.side * SIDE + LEFT);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let sleeps = self.memory.word((1 - self.side) * SIDE + SLEEPS);
        // If that is a gateway it tells the other host.
        if self.across.is_some() && sleeps.load(Ordering::Relaxed) != 0 {
            sleeps.store(0, Ordering::Relaxed);
            doorbell::ring(self.bell);
        }
    }

    /// The other side says that it is about to open some: it has its lock, and is soon out again;
    /// or lies.
    pub(super) fn is_opened(&self) -> bool {
        self.memory.load((1 - self.side) * SIDE + OPENS, Ordering::SeqCst) != 0
    }

    /// This side is about to open connections to a socket that the other one had not left then.
    /// `false`: it has. Otherwise it waits until that was said.
    pub(super) fn may_open(&self, left: u64) -> bool {
        let word = self.memory.word(self.side * SIDE + OPENS);
        word.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let may = self.memory.load((1 - self.side) * SIDE + LEFT, Ordering::SeqCst) == left;
        if !may {
            word.store(0, Ordering::Release);
        }
        may
    }

    /// They are open, and that was said.
    pub(super) fn clear_opens(&self) {
        self.memory.word(self.side * SIDE + OPENS).store(0, Ordering::Release);
    }

    /// Notes the other side's count of closed listeners, before the broker is asked for a listener.
    pub(super) fn note_closed_listeners(&mut self, now: u64) {
        if self.left() != self.seen.0 {
            self.seen = (self.left(), now);
        }
    }

    /// The other side has left something since that was asked.
    pub(super) fn has_left_since(&self, asked: u64) -> bool {
        self.left() != self.seen.0 || self.seen.1 > asked
    }

    /// How often the other side has.
    pub(super) fn left(&self) -> u64 {
        self.memory.load((1 - self.side) * SIDE + LEFT, Ordering::Acquire)
    }

    /// The two are parted, which the other side sees though it may not have been told yet.
    pub(super) fn cut(&self) {
        self.memory.word(self.side * SIDE + IS_CUT).store(1, Ordering::Release);
    }

    /// The same in the memory of one that this side cannot have.
    pub(super) fn cut_unused(file: &OwnedFd, side: Side) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let Some(base) = map(file, BYTES, access) else { return };
        let word = side.number() * SIDE + IS_CUT;
        Memory::<BYTES>::new(base as usize).word(word).store(1, Ordering::Release);
        // SAFETY: the mapping that was just made, which no other thread knows of.
        _ = unsafe { munmap(base, BYTES) };
    }

    /// The other side has been told that they are.
    pub(super) fn is_cut(&self) -> bool {
        self.memory.load((1 - self.side) * SIDE + IS_CUT, Ordering::Acquire) != 0
    }

    /// Takes what has rung. `false`: it is of no use any more; if `is_over` since the other process
    /// is gone.
    pub(super) fn hear(&mut self) -> bool {
        let Some(bell) = self.bell() else { return false };
        let mut bytes = [0; RINGS_MAX];
        match recv(bell, &mut bytes[..], RecvFlags::DONTWAIT) {
            // A side that rings only when this one sleeps does not ring so often.
            Ok((RINGS_MAX, _)) => false,
            // The latter if it was rung and had not heard that.
            Ok((0, _)) | Err(Errno::CONNRESET) => {
                self.is_over = true;
                false
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }
}
