//! Computes how much of a stream may be sent, and from where to where: bookkeeping without memory
//! and without queues.
//!
//! In: sizes, what completed, what the peer's messages say. Out: pieces to send, and what the peer
//! is allowed. Each half of the receive buffer is given to the peer as a whole, and is given again
//! when the program has read as much. Messages are counted modulo 2^16.

use std::collections::VecDeque;
use std::ops::Range;

use super::wire_format::{AMOUNT_MAX, PLACES, RemoteBuffer};

/// Requests kept for what the two sides say to each other beside the data.
pub(crate) const CONTROLS: u32 = 4;
/// Less room than this is not worth a request.
pub(crate) const LOW: u32 = 2048;
/// The first piece of a long send, in bytes; each piece is twice as long as the one before, so
/// that the peer has something to do soon.
const FIRST_PIECE: u32 = 2048;
/// Bytes of the longest.
const LAST_PIECE: u32 = 1 << 16;

/// The peer did what no peer may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation;

/// A ring of bytes: where the next ones are.
#[derive(Clone, Copy, Debug)]
struct Ring {
    bytes: u32,
    next: u32,
}

impl Ring {
    /// The next `count` bytes, at most as many as it has: in one piece, or in two.
    fn take(&mut self, count: u32) -> [Range<usize>; 2] {
        let first = count.min(self.bytes - self.next);
        let rest = count - first;
        let range = |from: u32, count: u32| from as usize..(from + count) as usize;
        let taken = [range(self.next, first), range(0, rest)];
        self.next = if first == self.bytes - self.next { rest } else { self.next + first };
        taken
    }
}

/// A piece of the stream, to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamPiece {
    pub(crate) bytes: u32,
    /// Where in the send buffer it is to be put. The second part is empty where one is enough;
    /// both are where it needs no buffer.
    pub(crate) from: [Range<usize>; 2],
    /// Where it goes in the peer's memory.
    pub(crate) to: RemoteBuffer,
}

impl StreamPiece {
    /// It goes within the request.
    pub(crate) fn is_inline(&self) -> bool {
        self.from[0].is_empty()
    }
}

/// How long pieces are within one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceLength(u32);

impl PieceLength {
    /// At the beginning of a call.
    pub(crate) fn new() -> PieceLength {
        PieceLength(FIRST_PIECE)
    }

    /// The next piece of `left` bytes.
    fn next(&mut self, left: usize) -> u32 {
        let step = self.0;
        if step as usize >= left {
            return left as u32;
        }
        self.0 = LAST_PIECE.min(step * 2);
        step
    }
}

/// What we send.
#[derive(Debug)]
pub(crate) struct Sender {
    buffer: Ring,
    /// Bytes of the buffer that are free.
    free: u32,
    requests: u32,
    controls: u32,
    requests_all: u32,
    inline: u32,
    sent: u16,
    allowed: u16,
    targets: VecDeque<RemoteBuffer>,
}

impl Sender {
    /// For a buffer and a send queue, and a peer whose first target and credits are known.
    pub(crate) fn new(
        bytes: u32,
        queue: u32,
        inline: u32,
        target: RemoteBuffer,
        credits: u16,
    ) -> Sender {
        let mut targets = VecDeque::with_capacity(PLACES);
        targets.push_back(target);
        let requests = queue.saturating_sub(CONTROLS);
        Sender {
            buffer: Ring { bytes, next: 0 },
            free: bytes,
            requests,
            controls: CONTROLS,
            requests_all: requests,
            inline,
            sent: 0,
            allowed: credits,
            targets,
        }
    }

    /// There is a request for it, and room in the buffer.
    pub(crate) fn has_room(&self) -> bool {
        self.requests > 0 && self.free >= LOW.min(self.buffer.bytes)
    }

    /// And the peer will have a message.
    pub(crate) fn can_say(&self) -> bool {
        self.has_room() && self.sent != self.allowed
    }

    /// And it has a target for data.
    pub(crate) fn can_send(&self) -> bool {
        self.can_say() && self.targets.front().is_some_and(|target| target.length > 0)
    }

    /// Whether something can be said beside the data.
    pub(crate) fn has_control(&self) -> bool {
        self.controls > 0
    }

    /// Nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == self.requests_all && self.controls == CONTROLS
    }

    /// Targets that are known.
    pub(crate) fn targets(&self) -> usize {
        self.targets.len()
    }

    fn piece(&mut self, bytes: u32, to: RemoteBuffer) -> StreamPiece {
        self.requests -= 1;
        self.free -= bytes;
        let from = if bytes <= self.inline { [0..0, 0..0] } else { self.buffer.take(bytes) };
        StreamPiece { bytes, from, to }
    }

    /// The next piece of `left` bytes of the stream, where it [can send](Self::can_send).
    pub(crate) fn next(&mut self, left: usize, steps: &mut PieceLength) -> Option<StreamPiece> {
        if left == 0 || !self.can_send() {
            return None;
        }
        let target = self.targets.front_mut()?;
        let bytes = steps.next(left).min(self.free).min(target.length).min(AMOUNT_MAX);
        let to = RemoteBuffer { length: bytes, ..*target };
        target.address = target.address.wrapping_add(u64::from(bytes));
        target.length -= bytes;
        if target.length == 0 {
            self.targets.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        Some(self.piece(bytes, to))
    }

    /// The next piece of `left` bytes that go to a place of the program's, where there [is
    /// room](Self::has_room). The peer is not told of it.
    pub(crate) fn direct(
        &mut self,
        left: usize,
        to: RemoteBuffer,
        steps: &mut PieceLength,
    ) -> Option<StreamPiece> {
        if left == 0 || to.length == 0 || !self.has_room() {
            return None;
        }
        let bytes = steps.next(left).min(self.free).min(to.length).min(AMOUNT_MAX);
        Some(self.piece(bytes, RemoteBuffer { length: bytes, ..to }))
    }

    /// A message with an entry of `bytes` for a list of the peer's.
    pub(crate) fn entry(&mut self, bytes: u32, to: RemoteBuffer) -> Option<StreamPiece> {
        if !self.can_say() || bytes > self.free {
            return None;
        }
        self.sent = self.sent.wrapping_add(1);
        Some(self.piece(bytes, to))
    }

    /// Takes what is needed for a message beside the data.
    pub(crate) fn control(&mut self) -> bool {
        let has = self.has_control();
        self.controls -= u32::from(has);
        has
    }

    /// A piece has arrived, or failed.
    pub(crate) fn piece_is_done(&mut self, bytes: u32) {
        self.requests += 1;
        self.free += bytes;
    }

    /// A message beside the data has.
    pub(crate) fn control_is_done(&mut self) {
        self.controls += 1;
    }

    /// The peer takes messages up to this one.
    pub(crate) fn allow(&mut self, until: u16) {
        self.allowed = until;
    }

    /// The peer has another target.
    pub(crate) fn add_target(&mut self, target: RemoteBuffer) {
        self.targets.push_back(target);
    }
}

/// What the peer is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendGrant {
    /// Messages up to this one.
    pub(crate) until: u16,
    /// The half of the buffer from here on, too.
    pub(crate) half: Option<u32>,
}

/// What becomes of bytes that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// They are gone from where they were.
    Take,
    /// They stay, for the next reader: `MSG_PEEK`.
    Peek,
}

/// What we receive.
#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: Ring,
    /// Bytes that have come, and were not read.
    unread: u32,
    /// Bytes that the peer may write yet.
    granted: u32,
    /// Bytes that were read, or never granted.
    idle: u32,
    next_half: u32,
    received: u16,
    /// So many messages until the peer is allowed more.
    due: u16,
    queue: u16,
}

impl Receiver {
    /// For a buffer of an even number of bytes, and a receive queue. The peer has the first half.
    pub(crate) fn new(bytes: u32, queue: u16) -> Receiver {
        let half = bytes / 2;
        Receiver {
            buffer: Ring { bytes, next: 0 },
            unread: 0,
            granted: half,
            idle: half,
            next_half: half,
            received: 0,
            due: queue / 2,
            queue,
        }
    }

    /// Bytes that can be read.
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// The peer has written so many.
    pub(crate) fn data(&mut self, bytes: u32) -> Result<(), ProtocolViolation> {
        self.granted = self.granted.checked_sub(bytes).ok_or(ProtocolViolation)?;
        self.unread += bytes;
        self.received = self.received.wrapping_add(1);
        Ok(())
    }

    /// The peer has used up a message for something else.
    pub(crate) fn message(&mut self) {
        self.received = self.received.wrapping_add(1);
    }

    /// Where the next bytes are, at most `count`.
    pub(crate) fn read(&mut self, count: usize, reading: ReadMode) -> [Range<usize>; 2] {
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.unread);
        if reading == ReadMode::Peek {
            let mut buffer = self.buffer;
            return buffer.take(count);
        }
        self.unread -= count;
        self.idle += count;
        self.buffer.take(count)
    }

    /// What the peer should be told, if that is anything.
    pub(crate) fn grant(&mut self) -> Option<SendGrant> {
        let half = self.buffer.bytes / 2;
        let has_half = self.idle >= half;
        if !has_half && (self.received.wrapping_sub(self.due)).cast_signed() < 0 {
            return None;
        }
        self.due = self.received.wrapping_add(self.queue / 2);
        let until = self.received.wrapping_add(self.queue);
        let given = has_half.then_some(self.next_half);
        if has_half {
            self.idle -= half;
            self.granted += half;
            self.next_half = half - self.next_half;
        }
        Some(SendGrant { until, half: given })
    }
}

#[cfg(test)]
#[path = "flow_control_tests.rs"]
mod tests;
