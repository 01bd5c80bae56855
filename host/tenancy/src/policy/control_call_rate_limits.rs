//! Paces the calls by which a vNIC's processes make queue pairs, regions and connections.
//!
//! A call over the rate is answered later, at a time of its own: calls wait in the order in which
//! they came, as commands do for the firmware of a NIC, and calls of other vNICs do not wait for
//! them. A call that would wait for too long is refused. Calls that end something are not counted.

use omniverb_session::Message;
use std::num::NonZeroU32;

/// What the processes of one vNIC may ask of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlLimits {
    /// Control operations per second, those that make queue pairs included; `None`: as many as it
    /// likes.
    pub operations: Option<NonZeroU32>,
    /// Queue pairs that are made per second.
    pub queue_pairs_per_second: Option<NonZeroU32>,
    /// Queue pairs at a time; the quotas of all vNICs hold besides.
    pub queue_pairs: Option<u32>,
}

const SECOND: u64 = 1_000_000_000;
/// What may be done at once after a pause: as much as in so many nanoseconds.
const CREDIT: u64 = SECOND / 10;
/// How long a call waits at most, in nanoseconds.
const WAIT_MAX: u64 = SECOND;

/// What kind of call it is, for the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// It ends or asks something.
    Uncounted,
    /// It makes or changes something.
    Control,
    /// It makes a queue pair, which is a control operation, too.
    QueuePair,
}

impl CallKind {
    /// The kind of this message.
    pub(crate) fn of(message: &Message) -> CallKind {
        match message {
            Message::CreateQp(_) => CallKind::QueuePair,
            Message::ConnectQp(_)
            | Message::AttachGroup(_)
            | Message::RegMr(_)
            | Message::CreateCmId(_)
            | Message::BindCmId(_)
            | Message::ListenCmId(_)
            | Message::ResolveCmId(_)
            | Message::ConnectCmId(_)
            | Message::AcceptCmId(_) => CallKind::Control,
            _ => CallKind::Uncounted,
        }
    }
}

/// The state of one rate: the time from which on more may be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bucket {
    free_at: u64,
}

impl Bucket {
    /// When the next operation may be done.
    fn next(self, now: u64) -> u64 {
        self.free_at.max(now.saturating_sub(CREDIT))
    }

    /// One more is done at the time that [`Bucket::next`] says.
    fn take(&mut self, rate: NonZeroU32, now: u64) {
        let period = SECOND.div_ceil(u64::from(rate.get()));
        self.free_at = self.next(now).saturating_add(period);
    }
}

/// Recent calls of the processes of one vNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlPace {
    operations: Bucket,
    queue_pairs: Bucket,
}

impl ControlPace {
    /// When an operation that is asked for now is to be done; it is counted. `None`: that would be
    /// too late, and it is not counted.
    pub(crate) fn admit(&mut self, limits: ControlLimits, kind: CallKind, now: u64) -> Option<u64> {
        let counts = |is_counted: bool, rate: Option<NonZeroU32>| rate.filter(|_| is_counted);
        let all = counts(kind != CallKind::Uncounted, limits.operations);
        let of_qps = counts(kind == CallKind::QueuePair, limits.queue_pairs_per_second);
        let times = [
            all.map(|_| self.operations.next(now)),
            of_qps.map(|_| self.queue_pairs.next(now)),
            Some(now),
        ];
        let at = times.into_iter().flatten().max()?;
        if at > now.saturating_add(WAIT_MAX) {
            return None;
        }
        if let Some(rate) = all {
            self.operations.take(rate, now);
        }
        if let Some(rate) = of_qps {
            self.queue_pairs.take(rate, now);
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(operations: u32, queue_pairs_per_second: u32) -> ControlLimits {
        ControlLimits {
            operations: NonZeroU32::new(operations),
            queue_pairs_per_second: NonZeroU32::new(queue_pairs_per_second),
            queue_pairs: None,
        }
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let (mut pace, start) = (ControlPace::default(), 10 * SECOND);
        let admit =
            |pace: &mut ControlPace, now| pace.admit(limits(100, 0), CallKind::Control, now);
        // A tenth of a second's worth, and one more: then one each 10 ms.
        let at_once = (0..30).take_while(|_| admit(&mut pace, start) == Some(start)).count();
        assert_eq!(at_once, 11);
        assert_eq!(admit(&mut pace, start), Some(start + 2 * SECOND / 100));
        // What would wait for longer than a second is refused, and does not count.
        let waiting = (0..1000).take_while(|_| admit(&mut pace, start).is_some()).count();
        assert_eq!(waiting, 98);
        assert_eq!((admit(&mut pace, start), admit(&mut pace, start)), (None, None));
        assert_eq!(admit(&mut pace, start + SECOND / 100), Some(start + SECOND + SECOND / 100));
    }

    #[test]
    fn queue_pairs_count_twice_and_ends_not_at_all() {
        let (mut pace, now) = (ControlPace::default(), SECOND);
        for _ in 0..1000 {
            assert_eq!(pace.admit(limits(1, 1), CallKind::Uncounted, now), Some(now));
        }
        assert_eq!(pace.admit(limits(0, 1), CallKind::Control, now), Some(now));
        assert_eq!(pace.admit(limits(0, 1), CallKind::QueuePair, now), Some(now));
        assert!(pace.admit(limits(0, 1), CallKind::QueuePair, now) > Some(now));
        assert_eq!(pace.admit(limits(1, 0), CallKind::QueuePair, now), Some(now));
        assert!(pace.admit(limits(1, 0), CallKind::Control, now) > Some(now));
        // Without limits nothing waits, whatever was before.
        assert_eq!(pace.admit(limits(0, 0), CallKind::QueuePair, now), Some(now));
    }

    proptest! {
        /// In no stretch of time is more done than the rate, its credit and one allow, whatever is
        /// asked when; and calls are done in the order in which they came.
        #[test]
        fn the_rate_is_kept(
            rate in 1_u32..5000,
            steps in prop::collection::vec((0_u64..20_000_000, 1_usize..8), 1..60),
        ) {
            let (mut pace, mut now, mut done) = (ControlPace::default(), 5 * SECOND, Vec::new());
            for (passes, calls) in steps {
                now += passes;
                for _ in 0..calls {
                    let Some(at) = pace.admit(limits(rate, 0), CallKind::Control, now) else {
                        continue;
                    };
                    prop_assert!((now..=now + WAIT_MAX).contains(&at));
                    prop_assert!(done.last().is_none_or(|last| *last <= at));
                    done.push(at);
                }
            }
            for (first, from) in done.iter().enumerate() {
                for (last, to) in done.iter().enumerate().skip(first) {
                    let may = (to - from + CREDIT) * u64::from(rate) / SECOND;
                    prop_assert!((last - first) as u64 <= may + 1, "{first} {last} {may}");
                }
            }
        }

        /// Where all the time as much is asked as may be, so much is done: no less than the rate.
        #[test]
        fn the_rate_is_used(rate in 1_u32..5000) {
            let (mut pace, start) = (ControlPace::default(), 5 * SECOND);
            let (mut now, mut done) = (start, 0_u64);
            while now < start + 4 * SECOND {
                now = pace.admit(limits(rate, 0), CallKind::Control, now).unwrap().max(now);
                done += 1;
            }
            let may = 4 * u64::from(rate);
            prop_assert!(done + 2 + may / 1000 >= may, "{done} of {may}");
        }
    }
}
