//! Moves bytes of one direction of a carried connection through shared memory, behind the kernel's.
//!
//! Bytes in the ring are always *the end of the stream*: whatever went through the kernel was sent
//! before them, and nothing goes through the kernel while there are any. So the ring can be left at
//! any instant: the writer takes back what is not read, and gives it to the kernel, in order.
//!
//! ```text
//! place, of the reader:   own:1 | taken:1 | position:62
//! polling, of the reader: 0:2 | life:62, trying:1 | 0:1 | attempt:62, or trying:1 | settling:1 | 0
//! head, of the writer:    stopped:1 | 0:1 | position:62
//! ```
//!
//! * *Polling*: the reader polls the ring, and the writer may put bytes there. A reader that is
//!   about to sleep stops polling, so that bytes come by the kernel, which wakes it. A thread that
//!   starts polling *tries* that first, and looks then whether another one sleeps: so the writer
//!   never finds a ring polled that nothing looks after. Each attempt has a number of its own: one
//!   that was cancelled does not come true by a later one. While a thread *settles* that nothing
//!   polls, none can start. The word seldom changes: so both ends have it at hand.
//! * *Taken*: from the position on the bytes are the writer's again. The reader sets it when it
//!   leaves (the socket's next owner may know only the kernel), the writer when it has to send by
//!   the kernel. The reader takes none of them any more. When the kernel has them the position is
//!   behind them, and nothing is taken.
//! * *Stopped*: the writer puts nothing there any more.
//! * *Own*: the memory is this process's own, since the link is over (`move_to_own_memory.rs`). A
//!   thread that has looked before takes nothing any more: its compare-and-swap fails.
//!
//! **No lock of a reader.** It copies bytes out and then moves the position by compare-and-swap: if
//! that fails another reader has had them, or they were taken, and what was copied is forgotten.
//! A thread that is killed, or leaves by `longjmp`, before that has read nothing.
//!
//! **One writer at a time** puts bytes there: its process sees to that by a lock. It publishes by
//! compare-and-swap, too, so that a signal handler that interrupts it and sends can stop the
//! direction and use the kernel: then nothing was published.
//!
//! **Cached positions.** A position only grows. So the writer uses the reader's position as it last
//! saw it, as long as that leaves room ([`Direction::used`]). The reader uses the head as it last
//! saw it, as long as there are bytes up to it ([`Direction::waiting_by`]). The cache line that
//! each of them changes with each message then stays with it.
//!
//! **Ordering.** Bytes are copied into the ring, then the head is stored with release (SYNC:
//! published); the reader loads it with acquire (SYNC: published) before it copies them out. It
//! moves its position with release (SYNC: read), which the writer loads with acquire (SYNC: read)
//! before it overwrites what was there. *Two looks*: the writer publishes and then looks whether
//! the reader polls; the reader stops polling and then looks for bytes, at the head itself
//! ([`Direction::waiting`]). Each store is a locked instruction with a full fence behind it, so at
//! least one of the two looks finds what the other has stored: no byte stays in the ring of a
//! thread asleep. A reader that leaves stops polling before it says that the rest is taken. A
//! writer that publishes and finds the ring polled still does so before, and finds that by its next
//! call.
//!
//! **Trust.** All words may be anything. A position counts for how far it is behind the head, and
//! that for no more than the ring has; everything else is [`Broken`], and so is a word that changes
//! without end. Offsets are masked.

mod move_to_own_memory;

pub use move_to_own_memory::Inherits;

use crate::byte_ring;
use crate::link_layout::{self, FENCE, HEAD, PLACE, POLLING, RING};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, WordMemory};

const OWN: u64 = 1 << 63;
const TAKEN: u64 = 1 << 62;
const STOPPED: u64 = 1 << 63;
const POSITION: u64 = TAKEN - 1;
const TRYING: u64 = 1 << 63;
const SETTLING: u64 = 1 << 62;
/// Changes of one word by others during one of ours: far more than correct ends make.
const TRIES: u32 = 1 << 12;

/// The other end wrote something that no correct end writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The reader's word, as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u64);

impl Place {
    /// How far was read.
    #[must_use]
    pub fn position(self) -> u64 {
        self.0 & POSITION
    }

    /// What is not read is the writer's again.
    #[must_use]
    pub fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }

    /// Bytes from here until a position that lies ahead.
    #[must_use]
    pub fn until(self, position: u64) -> usize {
        (position.wrapping_sub(self.position()) & POSITION) as usize
    }

    /// It is a little before another place, at which the reader was already. It never goes back.
    #[must_use]
    pub fn is_before(self, seen: u64) -> bool {
        (1..=RING).contains(&self.until(seen))
    }
}

/// The writer's word, as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(u64);

impl Head {
    /// The head of a writer that has written so far, if it is not stopped. A caller that knows the
    /// position need not load the head: publishing checks it ([`Direction::publish`]).
    #[must_use]
    #[inline(always)]
    pub fn at(position: u64) -> Self {
        Self(position & POSITION)
    }

    /// How far was written.
    #[must_use]
    pub fn position(self) -> u64 {
        self.0 & POSITION
    }

    /// Nothing more is written.
    #[must_use]
    pub fn is_stopped(self) -> bool {
        self.0 & STOPPED != 0
    }

    /// Bytes between the two.
    ///
    /// # Errors
    /// [`Broken`], if these are more than the ring holds.
    #[inline(always)]
    pub fn since(self, place: Place) -> Result<usize, Broken> {
        let bytes = self.position().wrapping_sub(place.position()) & POSITION;
        if bytes <= RING as u64 { Ok(bytes as usize) } else { Err(Broken) }
    }
}

/// Bytes of the ring by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where they begin.
    pub from: u64,
    /// So many there are.
    pub bytes: usize,
}

impl Stretch {
    /// What is behind the first so many bytes.
    #[must_use]
    pub fn behind(self, bytes: usize) -> Self {
        let from = self.from.wrapping_add(bytes as u64) & POSITION;
        Self { from, bytes: self.bytes.saturating_sub(bytes) }
    }
}

/// The bytes that a side sends.
#[derive(Clone, Debug)]
pub struct Direction<M> {
    memory: M,
    place: usize,
    polling: usize,
    head: usize,
    fence: usize,
    ring: usize,
}

/// A full fence behind a locked instruction, which is one by itself on x86-64.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    omniverb_ring::shared_atomics::fence(Ordering::SeqCst);
}

impl<M: WordMemory> Direction<M> {
    /// Of the side `from`; the memory is the link's ([`link_layout`]).
    pub fn new(memory: M, from: usize) -> Self {
        let to = 1 - (from & 1);
        let (place, polling) = (link_layout::word(to, PLACE), link_layout::word(to, POLLING));
        let (head, fence) = (link_layout::word(from, HEAD), link_layout::word(from, FENCE));
        Self { memory, place, polling, head, fence, ring: link_layout::ring(from) }
    }

    /// The reader looks at the ring.
    #[inline(always)]
    pub fn is_polling(&self) -> bool {
        self.activity() != 0
    }

    /// The same; it changes when the reader does something that does not show otherwise.
    #[inline(always)]
    pub fn activity(&self) -> u64 {
        let word = self.memory.load(self.polling, Ordering::Acquire);
        if word & TRYING == 0 { word } else { 0 }
    }

    /// Of the reader: it polls already, and the writer sees that it does something.
    #[inline]
    pub fn show_activity(&self) -> bool {
        let word = self.memory.word(self.polling);
        let was = word.load(Ordering::Acquire);
        // A thread that stops polling at this moment has done so.
        let next = (was.wrapping_add(1) & !(TRYING | SETTLING)).max(1);
        was != 0
            && was & TRYING == 0
            && word.compare_exchange(was, next, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// How far the reader is.
    #[inline(always)]
    pub fn place(&self) -> Place {
        // SYNC: read
        Place(self.memory.load(self.place, Ordering::Acquire))
    }

    /// How far the writer is.
    #[inline(always)]
    pub fn head(&self) -> Head {
        // SYNC: published
        Head(self.memory.load(self.head, Ordering::Acquire))
    }

    /// What there is for the reader.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn waiting(&self) -> Result<(Place, usize), Broken> {
        let place = self.place();
        let bytes = if place.is_taken() { 0 } else { self.head().since(place)? };
        Ok((place, bytes))
    }

    /// Bytes that wait, for a reader that has seen the head at `seen`. Loads the head only if that
    /// does not show `wanted` bytes.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline(always)]
    pub fn waiting_by(&self, seen: &mut u64, wanted: usize) -> Result<(Place, usize), Broken> {
        let place = self.place();
        if place.is_taken() {
            return Ok((place, 0));
        }
        let bytes = seen.wrapping_sub(place.position()) & POSITION;
        if bytes >= wanted as u64 && bytes <= RING as u64 && place.0 & OWN == 0 {
            return Ok((place, bytes as usize));
        }
        let head = self.head();
        *seen = head.position();
        Ok((place, head.since(place)?))
    }

    /// Bytes of the ring that are in use, of the writer that has seen the reader at `seen` once:
    /// by that, if there is room for `wanted` more then.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline(always)]
    pub fn used(&self, head: Head, seen: &mut u64, wanted: usize) -> Result<usize, Broken> {
        let bytes = head.position().wrapping_sub(*seen) & POSITION;
        if bytes.saturating_add(wanted as u64) <= RING as u64 {
            return Ok(bytes as usize);
        }
        let place = self.place();
        *seen = place.position();
        head.since(place)
    }

    /// How many bytes went through the kernel before those in the ring. To be asked when there are
    /// some: it stays the same until they are read.
    #[inline(always)]
    pub fn fence(&self) -> u64 {
        self.memory.load(self.fence, Ordering::Acquire)
    }

    /// Says that. By the writer, when the ring is empty, or what is in it was taken.
    pub fn set_fence(&self, bytes: u64) {
        self.memory.store(self.fence, bytes, Ordering::Release);
    }

    /// Copies bytes in, `offset` behind a position.
    #[inline(always)]
    pub fn fill(&self, position: u64, offset: usize, source: UserMemory) {
        byte_ring::fill::<RING>((&self.memory, self.ring), (position, offset), source);
    }

    /// Copies bytes out, from `offset` behind a position on.
    #[inline(always)]
    pub fn drain(&self, position: u64, offset: usize, target: UserMemory) {
        byte_ring::drain::<RING>((&self.memory, self.ring), (position, offset), target);
    }

    /// Has the processor prefetch the bytes behind `position`.
    #[inline(always)]
    pub fn expect(&self, position: u64) {
        let at = self.ring + (position as usize & (RING - 1));
        self.memory.prefetch(at..at + 1);
    }

    /// Where in the link's memory the bytes of a stretch are, from `offset` on, and how many: up to
    /// the end of the ring, and from its beginning on.
    #[must_use]
    pub fn pieces(&self, stretch: Stretch, offset: usize) -> [(usize, usize); 2] {
        let at = (stretch.from as usize).wrapping_add(offset) & (RING - 1);
        let length = stretch.bytes.saturating_sub(offset).min(RING);
        let first = length.min(RING - at);
        [(self.ring + at, first), (self.ring, length - first)]
    }

    /// Of the writer: what it has copied in behind `head` is the reader's. Whether the reader
    /// polls, as seen after that; `None` if the direction was stopped meanwhile, and nothing was
    /// published.
    #[inline(always)]
    pub fn publish(&self, head: Head, bytes: usize) -> Option<bool> {
        let next = head.position().wrapping_add(bytes as u64) & POSITION;
        let word = self.memory.word(self.head);
        if head.is_stopped() {
            return None;
        }
        // SYNC: published
        word.compare_exchange(head.0, next, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        fence();
        Some(self.is_polling())
    }

    /// Of any thread of the writer's process: stops the direction. Returns the head at that moment.
    pub fn stop(&self) -> Head {
        let was = self.memory.word(self.head).fetch_or(STOPPED, Ordering::SeqCst);
        fence();
        Head(was | STOPPED)
    }

    /// Of the reader: it has copied out so many bytes behind `place`. `false` if they were not
    /// there for it any more.
    #[inline(always)]
    pub fn take(&self, place: Place, bytes: usize) -> bool {
        let next = place.0 & OWN | place.position().wrapping_add(bytes as u64) & POSITION;
        let word = self.memory.word(self.place);
        // SYNC: read
        !place.is_taken()
            && word.compare_exchange(place.0, next, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Of the reader: starts polling the ring, if `may` allows it. A thread that goes to sleep
    /// first has `may` refuse, and then stops polling: one of the two finds the other. Each
    /// `attempt` under way has a number of its own. Returns whether the reader polls.
    pub fn start_polling(&self, attempt: u64, may: impl FnOnce() -> bool) -> bool {
        let word = self.memory.word(self.polling);
        let trying = TRYING | attempt & !SETTLING;
        if word.compare_exchange(0, trying, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return self.is_polling();
        }
        fence();
        let next = u64::from(may());
        let is_said = word.compare_exchange(trying, next, Ordering::SeqCst, Ordering::Relaxed);
        is_said.is_ok() && next == 1
    }

    /// Of the reader: it polls, or a thread tries to start at this moment. If not, a thread that
    /// goes to sleep has nothing to stop.
    #[inline(always)]
    pub fn may_be_polling(&self) -> bool {
        self.memory.load(self.polling, Ordering::Acquire) != 0
    }

    /// Of the reader: calls `act` while it does not poll and no thread can start to, unless it
    /// polls, or a thread tries to start. If `act` does not return, polling never starts again.
    pub fn while_not_polling(&self, act: impl FnOnce()) {
        let (word, settling) = (self.memory.word(self.polling), TRYING | SETTLING);
        if word.compare_exchange(0, settling, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            fence();
            act();
            _ = word.compare_exchange(settling, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Of the reader: no more. What came before is found by looking after this.
    pub fn stop_polling(&self) {
        let word = self.memory.word(self.polling);
        let mut was = word.load(Ordering::SeqCst);
        for _ in 0..TRIES {
            // A thread that settles that nothing polls keeps others out until it is done.
            if was == TRYING | SETTLING {
                break;
            }
            match word.compare_exchange(was, 0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => was = now,
            }
        }
        fence();
    }

    /// Of the reader: what it has not read is to go through the kernel, and nothing more is to
    /// come. How much that is, as far as it was published.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn leave(&self) -> Result<usize, Broken> {
        self.stop_polling();
        let place = self.change(|word| Some(word | TAKEN))?;
        fence();
        self.head().since(Place(place))
    }

    /// Of a reader whose writer is gone: bytes that the writer had taken are the reader's again,
    /// but for the first ones, which the kernel has had.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn inherit(&self, passed: usize) -> Result<(), Broken> {
        let next = |word: u64| {
            let next = (word & POSITION).wrapping_add(passed as u64) & POSITION;
            (word & TAKEN != 0).then_some(word & OWN | next)
        };
        self.change(next).map(|_| ())
    }

    /// Of the writer, with its lock held: takes back what is not read. `None` if all was read.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn reclaim(&self) -> Result<Option<Stretch>, Broken> {
        let head = self.head();
        let mut found = Ok(None);
        self.change(|word| {
            found = head
                .since(Place(word))
                .map(|bytes| (bytes > 0).then_some(Stretch { from: word & POSITION, bytes }));
            match found {
                Ok(Some(_)) => Some(word & POSITION | TAKEN),
                // Nothing to be taken: so the reader has left an empty ring, perhaps.
                Ok(None) => (word & TAKEN != 0).then_some(word & !TAKEN),
                Err(Broken) => None,
            }
        })?;
        found
    }

    /// Of the writer: the kernel has had so many of the bytes that it had taken. The rest is the
    /// reader's again.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn finish_reclaim(&self, stretch: Stretch, bytes: usize) -> Result<(), Broken> {
        let next = stretch.from.wrapping_add(bytes as u64) & POSITION;
        let is_ours = |word: u64| word & TAKEN != 0 && word & POSITION == stretch.from;
        let was = self.change(|word| is_ours(word).then_some(next))?;
        if is_ours(was) { Ok(()) } else { Err(Broken) }
    }

    /// Changes the reader's word, unless there is nothing to be changed; what it was.
    fn change(&self, mut to: impl FnMut(u64) -> Option<u64>) -> Result<u64, Broken> {
        let word = self.memory.word(self.place);
        let mut was = word.load(Ordering::Acquire);
        for _ in 0..TRIES {
            let Some(next) = to(was) else { return Ok(was) };
            match word.compare_exchange(was, next, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Ok(was),
                Err(now) => was = now,
            }
        }
        Err(Broken)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use omniverb_ring::Window;
    use proptest::prelude::*;

    pub(super) fn direction() -> Direction<Window> {
        Direction::new(Window::private(link_layout::BYTES), 0)
    }

    /// Numbered bytes, so that each shows where it belongs.
    pub(super) fn bytes(from: u64, count: usize) -> Vec<u8> {
        (0..count as u64).map(|index| (from + index) as u8 ^ ((from + index) >> 8) as u8).collect()
    }

    proptest! {
        /// However writing, reading, taking back and leaving follow each other, bytes come once, in
        /// order: those of the kernel, then those of the ring.
        #[test]
        fn bytes_come_once_in_order(
            steps in prop::collection::vec((0_u8..5, 1_usize..RING + 10), 1..60),
        ) {
            let direction = direction();
            let (mut sent, mut received) = (0_u64, 0_u64);
            let (mut seen_head, mut seen_place) = (0, 0);
            let mut kernel = std::collections::VecDeque::new();
            for (what, count) in steps {
                let (place, waiting) = direction.waiting().unwrap();
                match what {
                    0 | 1 if !place.is_taken() && kernel.is_empty() => {
                        let count = count.min(RING - waiting);
                        let (head, new) = (direction.head(), bytes(sent, count));
                        let used = direction.used(head, &mut seen_place, count).unwrap();
                        prop_assert!(used >= waiting && used + count <= RING);
                        UserMemory::lend(&new, |new| direction.fill(head.position(), 0, new));
                        direction.publish(head, count).unwrap();
                        sent += count as u64;
                    }
                    2 if kernel.is_empty() => {
                        let by = direction.waiting_by(&mut seen_head, count).unwrap();
                        // All that there is, or enough.
                        prop_assert!(by.0 == place && by.1 <= waiting);
                        prop_assert!(by.1 == waiting || by.1 >= count);
                        let mut got = vec![0; count.min(by.1)];
                        let length = got.len();
                        UserMemory::lend_mut(&mut got, |to| {
                            direction.drain(place.position(), 0, to);
                        });
                        prop_assert_eq!(direction.take(place, length), !place.is_taken());
                        if !place.is_taken() {
                            prop_assert_eq!(&got, &bytes(received, length));
                            received += length as u64;
                        }
                    }
                    2 => {
                        kernel.drain(..).for_each(|byte| {
                            assert_eq!(byte, bytes(received, 1)[0]);
                            received += 1;
                        });
                    }
                    3 => {
                        if let Some(stretch) = direction.reclaim().unwrap() {
                            // The kernel has room for a part, perhaps.
                            let passed = count.min(stretch.bytes);
                            let mut got = vec![0; passed];
                            UserMemory::lend_mut(&mut got, |to| {
                                direction.drain(stretch.from, 0, to);
                            });
                            let mut pieces = Vec::new();
                            for (at, length) in direction.pieces(stretch, 0) {
                                let mut piece = vec![0; length];
                                UserMemory::lend_mut(&mut piece, |to| {
                                    direction.memory.drain(at, to);
                                });
                                pieces.extend(piece);
                            }
                            prop_assert_eq!(&got, &pieces[..passed]);
                            kernel.extend(got);
                            direction.finish_reclaim(stretch, passed).unwrap();
                        }
                    }
                    4 => prop_assert_eq!(
                        direction.leave().unwrap(),
                        (direction.head().position() - place.position()) as usize
                    ),
                    _ => {}
                }
            }
            let left = kernel.len() as u64 + direction.head().position();
            prop_assert_eq!(received + left - direction.place().position(), sent);
        }

        /// Whatever both words are, nothing is touched outside the ring, and nothing goes on for
        /// ever.
        #[test]
        fn arbitrary_words_do_no_harm(
            (place, head, mut seen) in any::<(u64, u64, u64)>(),
            count in 0..RING,
        ) {
            let memory = Window::private(link_layout::BYTES);
            memory.store(link_layout::word(1, PLACE), place, Ordering::Relaxed);
            memory.store(link_layout::word(0, HEAD), head, Ordering::Relaxed);
            let direction = Direction::new(memory, 0);
            if let Ok((place, waiting)) = direction.waiting() {
                prop_assert!(waiting <= RING);
                let mut got = vec![0; waiting.min(count)];
                UserMemory::lend_mut(&mut got, |to| direction.drain(place.position(), 0, to));
            }
            if let Ok((_, waiting)) = direction.waiting_by(&mut seen, count) {
                prop_assert!(waiting <= RING);
            }
            if let Ok(used) = direction.used(direction.head(), &mut seen, count) {
                prop_assert!(used <= RING);
            }
            if let Ok(Some(stretch)) = direction.reclaim() {
                prop_assert!(stretch.bytes <= RING);
                direction.finish_reclaim(stretch, count.min(stretch.bytes)).unwrap();
            }
            let own = super::tests::direction();
            if let Ok(copied) = direction.detach_reader(&own, Inherits::No, |_, unread| unread) {
                prop_assert_eq!(own.waiting().map(|(_, unread)| unread), Ok(copied));
            }
            _ = direction.detach_reader(&own, Inherits::Yes, |_, _| 0);
            _ = direction.leave();
            _ = direction.inherit(count);
            _ = direction.publish(direction.head(), count);
        }
    }
}
