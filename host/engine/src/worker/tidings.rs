//! What of one vNIC the control plane is told: what strangers send is theirs to choose, so it is
//! bounded.

use crate::pacing::bucket::{Bucket, Limit};
use omniverb_terms::Qpn;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// Handshakes and strangers that are passed on per second, and at once.
const ALARMS: Limit = Limit { bits_per_second: 2000 * 8, burst_bytes: 200 };
/// Management datagrams that are passed on per second, and at once: some for each connection that
/// begins or ends. All that are left out come again, and a flood at one vNIC must leave room for
/// the events of all others (`EVENTS_MAX`).
const MANAGEMENT: Limit = Limit { bits_per_second: 5000 * 8, burst_bytes: 256 };
/// Of those, from addresses that share a lot: whoever floods has one lot, and leaves the others
/// theirs.
const MANAGEMENT_OF_A_LOT: Limit = Limit { bits_per_second: 1000 * 8, burst_bytes: 256 };
/// Addresses are dealt to so many, by a hash that nobody can foresee.
const LOTS: usize = 64;
/// Management datagrams that are sent per second, and at once. They are on no rate limit's account,
/// which is for what programs send; what is left out is said again when it is not answered.
const ANSWERS: Limit = Limit { bits_per_second: 5000 * 8, burst_bytes: 1024 };
/// A stranger is told of again after this time, in nanoseconds.
const STRANGER_AGAIN: u64 = 100_000_000;
/// Strangers remembered.
const STRANGERS_MAX: usize = 1024;

/// A datagram's QP, where it came from, and from which QP.
pub(super) type Stranger = (Qpn, IpAddr, Qpn);

/// What may still be told, and what was.
pub(super) struct Tidings {
    /// A byte for each.
    left: Bucket,
    /// The same for management.
    management: Bucket,
    lots: Vec<Bucket>,
    dealt: RandomState,
    /// Management datagrams that may still be sent.
    answers: Bucket,
    /// Who was told of, and when.
    strangers: HashMap<Stranger, u64>,
}

impl Tidings {
    pub(super) fn new(now: u64) -> Tidings {
        Tidings {
            left: Bucket::new(ALARMS, now),
            management: Bucket::new(MANAGEMENT, now),
            lots: (0..LOTS).map(|_| Bucket::new(MANAGEMENT_OF_A_LOT, now)).collect(),
            dealt: RandomState::new(),
            answers: Bucket::new(ANSWERS, now),
            strangers: HashMap::new(),
        }
    }

    /// Whether the control plane may be bothered once more.
    pub(super) fn may_tell(&mut self, now: u64) -> bool {
        take(&mut self.left, now)
    }

    /// Whether it may be bothered with one more management datagram, from this address.
    pub(super) fn may_manage(&mut self, from: IpAddr, now: u64) -> bool {
        let lot = self.dealt.hash_one(from) as usize % LOTS;
        self.lots.get_mut(lot).is_some_and(|lot| take(lot, now)) && take(&mut self.management, now)
    }

    /// Whether one more may be sent.
    pub(super) fn may_answer(&mut self, now: u64) -> bool {
        take(&mut self.answers, now)
    }

    /// Whether a stranger is to be told of: not again and again.
    pub(super) fn is_news(&mut self, stranger: Stranger, now: u64) -> bool {
        if self.strangers.len() >= STRANGERS_MAX {
            self.strangers.retain(|_, at| now.saturating_sub(*at) < STRANGER_AGAIN);
        }
        let before = self.strangers.get(&stranger);
        let news = before.is_none_or(|at| now.saturating_sub(*at) >= STRANGER_AGAIN)
            && self.strangers.len() < STRANGERS_MAX
            && self.may_tell(now);
        if news {
            self.strangers.insert(stranger, now);
        }
        news
    }
}

/// One more, if there may be one more.
fn take(from: &mut Bucket, now: u64) -> bool {
    let may = from.ready(now).is_ok();
    if may {
        from.take(1);
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_floods_leaves_others_theirs() {
        let mut tidings = Tidings::new(0);
        let ip = |n: u32| IpAddr::from(n.to_be_bytes());
        let mut heard = 0;
        for millisecond in 0..1000u64 {
            for _ in 0..100 {
                heard += u32::from(tidings.may_manage(ip(1), millisecond * 1_000_000));
            }
            // Somebody else, now and then; one in 64 has the flooder's lot.
            if millisecond % 100 == 50 {
                let now = millisecond * 1_000_000;
                let others = (2..66).filter(|n| tidings.may_manage(ip(*n), now)).count();
                assert!(others > 40, "after {millisecond} ms");
            }
        }
        assert!((1000..1400).contains(&heard), "{heard}");
    }
}
