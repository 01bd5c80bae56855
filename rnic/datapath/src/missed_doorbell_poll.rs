//! Decides when a link that waits for its application is polled again.
//!
//! The application does something and then looks whether it is to ring (BLOCKED); we say that it is
//! and then look what it has done. Neither has a memory fence between the two, so both may miss
//! each other (decision 0001). One look is due therefore a moment after anything happened, or after
//! we said so. A look that comes sooner, for whatever reason, is none.

/// How much later that is, in nanoseconds.
const LATER: u64 = 1_000_000;

/// Of one link.
#[derive(Default)]
pub struct Recheck {
    /// Something has happened since the link was served, or we have said that it is to ring.
    has_news: bool,
    /// When to look, in nanoseconds of links' time.
    due: Option<u64>,
}

impl Recheck {
    /// Something has happened, or the application is to ring only from now on.
    pub fn news(&mut self) {
        self.has_news = true;
    }

    /// The link was served `now`.
    pub fn served(&mut self, now: u64) {
        if std::mem::take(&mut self.has_news) {
            self.due = Some(now + LATER);
        } else if self.due.is_some_and(|due| due <= now) {
            self.due = None;
        }
    }

    /// When to look at a link that waits for its application, if nothing happens until then.
    pub fn due(&self) -> Option<u64> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_poll_is_due_after_news_and_none_before_counts() {
        let mut look = Recheck::default();
        look.served(5);
        assert_eq!(look.due(), None);
        look.news();
        look.served(10);
        // An acknowledgement was held back for a moment, an alarm went off.
        for now in [10, 12, 10 + LATER - 1] {
            look.served(now);
            assert_eq!(look.due(), Some(10 + LATER));
        }
        look.news();
        look.served(20);
        assert_eq!(look.due(), Some(20 + LATER));
        look.served(20 + LATER);
        assert_eq!(look.due(), None);
    }
}
