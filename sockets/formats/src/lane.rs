//! Moves bytes through a lane: a ring in a channel for one busy connection, one way.
//!
//! The sender gives its lanes to connections and takes them away. It announces both by the channel,
//! in order with all else. So bytes sent by the channel before come before those in the lane, and
//! bytes sent by it afterwards behind them. A lane serves another connection only when its reader
//! has heard that it was taken away: it holds the bytes of one connection at a time.
//!
//! Nothing here waits. A sender that finds the lane full waits while its reader reads
//! (`sockets/preload/src/light/backpressure.rs`), and then takes its connection back to the channel
//! (docs/decisions/0060). A reader may sleep, and marks each lane that it waits for.
//!
//! **Ordering.** Bytes are copied in, then the head is stored (release); the reader loads it
//! (acquire) before it copies them out, and stores its tail then (release), which the writer loads
//! (acquire) before it writes there again. *Two looks*: a thread about to sleep marks the lane and
//! then looks at the head; the writer stores the head and then looks at the mark. A full fence is
//! between the two on both sides, so at least one of the looks finds what the other has stored. The
//! writer clears the mark and then rings the doorbell, and may be late with both. So a thread that
//! is woken sets the marks of all threads that still sleep again, before it looks for bytes.
//!
//! **Trust.** The words may be anything: they count for how far the two are apart, which may be no
//! more than the ring has. Offsets are masked.

use crate::byte_ring;
use crate::carried_direction::fence;
use crate::channel_layout::{
    LANE, LANE_HEAD, LANE_IS_AWAITED, LANE_LEFT, LANE_TAIL, lane_ring, lane_words,
};
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, WordMemory};

/// One lane, of the side that sends by it.
#[derive(Clone, Copy, Debug)]
pub struct Lane<M> {
    memory: M,
    words: usize,
    ring: usize,
}

impl<M: WordMemory> Lane<M> {
    /// The lane of that number by which the side `from` sends; the memory is the channel's.
    #[inline(always)]
    pub fn new(memory: M, from: usize, number: usize) -> Self {
        Self { memory, words: lane_words(from, number), ring: lane_ring(from, number) }
    }

    /// How far was written.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        // SYNC: published
        self.memory.load(self.words + LANE_HEAD, Ordering::Acquire)
    }

    /// Of the reader, at `tail`: bytes that are there. `None`: more than can be.
    #[inline(always)]
    pub fn waiting(&self, tail: u64) -> Option<usize> {
        let bytes = self.head().wrapping_sub(tail);
        (bytes <= LANE as u64).then_some(bytes as usize)
    }

    /// Bytes that are there, for a reader that has seen the head at `seen`. Loads the head only if
    /// that does not show `wanted` bytes.
    #[inline(always)]
    pub fn waiting_by(&self, tail: u64, seen: &mut u64, wanted: usize) -> Option<usize> {
        let bytes = seen.wrapping_sub(tail);
        if bytes >= wanted as u64 && bytes <= LANE as u64 {
            return Some(bytes as usize);
        }
        let there = self.waiting(tail)?;
        *seen = tail.wrapping_add(there as u64);
        Some(there)
    }

    /// Of the writer, at `head`, which has seen the reader at `seen`: free bytes. Loads the tail
    /// only if that does not show `wanted` bytes. An impossible tail is no room.
    #[inline(always)]
    pub fn room(&self, head: u64, seen: &mut u64, wanted: usize) -> usize {
        let room = |seen: u64| LANE.saturating_sub(head.wrapping_sub(seen) as usize);
        if room(*seen) < wanted {
            // SYNC: read
            let tail = self.memory.load(self.words + LANE_TAIL, Ordering::Acquire);
            // Only what was written can have been read.
            if head.wrapping_sub(tail) <= head.wrapping_sub(*seen) {
                *seen = tail;
            }
        }
        room(*seen)
    }

    /// Copies bytes in, `offset` behind a position.
    #[inline(always)]
    pub fn fill(&self, position: u64, offset: usize, source: UserMemory) {
        byte_ring::fill::<LANE>((&self.memory, self.ring), (position, offset), source);
    }

    /// Copies bytes out, from `offset` behind a position on.
    #[inline(always)]
    pub fn drain(&self, position: u64, offset: usize, target: UserMemory) {
        byte_ring::drain::<LANE>((&self.memory, self.ring), (position, offset), target);
    }

    /// Of the writer: publishes the bytes up to `head`. Returns whether a thread sleeps for them.
    #[inline(always)]
    pub fn publish(&self, head: u64) -> bool {
        // SYNC: published. An exchange, which is a fence by itself on x86-64.
        self.memory.word(self.words + LANE_HEAD).swap(head, Ordering::SeqCst);
        fence();
        self.memory.load(self.words + LANE_IS_AWAITED, Ordering::Relaxed) != 0
    }

    /// Of the writer, which is about to wake the reader: clears its mark.
    pub fn clear_reader_mark(&self) {
        self.memory.store(self.words + LANE_IS_AWAITED, 0, Ordering::Relaxed);
    }

    /// Of the reader: all up to there was copied out.
    #[inline(always)]
    pub fn take(&self, tail: u64) {
        // SYNC: read
        self.memory.store(self.words + LANE_TAIL, tail, Ordering::Release);
    }

    /// Of the reader: tells that it has read all bytes of the first `times` connections.
    pub fn mark_left(&self, times: u64) {
        // SYNC: left
        self.memory.store(self.words + LANE_LEFT, times, Ordering::Release);
    }

    /// Of the writer, which has taken the lane away from `times` connections: whether the reader
    /// has read all their bytes.
    pub fn is_free(&self, times: u64) -> bool {
        // SYNC: left
        self.memory.load(self.words + LANE_LEFT, Ordering::Acquire) == times
    }

    /// Of the reader: marks the lane for a thread that is about to sleep. It looks for bytes once
    /// more after this.
    pub fn awaits(&self) {
        self.memory.word(self.words + LANE_IS_AWAITED).swap(1, Ordering::SeqCst);
        fence();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel_layout::{BYTES, LANES};
    use omniverb_ring::Window;
    use proptest::prelude::*;

    proptest! {
        /// However writing and reading follow each other, and wherever the lane begins, bytes come
        /// once and in order; what other lanes have is left alone.
        #[test]
        fn bytes_come_once_in_order(
            side in 0_usize..2,
            number in 0..LANES,
            begin in any::<u64>(),
            steps in prop::collection::vec((any::<bool>(), 1..LANE + 10), 1..40),
        ) {
            let memory = Window::private(BYTES);
            let lane = Lane::new(memory.clone(), side, number);
            let (mut head, mut tail, mut seen, mut seen_head) = (begin, begin, begin, begin);
            lane.publish(begin);
            lane.take(begin);
            let byte = |at: u64| (at ^ (at >> 8)) as u8;
            for (writes, count) in steps {
                if writes {
                    let room = lane.room(head, &mut seen, count);
                    prop_assert_eq!(room.min(count), count.min(LANE - (head - tail) as usize));
                    let new: Vec<u8> =
                        (0..room.min(count) as u64).map(|at| byte(head + at)).collect();
                    UserMemory::lend(&new, |new| lane.fill(head, 0, new));
                    head += new.len() as u64;
                    prop_assert!(!lane.publish(head));
                } else {
                    let there = lane.waiting(tail).unwrap();
                    prop_assert_eq!(there, (head - tail) as usize);
                    let by = lane.waiting_by(tail, &mut seen_head, count).unwrap();
                    prop_assert!(by == there || by < there && by >= count);
                    let mut got = vec![0; there.min(count)];
                    UserMemory::lend_mut(&mut got, |to| lane.drain(tail, 0, to));
                    prop_assert!(got.iter().zip(tail..).all(|(got, at)| *got == byte(at)));
                    tail += got.len() as u64;
                    lane.take(tail);
                }
            }
            let (words, ring) = (lane_words(side, number), lane_ring(side, number));
            let own = [words..words + LANE_TAIL + 8, ring..ring + LANE];
            let is_others = |at: &usize| !own.iter().any(|range| range.contains(at));
            let others = (0..BYTES).step_by(8).filter(is_others);
            for at in others {
                prop_assert_eq!(memory.load(at, Ordering::Relaxed), 0);
            }
        }

        /// Whatever the words are, nothing is touched outside the ring.
        #[test]
        fn arbitrary_words_do_no_harm(
            (head, tail, mine) in any::<(u64, u64, u64)>(),
            mut seen in any::<u64>(),
            count in 1..LANE,
        ) {
            let memory = Window::private(BYTES);
            memory.store(lane_words(0, 3) + LANE_HEAD, head, Ordering::Relaxed);
            memory.store(lane_words(0, 3) + LANE_TAIL, tail, Ordering::Relaxed);
            let lane = Lane::new(memory.clone(), 0, 3);
            if let Some(there) = lane.waiting(mine) {
                prop_assert!(there <= LANE);
                let mut got = vec![0; there.min(count)];
                UserMemory::lend_mut(&mut got, |to| lane.drain(mine, 0, to));
            }
            let mut seen_head = seen;
            let by = lane.waiting_by(mine, &mut seen_head, count);
            prop_assert!(by.is_none_or(|by| by <= LANE));
            prop_assert!(lane.room(mine, &mut seen, count) <= LANE);
        }
    }

    #[test]
    fn a_lane_is_free_when_that_was_heard() {
        let lane = Lane::new(Window::private(BYTES), 0, 7);
        assert!(lane.is_free(0) && !lane.is_free(1));
        lane.mark_left(1);
        assert!(lane.is_free(1) && !lane.is_free(0));
    }

    #[test]
    fn a_sleeper_is_reported_once() {
        let memory = Window::private(BYTES);
        let lane = Lane::new(memory.clone(), 1, LANES - 1);
        assert!(!lane.publish(8));
        lane.awaits();
        assert!(lane.publish(16));
        lane.clear_reader_mark();
        assert!(!lane.publish(24));
        lane.awaits();
        assert!(lane.publish(32));
    }
}
