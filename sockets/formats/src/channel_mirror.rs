//! Mirrors a channel between two hosts: two memories, kept alike by two gateways.
//!
//! Each gateway is the other side of the channel for the process of its own host.
//!
//! What a side has written into its rings is copied to the same place of the other memory, and the
//! words that only that side writes ([`WORDS`] of them) are told as [`Update`]. So both memories
//! have what one would have, only later, and the two processes notice nothing. What says that a
//! process sleeps is not copied: each gateway sleeps and is rung for itself.
//!
//! **Ordering.** A gateway reads the head of the frames first (acquire) and the lanes' after it:
//! what was in a lane before a frame that takes it away is told no later than that frame. It is
//! stored in the opposite order, the head of the frames last (release), when all bytes are there.
//! Then, behind a full fence, it looks whether the process sleeps, as that says so and then looks.
//!
//! **Trust.** Each memory may have anything in it, written by the process or by the other host. A
//! gateway copies what lies in the rings, as far as a head may be ahead of what was told, and
//! stores words where that side's are, whatever they say: the process takes none for more than it
//! is.

use crate::channel_layout::{
    HEAD, IS_CUT, LANE, LANE_HEAD, LANE_IS_AWAITED, LANE_LEFT, LANE_TAIL, LANES, LEFT, RING, SIDE,
    SLEEPS, TAIL, WANTS_FRAMES, WANTS_ROOM, lane_ring, lane_words, ring,
};
use core::ops::Range;
use omniverb_ring::WordMemory;
use omniverb_ring::shared_atomics::{Ordering, fence};

/// Words that a side writes and the other one reads.
pub const WORDS: usize = SINGLE + 3 * LANES;
const _: () = assert!(WORDS <= 64, "a bit for each");

/// Those that there are once, in the order in which they are stored.
const SINGLE: usize = 3;
/// Where the lanes' are: heads, and behind them tails and what was left.
const HEADS: usize = 0;
const TAILS: usize = LANES;
const LEFTS: usize = 2 * LANES;
/// And the others.
const OWN_TAIL: usize = 3 * LANES;
const OWN_LEFT: usize = OWN_TAIL + 1;
const OWN_HEAD: usize = OWN_TAIL + 2;
/// A reader's position that has moved by less than this is not reported at once.
const PART: u64 = 8;

/// Where a word of a side is, in the order in which they are stored.
fn place(side: usize, index: usize) -> usize {
    let own = (side & 1) * SIDE;
    match index {
        OWN_TAIL => own + TAIL,
        OWN_LEFT => own + LEFT,
        OWN_HEAD => own + HEAD,
        TAILS..LEFTS => lane_words(1 - (side & 1), index - TAILS) + LANE_TAIL,
        LEFTS..OWN_TAIL => lane_words(1 - (side & 1), index - LEFTS) + LANE_LEFT,
        _ => lane_words(side, index) + LANE_HEAD,
    }
}

/// What has changed of a side's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// A bit for each.
    pub changed: u64,
    /// What they are now; of those that have not changed, anything.
    pub words: [u64; WORDS],
}

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// What a thread may wait for. A small move of the reader's position can wait.
    Due,
    /// Whatever has changed.
    All,
}

/// The process has written what makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidUpdate;

/// One of the two memories, for the gateway of that host.
#[derive(Debug)]
pub struct Mirror<M> {
    memory: M,
    /// Which one the process is.
    side: usize,
    /// What was told of its words.
    told: [u64; WORDS],
}

impl Update {
    /// The other process has closed a listener: its clients are to ask anew.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.changed >> OWN_LEFT & 1 != 0
    }
}

impl<M: WordMemory> Mirror<M> {
    /// Of a channel that is new; the process is that side.
    pub fn new(memory: M, side: usize) -> Self {
        let side = side & 1;
        memory.store((1 - side) * SIDE + IS_CUT, 1, Ordering::Release);
        Self { memory, side, told: [0; WORDS] }
    }

    /// That of this host.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// What the process has written since that was told last, and where bytes lie that the other
    /// memory has to have before. `None`: nothing of that.
    ///
    /// # Errors
    /// There is more than fits into a ring.
    pub fn look(
        &mut self,
        what: Scope,
        pieces: &mut Vec<Range<usize>>,
    ) -> Result<Option<Update>, InvalidUpdate> {
        let mut news = Update { changed: 0, words: [0; WORDS] };
        let mut is_due = what == Scope::All;
        // The head of the frames first.
        for index in (0..WORDS).rev() {
            let word = self.memory.load(place(self.side, index), Ordering::Acquire);
            let moved = word.wrapping_sub(self.told[index]);
            if moved == 0 {
                continue;
            }
            news.words[index] = word;
            news.changed |= 1 << index;
            is_due |= match index {
                OWN_TAIL => moved >= RING as u64 / PART,
                TAILS..LEFTS => moved >= LANE as u64 / PART,
                _ => true,
            };
        }
        if news.changed == 0 || !is_due {
            return Ok(None);
        }
        pieces.clear();
        for index in (HEADS..TAILS).chain([OWN_HEAD]) {
            if news.changed >> index & 1 != 0 {
                let (start, size) = match index {
                    OWN_HEAD => (ring(self.side), RING),
                    lane => (lane_ring(self.side, lane), LANE),
                };
                let (from, to) = (self.told[index], news.words[index]);
                let bytes = to.wrapping_sub(from);
                if bytes > size as u64 {
                    return Err(InvalidUpdate);
                }
                let first = from as usize % size;
                let last = first + bytes as usize;
                pieces.push(start + first..start + last.min(size));
                if last > size {
                    pieces.push(start..start + last - size);
                }
            }
        }
        for (index, told) in self.told.iter_mut().enumerate() {
            if news.changed >> index & 1 != 0 {
                *told = news.words[index];
            }
        }
        Ok(Some(news))
    }

    /// What the other process has written; all bytes are there. Whether this one is to be woken.
    pub fn apply(&self, news: &Update) -> bool {
        let has = |index: usize| news.changed >> index & 1 != 0;
        for index in (0..WORDS).filter(|index| has(*index)) {
            self.memory.store(place(1 - self.side, index), news.words[index], Ordering::Release);
        }
        fence(Ordering::SeqCst);
        let mut is_to_be_woken = self.is_woken(SIDE * self.side + SLEEPS, |wants| {
            wants & WANTS_ROOM != 0 || wants & WANTS_FRAMES != 0 && has(OWN_HEAD)
        });
        for lane in (0..LANES).filter(|lane| has(HEADS + lane)) {
            let word = lane_words(1 - self.side, lane) + LANE_IS_AWAITED;
            is_to_be_woken |= self.is_woken(word, |awaits| awaits != 0);
        }
        is_to_be_woken
    }

    /// The process sleeps, by that word, and wants this: it is woken once.
    fn is_woken(&self, word: usize, wants: impl Fn(u64) -> bool) -> bool {
        let is_wanted = wants(self.memory.load(word, Ordering::Relaxed));
        if is_wanted {
            self.memory.store(word, 0, Ordering::Relaxed);
        }
        is_wanted
    }

    /// The gateway is about to sleep, until the process rings. It looks once more after this.
    pub fn sleeps(&self) {
        let wants = WANTS_FRAMES | WANTS_ROOM;
        self.memory.store((1 - self.side) * SIDE + SLEEPS, wants, Ordering::SeqCst);
        for lane in 0..LANES {
            let word = lane_words(self.side, lane) + LANE_IS_AWAITED;
            self.memory.store(word, 1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// There are bytes in lanes whose removal the other host was not told of: the process does not
    /// announce it.
    #[must_use]
    pub fn is_to_be_watched(&self) -> bool {
        let far = 1 - self.side;
        (0..LANES).any(|lane| {
            let head = self.memory.load(lane_words(far, lane) + LANE_HEAD, Ordering::Relaxed);
            head != self.told[TAILS + lane]
        })
    }

    /// The other process has ended: what it has sent is all that it has. Unless this was said the
    /// way is lost when the gateway is gone, however that came.
    pub fn ends_well(&self) {
        self.memory.store((1 - self.side) * SIDE + IS_CUT, 0, Ordering::Release);
    }

    /// The process has left a socket that listens.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.memory.load(self.side * SIDE + LEFT, Ordering::Acquire) != 0
    }

    /// The process was told that the two are parted.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.memory.load(self.side * SIDE + IS_CUT, Ordering::Acquire) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel_layout::BYTES;
    use crate::lane::Lane;
    use omniverb_ring::{UserMemory, Window};
    use proptest::prelude::*;

    /// What goes between two hosts: pieces are copied, then the news come.
    fn carry(from: &mut Mirror<Window>, to: &Mirror<Window>, what: Scope) -> Option<bool> {
        let mut pieces = Vec::new();
        let news = from.look(what, &mut pieces).unwrap()?;
        for piece in &pieces {
            let mut bytes = vec![0; piece.len()];
            let (source, target) = (from.memory(), to.memory());
            UserMemory::lend_mut(&mut bytes, |to| source.drain(piece.start, to));
            UserMemory::lend(&bytes, |from| target.fill(piece.start, from));
        }
        Some(to.apply(&news))
    }

    fn both() -> [Mirror<Window>; 2] {
        [0, 1].map(|side| Mirror::new(Window::private(BYTES), side))
    }

    #[test]
    fn each_word_has_a_place_of_its_own_and_none_is_of_both_sides() {
        let all: std::collections::BTreeSet<usize> =
            [0, 1].into_iter().flat_map(|side| (0..WORDS).map(move |at| place(side, at))).collect();
        assert_eq!(all.len(), 2 * WORDS);
        let sleeps = [0, 1].map(|side| side * SIDE + SLEEPS);
        assert!(sleeps.iter().all(|word| !all.contains(word)));
    }

    proptest! {
        /// However writing, reading and carrying follow each other, on either side: bytes of a
        /// lane come once and in order.
        #[test]
        fn bytes_come_once_in_order(
            side in 0_usize..2,
            number in 0..LANES,
            steps in prop::collection::vec((0..4_u8, 1..LANE + 10), 1..60),
        ) {
            let mut mirrors = both();
            let lane_of = |at: usize, mirrors: &[Mirror<Window>; 2]| {
                Lane::new(mirrors[at].memory().clone(), side, number)
            };
            let lanes = [side, 1 - side].map(|at| lane_of(at, &mirrors));
            let [writer, reader] = &lanes;
            let (mut head, mut tail, mut seen) = (0_u64, 0_u64, 0_u64);
            let byte = |at: u64| (at ^ (at >> 8)) as u8;
            for (step, count) in steps {
                let [one, other] = &mut mirrors;
                match step {
                    0 => {
                        let room = writer.room(head, &mut seen, count).min(count);
                        let new: Vec<u8> = (0..room as u64).map(|at| byte(head + at)).collect();
                        UserMemory::lend(&new, |new| writer.fill(head, 0, new));
                        head += room as u64;
                        writer.publish(head);
                    }
                    1 => {
                        let there = reader.waiting(tail).unwrap().min(count);
                        let mut got = vec![0; there];
                        UserMemory::lend_mut(&mut got, |to| reader.drain(tail, 0, to));
                        prop_assert!(got.iter().zip(tail..).all(|(got, at)| *got == byte(at)));
                        tail += there as u64;
                        reader.take(tail);
                    }
                    2 => _ = carry(one, other, Scope::All),
                    _ => _ = carry(other, one, Scope::All),
                }
            }
            let [one, other] = &mut mirrors;
            _ = (carry(one, other, Scope::All), carry(other, one, Scope::All));
            prop_assert_eq!(reader.waiting(tail), Some((head - tail) as usize));
            prop_assert_eq!(writer.room(head, &mut seen, LANE), LANE - (head - tail) as usize);
            prop_assert!(carry(one, other, Scope::All).is_none());
            prop_assert!(carry(other, one, Scope::All).is_none());
        }
    }

    #[test]
    fn a_sleeper_is_woken_once_for_what_it_waits_for() {
        let [mut one, mut other] = both();
        one.memory().store(HEAD, 8, Ordering::Release);
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(false), "nobody sleeps");
        let sleeps = |wants| other.memory().store(SIDE + SLEEPS, wants, Ordering::Relaxed);
        sleeps(WANTS_FRAMES);
        one.memory().store(TAIL, RING as u64 / 2, Ordering::Release);
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(false), "not for room");
        one.memory().store(HEAD, 16, Ordering::Release);
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(true));
        one.memory().store(HEAD, 24, Ordering::Release);
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(false), "once");
        sleeps(WANTS_FRAMES | WANTS_ROOM);
        one.memory().store(TAIL, RING as u64, Ordering::Release);
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(true), "for room");
        let lane = lane_words(0, 5);
        other.memory().store(lane + LANE_IS_AWAITED, 1, Ordering::Relaxed);
        one.memory().store(lane_words(0, 6) + LANE_HEAD, 8, Ordering::Release);
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(false), "another lane");
        one.memory().store(lane + LANE_HEAD, 8, Ordering::Release);
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(true));
        assert!(other.is_to_be_watched() && !one.is_to_be_watched());
        other.memory().store(lane + LANE_TAIL, 8, Ordering::Release);
        other.memory().store(lane_words(0, 6) + LANE_TAIL, 8, Ordering::Release);
        assert_eq!(carry(&mut other, &one, Scope::Due), None, "so little can wait");
        assert!(other.is_to_be_watched(), "that was not told");
        assert_eq!(carry(&mut other, &one, Scope::All), Some(false));
        assert!(!other.is_to_be_watched());
    }

    #[test]
    fn a_gateway_that_sleeps_is_rung_for_all_and_says_nothing_of_that_to_the_other_host() {
        let [mut one, other] = both();
        one.sleeps();
        let wants = one.memory().load(SIDE + SLEEPS, Ordering::Relaxed);
        assert_eq!(wants, WANTS_FRAMES | WANTS_ROOM);
        let lane = Lane::new(one.memory().clone(), 0, LANES - 1);
        assert!(lane.publish(8));
        assert_eq!(carry(&mut one, &other, Scope::Due), Some(false));
    }

    #[test]
    fn a_gateway_that_is_gone_has_lost_the_way_unless_it_says_otherwise() {
        for side in [0, 1] {
            let mirror = Mirror::new(Window::private(BYTES), side);
            let word = |side| mirror.memory().load(side * SIDE + IS_CUT, Ordering::Relaxed);
            assert_eq!((word(side), word(1 - side), mirror.is_cut()), (0, 1, false));
            mirror.ends_well();
            assert_eq!((word(side), word(1 - side)), (0, 0));
            mirror.memory().store(side * SIDE + IS_CUT, 1, Ordering::Relaxed);
            assert!(mirror.is_cut());
        }
    }

    #[test]
    fn more_than_a_ring_has_is_invalid() {
        for (word, size) in [(HEAD, RING), (lane_words(0, 3) + LANE_HEAD, LANE)] {
            let mut pieces = Vec::new();
            let [mut one, _] = both();
            one.memory().store(word, size as u64, Ordering::Relaxed);
            assert!(one.look(Scope::Due, &mut pieces).is_ok_and(|news| news.is_some()));
            assert_eq!(pieces.iter().map(Range::len).sum::<usize>(), size);
            one.memory().store(word, 2 * size as u64 + 1, Ordering::Relaxed);
            assert_eq!(one.look(Scope::Due, &mut pieces), Err(InvalidUpdate));
        }
    }
}
