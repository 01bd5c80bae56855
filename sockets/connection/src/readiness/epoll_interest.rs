//! Keeps what an epoll set is told of a member: level, edge and one-shot.

use crate::light::connection_slot::{ERR, HUP, IN, OUT};

/// News only (`EPOLLET`).
pub const EDGE: u32 = 1 << 31;
/// Once, until that is changed (`EPOLLONESHOT`).
pub const ONE_SHOT: u32 = 1 << 30;
/// The machine stays awake meanwhile (`EPOLLWAKEUP`).
pub const WAKE_UP: u32 = 1 << 29;
/// One of several sets is woken (`EPOLLEXCLUSIVE`).
pub const EXCLUSIVE: u32 = 1 << 28;
/// Bits that are no events.
pub const FLAGS: u32 = EDGE | ONE_SHOT | WAKE_UP | EXCLUSIVE;
/// What is told of whether it was asked for or not.
pub const ALWAYS: u32 = ERR | HUP;
/// What may be asked for together with [`EXCLUSIVE`].
const WITH_EXCLUSIVE: u32 = EXCLUSIVE | EDGE | WAKE_UP | ALWAYS | IN | OUT;

/// What a program has asked for with a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest(pub u32);

/// What becomes of a member of which a set has just been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is told of again, as long as it is so.
    Again,
    /// It is told of again when there is something new.
    OnNews,
    /// It is not until the program asks for it: with this interest from now on.
    Disarmed(Interest),
}

impl Interest {
    /// It was told of once, and nothing has changed that since: nothing is, not even an end.
    #[must_use]
    pub fn is_disarmed(self) -> bool {
        self.0 & !FLAGS == 0 && self.is_one_shot()
    }

    /// It is told of news only.
    #[must_use]
    pub fn is_edge(self) -> bool {
        self.0 & EDGE != 0
    }

    /// What the set is told of, of these events.
    #[must_use]
    pub fn of(self, events: u32) -> u32 {
        if self.is_disarmed() { 0 } else { events & (self.0 | ALWAYS) & !FLAGS }
    }

    /// After it was told.
    #[must_use]
    pub fn next(self) -> Next {
        if self.is_one_shot() {
            Next::Disarmed(Self(ONE_SHOT))
        } else if self.is_edge() {
            Next::OnNews
        } else {
            Next::Again
        }
    }

    /// The kernel's rule: a member of which one set only is woken is so from the start.
    #[must_use]
    pub fn may_be_added(self) -> bool {
        !self.is_exclusive() || self.0 & !WITH_EXCLUSIVE == 0
    }

    /// One of several sets is woken: it is so from the start, and is not changed.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }

    /// It is told once.
    #[must_use]
    pub fn is_one_shot(self) -> bool {
        self.0 & ONE_SHOT != 0
    }

    /// Nobody has to keep count of who was told, or that others are not.
    #[must_use]
    pub fn is_level_or_edge(self) -> bool {
        self.0 & (FLAGS & !EDGE) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_member_that_is_told_of_once_stays_silent() {
        let asked = Interest(IN | ONE_SHOT);
        assert_eq!(asked.of(IN | OUT | HUP), IN | HUP);
        let Next::Disarmed(next) = asked.next() else { panic!("it is told of again") };
        assert!(next.is_disarmed());
        assert_eq!(next.of(IN | ERR | HUP), 0);
    }

    #[test]
    fn level_and_edge_differ_in_what_follows() {
        assert_eq!(Interest(IN).next(), Next::Again);
        assert_eq!(Interest(IN | EDGE).next(), Next::OnNews);
        assert!(matches!(Interest(EDGE | ONE_SHOT | IN).next(), Next::Disarmed(_)));
    }

    #[test]
    fn a_member_without_events_hears_of_ends() {
        assert_eq!(Interest(0).of(IN | OUT | HUP), HUP);
        assert!(!Interest(0).is_disarmed() && !Interest(EDGE).is_disarmed());
    }

    #[test]
    fn exclusive_is_so_from_the_start_or_never() {
        let exclusive = Interest(EXCLUSIVE | IN | EDGE);
        assert!(exclusive.may_be_added() && Interest(IN | ONE_SHOT).may_be_added());
        assert!(!Interest(EXCLUSIVE | ONE_SHOT | IN).may_be_added());
        assert!(!Interest(EXCLUSIVE | 0x2000).may_be_added());
        assert!(exclusive.is_exclusive() && !exclusive.is_level_or_edge());
        assert!(Interest(IN | EDGE).is_level_or_edge() && !Interest(ONE_SHOT).is_level_or_edge());
    }

    proptest! {
        #[test]
        fn no_flag_is_ever_an_event(asked: u32, events: u32) {
            let told = Interest(asked).of(events);
            prop_assert_eq!(told & FLAGS, 0);
            prop_assert_eq!(told & !events, 0);
            prop_assert!(Interest(asked).is_disarmed() || told & ALWAYS == events & ALWAYS);
        }
    }
}
