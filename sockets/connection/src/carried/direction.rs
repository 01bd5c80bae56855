//! One direction of a connection: the kernel's bytes, the ring's, the kernel's again.

use super::{Shut, Side};

/// The words of a direction, as they were at one moment. Fence, `written` and `end` are the
/// writer's, the others the reader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Direction {
    /// So many bytes went through the kernel before the ring's; none: it was not switched.
    pub fence: Option<u64>,
    /// Bytes ever put into the ring.
    pub written: u64,
    /// Bytes ever taken out of it.
    pub read: u64,
    /// The ring's bytes end here.
    pub end: Option<u64>,
    /// The reader takes no more than these; what is behind has to go through the kernel.
    pub left: Option<u64>,
}

/// Where the reader's next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the kernel: so many at most, or any number.
    Kernel(Option<u64>),
    /// In the ring.
    Ring(u64),
    /// There are none. The kernel knows whether there will be any.
    Nothing,
}

/// Where the writer's next bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Into the kernel, or it says why not.
    Kernel,
    /// Into the ring: so many at most.
    Ring(u64),
    /// Into the ring, which has no room.
    Full,
    /// First these bytes of the ring, up to what is written, go into the kernel; it ends there.
    Pump(u64),
}

impl Direction {
    /// No correct writer and reader make words that are not.
    #[must_use]
    pub fn is_sound(&self, capacity: u64) -> bool {
        let within = |point: Option<u64>| point.is_none_or(|p| p >= self.read && p <= self.written);
        let is_in_order = self.read <= self.written && self.written - self.read <= capacity;
        let is_switched = self.fence.is_some() || self.written == 0 && self.end.is_none();
        is_in_order && is_switched && within(self.end) && within(self.left)
    }

    /// Bytes in the ring that the reader has not taken, and still could.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        if self.left.is_some() {
            return 0;
        }
        self.end.unwrap_or(self.written).min(self.written).saturating_sub(self.read)
    }

    /// Whether the reader can have the kernel carry what is left: its writer must be able to send,
    /// and what is sent must not reset the connection.
    #[must_use]
    pub fn may_be_left(&self, from: Side, to: Side) -> bool {
        let is_carried = self.fence.is_some() && self.end.is_none() && self.left.is_none();
        let is_over = from.has_closed || from.shut.contains(Shut::SEND) || to.takes_nothing();
        is_carried && !is_over
    }

    /// For a reader who has had so many bytes from the kernel.
    #[must_use]
    pub fn source(&self, from_kernel: u64) -> Source {
        let Some(fence) = self.fence else { return Source::Kernel(None) };
        let waiting = self.waiting();
        if self.left.is_some() || waiting == 0 && self.end.is_some() {
            return Source::Kernel(None);
        }
        if from_kernel < fence {
            return Source::Kernel(Some(fence - from_kernel));
        }
        if waiting == 0 { Source::Nothing } else { Source::Ring(waiting) }
    }

    /// For a writer that is `from`, with `to` at the other end.
    #[must_use]
    pub fn sink(&self, from: Side, to: Side, capacity: u64) -> Sink {
        if self.fence.is_none() || self.end.is_some() {
            return Sink::Kernel;
        }
        if let Some(left) = self.left {
            return Sink::Pump(left);
        }
        if from.shut.contains(Shut::SEND) || to.takes_nothing() {
            return Sink::Kernel;
        }
        match capacity - (self.written - self.read) {
            0 => Sink::Full,
            room => Sink::Ring(room),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: u64 = 16;

    proptest! {
        /// Whatever the two sides do, and whenever the ring begins and ends, bytes come out as they
        /// went in.
        #[test]
        fn bytes_stay_in_order(steps in prop::collection::vec((0_u8..6, 1_u64..12), 1..120)) {
            let mut link = Link::default();
            for (what, count) in steps {
                link.step(what, count);
                prop_assert!(link.words.is_sound(CAPACITY), "{:?}", link.words);
            }
            // At last everything comes.
            for _ in 0..200 {
                link.step(5, CAPACITY);
                link.step(1, CAPACITY);
            }
            prop_assert_eq!(link.received, link.sent, "{:?}", link.words);
        }
    }

    /// A direction whose bytes are their own numbers.
    #[derive(Default)]
    struct Link {
        words: Direction,
        kernel: std::collections::VecDeque<u64>,
        ring: std::collections::VecDeque<u64>,
        sent: u64,
        received: u64,
        into_kernel: u64,
        from_kernel: u64,
    }

    impl Link {
        fn step(&mut self, what: u8, count: u64) {
            let nobody = Side::default();
            match what {
                0 => self.send(count),
                1 => self.receive(count),
                2 if self.words.fence.is_none() => self.words.fence = Some(self.into_kernel),
                3 if self.words.fence.is_some()
                    && self.words.end.is_none()
                    && self.words.left.is_none() =>
                {
                    self.words.end = Some(self.words.written);
                }
                4 if self.words.fence.is_some() && self.words.end.is_none() => {
                    self.words.left = Some(self.words.read);
                }
                5 if matches!(self.words.sink(nobody, nobody, CAPACITY), Sink::Pump(_)) => {
                    self.pump();
                }
                _ => {}
            }
        }

        fn pump(&mut self) {
            self.into_kernel += self.ring.len() as u64;
            self.kernel.append(&mut self.ring);
            self.words.end = self.words.left;
        }

        fn send(&mut self, count: u64) {
            for _ in 0..count {
                match self.words.sink(Side::default(), Side::default(), CAPACITY) {
                    Sink::Kernel => {
                        self.kernel.push_back(self.sent);
                        self.into_kernel += 1;
                    }
                    Sink::Ring(_) => {
                        self.ring.push_back(self.sent);
                        self.words.written += 1;
                    }
                    Sink::Full => return,
                    Sink::Pump(_) => {
                        self.pump();
                        continue;
                    }
                }
                self.sent += 1;
            }
        }

        fn receive(&mut self, count: u64) {
            for _ in 0..count {
                let byte = match self.words.source(self.from_kernel) {
                    Source::Kernel(_) => {
                        let Some(byte) = self.kernel.pop_front() else { return };
                        self.from_kernel += 1;
                        byte
                    }
                    Source::Ring(_) => {
                        self.words.read += 1;
                        self.ring.pop_front().expect("what is waiting is there")
                    }
                    Source::Nothing => return,
                };
                assert_eq!(byte, self.received);
                self.received += 1;
            }
        }
    }

    #[test]
    fn nonsense_is_found() {
        let good = Direction { fence: Some(3), written: 9, read: 4, end: None, left: None };
        assert!(good.is_sound(CAPACITY));
        for bad in [
            Direction { read: 10, ..good },
            Direction { written: 40, ..good },
            Direction { fence: None, ..good },
            Direction { end: Some(10), ..good },
            Direction { left: Some(3), ..good },
        ] {
            assert!(!bad.is_sound(CAPACITY), "{bad:?}");
        }
    }
}
