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
const MANAGEMENT: Limit = Limit { bits_per_second: 5000 * 8, burst_bytes: 2048 };
/// Of those, from addresses that share a lot, where there are more than may be: whoever floods has
/// one lot, and leaves the others theirs.
const MANAGEMENT_OF_A_LOT: Limit = Limit { bits_per_second: 1000 * 8, burst_bytes: 1024 };
/// Addresses are dealt to so many: neighbours to one each, neighbourhoods by a hash that nobody can
/// foresee.
const LOTS: u64 = 64;
/// Answers to strangers that are sent per second, and at once. They are on no rate limit's account,
/// which is for what programs send; who gets none asks again.
const ANSWERS: Limit = Limit { bits_per_second: 5000 * 8, burst_bytes: 1024 };
/// A stranger is told of again after this time, in nanoseconds.
const STRANGER_AGAIN: u64 = 100_000_000;
/// Strangers of one vNIC that are remembered, not to tell of them again at once.
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
    /// Answers to strangers that may still be sent.
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
        let lot = self.lot(from);
        let left = self.lots.get_mut(lot).is_some_and(|lot| take(lot, now));
        // As long as there is enough for all, nobody is kept to his lot.
        (left || self.management.is_half_full(now)) && take(&mut self.management, now)
    }

    fn lot(&self, from: IpAddr) -> usize {
        let number = match from {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) if ip.is_unicast_link_local() => ip.to_bits() as u64,
            // A host has as many addresses as it likes in its network.
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        let neighbourhood = self.dealt.hash_one(number / LOTS);
        ((number ^ neighbourhood) % LOTS) as usize
    }

    /// Whether one more answer to a stranger may be sent.
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

    fn ip(n: u32) -> IpAddr {
        IpAddr::from((0x0a4d_0000 + n).to_be_bytes())
    }

    #[test]
    fn who_floods_leaves_others_theirs() {
        let mut tidings = Tidings::new(0);
        let mut heard = 0;
        for millisecond in 0..1000u64 {
            let now = millisecond * 1_000_000;
            for _ in 0..100 {
                heard += u32::from(tidings.may_manage(ip(1), now));
            }
            // His neighbours, who never have his lot, now and then.
            if millisecond % 100 == 50 {
                assert!((2..64).all(|n| tidings.may_manage(ip(n), now)), "{millisecond} ms");
            }
        }
        assert!((1000..2048 + 5000).contains(&heard), "{heard}");
    }

    #[test]
    fn one_peer_has_all_while_nobody_else_wants_any() {
        let mut tidings = Tidings::new(0);
        let at_once = (0..4000).filter(|_| tidings.may_manage(ip(1), 0)).count();
        assert_eq!(at_once, 1025);
        // 4000 a second, where its lot has 1000.
        for n in 0..10_000u64 {
            assert!(tidings.may_manage(ip(1), 1_000_000_000 + n * 250_000), "{n}");
        }
    }

    #[test]
    fn a_host_has_one_lot_whatever_it_calls_itself() {
        let tidings = Tidings::new(0);
        let lot = |text: &str| tidings.lot(text.parse().unwrap());
        assert_eq!(lot("2001:db8::1"), lot("2001:db8::1234:5678:9abc:def0"));
        assert_ne!(lot("2001:db8::1"), lot("2001:db8:0:1::1"));
        assert_ne!(lot("fe80::1"), lot("fe80::2"));
        assert_ne!(lot("10.0.0.1"), lot("10.0.0.2"));
    }

    #[test]
    fn answers_to_strangers_are_few() {
        let mut tidings = Tidings::new(0);
        assert_eq!((0..4000).filter(|_| tidings.may_answer(0)).count(), 1024);
    }
}
