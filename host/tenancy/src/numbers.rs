//! Numbers that are handed out: queue pair numbers, keys, tokens.

/// Where random numbers come from. The daemon asks the kernel; tests count.
pub trait Entropy {
    /// 64 bits that nobody can guess.
    fn next(&mut self) -> u64;
}

/// First ordinary queue pair number; 0 and 1 belong to management.
pub(crate) const QPN_FIRST: u32 = 2;
/// Last one; 0xffffff is multicast.
pub(crate) const QPN_LAST: u32 = 0x00ff_fffe;

/// True for a number that an ordinary queue pair may have.
pub(crate) fn is_qpn(number: u32) -> bool {
    (QPN_FIRST..=QPN_LAST).contains(&number)
}

/// Hands out queue pair numbers in turn, so that a number comes back only after all others have
/// been used. Starts anywhere, so that a restarted daemon is unlikely to hand out a number that
/// a surviving process is about to announce.
#[derive(Debug)]
pub(crate) struct QpNumbers {
    first: u32,
    next: u32,
    /// All numbers have been handed out at least once.
    round: bool,
}

impl QpNumbers {
    pub(crate) fn new(entropy: &mut dyn Entropy) -> QpNumbers {
        let span = u64::from(QPN_LAST - QPN_FIRST + 1);
        let start = u32::try_from(entropy.next() % span).unwrap_or(0);
        QpNumbers { first: QPN_FIRST + start, next: QPN_FIRST + start, round: false }
    }

    /// A number that is not `taken`; `None` if all are. `held` is how many are, which bounds the
    /// search.
    pub(crate) fn take(&mut self, held: usize, taken: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..=held {
            let number = self.next;
            self.next = if number >= QPN_LAST { QPN_FIRST } else { number + 1 };
            self.round |= self.next == self.first;
            if !taken(number) {
                return Some(number);
            }
        }
        None
    }

    /// True for a number that was handed out at some time: if there is no queue pair of that
    /// number, then there is none any more.
    pub(crate) fn was_given(&self, number: u32) -> bool {
        let ahead =
            |n: u32| (n + QPN_LAST + 1 - QPN_FIRST - self.first) % (QPN_LAST + 1 - QPN_FIRST);
        is_qpn(number) && (self.round || ahead(number) < ahead(self.next))
    }
}

/// A random key that is neither 0 nor `taken`.
pub(crate) fn key(entropy: &mut dyn Entropy, taken: impl Fn(u32) -> bool) -> Option<u32> {
    // Quotas keep the table sparse, so the first draw nearly always fits.
    (0..64).map(|_| (entropy.next() >> 16) as u32).find(|key| *key != 0 && !taken(*key))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u64);

    impl Entropy for Fixed {
        fn next(&mut self) -> u64 {
            self.0
        }
    }

    #[test]
    fn numbers_go_round_and_skip_reserved_ones() {
        let span = u64::from(QPN_LAST - QPN_FIRST + 1);
        let mut numbers = QpNumbers::new(&mut Fixed(span - 2));
        let taken = |number| number == QPN_FIRST;
        let seen: Vec<_> = (0..4).map(|_| numbers.take(1, taken).unwrap()).collect();
        assert_eq!(seen, [QPN_LAST - 1, QPN_LAST, QPN_FIRST + 1, QPN_FIRST + 2]);
        for number in [QPN_LAST - 1, QPN_LAST, QPN_FIRST, QPN_FIRST + 2] {
            assert!(numbers.was_given(number));
        }
        for number in [0, 1, QPN_LAST + 1, QPN_LAST - 2, QPN_FIRST + 3] {
            assert!(!numbers.was_given(number));
        }
        assert!(!is_qpn(0) && !is_qpn(1) && !is_qpn(0x00ff_ffff) && is_qpn(QPN_FIRST));
    }

    #[test]
    fn a_full_table_gives_nothing() {
        let mut numbers = QpNumbers::new(&mut Fixed(0));
        assert_eq!(numbers.take(10, |_| true), None);
        assert_eq!(key(&mut Fixed(0), |_| false), None);
        assert_eq!(key(&mut Fixed(1 << 16), |_| false), Some(1));
        assert_eq!(key(&mut Fixed(1 << 16), |_| true), None);
    }
}
