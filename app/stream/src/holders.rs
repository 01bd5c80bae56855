//! How many processes have a socket, counted in memory that all of them share.
//!
//! Who makes a process by `fork` counts it for each socket before, and who closes one counts itself
//! off behind the kernel's close. So the count is never less than there are, as long as nobody gets
//! a socket without being counted: where that may be, the count is *unknown* for good. Who is
//! killed, or executes another program, stays counted. A count that is too high is the safe side.
//!
//! ```text
//! row 0:  where to look for a free row next
//! row n:  state (unknown:1 | holders:31) | cookie of the socket
//! ```
//!
//! A row is free when nobody is counted. It is named by its index and the cookie, which never comes
//! again: who has kept an index for too long finds another socket there, and does nothing.
//!
//! **Trust.** Whoever has the memory is of the same family of processes, and had, or was in a place
//! to have, what is counted there. Any word may be anything: an index that is too high is nobody's.

use core::sync::atomic::{AtomicU64, Ordering};

/// Words of a row.
pub const WORDS: usize = 2;

const HOLDERS: u64 = (1 << 31) - 1;
const UNKNOWN: u64 = 1 << 31;
/// Rows that are looked at for a free one. If none is, the socket is the kernel's.
const TRIES: u64 = 64;

/// Memory that a family of processes has.
#[derive(Clone, Copy, Debug)]
pub struct Holders<'a> {
    rows: &'a [[AtomicU64; WORDS]],
}

impl<'a> Holders<'a> {
    /// In memory that was zeroed before anybody had it.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self { rows: words.as_chunks().0 }
    }

    /// The state of a row, if it is this socket's.
    fn state(&self, index: u32, cookie: u64) -> Option<&'a AtomicU64> {
        let [state, its] = self.rows.get(index as usize).filter(|_| index > 0)?;
        (its.load(Ordering::Acquire) == cookie).then_some(state)
    }

    /// A row for a socket that one process has and `holders` will have. `None` if there is no room.
    #[must_use]
    pub fn claim(&self, cookie: u64, holders: u32) -> Option<u32> {
        let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
        let rows = (self.rows.len() as u64).checked_sub(1).filter(|rows| *rows > 0)?;
        let next = &self.rows[0][0];
        for _ in 0..TRIES.min(rows) {
            let index = 1 + next.fetch_add(1, Ordering::Relaxed) % rows;
            let [state, its] = &self.rows[index as usize];
            if state.compare_exchange(0, UNKNOWN | 1, ok, err).is_ok() {
                its.store(cookie, Ordering::SeqCst);
                state.store(u64::from(holders) & HOLDERS, Ordering::SeqCst);
                return Some(index as u32);
            }
        }
        None
    }

    /// One more is about to have it. `false` if that cannot be said: nobody is known to have it.
    #[must_use]
    pub fn more(&self, index: u32, cookie: u64) -> bool {
        let next = |state: u64| {
            let holders = state & HOLDERS;
            (holders != 0 && holders < HOLDERS).then(|| state + 1)
        };
        let state = self.state(index, cookie);
        state.is_some_and(|state| {
            state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
        })
    }

    /// One that was counted has it no more.
    pub fn less(&self, index: u32, cookie: u64) {
        let next = |state: u64| match state & HOLDERS {
            0 => None,
            1 => Some(0),
            _ => Some(state - 1),
        };
        if let Some(state) = self.state(index, cookie) {
            _ = state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        }
    }

    /// Somebody who is not counted may have it.
    pub fn spread(&self, index: u32, cookie: u64) {
        let next = |state: u64| (state & HOLDERS != 0).then_some(state | UNKNOWN);
        if let Some(state) = self.state(index, cookie) {
            _ = state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        }
    }

    /// Of who is counted: nobody else has it.
    #[must_use]
    pub fn is_one(&self, index: u32, cookie: u64) -> bool {
        self.state(index, cookie).is_some_and(|state| state.load(Ordering::SeqCst) == 1)
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
        assert!(!holders.is_one(row, 7));
        assert!(holders.more(row, 7));
        holders.less(row, 7);
        assert!(!holders.is_one(row, 7), "two of three");
        holders.less(row, 7);
        assert!(holders.is_one(row, 7) && !holders.is_one(row, 8));
        assert!(holders.more(row, 7) && !holders.is_one(row, 7));
        holders.less(row, 7);
        holders.spread(row, 7);
        assert!(!holders.is_one(row, 7), "for good");
        assert!(holders.more(row, 7));
        holders.less(row, 7);
        assert!(!holders.is_one(row, 7));
        holders.less(row, 7);
        assert!(!holders.more(row, 7), "nobody has it any more");
    }

    #[test]
    fn rows_come_again_but_not_for_the_socket_that_was_there() {
        let words = memory(4);
        let holders = Holders::new(&words);
        let rows = [1, 2, 3].map(|cookie| holders.claim(cookie, 1).unwrap());
        assert_eq!(holders.claim(4, 1), None);
        holders.less(rows[1], 2);
        let row = holders.claim(5, 2).unwrap();
        assert_eq!(row, rows[1]);
        holders.less(row, 2);
        holders.spread(row, 2);
        assert!(!holders.more(row, 2) && !holders.is_one(row, 5), "what is old does nothing");
        holders.less(row, 5);
        assert!(holders.is_one(row, 5));
    }

    #[test]
    fn what_is_written_there_may_be_anything() {
        for value in [u64::MAX, HOLDERS, UNKNOWN, 0, 1 << 32] {
            let words = memory(3);
            words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            let holders = Holders::new(&words);
            for index in [0, 1, 2, 3, u32::MAX] {
                _ = holders.claim(value, 2);
                _ = holders.more(index, value);
                holders.spread(index, value);
                holders.less(index, value);
                _ = holders.is_one(index, value);
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
                        assert!(holders.more(row, 9));
                        assert!(!holders.is_one(row, 9), "there are two at least");
                        holders.less(row, 9);
                    }
                });
            }
        });
        assert!(holders.is_one(row, 9));
    }
}
