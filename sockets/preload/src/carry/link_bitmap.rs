//! Stores a set of links as a bitmap of their indices.
//!
//! An iteration looks at as many words as the indices of all links take, and at none of the links
//! that are not in the set.

use core::sync::atomic::{AtomicU64, Ordering};

use omniverb_formats::private_link_slot::LINKS as MOST;

/// Words of a set of all links that there may be.
pub(super) const WORDS: usize = MOST / 64;

/// One, in these words.
#[derive(Clone, Copy)]
pub(super) struct LinkBitmap(&'static [AtomicU64]);

impl LinkBitmap {
    pub(super) fn new(words: &'static [AtomicU64]) -> Self {
        debug_assert!(words.len() == WORDS);
        Self(words)
    }

    fn place(self, index: u32) -> (&'static AtomicU64, u64) {
        (&self.0[index as usize / 64 % WORDS], 1 << (index % 64))
    }

    pub(super) fn has(self, index: u32) -> bool {
        let (word, bit) = self.place(index);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// Adds a link, visibly for every thread that looks afterwards. Whether it was in the set
    /// before.
    pub(super) fn put(self, index: u32) -> bool {
        let (word, bit) = self.place(index);
        word.fetch_or(bit, Ordering::SeqCst) & bit != 0
    }

    /// It is not. Whether it was.
    pub(super) fn take(self, index: u32) -> bool {
        let (word, bit) = self.place(index);
        word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    pub(super) fn count(self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::SeqCst).count_ones())).sum()
    }

    pub(super) fn clear(self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    }

    /// Calls with each of them that is before `end`, from `first` on and around, until that says
    /// that it is enough.
    #[inline]
    pub(super) fn each(self, first: u32, end: u32, mut with: impl FnMut(u32) -> bool) {
        let words = end.div_ceil(64) as usize;
        if words == 0 {
            return;
        }
        let first = if (first as usize) < words * 64 { first } else { 0 };
        let (begin, skipped) = (first as usize / 64, u64::MAX << (first % 64));
        for step in 0..=words {
            let at = begin + step;
            let at = if at < words { at } else { at - words };
            let mut left = self.0[at].load(Ordering::SeqCst);
            // The word where it begins is looked at twice: its end first, its beginning last.
            if step == 0 {
                left &= skipped;
            } else if step == words {
                left &= !skipped;
            }
            while left != 0 {
                if !with(at as u32 * 64 + left.trailing_zeros()) {
                    return;
                }
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> LinkBitmap {
        LinkBitmap::new(Box::leak((0..WORDS).map(|_| AtomicU64::new(0)).collect()))
    }

    #[test]
    fn each_is_seen_once_from_anywhere_on() {
        let bits = made();
        let those = [0, 1, 63, 64, 100, 128, 191, 192, 255];
        those.into_iter().for_each(|index| assert!(!bits.put(index)));
        assert!(!bits.put(77) && bits.put(77));
        assert_eq!(bits.count(), 10);
        assert!(bits.has(77) && bits.take(77) && !bits.take(77) && !bits.has(77));
        for first in [0, 1, 2, 63, 64, 99, 101, 200, 255, 5000] {
            let mut seen = Vec::new();
            bits.each(first, 300, |index| {
                seen.push(index);
                true
            });
            let mut sorted = seen.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, those);
            let from = those.into_iter().position(|index| index >= first).unwrap_or(0);
            assert!(first > 255 || seen[0] == those[from], "{first}: {seen:?}");
        }
        let mut count = 0;
        bits.each(64, 300, |_| {
            count += 1;
            count < 3
        });
        assert_eq!(count, 3);
        bits.clear();
        bits.each(0, 300, |_| panic!("nothing is in it"));
    }
}
