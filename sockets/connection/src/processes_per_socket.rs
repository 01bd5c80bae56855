//! Counts the processes that have a socket, in memory that all of them share.
//!
//! A process that calls `fork` counts its child for each socket before, and a process that closes
//! one counts itself off after the kernel's close. So the count is never too low, as long as no
//! process gets a socket without being counted: where that may be, the count is *unknown* for good.
//! A process that is killed stays counted. A count that is too high is the safe side.
//!
//! ```text
//! slot 0:  where to look for a free slot next | a word for what the family counts besides
//! slot n:  state (generation:32 | unknown:1 | processes:31) | cookie of the socket
//! ```
//!
//! A slot is free when no process is counted. It is named by its index and its *generation*, which
//! changes whenever the slot is given to a socket, and which is in the same word as the count: so
//! a process that has kept a key for too long changes nothing, however late it comes.
//!
//! **Trust.** All that have the memory are of the same family of processes. Any word may be
//! anything: an index that is too high names no slot, and nothing here goes on for ever.

use core::sync::atomic::{AtomicU64, Ordering};

/// Words of a slot.
pub const WORDS: usize = 2;

const PROCESSES: u64 = (1 << 31) - 1;
const UNKNOWN: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;
/// Slots that are looked at for a free one. If none is, the socket is the kernel's.
const TRIES: u64 = 64;
/// How often a change is tried again of a word that other processes change at the same time. Then
/// it counts too many, or is unknown: never too few.
const CHANGES: u32 = 1 << 16;

/// Memory that a family of processes has.
#[derive(Clone, Copy, Debug)]
pub struct ProcessCounts<'a> {
    slots: &'a [[AtomicU64; WORDS]],
}

/// Names a socket's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountKey {
    /// The slot's place in the memory; 0 is none.
    pub index: u32,
    /// Which of the sockets that were there one after the other.
    pub generation: u32,
    /// The socket's cookie, which never comes again.
    pub cookie: u64,
}

impl<'a> ProcessCounts<'a> {
    /// In memory that was zeroed before any process had it.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self { slots: words.as_chunks().0 }
    }

    /// A word that all of the family share, for something else; `None` if there is no memory.
    #[must_use]
    pub fn family_word(&self) -> Option<&'a AtomicU64> {
        self.slots.first().map(|[_, word]| word)
    }

    /// Changes the state of a slot, if it is this socket's and `next` says so: of its count,
    /// without the generation.
    fn change(&self, key: CountKey, next: impl Fn(u64) -> Option<u64>) -> bool {
        let Some([state, its]) = self.slots.get(key.index as usize).filter(|_| key.index > 0)
        else {
            return false;
        };
        if its.load(Ordering::SeqCst) != key.cookie {
            return false;
        }
        let mut was = state.load(Ordering::SeqCst);
        for _ in 0..CHANGES {
            if (was >> GENERATION_SHIFT) as u32 != key.generation {
                return false;
            }
            let count = was & (PROCESSES | UNKNOWN);
            let Some(next) = next(count) else { return false };
            let next = u64::from(key.generation) << GENERATION_SHIFT | next;
            match state.compare_exchange(was, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
        // Only a process that does nothing else can keep it changing. It is unknown for good.
        state.fetch_or(UNKNOWN, Ordering::SeqCst);
        false
    }

    /// A slot for a socket that one process has and `processes` will have. `None` if there is no
    /// room.
    #[must_use]
    pub fn allocate(&self, cookie: u64, processes: u32) -> Option<CountKey> {
        let slots = (self.slots.len() as u64).checked_sub(1).filter(|slots| *slots > 0)?;
        let next = &self.slots[0][0];
        for _ in 0..TRIES.min(slots) {
            let index = 1 + next.fetch_add(1, Ordering::Relaxed) % slots;
            let [state, its] = &self.slots[index as usize];
            let was = state.load(Ordering::SeqCst);
            if was & PROCESSES != 0 {
                continue;
            }
            let generation = ((was >> GENERATION_SHIFT) as u32).wrapping_add(1);
            let mine = u64::from(generation) << GENERATION_SHIFT;
            let busy = mine | UNKNOWN | 1;
            // No process knows this key before it is returned.
            let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
            if state.compare_exchange(was, busy, ok, err).is_ok() {
                its.store(cookie, Ordering::SeqCst);
                state.store(mine | u64::from(processes) & PROCESSES, Ordering::SeqCst);
                return Some(CountKey { index: index as u32, generation, cookie });
            }
        }
        None
    }

    /// Counts one more process that is about to have it. `false` if no process is counted.
    #[must_use]
    pub fn increment(&self, key: CountKey) -> bool {
        self.change(key, |count| {
            let processes = count & PROCESSES;
            (processes != 0 && processes < PROCESSES).then(|| count + 1)
        })
    }

    /// Counts off a process that has it no more.
    pub fn decrement(&self, key: CountKey) {
        self.change(key, |count| match count & PROCESSES {
            0 => None,
            1 => Some(0),
            _ => Some(count - 1),
        });
    }

    /// Marks the count unknown: a process that is not counted may have it.
    pub fn mark_unknown(&self, key: CountKey) {
        self.change(key, |count| (count & PROCESSES != 0).then_some(count | UNKNOWN));
    }

    /// Counts off a process that may have it still, or have passed it on, and marks the count
    /// unknown. In one step: no process that is left is alone in between.
    pub fn abandon(&self, key: CountKey) {
        self.change(key, |count| match count & PROCESSES {
            0 => None,
            1 => Some(0),
            _ => Some((count | UNKNOWN) - 1),
        });
    }

    /// Whether the calling process, which is counted, is the only one that has it.
    #[must_use]
    pub fn is_exclusive(&self, key: CountKey) -> bool {
        let Some([state, its]) = self.slots.get(key.index as usize).filter(|_| key.index > 0)
        else {
            return false;
        };
        let one = u64::from(key.generation) << GENERATION_SHIFT | 1;
        its.load(Ordering::SeqCst) == key.cookie && state.load(Ordering::SeqCst) == one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(slots: usize) -> Vec<AtomicU64> {
        (0..slots * WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn the_last_counted_process_is_exclusive() {
        let words = memory(8);
        let counts = ProcessCounts::new(&words);
        let slot = counts.allocate(7, 2).unwrap();
        assert!(!counts.is_exclusive(slot));
        assert!(counts.increment(slot));
        counts.decrement(slot);
        assert!(!counts.is_exclusive(slot), "two of three");
        counts.decrement(slot);
        assert!(counts.is_exclusive(slot) && !counts.is_exclusive(CountKey { cookie: 8, ..slot }));
        assert!(counts.increment(slot) && !counts.is_exclusive(slot));
        counts.decrement(slot);
        counts.mark_unknown(slot);
        assert!(!counts.is_exclusive(slot), "for good");
        assert!(counts.increment(slot));
        counts.decrement(slot);
        assert!(!counts.is_exclusive(slot));
        counts.decrement(slot);
        assert!(!counts.increment(slot), "no process has it any more");
    }

    #[test]
    fn an_abandoned_count_is_never_exclusive() {
        let words = memory(4);
        let counts = ProcessCounts::new(&words);
        let slot = counts.allocate(7, 2).unwrap();
        counts.abandon(slot);
        assert!(!counts.is_exclusive(slot), "it may have it still");
        counts.abandon(slot);
        assert!(!counts.increment(slot) && !counts.is_exclusive(slot));
        assert_eq!(
            (0..3).filter(|_| counts.allocate(9, 1).is_some()).count(),
            3,
            "the slot is free"
        );
    }

    #[test]
    fn a_reused_slot_ignores_keys_of_earlier_sockets() {
        let words = memory(4);
        let counts = ProcessCounts::new(&words);
        let slots = [1, 2, 3].map(|cookie| counts.allocate(cookie, 1).unwrap());
        assert_eq!(counts.allocate(4, 1), None);
        counts.decrement(slots[1]);
        let slot = counts.allocate(5, 2).unwrap();
        assert_eq!(slot.index, slots[1].index);
        counts.decrement(slots[1]);
        counts.mark_unknown(slots[1]);
        counts.abandon(slots[1]);
        assert!(
            !counts.increment(slots[1]) && !counts.is_exclusive(slot),
            "what is old does nothing"
        );
        // Nor if the cookie is the same: a set's is made of numbers that may come again.
        let old = CountKey { cookie: 5, ..slots[1] };
        counts.decrement(old);
        counts.mark_unknown(old);
        assert!(!counts.increment(old) && !counts.is_exclusive(old));
        counts.decrement(slot);
        assert!(counts.is_exclusive(slot));
    }

    #[test]
    fn any_words_are_survived() {
        for value in [u64::MAX, PROCESSES, UNKNOWN, 0, 1 << 32, u64::MAX - PROCESSES] {
            let words = memory(3);
            words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            let counts = ProcessCounts::new(&words);
            for index in [0, 1, 2, 3, u32::MAX] {
                for generation in [0, 1, (value >> 32) as u32] {
                    let key = CountKey { index, generation, cookie: value };
                    _ = counts.allocate(value, 2);
                    _ = counts.increment(key);
                    counts.mark_unknown(key);
                    counts.decrement(key);
                    counts.abandon(key);
                    _ = counts.is_exclusive(key);
                }
            }
        }
        assert_eq!(ProcessCounts::new(&[]).allocate(1, 1), None);
        assert_eq!(ProcessCounts::new(&memory(1)).allocate(1, 1), None);
    }

    #[test]
    fn concurrent_increments_and_decrements_balance() {
        let words = memory(2);
        let counts = ProcessCounts::new(&words);
        let slot = counts.allocate(9, 1).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        assert!(counts.increment(slot));
                        assert!(!counts.is_exclusive(slot), "there are two at least");
                        counts.decrement(slot);
                    }
                });
            }
        });
        assert!(counts.is_exclusive(slot));
    }

    #[test]
    fn a_late_key_changes_no_other_slot() {
        // One slot, which is given again and again while a thread uses keys of earlier sockets.
        let words = memory(2);
        let counts = ProcessCounts::new(&words);
        let late = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for cookie in 1..100_000_u64 {
                    // The same cookie twice: only the generation tells them apart.
                    let key = counts.allocate(cookie / 2, 2).unwrap();
                    late.store(u64::from(key.generation), Ordering::Relaxed);
                    assert!(
                        !counts.is_exclusive(key),
                        "no process has counted itself off: {key:?}"
                    );
                    counts.decrement(key);
                    assert!(counts.is_exclusive(key), "nothing has made it unknown: {key:?}");
                    counts.decrement(key);
                }
                late.store(u64::MAX, Ordering::Relaxed);
            });
            scope.spawn(|| {
                loop {
                    let generation = late.load(Ordering::Relaxed);
                    if generation == u64::MAX {
                        break;
                    }
                    let generation = (generation as u32).wrapping_sub(1);
                    let cookie = u64::from(generation) / 2;
                    for cookie in cookie.saturating_sub(1)..cookie + 2 {
                        let key = CountKey { index: 1, generation, cookie };
                        // Its two processes have gone, or are about to: its key is old soon.
                        if late.load(Ordering::Relaxed) != u64::from(generation) {
                            counts.decrement(key);
                            counts.mark_unknown(key);
                        }
                    }
                }
            });
        });
    }

    #[test]
    fn a_family_shares_one_word_beside_its_counts() {
        let words = memory(2);
        let (one, other) = (ProcessCounts::new(&words), ProcessCounts::new(&words));
        one.family_word().unwrap().store(7, Ordering::Relaxed);
        assert!(one.allocate(5, 1).is_some());
        assert_eq!(other.family_word().unwrap().load(Ordering::Relaxed), 7);
        assert!(ProcessCounts::new(&[]).family_word().is_none());
    }

    #[test]
    fn a_full_count_takes_no_more_and_can_still_fall() {
        let words = memory(2);
        let counts = ProcessCounts::new(&words);
        let key = counts.allocate(5, PROCESSES as u32).unwrap();
        assert!(!counts.increment(key));
        counts.decrement(key);
        assert!(counts.increment(key) && !counts.increment(key));
    }
}
