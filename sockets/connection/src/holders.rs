//! How many processes have a socket, counted in memory that all of them share.
//!
//! Who makes a process by `fork` counts it for each socket before, and who closes one counts itself
//! off behind the kernel's close. So the count is never less than there are, as long as nobody gets
//! a socket without being counted: where that may be, the count is *unknown* for good. Who is
//! killed stays counted. A count that is too high is the safe side.
//!
//! ```text
//! row 0:  where to look for a free row next | a word for what the family counts besides
//! row n:  state (generation:32 | unknown:1 | holders:31) | cookie of the socket
//! ```
//!
//! A row is free when nobody is counted. It is named by its index and its *generation*, which is
//! another one whenever the row is given to a socket, and which is in the same word as the count:
//! so who has kept a name for too long changes nothing, however late he comes between two looks.
//!
//! **Trust.** Whoever has the memory is of the same family of processes. Any word may be anything:
//! an index that is too high is nobody's, and nothing here goes on for ever.

use core::sync::atomic::{AtomicU64, Ordering};

/// Words of a row.
pub const WORDS: usize = 2;

const HOLDERS: u64 = (1 << 31) - 1;
const UNKNOWN: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;
/// Rows that are looked at for a free one. If none is, the socket is the kernel's.
const TRIES: u64 = 64;
/// How often a word is tried to be changed that others change at the same time. Then it counts for
/// too many, or is not known: never for too few.
const CHANGES: u32 = 1 << 16;

/// Memory that a family of processes has.
#[derive(Clone, Copy, Debug)]
pub struct Holders<'a> {
    rows: &'a [[AtomicU64; WORDS]],
}

/// A socket's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The row's place in the memory; 0 is nobody's.
    pub index: u32,
    /// Which of those sockets that were there one after the other.
    pub generation: u32,
    /// The socket's cookie, which never comes again.
    pub cookie: u64,
}

impl<'a> Holders<'a> {
    /// In memory that was zeroed before anybody had it.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self { rows: words.as_chunks().0 }
    }

    /// A word that all of the family have, for something else; `None` if there is no memory.
    #[must_use]
    pub fn besides(&self) -> Option<&'a AtomicU64> {
        self.rows.first().map(|[_, word]| word)
    }

    /// Changes the state of a row, if it is this socket's and `next` says so: of its count, without
    /// the generation.
    fn change(&self, name: Name, next: impl Fn(u64) -> Option<u64>) -> bool {
        let Some([state, its]) = self.rows.get(name.index as usize).filter(|_| name.index > 0)
        else {
            return false;
        };
        if its.load(Ordering::SeqCst) != name.cookie {
            return false;
        }
        let mut was = state.load(Ordering::SeqCst);
        for _ in 0..CHANGES {
            if (was >> GENERATION_SHIFT) as u32 != name.generation {
                return false;
            }
            let count = was & (HOLDERS | UNKNOWN);
            let Some(next) = next(count) else { return false };
            let next = u64::from(name.generation) << GENERATION_SHIFT | next;
            match state.compare_exchange(was, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
        // Only who writes there for nothing else can keep it changing. It is somebody's for good.
        state.fetch_or(UNKNOWN, Ordering::SeqCst);
        false
    }

    /// A row for a socket that one process has and `holders` will have. `None` if there is no room.
    #[must_use]
    pub fn claim(&self, cookie: u64, holders: u32) -> Option<Name> {
        let rows = (self.rows.len() as u64).checked_sub(1).filter(|rows| *rows > 0)?;
        let next = &self.rows[0][0];
        for _ in 0..TRIES.min(rows) {
            let index = 1 + next.fetch_add(1, Ordering::Relaxed) % rows;
            let [state, its] = &self.rows[index as usize];
            let was = state.load(Ordering::SeqCst);
            if was & HOLDERS != 0 {
                continue;
            }
            let generation = ((was >> GENERATION_SHIFT) as u32).wrapping_add(1);
            let mine = u64::from(generation) << GENERATION_SHIFT;
            let busy = mine | UNKNOWN | 1;
            // Nobody knows this name before it is returned.
            let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
            if state.compare_exchange(was, busy, ok, err).is_ok() {
                its.store(cookie, Ordering::SeqCst);
                state.store(mine | u64::from(holders) & HOLDERS, Ordering::SeqCst);
                return Some(Name { index: index as u32, generation, cookie });
            }
        }
        None
    }

    /// One more is about to have it. `false` if that cannot be said: nobody is known to have it.
    #[must_use]
    pub fn more(&self, name: Name) -> bool {
        self.change(name, |count| {
            let holders = count & HOLDERS;
            (holders != 0 && holders < HOLDERS).then(|| count + 1)
        })
    }

    /// One that was counted has it no more.
    pub fn less(&self, name: Name) {
        self.change(name, |count| match count & HOLDERS {
            0 => None,
            1 => Some(0),
            _ => Some(count - 1),
        });
    }

    /// Somebody who is not counted may have it.
    pub fn spread(&self, name: Name) {
        self.change(name, |count| (count & HOLDERS != 0).then_some(count | UNKNOWN));
    }

    /// One that was counted is counted no more, although it may have it still, or somebody else by
    /// it. In one step: nobody who is left is alone in between.
    pub fn leave(&self, name: Name) {
        self.change(name, |count| match count & HOLDERS {
            0 => None,
            1 => Some(0),
            _ => Some((count | UNKNOWN) - 1),
        });
    }

    /// Of who is counted: nobody else has it.
    #[must_use]
    pub fn is_one(&self, name: Name) -> bool {
        let Some([state, its]) = self.rows.get(name.index as usize).filter(|_| name.index > 0)
        else {
            return false;
        };
        let one = u64::from(name.generation) << GENERATION_SHIFT | 1;
        its.load(Ordering::SeqCst) == name.cookie && state.load(Ordering::SeqCst) == one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(rows: usize) -> Vec<AtomicU64> {
        (0..rows * WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn who_is_left_is_the_only_one() {
        let words = memory(8);
        let holders = Holders::new(&words);
        let row = holders.claim(7, 2).unwrap();
        assert!(!holders.is_one(row));
        assert!(holders.more(row));
        holders.less(row);
        assert!(!holders.is_one(row), "two of three");
        holders.less(row);
        assert!(holders.is_one(row) && !holders.is_one(Name { cookie: 8, ..row }));
        assert!(holders.more(row) && !holders.is_one(row));
        holders.less(row);
        holders.spread(row);
        assert!(!holders.is_one(row), "for good");
        assert!(holders.more(row));
        holders.less(row);
        assert!(!holders.is_one(row));
        holders.less(row);
        assert!(!holders.more(row), "nobody has it any more");
    }

    #[test]
    fn who_leaves_takes_the_others_for_nobody() {
        let words = memory(4);
        let holders = Holders::new(&words);
        let row = holders.claim(7, 2).unwrap();
        holders.leave(row);
        assert!(!holders.is_one(row), "it may have it still");
        holders.leave(row);
        assert!(!holders.more(row) && !holders.is_one(row));
        assert_eq!((0..3).filter(|_| holders.claim(9, 1).is_some()).count(), 3, "the row is free");
    }

    #[test]
    fn rows_come_again_but_not_for_the_socket_that_was_there() {
        let words = memory(4);
        let holders = Holders::new(&words);
        let rows = [1, 2, 3].map(|cookie| holders.claim(cookie, 1).unwrap());
        assert_eq!(holders.claim(4, 1), None);
        holders.less(rows[1]);
        let row = holders.claim(5, 2).unwrap();
        assert_eq!(row.index, rows[1].index);
        holders.less(rows[1]);
        holders.spread(rows[1]);
        holders.leave(rows[1]);
        assert!(!holders.more(rows[1]) && !holders.is_one(row), "what is old does nothing");
        // Nor if the cookie is the same: a set's is made of numbers that may come again.
        let old = Name { cookie: 5, ..rows[1] };
        holders.less(old);
        holders.spread(old);
        assert!(!holders.more(old) && !holders.is_one(old));
        holders.less(row);
        assert!(holders.is_one(row));
    }

    #[test]
    fn what_is_written_there_may_be_anything() {
        for value in [u64::MAX, HOLDERS, UNKNOWN, 0, 1 << 32, u64::MAX - HOLDERS] {
            let words = memory(3);
            words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            let holders = Holders::new(&words);
            for index in [0, 1, 2, 3, u32::MAX] {
                for generation in [0, 1, (value >> 32) as u32] {
                    let name = Name { index, generation, cookie: value };
                    _ = holders.claim(value, 2);
                    _ = holders.more(name);
                    holders.spread(name);
                    holders.less(name);
                    holders.leave(name);
                    _ = holders.is_one(name);
                }
            }
        }
        assert_eq!(Holders::new(&[]).claim(1, 1), None);
        assert_eq!(Holders::new(&memory(1)).claim(1, 1), None);
    }

    #[test]
    fn threads_that_fork_and_close_end_with_one() {
        let words = memory(2);
        let holders = Holders::new(&words);
        let row = holders.claim(9, 1).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        assert!(holders.more(row));
                        assert!(!holders.is_one(row), "there are two at least");
                        holders.less(row);
                    }
                });
            }
        });
        assert!(holders.is_one(row));
    }

    #[test]
    fn who_is_late_changes_no_other_row() {
        // One row, which is given again and again while somebody uses names that were there.
        let words = memory(2);
        let holders = Holders::new(&words);
        let late = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for cookie in 1..100_000_u64 {
                    // The same cookie twice: only the generation tells them apart.
                    let name = holders.claim(cookie / 2, 2).unwrap();
                    late.store(u64::from(name.generation), Ordering::Relaxed);
                    assert!(!holders.is_one(name), "nobody has counted itself off: {name:?}");
                    holders.less(name);
                    assert!(holders.is_one(name), "nobody has made it unknown: {name:?}");
                    holders.less(name);
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
                        let name = Name { index: 1, generation, cookie };
                        // Its two holders have gone, or are about to: it is nobody's name soon.
                        if late.load(Ordering::Relaxed) != u64::from(generation) {
                            holders.less(name);
                            holders.spread(name);
                        }
                    }
                }
            });
        });
    }
}
