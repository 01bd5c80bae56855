//! Tries something again and again until a time, where to wait for it might be to wait for ever: a
//! thread that a signal has interrupted may have what it needs.

use omniverb_sys::clock;
use std::time::Duration;

/// How long is waited between two attempts.
const MOMENT: Duration = Duration::from_millis(1);

/// Tries it once at least, and last when the clock shows `until`, in nanoseconds. `None`: it has
/// never succeeded.
pub(crate) fn retry_until<T>(until: u64, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let found = attempt();
        if found.is_some() || clock::now() >= until {
            return found;
        }
        std::thread::sleep(MOMENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_once_at_least_and_no_longer_than_it_takes() {
        let mut tries = 0;
        let never = retry_until(0, || {
            tries += 1;
            None::<()>
        });
        assert_eq!((never, tries), (None, 1));
        let third = retry_until(u64::MAX, || {
            tries += 1;
            (tries == 4).then_some(tries)
        });
        assert_eq!(third, Some(4));
    }
}
